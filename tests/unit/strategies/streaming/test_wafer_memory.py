"""Where activations live on a wafer."""

from __future__ import annotations

import pytest

from perfsim.specs.layout import StreamingLayout
from perfsim.strategies.streaming.memory import Store
from perfsim.testing import toys
from perfsim.work.counts import parameters

SBH = 1024 * 2048
KEPT = 32 * SBH
"""Bytes of one layer and sequence: 34 s b h less two mask bytes; scores are never kept."""


def test_resident_keeps_every_layer() -> None:
    held = Store(toys.job(), toys.wafer_cluster()).activations(StreamingLayout(micro_batch_size=3))
    assert held.kept == 8 * 3 * KEPT


@pytest.mark.parametrize(("group", "inputs"), [(1, 8), (2, 4), (3, 3), (8, 1)])
def test_recompute_keeps_one_input_a_group_and_runs_one_group_again(group: int, inputs: int) -> None:
    held = Store(toys.job(), toys.wafer_cluster()).activations(StreamingLayout(recompute_layers=group))
    assert held == (inputs * 2 * SBH, group * KEPT, 0.0)


def test_the_largest_micro_batch_fits_and_one_more_does_not() -> None:
    store = Store(toys.job(4096), toys.wafer_cluster())
    for group in (0, 1, 4):
        largest = store.largest_micro_batch(4096, group)
        assert 0 < largest < 4096
        for size, fits in ((largest, True), (largest + 1, False)):
            layout = StreamingLayout(micro_batch_size=size, recompute_layers=group)
            assert store.memory(layout, 4096)[0].fits == fits


def test_parameters_and_states_are_on_memoryx_not_on_the_wafer() -> None:
    wafer, store = Store(toys.job(), toys.wafer_cluster()).memory(StreamingLayout(), 1)
    assert set(wafer.parts_bytes) == {"activations", "working set", "stream buffers", "reserved"}
    assert set(store.parts_bytes) == {"streamed weights", "parameters", "gradients", "optimizer"}
    assert (wafer.on_device, store.on_device) == (True, False)


# --------------------------------------------------------------------------------- spill, buffers
@pytest.mark.parametrize(("group", "unit"), [(0, KEPT), (1, 2 * SBH), (4, 2 * SBH)])
def test_what_spills_leaves_two_on_the_wafer_and_the_rest_beside_it(group: int, unit: int) -> None:
    layout = StreamingLayout(micro_batch_size=3, recompute_layers=group, spill=True)
    store = Store(toys.job(), toys.wafer_cluster())
    held = store.activations(layout)
    assert (held.kept, held.spilled) == (2 * 3 * unit, 8 / max(1, group) * 3 * unit)
    beside = store.memory(layout, 3)[-1]
    assert (beside.place, beside.on_device) == ("activation servers", False)


def test_spilling_allows_larger_micro_batches_until_the_servers_are_full() -> None:
    job = toys.job(4096)
    system = toys.wafer_cluster()
    store = Store(job, system)
    resident, spilling = (store.largest_micro_batch(4096, 0, spill=spill) for spill in (False, True))
    assert spilling > resident
    servers = system.activation_servers.model_copy(update={"capacity": 100 * 8 * KEPT})
    small = system.model_copy(update={"activation_servers": servers})
    assert Store(job, small).largest_micro_batch(4096, 0, spill=True) == 100


def test_weights_that_are_stored_on_the_wafer_take_their_room() -> None:
    job = toys.job()
    system = toys.wafer_cluster()
    held = system.streaming.model_copy(update={"weights_held": "layer", "prefetch_depth": 2})
    storing = system.model_copy(update={"streaming": held})
    assert Store(job, system).buffer_bytes == 2 * 2**18
    largest = max(parameters(job.model).of(), parameters(job.model).embedding, 51200 * 2048)
    assert Store(job, storing).buffer_bytes == pytest.approx(3 * 2 * largest, rel=1e-3)


def test_gradients_summed_on_the_wafer_take_four_bytes_a_parameter() -> None:
    job = toys.job()
    system = toys.wafer_cluster()
    summing = system.streaming.model_copy(update={"accumulate_at": "wafer"})
    there = system.model_copy(update={"streaming": summing})
    layout = StreamingLayout(micro_batch_size=4)
    assert Store(job, there).memory(layout, 8)[0].parts_bytes["gradients"] == 4 * parameters(job.model).total
    assert "gradients" not in Store(job, there).memory(layout, 4)[0].parts_bytes
    assert "gradients" not in Store(job, system).memory(layout, 8)[0].parts_bytes
