"""The closed form that screens layouts, piece by piece."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsim.costs.price import price
from perfsim.engine import critical_path
from perfsim.engine.tables import excess
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies import Plan, strategy
from perfsim.strategies.three_d.closed_form import _lost
from perfsim.strategies.three_d.space import MODES
from perfsim.testing import toys
from perfsim.work import Work

LAYERS = {"attention.forward": 1.0, "mlp.forward": 1.0, "attention.backward": 2.0, "mlp.backward": 2.0}


def both(plan: Plan, seconds: dict[str, float], costs_class: type = toys.TableCosts) -> tuple[float, float]:
    """Estimated and simulated."""
    costs = costs_class(seconds)
    graph = toys.graph_of(plan)
    simulated = critical_path(graph, price(graph, costs)).step_time_s
    return strategy(plan.strategy).estimate_s(plan, costs), simulated


@pytest.mark.parametrize("microbatches", [1, 2, 7, 16])
@pytest.mark.parametrize("pipeline", [1, 2, 4])
def test_equal_stages_are_exact(pipeline: int, microbatches: int) -> None:
    plan = toys.plan("3d", toys.job(microbatches), ParallelLayout(pipeline=pipeline))
    estimated, simulated = both(plan, LAYERS)
    assert estimated == pytest.approx(simulated)
    assert simulated == (microbatches + pipeline - 1) * 6.0 * 8 / pipeline


def test_the_slowest_stage_sets_the_pace() -> None:
    layout = ParallelLayout(pipeline=2, layers_per_stage=(2, 6))
    estimated, simulated = both(toys.plan("3d", toys.job(16), layout), LAYERS)
    assert estimated == pytest.approx(6.0 * (8 + 15 * 6))
    assert estimated == pytest.approx(simulated, rel=0.01)


TAIL = {
    "data.all_reduce": 3.0,
    "data.reduce_scatter": 2.0,
    "pipeline.tied_embedding": 5.0,
    "optimizer": 1.0,
    "data.all_gather": 4.0,
}
AGAIN = {"attention.recompute": 0.5, "mlp.recompute": 0.7, "tensor.all_reduce": 0.1}
EXACT: dict[str, tuple[ParallelLayout, dict[str, float]]] = {
    **{f"recompute {name}": (ParallelLayout(tensor=2, recompute=name), AGAIN) for name in MODES},
    "a reduction, the tied table and the update": (ParallelLayout(pipeline=2, data=2), TAIL),
    "a scatter and a gather in place of the reduction": (
        ParallelLayout(pipeline=2, data=2, zero_stage=1),
        TAIL,
    ),
}


@pytest.mark.parametrize(("layout", "seconds"), EXACT.values(), ids=EXACT)
def test_recompute_collectives_and_all_after_the_last_backward_are_counted(
    layout: ParallelLayout, seconds: dict[str, float]
) -> None:
    estimated, simulated = both(toys.plan("3d", toys.job(8), layout), LAYERS | seconds)
    assert estimated == pytest.approx(simulated)


def test_sends_are_counted_whatever_the_number_of_gpus_in_a_node() -> None:
    """All sends take equally long here, so it makes no difference how many of them leave a node."""
    estimates = []
    for gpus in (1, 2, 4):
        system = toys.gpu_cluster(gpus=gpus, nics=1)
        plan = toys.plan("3d", toys.job(16), ParallelLayout(pipeline=4), system)
        estimates.append(both(plan, LAYERS | {"pipeline.send": 2.0})[0])
    assert estimates == [estimates[0]] * 3


@pytest.mark.parametrize("microbatches", [1, 3])
def test_gradients_that_every_micro_batch_scatters_are_not_reduced_again(microbatches: int) -> None:
    """ZeRO 2 without overlap: a scatter for each of 8 layers and one for the tables."""
    plan = toys.plan("3d", toys.job(2 * microbatches), ParallelLayout(data=2, zero_stage=2))
    estimated, simulated = both(plan, LAYERS | TAIL)
    assert estimated == pytest.approx(simulated)
    assert simulated == microbatches * (8 * 6.0 + 9 * 2.0) + 5.0


@pytest.mark.parametrize("bucket", [None, 3 * 2e8])
@pytest.mark.parametrize("bucket_s", [0.5, 4.0, 9.0])
def test_overlapped_reduction_exposes_what_outlasts_the_backward_and_the_tables(
    bucket_s: float, bucket: float | None
) -> None:
    job = toys.job(8, {"overlap_grad_reduce": True, "grad_bucket": bucket})
    plan = toys.plan("3d", job, ParallelLayout(data=2))
    layer_bytes = 4.0 * (12 * 2048**2 + 13 * 2048)

    class Priced(toys.TableCosts):
        """A layer's gradients take `bucket_s`, other reductions by their bytes."""

        def duration_s(self, work: Work) -> float:
            if work.op == "all_reduce":
                return bucket_s * work.comm_bytes / layer_bytes
            return super().duration_s(work)

    estimated, simulated = both(plan, LAYERS, Priced)
    assert estimated == pytest.approx(simulated, rel=1e-6)


def test_without_a_layout_nothing_is_screened_and_nothing_refused() -> None:
    """A batch of 5 sequences divides over no 8 replicas."""
    screening = strategy("data").screen(toys.job(5), toys.topology(8), toys.TableCosts(LAYERS))
    assert (len(screening.estimate_s), len(screening.memory_share), screening.screened) == (0, 0, 0)
    assert screening.refused == {}
    assert screening.closest is None


pairs = st.tuples(*[st.floats(0.0, 5.0)] * 2)
shares = st.tuples(*[st.floats(0.0, 1.0)] * 2)


@given(pairs, shares)
def test_a_hidden_second_costs_what_the_engine_makes_of_it_and_less_than_a_second(
    taken: tuple[float, float], limits: tuple[float, float]
) -> None:
    """Also where communications of a machine without a calibration would take more than there is."""
    longer = sum(part * excess(out) for part, out in zip(limits, taken, strict=True))
    (lost,) = _lost(np.array([taken]), np.array([limits]))[0]
    assert lost == pytest.approx(longer / (1 + longer), rel=1e-12)
    assert 0.0 <= lost < 1.0
