"""What is emitted has the names of the tool, and says or refuses what the tool has not."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from perfsim.base.errors import InputError, LayoutError
from perfsim.interop import emit
from perfsim.interop.formats import Imported
from perfsim.interop.megatron import TOOL as MEGATRON
from perfsim.strategies import Plan

GAP = "not expressible: "
FLAGS = {
    "tp=4,pp=4,dp=4,mbs=2,zero=1,sp=true,recompute=selective": (
        "--sequence-parallel --use-distributed-optimizer --recompute-granularity selective "
        "--recompute-modules core_attn"
    ),
    "tp=8,pp=4,dp=2,mbs=1,schedule=interleaved,vpp=11": "--num-layers-per-virtual-pipeline-stage 1",
    "tp=8,pp=4,dp=2,mbs=1,vpp=2,layers_per_stage=5-6-6-5-5-6-6-5": (
        "--pipeline-model-parallel-layout 'E,t*5|t*6|t*6|t*5|t*5|t*6|t*6|t*5,L'"
    ),
    "dp=64,mbs=1,zero=3,recompute=full": (
        "--use-distributed-optimizer --use-megatron-fsdp "
        "--data-parallel-sharding-strategy optim_grads_params "
        "--no-gradient-accumulation-fusion --ckpt-format fsdp_dtensor "
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    ),
    "tp=4,pp=4,dp=4,mbs=2,recompute=full,recompute_every=3": (
        "--recompute-granularity full --recompute-method block --recompute-num-layers 4"
    ),
}
"""The names by which Megatron knows a layout, beyond its degrees; that they are read back is a property."""


def flags_of(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith("--"))


def sorted_flags(line: str) -> list[str]:
    return sorted(re.split(" (?=--)", line))


@pytest.mark.parametrize("layout", FLAGS)
def test_megatron_flags_say_the_layout_and_nothing_else(planned: Callable[..., Plan], layout: str) -> None:
    plan = planned(layout)
    given = plan.layout
    text = emit("megatron", plan)
    assert GAP not in text
    assert flags_of(text) == sorted_flags(
        "--num-layers 44 --hidden-size 6144 --ffn-hidden-size 24576 --num-attention-heads 64 "
        "--vocab-size 50257 --max-position-embeddings 2048 --position-embedding-type learned_absolute "
        f"--seq-length 2048 --micro-batch-size {given.micro_batch_size} --global-batch-size 192 "
        f"--tensor-model-parallel-size {given.tensor} --pipeline-model-parallel-size {given.pipeline} "
        f"{FLAGS[layout]} --overlap-grad-reduce "
        "--bf16 --accumulate-allreduce-grads-in-fp32 --attention-backend unfused --optimizer adam"
    )


def test_recompute_that_cuts_across_virtual_stages_is_a_gap(planned: Callable[..., Plan]) -> None:
    within = "tp=8,pp=2,dp=4,mbs=1,vpp=2,recompute=full,recompute_every={}"
    text = emit("megatron", planned(within.format(2)))
    assert "--recompute-num-layers 6" in text
    assert "recompute of one layer in 2 over all virtual stages" in text
    assert "one layer in" not in emit("megatron", planned(within.format(11)))


MODERN = {"system": "dgx-h100", "attention": "flash", "dropout": False}
SAID: dict[str, tuple[str, dict[str, Any], str]] = {
    "layers of multi-token prediction stand before the loss": (
        "tp=8,pp=4,dp=2,ep=16,mbs=1,sp=true,layers_per_stage=16-15-15-15",
        MODERN | {"model": "deepseek_v3"},
        "--pipeline-model-parallel-layout 'E,t*16|t*15|t*15|t*15,m,L'",
    ),
    "DeepEP is switched on": (
        "dp=64,ep=8,mbs=1",
        MODERN | {"model": "qwen3_30b_a3b", "dispatcher": "deepep"},
        "--moe-token-dispatcher-type flex\n--moe-enable-deepep\n--moe-router-dtype fp32",
    ),
    "products that overlap tensor ranks": (
        "tp=8,dp=8,mbs=1,sp=true",
        MODERN | {"overlap_tensor": True},
        "--tp-comm-overlap",
    ),
    "one connection for tensor ranks": ("tp=8,dp=8,mbs=1", {}, "# export CUDA_DEVICE_MAX_CONNECTIONS=1; "),
    "several connections for shards": ("dp=64,mbs=1,zero=3", {}, "# leave CUDA_DEVICE_MAX_CONNECTIONS unset"),
}


@pytest.mark.parametrize(("layout", "options", "words"), SAID.values(), ids=SAID)
def test_megatron_is_told_all_that_was_simulated(
    planned: Callable[..., Plan], layout: str, options: dict[str, Any], words: str
) -> None:
    assert words in emit("megatron", planned(layout, **options))


MODULES = {"core_attn": True, "moe_act": False}
"""Modules of Megatron, and whether they are the selective recompute of attention."""


def test_recompute_of_other_modules_than_attention_is_no_selective_recompute(
    imported: Callable[..., Imported],
) -> None:
    flags = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --max-position-embeddings 1024"
    selective = f"{flags} --vocab-size 50257 --recompute-granularity selective --recompute-modules"
    read = {modules: imported(f"{selective} {modules}", name="run.sh") for modules in MODULES}
    assert {modules: "recompute=selective" in one.layout for modules, one in read.items()} == MODULES
    assert "recompute of moe_act alone" in str(read["moe_act"].unsupported)


def test_flags_of_a_later_release_than_the_runtimes_are_refused(planned: Callable[..., Plan]) -> None:
    """The stack of 2021 to 2023 had no FSDP, which today's Megatron-LM has."""
    layout = "dp=64,mbs=1,zero=3"
    with pytest.raises(LayoutError, match=r"Megatron-Core 0\.14 of 2025-10 is the first"):
        emit("megatron", planned(layout, runs_on=None))
    assert "--use-megatron-fsdp" in emit("megatron", planned(layout))


def test_a_tool_whose_files_are_not_written_is_refused_by_its_name(planned: Callable[..., Plan]) -> None:
    with pytest.raises(InputError, match="no files of MaxText are written yet"):
        emit("maxtext", planned("dp=64,mbs=1"))


INFINITY = "dp=64,mbs=1,zero=3,offload_optimizer={},offload_param={}"


@pytest.mark.parametrize(
    ("tool", "layout", "recipe", "words"),
    [
        ("megatron", "dp=64,mbs=3", {"precision": "fp8_block"}, "products in fp8_block; bf16 is written"),
        ("modelzoo", "mbs=20", {"system": "cs-2", "devices": 4}, "micro-batches of 20"),
        ("megatron", "dp=64,mbs=1", {"model": "gptj_6b"}, "biases of the linears of the MLP alone"),
        ("megatron", "dp=64,mbs=1", {"model": "gptj_6b"}, "attention and MLP on one norm"),
        ("megatron", "dp=64,mbs=1", {"host_blocking": True}, "set CUDA_LAUNCH_BLOCKING=1"),
    ],
)
def test_what_a_tool_lacks_is_said_in_a_comment(
    planned: Callable[..., Plan], tool: str, layout: str, recipe: dict[str, Any], words: str
) -> None:
    gaps = [line for line in emit(tool, planned(layout, **recipe)).splitlines() if f"# {GAP}" in line]
    assert any(words in gap for gap in gaps)


WAFERS = {"system": "cs-2", "devices": 4}
NOT_GPUS = "trains on GPUs; cs-2 is a wafer-cluster"
NOT_WAFERS = "trains on wafers; dgx-a100-80gb is a gpu-cluster"
PIPELINE = "tp=8,pp=4,dp=2,mbs=1"
PLAIN = "dp=64,mbs=3"
EXPERTS = {"model": "mixtral_8x7b", "system": "dgx-h100", "devices": 16}


@pytest.mark.parametrize(
    ("tool", "layout", "options", "reason"),
    [
        *((tool, "mbs=24", WAFERS, NOT_GPUS) for tool in ("megatron", "deepspeed", "torchtitan")),
        ("modelzoo", PLAIN, {}, NOT_WAFERS),
        ("modelzoo", "mbs=8", {"system": "memoryx-a100", "devices": 4}, "not to wafers"),
        ("nemo", PLAIN, {}, "megatron, deepspeed, torchtitan, modelzoo"),
        *((tool, PLAIN, {"precision": "fp8_block"}, "fp8_block") for tool in ("deepspeed", "torchtitan")),
        *((tool, PLAIN, {"optimizer": "muon"}, "no optimizer muon") for tool in ("deepspeed", "torchtitan")),
        ("torchtitan", "tp=2,dp=8,ep=8,sp=true,zero=1,mbs=1", EXPERTS, "describe no experts"),
        ("megatron", INFINITY.format("cpu", "cpu"), {}, "does not go with zero_stage 3"),
        ("torchtitan", INFINITY.format("nvme", "cpu"), {}, "offload_optimizer nvme: its values are cpu"),
        ("deepspeed", "tp=2,dp=32,zero=2,offload_optimizer=nvme", {}, "does not go with zero_stage 2"),
        ("deepspeed", "tp=2,dp=32,offload_optimizer=cpu", {}, "does not go with zero_stage 0"),
        ("megatron", f"{PIPELINE},schedule=zb1p", {}, "schedule zb1p: its values are 1f1b, interleaved"),
        ("deepspeed", f"{PIPELINE},schedule=interleaved,vpp=11", {}, "interleaved: its values are 1f1b"),
        ("deepspeed", f"{PIPELINE},zero=2", {}, "zero_optimization.stage does not go with pipeline 4"),
        ("torchtitan", f"{PIPELINE},sp=true,schedule=zb1p", {}, "schedule zb1p: its values are 1f1b, gpipe"),
    ],
)
def test_a_plan_that_a_tool_cannot_run_is_refused(
    planned: Callable[..., Plan], tool: str, layout: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        emit(tool, planned(layout, **options))


def test_a_field_of_a_layout_that_no_row_of_a_tool_tells_is_refused(planned: Callable[..., Plan]) -> None:
    """So a new axis is refused by every tool until one has a row for it."""
    rows = [row for row in MEGATRON.rows if row.field != "layout.recompute"]
    with pytest.raises(LayoutError, match="nothing of it says recompute"):
        replace(MEGATRON, rows=tuple(rows)).emit(planned(f"{PIPELINE},recompute=full"), "megatron")
