"""Arguments of Megatron-LM: scripts, lines of flags, dumps, and what perfsim itself emits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfsim.base.errors import InputError
from perfsim.interop.formats import Imported, import_file

SAMPLES = Path(__file__).parents[3] / "samples/foreign"
SCRIPT = (SAMPLES / "megatron_175b.sh").read_text("utf-8")
DUMP = (SAMPLES / "megatron_70b.log").read_text("utf-8")


@pytest.fixture
def script(imported: Callable[..., Imported]) -> Callable[..., Any]:
    return lambda text, **options: imported(text, "train.sh", **options)


def test_stages_count_embedding_and_loss_as_megatron_does(script: Callable[..., Any]) -> None:
    """46 layers over 4 stages: 12 each with the two ends counted."""
    text = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 46 --hidden-size 64 --seq-length 32 "
    text += "--num-attention-heads 4 --vocab-size 128 --pipeline-model-parallel-size 4 --micro-batch-size 1 "
    text += "--max-position-embeddings 32 --global-batch-size 8 "
    ends = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    assert "layers_per_stage=11-12-12-11" in script(text + ends).layout
    first = "--decoder-first-pipeline-num-layers 10"
    assert "layers_per_stage=10-12-12-12" in script(text + first).layout


@pytest.mark.parametrize(
    "start",
    [
        "mpirun -np 128 python",
        "srun -N 16 --ntasks-per-node=8 python",
        "#SBATCH --nodes=16 --gres=gpu:8\npython",
    ],
)
def test_ranks_are_told_by_whatever_starts_them(script: Callable[..., Any], start: str) -> None:
    text = SCRIPT.replace("GPUS_PER_NODE=${GPUS_PER_NODE:-8}", "").replace("WORLD_SIZE=", "W=")
    text = text.replace("NUM_NODES=16\n", "PP=16\n").replace("if [", "#")
    assert script(text.replace("torchrun ${DISTRIBUTED_ARGS[@]}", start)).devices == 128


def test_the_imported_layout_and_recipe_can_be_asked_for(tmp_path: Path) -> None:
    import perfsim as ps

    model = tmp_path / "dump.log"
    model.write_text(DUMP, encoding="utf-8")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(import_file(model, part="recipe").text(), encoding="utf-8")
    step = ps.predict(
        model=model, recipe=recipe, system="dgx-h100", devices=64, layout=import_file(model).layout
    )
    assert (step.global_batch_size, step.layout["tensor"]) == (512, 8)


def test_experts_and_latent_attention_of_megatron_are_counted(script: Callable[..., Any]) -> None:
    text = (
        "pretrain_gpt.py --num-layers 61 --hidden-size 7168 --num-attention-heads 128 "
        "--ffn-hidden-size 18432 "
        "--vocab-size 129280 --seq-length 4096 --max-position-embeddings 4096 --swiglu --disable-bias-linear "
        "--normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights "
        "--num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 "
        "--moe-shared-expert-intermediate-size 2048 --moe-layer-freq ([0]*3+[1]*58) "
        "--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 "
        "--qk-pos-emb-head-dim 64 --v-head-dim 128 --expert-model-parallel-size 64 --qk-layernorm\n"
    ).replace("([0]*3+[1]*58)", "'([0]*3+[1]*58)'")
    result = script(text)
    assert result.parameters == 671_026_419_200 - 58 * 256
    assert not result.unsupported
    overlapped = script(text.replace("--swiglu", "--swiglu --overlap-moe-expert-parallel-comm"))
    assert "overlap_moe_expert_parallel_comm: all-to-alls beside" in overlapped.unsupported[0]
    assert result.layout is not None
    assert "ep=64" in result.layout
    experts = result.document["experts"]
    latent = result.document["latent_attention"]
    assert (experts["num_experts"], experts["top_k"], experts["first_dense_layers"]) == (256, 8, 3)
    assert (latent["q_lora_rank"], latent["kv_lora_rank"]) == (1536, 512)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("--hidden-size 12288", "--hidden-size wide"),
            r"train.sh:13: hidden_size: 'wide' is not a whole number",
        ),
        (("--hidden-size 12288", "--hidden-size"), "hidden_size: its value is missing"),
        (("--vocab-size 50257", ""), r"vocab_size is missing .*\n.*--set vocab_size=VALUE"),
        (("--num-layers 96", "--num-layers $LAYERS"), "num_layers: the file does not tell this value"),
        (("PP=16", "PP=5"), "128 ranks are not a multiple of tensor 8 × pipeline 5"),
        (("--fp16", "--fp16 --position-embedding-type rop"), r"'rop' is unknown\n.*\n.*did you mean `rope`"),
        (("--fp16", "--fp16 --recompute-granularity all"), "'all' is neither full nor selective"),
        (("--fp16", "--fp16 --pipeline-model-parallel-layout Et*3|t*4,L"), "has 96"),
    ],
)
def test_wrong_arguments_are_refused_at_their_line(
    script: Callable[..., Any], change: tuple[str, str], message: str
) -> None:
    assert change[0] in SCRIPT
    with pytest.raises(InputError, match=message):
        script(SCRIPT.replace(*change))


def test_what_a_script_computes_can_be_given(script: Callable[..., Any]) -> None:
    text = SCRIPT.replace("--num-layers 96", "--num-layers $(cat layers)")
    told = script(text, given={"num_layers": 96})
    assert (told.parameters, told.unused_keys) == (174_604_259_328, ("lr",))
    assert told.recipe["runtime"]["attention"] == "flash"
    with pytest.raises(InputError, match="--set num_leyers: this format has no use"):
        script(SCRIPT, given={"num_leyers": 96})
