"""Steps of today over kinds of layouts, machines, recipes and perturbations: each figure of the answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import perfsim as ps

QUESTIONS = {
    "dense_3d": {
        "model": "gpt3_20b",
        "system": "dgx-a100-80gb",
        "devices": 64,
        "batch": 512,
        "layout": "tp=4,pp=4",
    }
}
MOVING = ("perfsim", "inputs_digest")
"""What differs between equal answers: the release, and a digest that names every input."""


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_step_is_what_it_was(name: str, recorded: Callable[..., None]) -> None:
    answer = ps.predict(**QUESTIONS[name]).document()
    recorded(f"step_{name}", {key: value for key, value in answer.items() if key not in MOVING})
