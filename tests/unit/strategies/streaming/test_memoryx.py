"""What MemoryX holds and moves, and where it lies."""

from __future__ import annotations

from typing import Any

import pytest

from perfsim.catalog import default_catalog
from perfsim.specs.hardware import WaferClusterSpec
from perfsim.specs.layout import StreamingLayout
from perfsim.strategies.streaming.memory import Store
from perfsim.testing import toys
from perfsim.work.counts import parameters


def system(**changes: Any) -> WaferClusterSpec:
    spec = default_catalog().override(toys.wafer_cluster(), changes)
    assert isinstance(spec, WaferClusterSpec)
    return spec


@pytest.mark.parametrize(("optimizer", "n_bytes"), [("adam", 28), ("adamw", 28), ("sgd", 12)])
def test_an_update_reads_and_writes_the_state_and_reads_the_gradient(optimizer: str, n_bytes: int) -> None:
    store = Store(toys.job(8, {"optimizer": optimizer}), system())
    assert store.update_kernel(1e9).bytes_accessed == n_bytes * 1e9


def test_zeros_of_matrices_do_not_travel_and_kept_weights_bring_an_index() -> None:
    job = toys.job(recipe_changes={"weight_sparsity": 0.75})
    counts = parameters(job.model)
    rest = counts.of() - counts.matrices_of()
    store = Store(job, system())
    kept = store.kept(counts.of(), counts.matrices_of())
    assert kept == pytest.approx(rest + 0.25 * counts.matrices_of())
    n_bytes = store.streamed_bytes(counts.of(), counts.matrices_of())
    assert n_bytes == pytest.approx(2 * (rest + 0.25 * 1.5 * counts.matrices_of()))
    assert store.kept(counts.embedding) == counts.embedding


def test_a_parameter_takes_eighteen_bytes_and_a_sparse_model_less() -> None:
    def total(**recipe: Any) -> float:
        uses = Store(toys.job(recipe_changes=recipe), system()).memory(StreamingLayout(), 1)
        return sum(use.total_bytes for use in uses if not use.on_device)

    assert total() == pytest.approx(18 * parameters(toys.job().model).total)
    assert total(optimizer="sgd") == pytest.approx(10 * parameters(toys.job().model).total)
    assert total(weight_sparsity=0.5) < total()


@pytest.mark.parametrize(
    ("dram", "weights_in_flash", "state_in_flash"),
    [("1 GB", False, False), ("0.2 GB", False, True), ("0.01 GB", True, True)],
)
def test_dram_is_used_while_it_lasts_weights_first(
    dram: str, weights_in_flash: bool, state_in_flash: bool
) -> None:
    """The toy has 0.5 billion parameters: 1 GB of weights, 8 GB of state; ten servers."""
    store = Store(toys.job(), system(**{"memoryx.server.dram.capacity": dram}))
    assert (store.weights_in_flash, store.state_in_flash) == (weights_in_flash, state_in_flash)
    places = [use.place for use in store.memory(StreamingLayout(), 1) if not use.on_device]
    assert places == ["MemoryX DRAM", "MemoryX flash"][: 1 + state_in_flash]


# ------------------------------------------------------------------------ what passes flash a step
def flash_bytes(*, tied: bool = True, **places: str) -> dict[str, float]:
    """Bytes of one step that the flash reads and writes, and that updates move."""
    changes = {f"memoryx.{name}": place for name, place in places.items()}
    job = toys.job(32, tied_embeddings=tied)
    plan = toys.plan("weight-streaming", job, StreamingLayout(micro_batch_size=32), system(**changes))
    graph = toys.graph_of(plan)
    works = [graph.works[work] for work in graph.work.tolist()]
    return {
        op: sum(work.comm_bytes for work in works if work.op == op) / len(graph.step_ends)
        for op in ("flash_read", "flash_write", "memoryx_update")
    }


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
    model = toys.job(tied_embeddings=tied).model
    count = parameters(model).total
    again = model.vocab_size * model.hidden_size if tied and weights == "flash" else 0
    moved = flash_bytes(tied=tied, weights_in=weights, optimizer_state_in=state)
    assert moved["flash_read"] == pytest.approx(reads * count + 2 * 2 * again)
    assert moved["flash_write"] == pytest.approx(writes * count)
    assert moved["memoryx_update"] == pytest.approx(28 * count)
