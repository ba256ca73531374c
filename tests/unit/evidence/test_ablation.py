"""Taking mechanisms out of the GPU model, on a small run: each touches what it names, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfsim.catalog import Catalog
from perfsim.costs.gemm import GemmModel
from perfsim.costs.gpu import GpuCosts
from perfsim.evidence.ablation import (
    NOTHING,
    REMOVALS,
    TRIED,
    GemmWithoutWaves,
    WithoutMechanism,
    ablate,
    recomputed_collectives,
    shares,
)
from perfsim.evidence.cases import StepCase
from perfsim.evidence.plans import PlacedCase, place_case
from perfsim.work.kernels import elementwise

SYSTEM = {"inter_node": "1.6 Tb/s"}
MODEL = {
    "num_layers": 4,
    "hidden_size": 1024,
    "ffn_hidden_size": 4096,
    "num_attention_heads": 16,
    "vocab_size": 50257,
    "seq_length": 512,
}


def written(
    parallel: dict[str, Any],
    recompute: str = "none",
    evidence: str = "A",
    family: str = "f",
    device: str = "a100-sxm4-80gb",
) -> PlacedCase:
    devices = parallel.get("tensor", 1) * parallel.get("pipeline", 1) * parallel.get("data", 1)
    fields = {
        "id": "a",
        "family": family,
        "evidence": evidence,
        "system": SYSTEM | {"device": device, "num_devices": devices, "devices_per_node": min(devices, 8)},
        "model": MODEL,
        "strategy": "3d",
        "parallel": parallel,
        "training": {"global_batch_size": 32, "micro_batch_size": 2, "recompute": recompute},
        "measured": {"step_time_s": 1.0},
    }
    return place_case(StepCase.model_validate(fields), Catalog())


def lost(case: PlacedCase) -> dict[str, float]:
    return shares(ablate(case)[0])


def test_the_names_of_what_is_removed_differ() -> None:
    keys = [removal.key for removal in REMOVALS]
    assert len({NOTHING, *keys}) == len(keys) + 1


def test_communication_plays_no_part_where_there_is_one_device() -> None:
    alone = lost(written({}))
    for key in (
        "tensor-parallel collectives",
        "collectives of recompute",
        "hierarchical collectives",
        "data-parallel and FSDP traffic",
        "stage-to-stage transfers",
    ):
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
    assert lost(written(parallel))[key] > 0.0


def test_a_group_on_one_tier_is_no_slower_than_one_across_nodes() -> None:
    case = written({"data": 16})
    assert lost(case)["hierarchical collectives"] > 0.0
    assert lost(written({"data": 8}))["hierarchical collectives"] == 0.0


def test_the_host_floor_is_what_a_small_model_waits_for() -> None:
    assert lost(written({}))["host-launch floor"] > 0.1


def test_without_the_cache_the_step_gets_longer() -> None:
    assert lost(written({}))["last-level cache"] <= 0.0


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_collectives_of_recompute_are_two_blocks_a_layer_and_microbatch(sequence_parallel: bool) -> None:
    parallel = {"tensor": 2, "sequence_parallel": sequence_parallel}
    full = written(parallel, recompute="full")
    blocks = 2 * MODEL["num_layers"] * full.plan.num_microbatches  # type: ignore[operator]
    assert recomputed_collectives(full.placed.graph).sum() == blocks * (2 if sequence_parallel else 1)
    assert not recomputed_collectives(written(parallel).placed.graph).any()


def test_every_mechanism_is_back_after_its_removal() -> None:
    case = written({"tensor": 2, "data": 2})
    assert ablate(case)[0] == ablate(case)[0]


def test_without_waves_a_product_is_no_slower_and_whole_waves_are_as_fast() -> None:
    case = written({})
    costs = GpuCosts(case.plan.topology, case.plan.job.recipe)
    waves = next(removal for removal in REMOVALS if removal.key == "waves of tiles")
    smooth = WithoutMechanism(case.plan, waves).gemm
    assert isinstance(smooth, GemmWithoutWaves)
    sizes = [np.array([float(size)]) for size in (2048, 4096, 1024, 1)]
    with_waves = GemmModel.geometry(costs.gemm, *sizes).tile_wave_flop
    without = smooth.geometry(*sizes).tile_wave_flop
    assert np.all(without <= with_waves * (1 + 1e-12))
    assert np.any(without < with_waves)


def costs_of(case: PlacedCase, key: str) -> WithoutMechanism:
    (removal,) = (removal for removal in (*REMOVALS, *TRIED) if removal.key == key)
    return WithoutMechanism(case.plan, removal)


def test_a_run_on_many_gpus_gains_if_all_hold_the_mean_ceiling() -> None:
    assert (
        lost(written({"data": 16}))["slowest of many GPUs"] > lost(written({}))["slowest of many GPUs"] == 0.0
    )


def test_the_ceiling_of_the_larger_memory_replaces_that_of_the_smaller_only() -> None:
    key = "ceiling of the A100 with 40 GB"
    assert lost(written({"data": 8}))[key] == 0.0
    smaller = written({"data": 8}, device="a100-sxm4-40gb")
    larger = GpuCosts(written({"data": 8}).plan.topology, smaller.plan.job.recipe)
    assert costs_of(smaller, key).gemm.sustained_fraction == pytest.approx(larger.gemm.sustained_fraction)


def test_a_fused_cross_entropy_and_no_other_is_replaced_by_passes_in_fp32() -> None:
    case = written({})
    assert lost(case)["fused cross-entropy"] == 0.0
    costs = costs_of(case, "fused cross-entropy")
    costs.recipe = costs.recipe.ran_with(fused_cross_entropy=True)
    kernel = elementwise("cross_entropy", 1e9)
    assert costs.kernel_s(kernel) == pytest.approx(19 * GpuCosts.kernel_s(costs, kernel))


def test_the_ceiling_rises_with_idle_time_where_that_is_tried() -> None:
    flat = written({})
    deep = written({"pipeline": 2})
    key = "power saved in idle time"
    assert costs_of(flat, key).gemm.sustained_fraction == costs_of(flat, "optimizer").gemm.sustained_fraction
    waves = deep.plan.num_microbatches
    rise = (waves / (waves + 1)) ** (-1 / 3)
    mean = costs_of(deep, "optimizer").gemm.sustained_fraction
    assert costs_of(deep, key).gemm.sustained_fraction == pytest.approx(min(1.0, rise * mean))


def test_a_causal_softmax_reads_less_where_that_is_tried() -> None:
    case = written({})
    assert lost(case)["causal softmax"] > 0.0
    assert lost(case)["slower weight gradients"] < 0.0
