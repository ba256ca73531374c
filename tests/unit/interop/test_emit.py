"""What is emitted has the names of the tool, and says or refuses what the tool has not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import perfsim as ps
from perfsim.base.errors import InputError, LayoutError
from perfsim.interop import emit
from perfsim.interop.formats import read
from perfsim.interop.megatron import TOOL as MEGATRON
from perfsim.interop.source import Source
from perfsim.specs.trainers import ANY
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


def test_steps_from_a_cuda_graph_are_emitted_read_back_and_named_where_the_tool_has_none(
    planned: Callable[..., Plan],
) -> None:
    replayed = planned(PIPELINE, cuda_graph=True)
    flags = emit("megatron", replayed)
    assert "--cuda-graph-impl local\n--cuda-graph-scope full_iteration" in flags
    assert "CUDA graph" in emit("deepspeed", replayed)
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
    flags = emit("megatron", planned("dp=1,zero=1,offload_optimizer=cpu", devices=1))
    assert "--use-distributed-optimizer" in flags
    with pytest.raises(LayoutError, match="--optimizer-cpu-offload does not go with zero_stage 0"):
        emit("megatron", planned("dp=64,offload_optimizer=cpu"))


def test_block_recomputes_the_layers_that_are_simulated(planned: Callable[..., Plan]) -> None:
    """So many of the first of each virtual stage."""
    for stages, recomputed in (
        ("layers_per_stage=10-12-12-10,recompute_every=5", 3),
        ("recompute_every=8", 2),
    ):
        plan = planned(f"tp=4,pp=2,dp=8,vpp=2,schedule=interleaved,recompute=full,{stages}")
        flags = emit("megatron", plan)
        assert f"--recompute-method block\n--recompute-num-layers {recomputed}\n" in flags
        simulated = sum(task.work.name == "mlp.recompute" for task in plan.graph().tasks())
        assert simulated == recomputed * plan.num_microbatches * plan.layout.num_stages


@pytest.mark.parametrize("model", ["mixtral_8x7b", "qwen3_8b"])
def test_what_is_planned_for_a_tool_is_emitted_for_it(model: str) -> None:
    """The models of torchtitan stand in its code, those with experts too."""
    answer = ps.plan(model=model, system="dgx-h100", devices=64, batch=512, runs_on="torchtitan")
    assert "the model: 3" in answer.emit("torchtitan")


def test_a_plan_that_its_own_tool_refuses_is_sent_to_another(planned: Callable[..., Plan]) -> None:
    for runs_on, advice in (("torchtitan", "--emit megatron"), (ANY, "--runs-on torchtitan")):
        plan = planned("dp=64,mbs=1", runs_on=runs_on, optimizer="muon")
        with pytest.raises(LayoutError, match="no optimizer muon") as refused:
            emit("torchtitan", plan)
        assert refused.value.problems[0].help.startswith(advice)
