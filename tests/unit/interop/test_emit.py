"""What is emitted has the names of the tool, and says or refuses what the tool has not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfsim.base.errors import InputError, LayoutError
from perfsim.interop import WRITTEN, emit
from perfsim.interop.formats import read
from perfsim.interop.megatron import TOOL as MEGATRON
from perfsim.interop.source import Source
from perfsim.interop.tool import SETTINGS
from perfsim.specs.layout import AXES, text_of
from perfsim.strategies import Plan


def test_flags_of_a_later_release_than_the_runtimes_are_refused(planned: Callable[..., Plan]) -> None:
    """The stack of 2021 to 2023 had no FSDP, which today's Megatron-LM has."""
    layout = "dp=64,mbs=1,zero=3"
    with pytest.raises(LayoutError, match=r"Megatron-Core 0\.14 of 2025-10 is the first"):
        emit("megatron", planned(layout, runs_on=None))
    assert "--use-megatron-fsdp" in emit("megatron", planned(layout))


def test_a_tool_whose_files_are_not_written_is_refused_by_its_name(planned: Callable[..., Plan]) -> None:
    with pytest.raises(InputError, match="no files of MaxText are written yet"):
        emit("maxtext", planned("dp=64,mbs=1"))


PIPELINE = "tp=8,pp=4,dp=2,mbs=1"


def test_a_field_of_a_layout_that_no_row_of_a_tool_tells_is_refused(planned: Callable[..., Plan]) -> None:
    """So a new axis is refused by every tool until one has a row for it."""
    rows = [row for row in MEGATRON.rows if row.field != "layout.recompute"]
    with pytest.raises(LayoutError, match="nothing of it says recompute"):
        replace(MEGATRON, rows=tuple(rows)).emit(planned(f"{PIPELINE},recompute=full"), "megatron")


def test_cuda_graphs_are_emitted_read_back_and_named_if_a_tool_has_none(planned: Callable[..., Plan]) -> None:
    replayed = planned(PIPELINE, cuda_graph=True)
    flags = emit("megatron", replayed)
    assert "--cuda-graph-impl local\n--cuda-graph-scope full_iteration" in flags
    assert "cuda_graph true" in emit("deepspeed", replayed)
    for scope, taken in (("full_iteration", True), ("attn moe_router", None)):
        _, reading = read(Source(Path("run.sh"), flags.replace("full_iteration", scope)))
        assert reading.recipe.get("cuda_graph") is taken
        assert any("attn moe_router alone" in gap.text for gap in reading.gaps) is not taken


def test_a_tool_is_told_as_many_positions_as_a_sequence_has(planned: Callable[..., Plan]) -> None:
    text = emit("megatron", planned(PIPELINE, seq_length=16384))
    assert "--max-position-embeddings 16384" in text
    assert "--max-position-embeddings 2048" in emit("megatron", planned(PIPELINE, seq_length=1024))


def test_what_a_setting_demands_of_others_is_written_with_it(planned: Callable[..., Plan]) -> None:
    """Async TP without compile, and the states of a single rank on the CPU, abort at the start."""
    text = emit("torchtitan", planned("tp=2,dp=32,sp=true,zero=3", overlap_tensor=True))
    assert "config.compile.enable = True" in text
    assert "config.compile.components = ['model']" in text
    head = "'norm', 'output', 'lm_head']]"  # of releases before 2026, and since
    assert head in emit("torchtitan", planned("pp=2,dp=32,zero=2,layers_per_stage=21-23"))
    untested = '"zero_allow_untested_optimizer": true'
    assert untested in emit("deepspeed", planned("dp=64,zero=1", optimizer="sgd"))
    latents = emit("megatron", planned("tp=8,dp=8,ep=8,sp=true", model="deepseek_v3"))
    assert "--qk-layernorm" in latents  # without it Megatron-Core leaves out their norms
    assert "--attention-backend fused" in emit(
        "megatron", planned("dp=64", model="kimi_k2", attention="flash")
    )
    muon = planned("dp=64,zero=1", optimizer="muon", overlap_grad_reduce=True, overlap_param_gather=True)
    for stage, words in ((1, "--optimizer dist_muon\n"), (0, "--optimizer muon\n")):
        flags = emit("megatron", replace(muon, layout=replace(muon.layout, zero_stage=stage)))
        assert words in flags
        assert "flags of Megatron-Core 0.16;" in flags, "the first whose wheel has the optimizer"
        assert "--ckpt-format torch\n" in flags
        assert "--use-distributed-optimizer" not in flags
        assert "--overlap-param-gather" not in flags
    for layout, recipe in (("zero=2", {}), ("zero=1,shard_group=8", {}), ("zero=1", {"precision": "fp16"})):
        with pytest.raises(LayoutError, match="muon"):
            emit("megatron", planned(f"dp=64,{layout}", optimizer="muon", **recipe))
    routed = emit("megatron", planned("dp=64,ep=16", model="llama4_scout"))
    assert "--moe-router-topk 1\n--moe-router-pre-softmax\n" in routed
    hides = "--moe-shared-expert-overlap"
    assert hides in routed
    assert hides not in emit("megatron", planned("dp=64,ep=16", model="llama4_scout", dispatcher="deepep"))
    again = planned("dp=64,recompute=norms", precision="fp8")
    assert "--fp8-recipe tensorwise" in emit("megatron", again)
    joined = planned("tp=2,dp=32,sp=true,ep=8,schedule=combined-1f1b", model="qwen3_30b_a3b")
    assert "# leave CUDA_DEVICE_MAX_CONNECTIONS unset" in emit("megatron", joined)
    with pytest.raises(LayoutError, match="an all-to-all of expert ranks"):
        emit("megatron", replace(joined, layout=replace(joined.layout, expert=1)))
    assert "--add-qkv-bias" in emit("megatron", planned("dp=64", model="qwen25_7b"))
    overlaps = {"overlap_grad_reduce": True, "overlap_param_gather": True}
    flags = emit("megatron", planned("dp=1,zero=1,offload_optimizer=cpu", devices=1, **overlaps))
    assert "--overlap-param-gather" not in flags, "which demands --overlap-grad-reduce, of one replica unsaid"
    assert "--use-distributed-optimizer" in flags
    with pytest.raises(LayoutError, match="--optimizer-cpu-offload does not go with zero_stage 0"):
        emit("megatron", planned("dp=64,offload_optimizer=cpu"))


def test_a_ring_over_windows_is_refused(planned: Callable[..., Plan]) -> None:
    with pytest.raises(LayoutError, match="the ring of no tool attends in a window"):
        emit("megatron", planned("cp=2,dp=32", model="gpt_oss_20b", attention="flash"))


OTHERS: dict[str, Any] = {
    "recipe.seq_length": 1024,
    "recipe.precision": "fp16",
    "recipe.kernels": {"forward": "fp8", "input_gradient": "fp8", "weight_gradient": "bf16"},
    "recipe.optimizer": "sgd",
    "recipe.global_batch_size": 384,
    "recipe.routing": "balanced",
    "recipe.expert_capacity": 1.25,
    "recipe.reduce_precision": "bf16",
    "recipe.optimizer_precision": "bf16",
    "recipe.moment_precision": "bf16",
    "recipe.dropout": False,
    "recipe.lm_head_positions": 64,
    "recipe.weight_sparsity": 0.5,
    "runtime.attention": "flash",
    "runtime.attention_kernel": "synchronous",
    "runtime.attention_length": 512,
    "runtime.recompute_keeps": "qkv",
    "runtime.overlap_grad_reduce": False,
    "runtime.overlap_param_gather": True,
    "runtime.dispatcher": "all_gather",
    "runtime.grouped_products": False,
    "runtime.overlap_tensor": True,
    "runtime.grad_bucket": "25 MB",
    "runtime.states": "owner_broadcast",
    "runtime.fused": [],
    "runtime.fused_cross_entropy": True,
    "runtime.host_blocking": True,
    "runtime.cuda_graph": True,
}
"""Another value of each setting of recipe and runtime."""
AXES_IN_USE = {
    "tensor": ("tp=2,dp=32,sp=true", "tp=4,dp=16,sp=true"),
    "pipeline": ("dp=64", "pp=2,dp=32"),
    "data": ("tp=2,dp=32", "tp=2,pp=2,dp=16"),
    "virtual_pipeline": ("pp=2,dp=32,vpp=2,schedule=interleaved", "pp=2,dp=32,vpp=11,schedule=interleaved"),
    "sequence_parallel": ("tp=2,dp=32", "tp=2,dp=32,sp=true"),
    "zero_stage": ("dp=64", "dp=64,zero=2"),
    "schedule": ("pp=2,dp=32", "pp=2,dp=32,schedule=gpipe"),
    "micro_batch_size": ("dp=64", "dp=64,mbs=3"),
    "recompute": ("dp=64", "dp=64,recompute=full"),
    "layers_per_stage": ("pp=2,dp=32", "pp=2,dp=32,layers_per_stage=21-23"),
    "recompute_every": ("dp=64,recompute=full", "dp=64,recompute=full,recompute_every=2"),
    "context": ("dp=64", "cp=2,dp=32"),
    "context_exchange": ("cp=2,dp=32", "cp=2,dp=32,context_exchange=all_to_all"),
    "shard_group": ("dp=64,zero=3", "dp=64,zero=3,shard_group=8"),
    "offload_optimizer": ("dp=64,zero=1", "dp=64,zero=1,offload_optimizer=cpu"),
    "offload_param": ("dp=64,zero=3", "dp=64,zero=3,offload_param=cpu"),
    "offload_activations": ("dp=64,recompute=full", "dp=64,recompute=full,offload_activations=cpu"),
    "expert": ("tp=2,dp=32,sp=true,zero=2,ep=2", "tp=2,dp=32,sp=true,zero=2,ep=4"),
    "expert_tensor": ("tp=2,dp=32,sp=true,zero=2,ep=2", "tp=2,dp=32,sp=true,zero=2,ep=2,etp=2"),
}
"""Two layouts that differ in each axis."""


@pytest.mark.parametrize("tool", [tool for tool in WRITTEN if tool != "modelzoo"])
def test_every_setting_is_written_named_missing_or_refused(planned: Callable[..., Plan], tool: str) -> None:
    """So a new field of recipe, runtime or layout is none that a text keeps silent about."""

    def told(layout: str, **changes: Any) -> list[str]:
        model = "qwen3_30b_a3b" if "ep=" in layout else "gpt3_20b"
        plan = planned(layout, model=model, **changes)
        try:
            return [line for line in emit(tool, plan).split("\n") if text_of(plan.layout) not in line]
        except LayoutError as error:
            return [str(error)]

    experts, _ = AXES_IN_USE["expert"]
    usual = told(experts)
    assert "cannot run" not in usual[0]
    assert OTHERS.keys() == SETTINGS.keys()
    values = {
        field.rpartition(".")[2].replace("global_batch_size", "batch"): OTHERS[field] for field in OTHERS
    }
    assert {name for name, value in values.items() if told(experts, **{name: value}) == usual} == set()
    assert AXES_IN_USE.keys() == AXES.keys()
    pairs = {axis: [told(layout, attention="flash") for layout in pair] for axis, pair in AXES_IN_USE.items()}
    assert {axis for axis, (one, other) in pairs.items() if one == other} == set()


def test_block_recomputes_the_layers_that_are_simulated(planned: Callable[..., Plan]) -> None:
    """So many of the first of each virtual stage."""
    uneven = "layers_per_stage=10-12-12-10,recompute_every=5"
    for stages, recomputed in ((uneven, 3), ("recompute_every=8", 2)):
        plan = planned(f"tp=4,pp=2,dp=8,vpp=2,schedule=interleaved,recompute=full,{stages}")
        flags = emit("megatron", plan)
        assert f"--recompute-method block\n--recompute-num-layers {recomputed}\n" in flags
        simulated = sum(task.work.name == "mlp.recompute" for task in plan.graph().tasks())
        assert simulated == recomputed * plan.num_microbatches * plan.layout.num_stages


def test_a_plan_that_its_own_tool_refuses_is_sent_to_another(planned: Callable[..., Plan]) -> None:
    """Unless it is the layout alone that it does not run."""
    for layout, optimizer, why, advice in (
        ("dp=64", "muon", "no optimizer muon", "--emit megatron"),
        ("dp=64", "sgd", "no optimizer sgd", "--emit megatron"),
        ("dp=64,zero=1", "adam", "zero_stage 1: its values are", "--runs-on torchtitan"),
    ):
        with pytest.raises(LayoutError, match=why) as refused:
            emit("torchtitan", planned(layout, optimizer=optimizer))
        assert refused.value.problems[0].help.startswith(advice)
