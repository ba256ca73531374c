"""Prices of what moves around a wafer."""

from typing import Any

import pytest

from perfsim.base.errors import CatalogError
from perfsim.catalog import default_catalog
from perfsim.costs.wafer import StreamCosts
from perfsim.testing import toys
from perfsim.work import Kind, Work
from perfsim.work.kernels import Kernel

HOPS_S = 1e-6 + 1e-5 + 2**18 / 150e9


def costs(**changes: Any) -> StreamCosts:
    system = default_catalog().override(toys.wafer_cluster(), changes)
    return StreamCosts(toys.topology(1, system))


def move(op: str, n_bytes: float, flop: float = 0.0) -> Work:
    kernels = (Kernel("adam", "elementwise", flop=flop),) if flop else ()
    return Work(op, Kind.MEM_LOAD, op, "weight_stream", comm_bytes=n_bytes, kernels=kernels)


READ = ("memoryx_read", 3e9)
UPDATE = ("memoryx_update", 28e9, 15e9)
PRICES: dict[str, tuple[dict[str, Any], tuple[Any, ...], float]] = {
    "a sharded layer comes from all servers": ({}, READ, 3 / 150),
    "a placed one comes from its own": ({"memoryx.placement": "by_layer"}, READ, 3 / 15),
    "half of the servers send half as fast": ({"memoryx.servers": 5}, READ, 3 / 75),
    "more servers send no more than the ports take": ({"memoryx.servers": 40}, READ, 3 / 150),
    "a store is slower than its port": ({"memoryx.server.dram.bandwidth": 5e9}, READ, 3 / 50),
    "a server's port is slower than its store": ({"memoryx.server.bandwidth": 5e9}, READ, 3 / 50),
    "half of the ports of a system": ({"io_ports": 6}, READ, 3 / 75),
    "all servers read flash": ({}, ("flash_read", 3e9), 3 / 150),
    "all servers write flash": ({}, ("flash_write", 3e9), 3 / 150),
    "an update takes its traffic": ({}, UPDATE, 28e9 / 1e12),
    "an update takes its arithmetic": ({"memoryx.server.arithmetic": 1e10}, UPDATE, 15e9 / 1e11),
    "a part of a gradient shows no hops": ({}, ("reduce_part", 3e9), 3 / 150),
    "the last chunk of a gradient does": ({}, ("reduce", 3e9), 3 / 150 + HOPS_S),
    "a slow server delays what enters": ({"memoryx.server.bandwidth": 5e9}, ("reduce", 3e9), 3 / 50 + HOPS_S),
    "and no sum in the tree": ({"memoryx.server.bandwidth": 5e9}, ("reduce_in_tree", 3e9), 3 / 150 + HOPS_S),
}


@pytest.mark.parametrize(("changes", "moved", "seconds"), PRICES.values(), ids=PRICES)
def test_bytes_take_the_slowest_link(changes: dict[str, Any], moved: tuple[Any, ...], seconds: float) -> None:
    assert costs(**changes).duration_s(move(*moved)) == pytest.approx(seconds)


@pytest.mark.parametrize(("systems", "levels"), [(1, 1), (16, 2)])
def test_a_message_shorter_than_a_chunk_waits_for_its_own_bytes_a_level(systems: int, levels: int) -> None:
    """A level passes a chunk on when it is whole; 1 KiB is whole long before 256 KiB would be."""
    priced = StreamCosts(toys.topology(systems, toys.wafer_cluster()))
    latency_s = 1e-6 + levels * (1e-5 + 2**10 / 150e9)
    assert priced.duration_s(move("broadcast", 2**10)) == pytest.approx(latency_s, rel=1e-9)
    assert priced.duration_s(move("reduce", 2**10)) == pytest.approx(2**10 / 150e9 + latency_s, rel=1e-9)


@pytest.mark.parametrize("op", ["samples", "spill", "fetch"])
def test_activation_servers_move_samples_and_activations_at_most_at_the_ports_rate(op: str) -> None:
    assert costs().duration_s(move(op, 3e9)) == pytest.approx(3e9 / 15e9)
    many = costs(**{"activation_servers.per_system": 100})
    assert many.duration_s(move(op, 3e9)) == pytest.approx(3e9 / 150e9)


@pytest.mark.parametrize(
    ("changes", "op", "message"),
    [
        ({}, "layer.forward", "is not priced without a recipe"),
        ({"memoryx.server.flash": None}, "flash_read", "MemoryX has no flash"),
    ],
)
def test_what_has_no_price_is_refused(changes: dict[str, Any], op: str, message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        costs(**changes).duration_s(move(op, 1.0))
