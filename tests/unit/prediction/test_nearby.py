"""Where a batch hardly divides over its devices, the nearest that does is asked next to it."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.base.errors import PlanError
from perfsim.prediction.planner import RANGE, SHARE, Search, divisible, has_plan
from perfsim.prediction.question import Question, question_of
from perfsim.studies.shortlist import LEAST_GAIN, plan_layouts


def asked(devices: int, batch: int, **given: object) -> Question:
    known = {"model": "gpt3_6p7b", "system": "dgx-a100-80gb", "devices": devices, "batch": batch}
    return question_of(known | given)


@given(st.integers(1, 60), st.integers(1, 600))
@settings(deadline=None, max_examples=80)
def test_no_nearer_batch_or_number_of_whole_nodes_divides(nodes: int, batch: int) -> None:
    devices = 8 * nodes
    found = divisible(asked(devices, batch))
    assert not found or math.gcd(devices, batch) * SHARE < devices
    for other in found:
        size = other.job.global_batch_size
        assert math.gcd(other.devices, size) * SHARE >= other.devices
        assert other.devices % 8 == 0
        assert (size == batch) != (other.devices == devices)
        change = abs(size - batch) or abs(other.devices - devices) // 8
        assert abs(size - batch) <= max(1, RANGE * batch)
        assert abs(other.devices - devices) <= RANGE * devices
        for away in range(1 - change, change):
            near = (devices, batch + away) if size != batch else (devices + 8 * away, batch)
            assert math.gcd(*near) * SHARE < near[0]


def test_a_plan_answers_for_the_batch_that_divides_next_to_the_asked_one() -> None:
    planned = plan_layouts(asked(48, 49, runs_on="any"), shown=1)
    (other,) = planned.nearby
    assert (other.num_devices, other.global_batch_size) == (48, 48)
    rate = planned.best.tokens_per_s
    assert other.gain == pytest.approx(48 * 2048 / other.step_time_s / rate)
    assert other.gain > LEAST_GAIN
    assert not plan_layouts(asked(48, 48, runs_on="any"), shown=1).nearby
    assert [near.job.global_batch_size for near in divisible(asked(64, 7))] == [8]


def test_a_plan_whose_tensor_groups_leave_nodes_names_devices_over_which_layers_divide() -> None:
    """105 layers in equal stages, as Megatron-LM of 2021 wants them, on 64 and on 60 nodes."""
    planned = plan_layouts(asked(512, 1024, model="mt_nlg_530b"), shown=1)
    (other,) = planned.nearby
    assert planned.best.layout["tensor"] > 8
    assert other.num_devices == 480
    assert other.gain > 2


def test_of_a_rack_whole_servers_are_named() -> None:
    (batch, servers) = divisible(asked(71, 512, model="llama31_70b", system="gb300-nvl72"))
    assert (batch.devices, batch.job.global_batch_size) == (71, 497)
    assert (servers.devices, servers.job.global_batch_size) == (64, 512)


def test_where_no_layout_is_legal_the_named_questions_have_one() -> None:
    """Seven stages do not divide 72 layers evenly, as its tool of then would need."""
    question = asked(112, 2048, model="megatron_8p3b")
    with pytest.raises(PlanError, match="2044 sequences a step") as refused:
        Search(question)
    near = divisible(question, legal=False)
    assert [(other.devices, other.job.global_batch_size) for other in near] == [(112, 2044), (96, 2048)]
    assert all(other.label in str(refused.value) for other in near)
    assert all(Search(other).screening.feasible for other in near)


def test_a_batch_that_divides_and_fits_nowhere_is_not_named() -> None:
    question = asked(616, 1536, model="gpt3_175b")
    (near,) = divisible(question, legal=False)
    assert (near.devices, near.job.global_batch_size) == (576, 1536)
    assert not has_plan(replace(question, batch=1540))


def test_a_sequence_whose_scores_fit_nowhere_is_answered_with_fused_attention() -> None:
    long = {"model": "llama_7b", "recipe.seq_length": 131_072}
    with pytest.raises(PlanError, match=r"with --set runtime\.attention=flash it fits"):
        Search(asked(24, 24, **long))
    assert Search(asked(24, 24, **long, **{"runtime.attention": "flash"})).screening.feasible
