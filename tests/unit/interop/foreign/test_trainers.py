"""Megatron-LM, GPT-NeoX, NeMo, Megatron-Bridge, DeepSpeed, torchtitan and the Cerebras Model Zoo."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfsim.base.errors import InputError
from perfsim.catalog import Catalog
from perfsim.interop.formats import Imported

Import = Callable[..., Imported]
SAMPLES = Path(__file__).parents[3] / "samples/foreign"
SCRIPT, DUMP, NEMO = (
    (SAMPLES / name).read_text("utf-8") for name in ("megatron_175b.sh", "megatron_70b.log", "nemo_xl.yaml")
)
LLAMA_8B = 8_030_261_248
ZERO3 = {
    "train_batch_size": 256,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW"},
}
SHAPE = {
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_heads": 16,
    "filter_size": 8192,
    "max_position_embeddings": 2048,
    "position_embedding_type": "learned",
    "share_embedding_weights": True,
    "nonlinearity": "gelu",
}
BIASES = {"use_projection_bias_in_attention": True, "use_ffn_bias_in_attention": True, "use_ffn_bias": True}
TRAINER = yaml.safe_load((SAMPLES / "zoo_trainer_xl.yaml").read_text("utf-8"))
XL = 1_315_723_264


def test_stages_count_embedding_and_loss_as_megatron_does(imported: Import) -> None:
    """46 layers over 4 stages: 12 each with the two ends counted."""
    text = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 46 --hidden-size 64 --seq-length 32 "
    text += "--num-attention-heads 4 --vocab-size 128 --pipeline-model-parallel-size 4 --micro-batch-size 1 "
    text += "--max-position-embeddings 32 --global-batch-size 8 "
    ends = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    assert "layers_per_stage=11-12-12-11" in imported(text + ends, "train.sh").layout
    first = "--decoder-first-pipeline-num-layers 10"
    assert "layers_per_stage=10-12x3" in imported(text + first, "train.sh").layout
    widths = [imported(text + gate, "train.sh").document["ffn_hidden_size"] for gate in ("", "--swiglu")]
    assert widths == [256, 128]  # two thirds of the plain width, a multiple of 64


@pytest.mark.parametrize(
    "start",
    [
        "mpirun -np 128 python",
        "srun -N 16 --ntasks-per-node=8 python",
        "#SBATCH --nodes=16 --gres=gpu:8\npython",
    ],
)
def test_ranks_are_told_by_whatever_starts_them(imported: Import, start: str) -> None:
    text = SCRIPT.replace("GPUS_PER_NODE=${GPUS_PER_NODE:-8}", "").replace("WORLD_SIZE=", "W=")
    text = text.replace("NUM_NODES=16\n", "PP=16\n").replace("if [", "#")
    assert imported(text.replace("torchrun ${DISTRIBUTED_ARGS[@]}", start), "train.sh").devices == 128


def test_the_imported_recipe_is_one_of_the_catalogue(imported: Import, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(imported(DUMP, "dump.log", part="recipe").text(), encoding="utf-8")
    read = Catalog().recipe(str(recipe))
    assert (read.global_batch_size, read.precision, read.runtime.name) == (512, "bf16", "dump")


def test_what_a_script_or_a_reference_computes_can_be_given(imported: Import) -> None:
    text = SCRIPT.replace("--num-layers 96", "--num-layers $(cat layers)")
    told = imported(text, "train.sh", given={"num_layers": 96})
    assert (told.parameters, told.unused_keys) == (174_604_259_328, ("lr",))
    assert told.recipe["runtime"]["attention"] == "flash"
    assert imported(UNTOLD, given={"num_layers": 24}).parameters == XL
    assert imported(NEMO.replace("name: megatron_gpt", "name: ${oc.env:NAME}")).parameters == XL


def test_deepspeed_takes_a_named_model_or_the_one_next_to_it(imported: Import, tmp_path: Path) -> None:
    alone = imported(ZERO3, "ds_config.json")
    assert (alone.kind, alone.parameters, alone.devices) == ("recipe", None, 32)
    assert alone.layout == "dp=32,zero=3,mbs=2,offload_optimizer=cpu"
    assert imported(ZERO3, "ds_config.json", model="llama_7b").parameters == 6_738_415_616
    (tmp_path / "config.json").write_bytes((SAMPLES / "llama31_8b_config.json").read_bytes())
    beside = imported(ZERO3, "ds_config.json")
    assert (beside.kind, beside.parameters) == ("model", LLAMA_8B)


def test_a_list_of_phases_is_read_by_its_first(imported: Import) -> None:
    result = imported({"trainer": [TRAINER, TRAINER]})
    assert result.parameters == XL
    assert "2 phases of training, of which the first is described" in result.unsupported


def test_anchors_and_repeated_keys_are_read(imported: Import) -> None:
    text = yaml.safe_dump({"model": {**SHAPE, **BIASES, "vocab_size": 50257}})
    text += "a: &a {steps: 1, steps: 2}\nb: *a\nc: 1.0e-5\nd: 1e-5\n"
    assert imported(text).parameters == XL


SAID = (
    ("--recompute-granularity selective --recompute-modules mla_up_proj layernorm moe_act", "latents+norms"),
    ("--recompute-granularity selective --recompute-modules core_attn mlp", "recompute=mlp"),
    ("--activations-checkpoint-method uniform", "recompute=full"),
    ("--deepspeed --zero-stage 2 --cpu-optimizer", "offload_optimizer=cpu"),
    ("--deepspeed --num-experts 4 --expert-interval 2", "top_k: 1\n  interval: 2"),
    ("--position-embedding-type rope --no-position-embedding", "position_embedding: rotary"),
    ("--exp-avg-dtype bf16", "moment_precision: bf16"),
    ("--main-grads-dtype bf16", "reduce_precision: bf16"),
    ("--use-distributed-optimizer --optimizer-cpu-offload", "extends: megatron_core"),
)
"""Further flags of a script, and what they say in the model, the recipe or the layout."""


@pytest.mark.parametrize(("flags", "said"), SAID)
def test_flags_of_any_release_say_what_they_do_there(imported: Import, flags: str, said: str) -> None:
    script = SCRIPT.replace("--attention-backend auto", "").replace("--fp16", f"--bf16 {flags}")
    known = [imported(script, "train.sh", part=part) for part in ("model", "recipe")]
    assert any(said in text for one in known for text in (one.text(), one.layout))


def test_a_launcher_of_deepspeed_tells_the_ranks_of_a_script(imported: Import) -> None:
    text = SCRIPT.replace("--nproc_per_node", "--num_gpus").replace("--nnodes", "--num_nodes")
    assert imported(text.replace("WORLD_SIZE=", "W="), "train.sh").devices == 128


def test_what_a_file_of_deepspeed_leaves_to_the_trainer_is_named(imported: Import) -> None:
    auto = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu"), "auto")
    more = {"bf16": {"enabled": "auto"}, "gradient_accumulation_steps": "auto", "sequence_parallel_size": 4}
    told = imported(ZERO3 | auto | more, "ds_config.json")
    assert told.document["precision"] == "bf16"
    assert told.document["runtime"]["overlap_grad_reduce"], "DeepSpeed's default with ZeRO 3"
    assert told.layout == "zero=3,cp=4,context_exchange=all_to_all,offload_optimizer=cpu"
    assert any("train_batch_size, train_micro_batch_size_per_gpu: auto" in gap for gap in told.unsupported)


TITAN = """
def llama3_405b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("405B", converters=[Float8LinearConverter.Config(filter_fqns=["output"])]),
        training=TrainingConfig(local_batch_size=16, seq_len=8192, dtype="bfloat16"),
        parallelism=ParallelismConfig(pipeline_parallel_degree=2, data_parallel_replicate_degree=2),
    )
"""


def test_converters_and_types_of_torchtitan_are_its_precisions(imported: Import) -> None:
    told = imported(TITAN, "config.py")
    assert (told.document["precision"], told.document["optimizer_precision"]) == ("fp8", "bf16")
    assert "shard_group" not in told.layout, "the number of ranks, and so of shards, is unknown"
    rowwise = TITAN.replace("filter_fqns=", 'recipe_name="rowwise", filter_fqns=')
    assert imported(rowwise, "config.py").document["precision"] == "fp8_rowwise"
    passes = TITAN.replace("degree=2,", "degree=2, pipeline_parallel_microbatches=4,", 1)
    assert "mbs=4" in imported(passes, "config.py").layout


UNTOLD = NEMO.replace("num_layers: 24", "num_layers: ${oc.env:LAYERS}")


WRONG_ARGUMENTS = (
    ("--hidden-size 12288", "--hidden-size", "hidden_size: its value is missing"),
    ("--num-layers 96", "--num-layers $LAYERS", "num_layers: the file does not tell this value"),
    ("PP=16", "PP=5", "128 ranks are not a multiple of tensor 8 × pipeline 5"),
    ("--fp16", "--fp16 --ds-sequence-parallel-size 2", "tensor 8 × pipeline 16 × context 2"),
    ("--fp16", "--fp16 --position-embedding-type rop", r"'rop' is unknown\n.*\n.*did you mean `rope`"),
    ("--fp16", "--fp16 --pipeline-model-parallel-layout Et*3|t*4,L", "has 96"),
)
"""What stands in the script, what would be wrong in its place, and why."""


@pytest.mark.parametrize(
    ("content", "name", "options", "message"),
    [
        *((SCRIPT.replace(was, now), "train.sh", {}, message) for was, now, message in WRONG_ARGUMENTS),
        (SCRIPT, "train.sh", {"given": {"num_leyers": 96}}, "--set num_leyers: this format has no use"),
        (UNTOLD, "n.yaml", {}, r"num_layers: the file does not tell this value\n.*\n.*--set num_layers"),
        (
            NEMO.replace("devices: 8", "devices: 7"),
            "n.yaml",
            {},
            "14 ranks are not a .* tensor 2 × pipeline 2",
        ),
        (ZERO3 | {"train_batch_size": 255}, "ds.json", {}, "train_batch_size: 255 is not .* micro-batch 2"),
        (ZERO3, "ds.json", {"model": "lama_7b"}, "unknown model `lama_7b`"),
        ("Running with configs: {broken\n", "t.log", {}, "t.log:1: the printed configuration cannot be read"),
    ],
)
def test_wrong_values_are_refused(
    imported: Import, content: Any, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        imported(content, name, **options)
