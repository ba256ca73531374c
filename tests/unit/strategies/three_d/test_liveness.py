"""Activations counted twice: by the closed form of a plan, and by what is alive in its simulated step."""

from collections.abc import Callable
from typing import Any

import pytest

from perfsim.costs.price import price
from perfsim.engine import simulate
from perfsim.engine.trace import Trace
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies import Plan
from perfsim.testing import toys
from perfsim.work import peer_classes, unfold

Peaks = Callable[..., dict[str, float]]
SAVED = "saved"
"""The tensor class of activations that a layer keeps for its backward."""
SMALL = {"num_layers": 24, "hidden_size": 1024, "ffn_hidden_size": 4096}


def planned(layout: ParallelLayout, microbatches: int, layers: int = 24) -> Plan:
    batch = microbatches * layout.micro_batch_size * layout.data
    return toys.plan("3d", toys.job(batch, **(SMALL | {"num_layers": layers})), layout)


def run(plan: Plan) -> Trace:
    graph = plan.graph()
    return simulate(graph, price(graph, toys.ToyCosts(plan.system)))


def closed_form(plan: Plan) -> list[float]:
    """Activations of each stage."""
    return [use.parts_bytes["activations"] for use in plan.memory]


ORDERS = [("1f1b", stages, 1, batches) for stages, batches in ((1, 4), (2, 8), (4, 8), (8, 16), (8, 3))]
ORDERS += [("gpipe", 2, 1, 4), ("gpipe", 4, 1, 8)]
ORDERS += [("interleaved", *sizes) for sizes in ((2, 2, 8), (4, 2, 8), (4, 3, 16), (4, 2, 4))]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("name", "p", "v", "m"), ORDERS)
def test_closed_form_and_liveness_agree_stage_by_stage(
    peak_live_bytes: Peaks, name: str, p: int, v: int, m: int, recompute: Any
) -> None:
    layout = ParallelLayout(
        tensor=2, pipeline=p, data=2, virtual_pipeline=v, schedule=name, recompute=recompute
    )
    plan = planned(layout, m)
    assert list(peak_live_bytes(run(plan), {SAVED}).values()) == pytest.approx(closed_form(plan), rel=1e-9)


@pytest.mark.parametrize(("name", "p", "v", "m"), ORDERS)
def test_all_that_is_alive_is_little_more(peak_live_bytes: Peaks, name: str, p: int, v: int, m: int) -> None:
    """Three hidden activations of the layer at work, and what an interleaved neighbour sent early."""
    plan = planned(ParallelLayout(pipeline=p, virtual_pipeline=v, schedule=name), m)
    hidden = 2.0 * plan.job.seq_length * plan.job.model.hidden_size
    for total, saved in zip(peak_live_bytes(run(plan)).values(), closed_form(plan), strict=True):
        assert 0 < total - saved <= (3 if v == 1 else 6) * hidden
        assert total == pytest.approx(saved, rel=0.02)


@pytest.mark.parametrize("layers", [(1, 3, 3, 1), (3, 1, 1, 3), (3, 2, 2, 1), (0, 4, 4, 0), (2, 3, 3, 0)])
@pytest.mark.parametrize("m", [2, 4, 6, 10])
def test_uneven_chunks_agree_too(peak_live_bytes: Peaks, layers: tuple[int, ...], m: int) -> None:
    layout = ParallelLayout(pipeline=2, virtual_pipeline=2, schedule="interleaved", layers_per_stage=layers)
    plan = planned(layout, m, layers=8)
    alive = peak_live_bytes(run(plan), {SAVED})
    assert list(alive.values()) == pytest.approx([held for held in closed_form(plan) if held], rel=1e-9)


@pytest.mark.parametrize("exchange", ["ring", "all_to_all"])
def test_context_ranks_agree_too(peak_live_bytes: Peaks, exchange: Any) -> None:
    layout = ParallelLayout(pipeline=2, context=4, context_exchange=exchange)
    plan = toys.plan("3d", toys.job(4, {"attention": "flash"}), layout)
    alive = peak_live_bytes(run(plan), {SAVED})
    assert list(alive.values()) == pytest.approx(closed_form(plan), rel=1e-9)


@pytest.mark.parametrize(("sequence_parallel", "zero"), [(False, 0), (True, 1), (True, 2)])
@pytest.mark.parametrize("marks", [None, {3: "unlike"}])
def test_every_rank_of_an_unfolded_step_holds_what_its_written_peer_holds(
    peak_live_bytes: Peaks, sequence_parallel: bool, zero: int, marks: dict[int, str] | None
) -> None:
    """Joined streams are no devices: what they write lies with their members, and what is sent arrives."""
    layout = ParallelLayout(
        tensor=2, pipeline=4, data=2, sequence_parallel=sequence_parallel, zero_stage=zero
    )
    plan = planned(layout, 8)
    graph = plan.graph()
    unfolded = unfold(graph, None if marks is None else peer_classes(graph, marks)).graph
    every = simulate(unfolded, price(unfolded, toys.ToyCosts(plan.system)))
    for names in (None, {SAVED}):
        folded = peak_live_bytes(run(plan), names)
        live = peak_live_bytes(every, names)
        written = {name.split("/", 1)[0] for name in unfolded.streams if name.endswith("/compute")}
        assert set(live) == {device for name in written for device in name.split("+")}
        for device, n_bytes in live.items():
            base = int(device.removeprefix("gpu")) // 4 * 4
            assert n_bytes == folded[f"gpu{base}"]


@pytest.mark.parametrize("grows", [False, True])
def test_activations_grow_with_stages_and_squared_with_the_model(peak_live_bytes: Peaks, grows: bool) -> None:
    """Layers T (p + 1) / 2 under 1F1B, of 24 layers or of 3 a stage: only so is a quoted O(N^2) right."""
    sums = []
    for p in (1, 2, 4, 8):
        plan = planned(ParallelLayout(pipeline=p), 8, layers=3 * p if grows else 24)
        sums.append(sum(closed_form(plan)))
        assert sum(peak_live_bytes(run(plan), {SAVED}).values()) == pytest.approx(sums[-1])
        assert sums[-1] == pytest.approx(sums[0] * (p if grows else 1) * (p + 1) / 2)
