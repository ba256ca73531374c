"""Layouts in grids, and their prices in components, against the same layouts one by one."""

from __future__ import annotations

import numpy as np
import pytest

from perfsim.catalog import default_catalog
from perfsim.prediction.question import Question
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.model import LayerKind
from perfsim.strategies import strategy
from perfsim.strategies.three_d.emission import layer_of
from perfsim.strategies.three_d.layers import FORWARD, HalfPass
from perfsim.strategies.three_d.prices import LayerPrices, layer_terms, slices_of
from perfsim.strategies.three_d.space import columns_of, layout_space

DRAWN = 24
ASKED = {
    "experts beside tensor groups": ("mixtral_8x7b", {"num_layers": 6}, "dgx-h100", 16),
    "shared experts, dense layers and a further token": ("deepseek_v3", {"num_layers": 5}, "dgx-h100", 32),
    "windows": ("gpt_oss_120b", {"num_layers": 6}, "dgx-h100", 16),
    "no experts": ("gpt3_6p7b", {}, "dgx-a100-80gb", 16),
}


def question(name: str) -> Question:
    model, changes, system, devices = ASKED[name]
    catalog = default_catalog()
    return Question(
        model=catalog.model(model).model_copy(update=changes),
        recipe=catalog.recipe("llm_2024"),
        system=catalog.system(system),
        devices=devices,
        strategy="3d",
        batch=48,
    )


@pytest.mark.parametrize("name", ASKED)
def test_drawn_layouts_have_the_estimate_and_the_memory_of_the_layout_alone(name: str) -> None:
    asked = question(name)
    job = asked.job
    topology = asked.topology
    costs = asked.costs
    chosen = strategy("3d")
    found = chosen.screen(job, topology, costs)
    drawn = np.random.default_rng(0).choice(found.feasible, DRAWN, replace=False).tolist()
    plans = [chosen.plan(job, topology, found.layout(row)) for row in drawn]
    assert [plan.memory_share for plan in plans] == pytest.approx(found.memory_share[drawn], rel=1e-12)
    alone = [chosen.estimate_s(plan, costs) for plan in plans]
    assert alone == pytest.approx(found.estimate_s[drawn], rel=1e-9)
    assert len({plan.layout for plan in plans}) == DRAWN


@pytest.mark.parametrize("micro_batch", [1, 6])
@pytest.mark.parametrize(("expert", "expert_tensor"), [(8, 1), (2, 4), (16, 1)])
def test_experts_are_priced_as_those_that_a_stage_maps(
    micro_batch: int, expert: int, expert_tensor: int
) -> None:
    """Prices know the tokens of a rank alone, a stage the tensor and context groups that divide them."""
    asked = question("shared experts, dense layers and a further token")
    job = asked.job
    kind = LayerKind(experts=True)
    layout = ParallelLayout(
        tensor=4,
        data=4,
        context=2,
        sequence_parallel=True,
        micro_batch_size=micro_batch,
        expert=expert,
        expert_tensor=expert_tensor,
    )
    terms = layer_terms(job, slices_of(columns_of(job, layout)), kind)
    prices = LayerPrices(*terms.sums(asked.costs.durations_s(terms.works))[:, 0])
    layer = layer_of(job, layout, 0, kind)
    sums = [work for between in (FORWARD[0], FORWARD[1]) for work in layer.group.all_reduce_works(between)]
    passes: list[tuple[HalfPass, float, float]] = [
        ("forward", prices.forward, prices.hosted),
        ("backward", prices.backward, prices.hosted_backward),
    ]
    for which, price, hosted in passes:
        works = layer.mlp.works(which)
        attention = layer.attention.works(which)
        assert hosted == pytest.approx(asked.costs.durations_s(works[1:-1]).sum(), rel=1e-12)
        rest = asked.costs.durations_s([*works, *attention]).sum()
        assert rest < price <= rest + asked.costs.durations_s(sums).sum()


def test_a_layout_of_a_space_is_the_row_with_its_index() -> None:
    asked = question("experts beside tensor groups")
    space = layout_space(asked.job, asked.topology, ("tensor", "pipeline", "data", "expert"))
    columns = space.rows()
    assert len(columns) == len(space)
    for row in (0, 1, len(space) // 2, len(space) - 1):
        assert space.layout(row) == columns.layout(row)
    with pytest.raises(IndexError, match=f"a space of {len(space)} layouts has no layout {len(space)}"):
        space.layout(len(space))
