"""The record of published runs."""

from __future__ import annotations

from importlib.resources import files

import pytest

import perfsim as ps
from perfsim.evidence.cases import public_cases
from perfsim.evidence.record import reached_record
from perfsim.prediction import bands
from perfsim.prediction.bands import Reached
from perfsim.strategies import Plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return ps.predict(
        model="gpt3_xl", system="dgx-a100-80gb", devices=8, strategy="3d", layout="dp=8,mbs=1", batch=16
    ).run.plan


def test_the_record_is_what_the_cases_give() -> None:
    paths = [path for path in public_cases() if path.name != "convergence.yaml"]
    kept = files("perfsim.prediction").joinpath(bands.RUNS_RECORD).read_text(encoding="utf-8")
    assert kept == reached_record(paths), "run: perfsim validate --record"


def test_published_figures_of_the_record_are_those_of_the_papers() -> None:
    """Korthikanti et al., Table 5: 530B with selective recompute reaches 56.0 % MFU on 280 GPUs."""
    (row,) = (row for row in Reached.recorded() if row.id == "korthikanti22_t5_530b_selective")
    assert row.mfu == pytest.approx(0.560, abs=0.002)
    assert (row.num_devices, row.tensor, row.data, row.sharded) == (280, 8, 1, False)
    assert row.parameters == pytest.approx(5.3e11, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "mfu", "words"),
    [
        ([("standard", 8, 0.5)], 0.49, ""),
        ([("standard", 8, 0.5)], 0.52, ""),
        ([("standard", 8, 0.5)], 0.53, "with standard attention on a quarter of its devices or more"),
        ([("standard", 8, 0.5), ("flash", 8, 0.6)], 0.53, "with standard attention on a quarter"),
        ([("standard", 1, 0.7), ("standard", 2, 0.5)], 0.6, "with standard attention on a quarter"),
        ([("standard", 1, 0.5)], 0.6, "with standard attention"),
        ([("flash", 1, 0.5)], 0.6, "with any attention"),
        ([], 0.9, ""),
    ],
)
def test_a_plan_is_compared_with_the_runs_that_are_most_like_it(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, rows: list[tuple[str, int, float]], mfu: float, words: str
) -> None:
    """Runs on another device or in another precision do not count."""
    assert {row.device for row in Reached.like(plan)} == {"a100-sxm4-80gb", "a100-sxm4-40gb"}
    device = plan.system.device.name
    runs = [Reached("run", device, *row, precision="fp16") for row in rows]
    runs.append(Reached("elsewhere", "x", "standard", 99, 0.99, precision="fp16"))
    runs.append(Reached("narrow", device, "standard", 99, 0.99, precision="fp8"))
    monkeypatch.setattr(Reached, "recorded", lambda: tuple(runs))
    above = Reached.best_below(plan, mfu)
    assert (above is not None) == bool(words)
    assert above is None or above[1].startswith(words)
