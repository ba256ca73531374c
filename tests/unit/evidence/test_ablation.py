"""Taking mechanisms out of the GPU model, on a small run: each touches what it names, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from perfsim.catalog import Catalog
from perfsim.evidence.ablation import NOTHING, REMOVALS, shares, without_each
from perfsim.evidence.cases import StepCase
from perfsim.testing.toys import published_run


def lost(
    parallel: dict[str, Any], recompute: str = "none", device: str = "a100-sxm4-80gb", **training: Any
) -> dict[str, float]:
    """What the removals save in a run with this layout."""
    devices = parallel.get("tensor", 1) * parallel.get("pipeline", 1) * parallel.get("data", 1)
    system = {"device": device, "num_devices": devices, "devices_per_node": min(devices, 8)}
    training = {"global_batch_size": 32, "micro_batch_size": 2, "recompute": recompute, **training}
    row = published_run(system={**system, "inter_node": "1.6 Tb/s"}, parallel=parallel, training=training)
    return shares(without_each(StepCase.model_validate(row).placed(Catalog())))


@pytest.fixture(scope="module")
def alone() -> dict[str, float]:
    return lost({})


def test_communication_plays_no_part_where_there_is_one_device(alone: dict[str, float]) -> None:
    keys = [removal.key for removal in REMOVALS]
    assert (keys[0], len(keys)) == (NOTHING, len(alone))
    groups = ("tensor-parallel collectives", "collectives of recompute", "hierarchical collectives")
    for key in (*groups, "data-parallel and FSDP traffic", "stage-to-stage transfers"):
        assert alone[key] == 0.0
    for key in ("memory-bound kernels", "attention core", "embedding, head and loss", "optimizer"):
        assert alone[key] > 0.0


@pytest.mark.parametrize(
    ("parallel", "key"),
    [
        ({"tensor": 2}, "tensor-parallel collectives"),
        ({"data": 2}, "data-parallel and FSDP traffic"),
        ({"pipeline": 2}, "stage-to-stage transfers"),
    ],
)
def test_a_kind_of_communication_is_missed_by_who_uses_it(parallel: dict[str, Any], key: str) -> None:
    assert lost(parallel)[key] > 0.0


def test_a_removal_saves_time_or_costs_it_where_one_device_shows_it(alone: dict[str, float]) -> None:
    assert alone["host-launch floor"] > 0.1, "a small model waits for the host"
    assert alone["last-level cache"] <= 0.0
    assert alone["waves of tiles"] > 0.0
    assert alone["fused cross-entropy"] == 0.0, "its framework has none"


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_collectives_of_recompute_are_those_of_a_run_that_recomputes(sequence_parallel: bool) -> None:
    parallel = {"tensor": 2, "sequence_parallel": sequence_parallel}
    key = "collectives of recompute"
    full = lost(parallel, recompute="full")
    assert 0.0 < full[key] < full["tensor-parallel collectives"]
    assert lost(parallel)[key] == 0.0


def test_the_ceiling_follows_the_number_of_gpus_and_the_memory(alone: dict[str, float]) -> None:
    slowest = "slowest of many GPUs"
    larger = "ceiling of the A100 with 40 GB"
    many = lost({"data": 16})
    assert many["hierarchical collectives"] > 0.0
    assert many[slowest] > alone[slowest] == 0.0
    eight = lost({"data": 8})
    assert eight["hierarchical collectives"] == eight[larger] == 0.0
    assert lost({"data": 8}, device="a100-sxm4-40gb")[larger] != 0.0


def test_a_fused_cross_entropy_is_replaced_by_passes_in_fp32() -> None:
    fused = lost({}, device="h100-sxm5-80gb", precision="bf16", attention="flash")
    assert fused["fused cross-entropy"] < 0.0
