"""The caveats of several answers together."""

from dataclasses import replace

import pytest

import perfsim as ps
from perfsim.prediction.caveats import Caveat
from perfsim.studies.answers import SharedCaveat, confidence, shared_caveats

EDGE = Caveat("batch-at-edge", "warning", "the same")


@pytest.fixture(scope="module")
def gpus() -> ps.Prediction:
    return ps.predict(model="gpt3_xl", system="dgx-a100-80gb", devices=8, layout="dp=8,mbs=1", batch=16)


def wafers(devices: int) -> ps.Prediction:
    return ps.predict(model="cerebras_gpt_111m", system="cs-2", devices=devices, batch=120 * devices)


def test_a_caveat_of_several_answers_is_said_once_in_the_words_of_the_worst() -> None:
    shared = {caveat.code: caveat for caveat in shared_caveats([wafers(n) for n in (1, 4, 16)])}
    outside = shared["devices-outside"]
    assert outside.machines == ("16 CS-2 (to a lesser degree 4)",)
    assert outside.text.startswith("8 times as many systems")
    assert list(shared.values()) == sorted(shared.values(), key=Caveat.rank)


def test_machines_of_one_caveat_are_named_together(gpus: ps.Prediction) -> None:
    answers = [replace(gpus, num_devices=8 * n, caveats=(EDGE,)) for n in range(1, 7)]
    (shared,) = shared_caveats(answers)
    assert shared.machines == ("8 to 48 A100-80GB",)
    answers = [replace(gpus, caveats=(EDGE,)), replace(gpus, strategy="data", caveats=())]
    (shared,) = shared_caveats(answers)
    assert shared.machines == ("8 A100-80GB, 3d",)
    (shared,) = shared_caveats([replace(answer, caveats=(EDGE,)) for answer in (gpus, wafers(1))])
    assert shared.systems == ("dgx-a100-80gb", "cs-2")
    assert shared.machines == ("8 A100-80GB", "1 CS-2")


@pytest.mark.parametrize(
    ("severity", "clause"),
    [
        ("serious", "low confidence in a and b: all before"),
        ("warning", "limited confidence in a and b: all before"),
        ("info", ""),
    ],
)
def test_a_verdict_quotes_the_worst_caveat_up_to_its_first_semicolon(severity: str, clause: str) -> None:
    mild = SharedCaveat("memory-tight", "info", "mild", ("c",), ("1 c",), ("c",))
    nouns = ("a", "b")
    worst = SharedCaveat("few-runs", severity, "all before; and after", nouns, ("1 a", "1 b"), nouns)
    assert confidence([mild, worst]) == clause
