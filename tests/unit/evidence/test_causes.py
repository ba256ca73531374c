"""Likely causes: rules over a run's fields and the parts of its predicted step."""

from __future__ import annotations

from typing import Any

import pytest

from perfsim.evidence.accuracy_page import _Facts
from perfsim.evidence.cases import StepCase
from perfsim.testing.toys import published_run


def facts(
    error: float,
    shares: dict[str, float],
    *,
    family_bias: float = 0.0,
    tensor_across_nodes: bool = False,
    **changes: Any,
) -> _Facts:
    case = StepCase.model_validate(published_run(**changes))
    return _Facts(case, shares, error=error, family_bias=family_bias, tensor_across_nodes=tensor_across_nodes)


def test_a_factor_makes_the_prediction_right() -> None:
    given = facts(0.25, {"attention core": 0.5})
    step_s, part_s = 1.25, 0.625  # measured 1 s
    assert step_s - part_s + part_s * given.factor("attention core") == pytest.approx(1.0)


ENDS = "embedding, head and loss"
HOST = "host-launch floor"
ATTENTION = "attention core"
LITTLE_ATTENTION = {ATTENTION: 0.04}
COMPUTING = {"forward": 0.3, "backward": 0.6}
HEADS_OF_108 = {"model": {"hidden_size": 1728}}
WAFER = {"system": {"device": "cs-2", "num_devices": 1, "software_release": "r2.1"}}
BLOCKING = {"training": {"host_blocking": True}}
STAGES = {"parallel": {"pipeline": 2}}
ACROSS = {"tensor_across_nodes": True}
WEAK = {"evidence": "C", "notes": "1F1B; weak: twice its neighbours"}
NOT_PRINTED = {"evidence": "C", "assumed": ["vocab", "inter_node: rate not printed"]}
FITTING = round((1 - 0.1 / 1.1 / 0.25) * published_run()["model"]["vocab_size"])
"""Rows of the vocabulary with which an error of 10 % is explained by a quarter of the step."""
ASSUMED = f"{ENDS} (25 % of the step at a vocabulary that is assumed; right with about {FITTING:,} rows"
SEVERAL = {ATTENTION: 0.2, HOST: 0.4, "optimizer": 0.03}
TWO = f"{HOST} (40 % of the step, right at 0.77 times); {ATTENTION}"


@pytest.mark.parametrize(
    ("error", "shares", "changes", "said"),
    [
        (0.1, SEVERAL, {}, TWO),
        (-0.1, {ATTENTION: 0.5}, WEAK, "weak evidence (twice its neighbours); attention core"),
        (-0.1, {}, NOT_PRINTED, "weak evidence (not printed: vocab, inter_node"),
        (-0.2, LITTLE_ATTENTION, HEADS_OF_108, "head size 108 is no multiple of 8: attention slower still"),
        (0.0, LITTLE_ATTENTION, HEADS_OF_108, "head size 108 is no multiple of 8: attention faster than"),
        (-0.1, {"tensor-parallel collectives": 0.5}, ACROSS, "tensor parallelism between nodes (50 %"),
        (0.1, {}, {"family_bias": 0.08}, "shared by its family (+8.0 %"),
        (0.1, {ENDS: 0.3}, STAGES, "embedding, or head and loss on the last stage (30 % of the step)"),
        (-0.1, {HOST: 0.2}, BLOCKING, "a host that waits for every kernel (20 %"),
        (-0.15, COMPUTING, WAFER, "computing (90 % of the step) at the speed of release r2.1"),
        (0.4, {}, {}, "no single mechanism"),
        (0.1, {ENDS: 0.25}, {"assumed": ["vocab"]}, ASSUMED),
    ],
)
def test_the_likeliest_cause_comes_first(
    error: float, shares: dict[str, float], changes: dict[str, Any], said: str
) -> None:
    assert facts(error, shares, **changes).likely_cause.startswith(said)


@pytest.mark.parametrize(
    ("error", "shares", "changes", "unsaid"),
    [
        (0.5, {"optimizer": 0.05}, {}, "optimizer"),  # too light for the error
        (-0.5, {"optimizer": 0.05}, {}, "optimizer"),
        (-0.2, {ATTENTION: 0.01}, HEADS_OF_108, "head size"),  # attention hardly weighs
        (-0.2, LITTLE_ATTENTION, {}, "head size"),
        (-0.1, {}, {"family_bias": 0.08}, "shared"),
        (0.1, {ENDS: 0.3}, {}, "on the last stage"),
        (-0.5, {HOST: 0.2}, BLOCKING, "waits for every kernel"),
    ],
)
def test_what_cannot_be_the_cause_is_not_named(
    error: float, shares: dict[str, float], changes: dict[str, Any], unsaid: str
) -> None:
    assert unsaid not in facts(error, shares, **changes).likely_cause
