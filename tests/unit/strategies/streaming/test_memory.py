"""What wafers, activation servers and MemoryX hold, and what MemoryX moves."""

from typing import Any

import pytest

from perfsim.catalog import default_catalog
from perfsim.specs.layout import StreamingLayout
from perfsim.strategies.streaming.memory import Store
from perfsim.testing import toys
from perfsim.work.counts import parameters

SBH = 1024 * 2048
KEPT = 32 * SBH
"""Bytes of one layer and sequence: 34 s b h less two mask bytes; scores are never kept."""
COUNTS = parameters(toys.model())


def store_of(batch: int = 32, recipe: dict[str, Any] | None = None, passes: int = 1, **system: Any) -> Store:
    return Store(toys.job(batch, recipe), default_catalog().override(toys.wafer_cluster(), system), passes)


def test_resident_keeps_every_layer() -> None:
    assert store_of().activations(StreamingLayout(micro_batch_size=3)).kept == 8 * 3 * KEPT


@pytest.mark.parametrize(("group", "inputs"), [(1, 8), (2, 4), (3, 3), (8, 1)])
def test_recompute_keeps_one_input_a_group_and_runs_one_group_again(group: int, inputs: int) -> None:
    held = store_of().activations(StreamingLayout(recompute_layers=group))
    assert held == (inputs * 2 * SBH, group * KEPT, 0.0)


def test_the_largest_micro_batch_fits_and_one_more_does_not() -> None:
    store = store_of(4096)
    for group in (0, 1, 4):
        largest = store.largest_micro_batch(4096, group)
        assert 0 < largest < 4096
        for size, fits in ((largest, True), (largest + 1, False)):
            layout = StreamingLayout(micro_batch_size=size, recompute_layers=group)
            assert store.memory(layout, 4096)[0].fits == fits


@pytest.mark.parametrize(("group", "unit"), [(0, KEPT), (1, 2 * SBH), (4, 2 * SBH)])
def test_what_spills_leaves_two_on_the_wafer_and_the_rest_next_to_it(group: int, unit: int) -> None:
    layout = StreamingLayout(micro_batch_size=3, recompute_layers=group, spill=True)
    store = store_of()
    held = store.activations(layout)
    assert (held.kept, held.spilled) == (2 * 3 * unit, 8 / max(1, group) * 3 * unit)
    beside = store.memory(layout, 3)[-1]
    assert (beside.place, beside.on_device) == ("activation servers", False)


def test_spilling_allows_larger_micro_batches_until_the_servers_are_full() -> None:
    store = store_of(4096)
    resident, spilling = (store.largest_micro_batch(4096, 0, spill=spill) for spill in (False, True))
    assert spilling > resident
    small = store_of(4096, **{"activation_servers.capacity": 100 * 8 * KEPT})
    assert small.largest_micro_batch(4096, 0, spill=True) == 100
    # One micro-batch of both sequences has room, but not where they spill, nor gradients of the first one.
    room = store_of().memory(StreamingLayout(micro_batch_size=2, spill=True), 2)[0].total_bytes
    full = {"activation_servers.capacity": 8 * KEPT, "device.memory.capacity": room}
    for place, fits in (("memoryx", 1), ("wafer", 0)):
        summing = store_of(2, **full, **{"streaming.accumulate_at": place})
        assert summing.largest_micro_batch(2, 0, spill=True) == fits


def test_weights_that_are_stored_on_the_wafer_take_their_room() -> None:
    storing = store_of(**{"streaming.weights_held": "layer", "streaming.prefetch_depth": 2})
    assert store_of().buffer_bytes == 2 * 2**18
    largest = max(COUNTS.of(), COUNTS.embedding, 51200 * 2048)
    assert storing.buffer_bytes == pytest.approx(3 * 2 * largest, rel=1e-3)


def test_gradients_summed_on_the_wafer_take_four_bytes_a_parameter() -> None:
    layout = StreamingLayout(micro_batch_size=4)
    there = store_of(**{"streaming.accumulate_at": "wafer"})
    assert there.memory(layout, 8)[0].parts_bytes["gradients"] == 4 * COUNTS.total
    for use in (there.memory(layout, 4)[0], store_of().memory(layout, 8)[0]):
        assert "gradients" not in use.parts_bytes


@pytest.mark.parametrize(
    ("optimizer", "moved", "held"), [("adam", 28, 14), ("adamw", 28, 14), ("sgd", 12, 6)]
)
def test_an_update_moves_state_twice_and_gradient_once(optimizer: str, moved: int, held: int) -> None:
    store = store_of(8, {"optimizer": optimizer})
    assert store.update_kernel(1e9).bytes_accessed == moved * 1e9
    assert stored_bytes(store) == pytest.approx(held * COUNTS.total)


def stored_bytes(store: Store) -> float:
    return sum(use.total_bytes for use in store.memory(StreamingLayout(), 1) if not use.on_device)


def test_zeros_of_matrices_do_not_travel_and_kept_weights_bring_an_index() -> None:
    matrices = COUNTS.of(matrices=True)
    rest = COUNTS.of() - matrices
    store = store_of(recipe={"weight_sparsity": 0.75})
    assert store.kept(COUNTS.of(), matrices) == pytest.approx(rest + 0.25 * matrices)
    n_bytes = store.streamed_bytes(COUNTS.of(), matrices)
    assert n_bytes == pytest.approx(2 * (rest + 0.25 * 1.5 * matrices))
    assert store.kept(COUNTS.embedding) == COUNTS.embedding
    assert stored_bytes(store) < stored_bytes(store_of())


@pytest.mark.parametrize("where", ["memoryx", "swarmx", "wafer"])
@pytest.mark.parametrize("passes", [1, 4])
def test_memoryx_stores_sums_of_gradients_only_where_it_sums_micro_batches(passes: int, where: str) -> None:
    store = store_of(passes=passes, **{"streaming.accumulate_at": where})
    summed = passes > 1 and where == "memoryx"
    assert stored_bytes(store) == pytest.approx((18 if summed else 14) * COUNTS.total)


SHARES = ("streamed weights", "gradients", "parameters", "optimizer")


@pytest.mark.parametrize(
    ("dram_bytes_a_parameter", "in_flash"),
    [
        (18.0, (0, 0, 0, 0)),
        (16.2, (0, 0, 0, 1.8 / 8)),
        (10.0, (0, 0, 0, 1)),
        (7.0, (0, 0, 3 / 4, 1)),
        (4.0, (0, 1 / 2, 1, 1)),
        (0.5, (3 / 4, 1, 1, 1)),
    ],
)
def test_dram_takes_what_moves_most_first(dram_bytes_a_parameter: float, in_flash: tuple[float, ...]) -> None:
    """2 B of weights, 4 of summed gradients, 4 of the master copy, 8 of moments, on ten servers."""
    dram = f"{dram_bytes_a_parameter * COUNTS.total / 10} B"
    store = store_of(passes=2, **{"memoryx.server.dram.capacity": dram})
    assert [store.in_flash[part] for part in SHARES] == pytest.approx(in_flash, abs=1e-6)
    uses = [use for use in store.memory(StreamingLayout(), 1) if not use.on_device]
    assert all(use.fits for use in uses)
    assert sum(use.total_bytes for use in uses) == pytest.approx(18 * COUNTS.total)
