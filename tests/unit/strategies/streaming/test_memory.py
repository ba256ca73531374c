"""What wafers, activation servers and MemoryX hold, and what MemoryX moves."""

from __future__ import annotations

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


def store_of(batch: int = 32, recipe: dict[str, Any] | None = None, **system: Any) -> Store:
    return Store(toys.job(batch, recipe), default_catalog().override(toys.wafer_cluster(), system))


# ------------------------------------------------------------------------------------- on the wafer
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


def test_parameters_and_states_are_on_memoryx_not_on_the_wafer() -> None:
    wafer, store = store_of().memory(StreamingLayout(), 1)
    assert set(wafer.parts_bytes) == {"activations", "working set", "stream buffers", "reserved"}
    assert set(store.parts_bytes) == {"streamed weights", "parameters", "gradients", "optimizer"}
    assert (wafer.on_device, store.on_device) == (True, False)


@pytest.mark.parametrize(("group", "unit"), [(0, KEPT), (1, 2 * SBH), (4, 2 * SBH)])
def test_what_spills_leaves_two_on_the_wafer_and_the_rest_beside_it(group: int, unit: int) -> None:
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


# --------------------------------------------------------------------------------------- in MemoryX
@pytest.mark.parametrize(
    ("optimizer", "moved", "held"), [("adam", 28, 18), ("adamw", 28, 18), ("sgd", 12, 10)]
)
def test_an_update_moves_the_state_both_ways_and_the_gradient_once_and_a_parameter_takes_its_state(
    optimizer: str, moved: int, held: int
) -> None:
    store = store_of(8, {"optimizer": optimizer})
    assert store.update_kernel(1e9).bytes_accessed == moved * 1e9
    assert beside_bytes(store) == pytest.approx(held * COUNTS.total)


def beside_bytes(store: Store) -> float:
    return sum(use.total_bytes for use in store.memory(StreamingLayout(), 1) if not use.on_device)


def test_zeros_of_matrices_do_not_travel_and_kept_weights_bring_an_index() -> None:
    rest = COUNTS.of() - COUNTS.matrices_of()
    store = store_of(recipe={"weight_sparsity": 0.75})
    assert store.kept(COUNTS.of(), COUNTS.matrices_of()) == pytest.approx(rest + 0.25 * COUNTS.matrices_of())
    n_bytes = store.streamed_bytes(COUNTS.of(), COUNTS.matrices_of())
    assert n_bytes == pytest.approx(2 * (rest + 0.25 * 1.5 * COUNTS.matrices_of()))
    assert store.kept(COUNTS.embedding) == COUNTS.embedding
    assert beside_bytes(store) < beside_bytes(store_of())


@pytest.mark.parametrize(
    ("dram", "weights_in_flash", "state_in_flash"),
    [("1 GB", False, False), ("0.2 GB", False, True), ("0.01 GB", True, True)],
)
def test_dram_is_used_while_it_lasts_weights_first(
    dram: str, weights_in_flash: bool, state_in_flash: bool
) -> None:
    """The toy has 0.5 billion parameters: 1 GB of weights, 8 GB of state; ten servers."""
    store = store_of(**{"memoryx.server.dram.capacity": dram})
    assert (store.weights_in_flash, store.state_in_flash) == (weights_in_flash, state_in_flash)
    places = [use.place for use in store.memory(StreamingLayout(), 1) if not use.on_device]
    assert places == ["MemoryX DRAM", "MemoryX flash"][: 1 + state_in_flash]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("weights", "state", "reads", "writes"),
    [
        ("dram", "dram", 0, 0),
        ("flash", "dram", 2 * 2, 2),
        ("dram", "flash", 12, 12),
        ("flash", "flash", 16, 14),
    ],
)
def test_only_what_lies_in_flash_is_read_and_written_back_and_every_parameter_is_updated_once(
    tied: bool, weights: str, state: str, reads: float, writes: float
) -> None:
    """Bytes a parameter by hand: 2 of weights, forward and backward; 12 of Adam's state, there and back.

    A shared table is one parameter, but the head streams it once more, forward and backward.
    """
    job = toys.job(32, tied_embeddings=tied)
    changes = {"memoryx.weights_in": weights, "memoryx.optimizer_state_in": state}
    system = default_catalog().override(toys.wafer_cluster(), changes)
    graph = toys.graph_of(toys.plan("weight-streaming", job, StreamingLayout(micro_batch_size=32), system))
    works = [graph.works[work] for work in graph.work.tolist()]
    moved = [
        sum(work.comm_bytes for work in works if work.op == op) / len(graph.step_ends)
        for op in ("flash_read", "flash_write", "memoryx_update")
    ]
    count = parameters(job.model).total
    again = job.model.vocab_size * job.model.hidden_size if tied and weights == "flash" else 0
    assert moved == pytest.approx([reads * count + 2 * 2 * again, writes * count, 28 * count])
