"""Parameters of ZeRO 1 and 2 that are gathered beside the first forward of a step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.costs.price import price
from perfsim.engine import critical_path
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies import Plan, strategy
from perfsim.testing import toys

LAYERS = {"attention.forward": 1.0, "mlp.forward": 1.0, "attention.backward": 2.0, "mlp.backward": 2.0}


def planned(layout: ParallelLayout, batch: int, **recipe: Any) -> Plan:
    plan: Plan = toys.plan("3d", toys.job(batch, {"overlap_param_gather": True, **recipe}), layout)
    return plan


@settings(max_examples=25)
@given(
    zero_stage=st.sampled_from([1, 2]),
    gather=st.integers(0, 5),
    microbatches=st.integers(1, 3),
    bucket=st.sampled_from([None, 1e9]),
)
def test_the_closed_form_is_exact_whatever_takes_longer(
    zero_stage: int, gather: int, microbatches: int, bucket: float | None
) -> None:
    layout = ParallelLayout(data=2, zero_stage=zero_stage)
    plan = planned(layout, 2 * microbatches, grad_bucket=bucket)
    costs = toys.TableCosts({**LAYERS, "data.all_gather": gather})
    graph = toys.graph_of(plan)
    simulated = critical_path(graph, price(graph, costs)).step_time_s
    assert strategy("3d").estimate_s(plan, costs) == pytest.approx(simulated)


def test_all_parameters_are_gathered_once() -> None:
    def gathered(overlap: bool) -> float:
        layout = ParallelLayout(pipeline=2, data=2, zero_stage=1)
        graph = toys.graph_of(planned(layout, 8, overlap_param_gather=overlap))
        works = [graph.works[number] for number in graph.work.tolist()]
        return sum(work.comm_bytes for work in works if work.op == "all_gather")

    assert gathered(overlap=True) == pytest.approx(gathered(overlap=False))
