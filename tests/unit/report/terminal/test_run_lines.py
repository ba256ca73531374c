"""One predicted step on a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfsim.costs.memory import MemoryUse
from perfsim.costs.wafer import StreamingRoof
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.why import Why
from perfsim.report.terminal import run_lines


@pytest.fixture
def prediction() -> Prediction:
    sentence = "Bound by compute: compute 90.0 % of the step. Nearest remedy: more devices."
    return Prediction(
        model="gpt3_xl",
        strategy="3d",
        system="dgx-a100-80gb",
        num_devices=8,
        machine="8 A100-80GB (1 DGX)",
        devices_noun="A100-80GB",
        layout={"tensor": 2, "pipeline": 1, "data": 4, "micro_batch_size": 2, "sequence_parallel": True},
        global_batch_size=64,
        step_time_s=0.5,
        tokens_per_s=262144.0,
        mfu=0.4712,
        hfu=0.5,
        bubble_fraction=0.03,
        exposed_communication_fraction=0.125,
        peak_memory_bytes=40.0 * 2**30,
        memory=(MemoryUse("stage 0", {"activations": 40.0 * 2**30}, 80.0 * 2**30),),
        breakdown_s={"forward": 0.15, "backward": 0.3, "data_communication": 0.05, "bubble": 0.0},
        why=Why("compute", {"compute": 0.45}, "more devices", sentence),
    )


def test_every_metric_is_shown(prediction: Prediction) -> None:
    text = "\n".join(run_lines(prediction))
    for part in (
        "gpt3_xl on 8 A100-80GB (1 DGX), 3d",
        "64 sequences",
        "tp2 dp4 mbs2, sequence parallel",
        "500 ms",
        "262,144",
        "47.1 % / 50.0 % of peak",
        "3.0 % of the step",
        "12.5 % of the step",
        "40.0 GiB per device",
    ):
        assert part in text
    said = "why Bound by compute: compute 90.0 % of the step. Nearest remedy: more devices."
    assert said in " ".join(text.split())


def test_the_parts_of_the_step_are_listed_longest_first(prediction: Prediction) -> None:
    lines = run_lines(prediction)
    parts = [line.split() for line in lines[lines.index("") + 3 :]]
    assert parts == [
        ["backward", "300", "60.0", "%"],
        ["forward", "150", "30.0", "%"],
        ["data", "communication", "50.0", "10.0", "%"],
    ], "a part that takes no time is left out"


def test_a_streamed_step_says_why_its_two_accounts_differ(prediction: Prediction) -> None:
    why = replace(prediction.why, streaming_roof=StreamingRoof(1.0, 2.0, 2.0))
    lines = run_lines(replace(prediction, why=why))
    assert "'why' counts the wait between two steps as the update" in lines[-1]
    assert any(line.startswith("idle ") for line in lines)
