"""Prices of what moves around a wafer."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from perfsim.base.errors import CatalogError
from perfsim.catalog import default_catalog
from perfsim.costs.wafer import StreamCosts
from perfsim.work import Kind, Work
from perfsim.work.kernels import Kernel

HOPS_S = 1e-6 + 1e-5 + 2**18 / 150e9


def costs(toys: ModuleType, **changes: Any) -> StreamCosts:
    system = default_catalog().override(toys.wafer_cluster(), changes)
    return StreamCosts(toys.topology(1, system))


def move(op: str, n_bytes: float, flop: float = 0.0) -> Work:
    kernels = (Kernel("adam", "elementwise", flop=flop),) if flop else ()
    return Work(op, Kind.MEM_LOAD, op, "weight_stream", comm_bytes=n_bytes, kernels=kernels)


def test_a_sharded_layer_comes_from_all_servers_and_a_placed_one_from_its_own(toys: ModuleType) -> None:
    load = move("memoryx_read", 3e9)
    assert costs(toys).duration_s(load) == pytest.approx(3e9 / 150e9)
    assert costs(toys, **{"memoryx.placement": "by_layer"}).duration_s(load) == pytest.approx(3e9 / 15e9)
    assert costs(toys, **{"memoryx.servers": 5}).duration_s(load) == pytest.approx(3e9 / 75e9)
    assert costs(toys, **{"memoryx.servers": 40}).duration_s(load) == pytest.approx(3e9 / 150e9)


def test_a_store_slower_than_its_port_sets_the_rate(toys: ModuleType) -> None:
    slow = costs(toys, **{"memoryx.server.dram.bandwidth": 5e9})
    assert slow.duration_s(move("memoryx_read", 3e9)) == pytest.approx(3e9 / 50e9)


@pytest.mark.parametrize("op", ["flash_read", "flash_write"])
def test_flash_moves_at_the_rate_of_all_servers(toys: ModuleType, op: str) -> None:
    assert costs(toys).duration_s(move(op, 3e9)) == pytest.approx(3e9 / 150e9)
    with pytest.raises(CatalogError, match="MemoryX has no flash"):
        costs(toys, **{"memoryx.server.flash": None}).duration_s(move(op, 1.0))


def test_an_update_takes_the_longer_of_traffic_and_arithmetic(toys: ModuleType) -> None:
    assert costs(toys).duration_s(move("memoryx_update", 28e9, 15e9)) == pytest.approx(28e9 / 1e12)
    slow = costs(toys, **{"memoryx.server.arithmetic": 1e10})
    assert slow.duration_s(move("memoryx_update", 28e9, 15e9)) == pytest.approx(15e9 / 1e11)


def test_only_the_last_chunk_of_a_gradient_shows_the_hops(toys: ModuleType) -> None:
    priced = costs(toys)
    whole, part = (priced.duration_s(move(op, 3e9)) for op in ("reduce", "reduce_part"))
    assert part == pytest.approx(3e9 / 150e9)
    assert whole == pytest.approx(part + HOPS_S)


@pytest.mark.parametrize(("systems", "levels"), [(1, 1), (16, 2)])
def test_a_message_shorter_than_a_chunk_waits_for_its_own_bytes_a_level(
    toys: ModuleType, systems: int, levels: int
) -> None:
    """A level passes a chunk on when it is whole; 1 KiB is whole long before 256 KiB would be."""
    priced = StreamCosts(toys.topology(systems, toys.wafer_cluster()))
    latency_s = 1e-6 + levels * (1e-5 + 2**10 / 150e9)
    assert priced.duration_s(move("broadcast", 2**10)) == pytest.approx(latency_s, rel=1e-9)
    assert priced.duration_s(move("reduce", 2**10)) == pytest.approx(2**10 / 150e9 + latency_s, rel=1e-9)


def test_what_is_summed_in_the_tree_does_not_wait_for_memoryx(toys: ModuleType) -> None:
    narrow = costs(toys, **{"memoryx.server.bandwidth": 5e9})
    assert narrow.duration_s(move("reduce_in_tree", 3e9)) == pytest.approx(3e9 / 150e9 + HOPS_S)
    assert narrow.duration_s(move("reduce", 3e9)) == pytest.approx(3e9 / 50e9 + HOPS_S)


@pytest.mark.parametrize("op", ["samples", "spill", "fetch"])
def test_activation_servers_move_samples_and_activations_at_most_at_the_ports_rate(
    toys: ModuleType, op: str
) -> None:
    assert costs(toys).duration_s(move(op, 3e9)) == pytest.approx(3e9 / 15e9)
    many = costs(toys, **{"activation_servers.per_system": 100})
    assert many.duration_s(move(op, 3e9)) == pytest.approx(3e9 / 150e9)


def test_what_computes_is_not_priced_here(toys: ModuleType) -> None:
    with pytest.raises(CatalogError, match="is not priced without a recipe"):
        costs(toys).duration_s(move("layer.forward", 0.0))
