"""YAML of GPT-NeoX: model, batch, parallelism and ZeRO, with hyphens or underscores.

Names: EleutherAI/gpt-neox, `megatron/neox_arguments/neox_args.py` and `configs/`.
"""

from collections.abc import Mapping
from typing import Any

from perfsim.base.sizes import MOST_DEVICES, MOST_VOCABULARY, MOST_WIDTH
from perfsim.interop import tool
from perfsim.interop.deepspeed import wire
from perfsim.interop.source import Settings, Source, names_in
from perfsim.interop.tool import Reading, Row, Tool

SIGNS = ("pipe_parallel_size", "model_parallel_size", "train_micro_batch_size_per_gpu", "pos_emb")
DIVISIBLE = 128
"""Vocabularies are padded to a multiple of this times the tensor parallelism."""
LLAMA_MULTIPLE = 256
"""The width of a Llama MLP is rounded up to a multiple of it."""


def _ffn(settings: Settings) -> int:
    """Width of the MLP; two thirds of the plain one where it is gated."""
    given = settings.integer("intermediate_size", most=3 * MOST_WIDTH)
    multiple = settings.integer("mlp_multiple_of", default=1, most=MOST_WIDTH)
    width = given or 4 * settings.ours["model.hidden_size"]
    if settings.text("mlp_type") == "llama":
        multiple = LLAMA_MULTIPLE
        width = given or int(width * 2 / 3)
    elif settings.ours["model.gated_mlp"]:
        width = int(width * 2 / 3) // (2 if given else 1)
    return min(-(-width // multiple) * multiple, MOST_WIDTH)


def _vocabulary(settings: Settings) -> int:
    """The padded vocabulary, which the weights have."""
    multiple = settings.integer("make_vocab_size_divisible_by", default=DIVISIBLE, most=MOST_WIDTH)
    multiple *= int(settings.ours["layout.tensor"])
    if (given := settings.integer("padded_vocab_size", most=MOST_VOCABULARY)) is not None:
        return given
    size = settings.integer("vocab_size", most=MOST_VOCABULARY)
    tokenizer = settings.text("tokenizer_type", default="GPT2BPETokenizer")
    if size is None:
        if (size := tool.VOCABULARIES.get(tokenizer.casefold())) is None:
            raise settings.missing("vocab_size", "padded_vocab_size")
        settings.gap(f"a vocabulary of {size} from the type of its tokenizer, padded")
    return -(-size // multiple) * multiple


def _norms(settings: Settings) -> int:
    """One norm a layer where attention and MLP share it."""
    if settings.flag("gpt_j_residual"):
        if settings.flag("gpt_j_tied"):
            return 1
        settings.gap("attention and MLP that read the same input, each by its own norm")
    return 2


def _expert_layers(settings: Settings) -> tuple[bool, ...]:
    layers: int = settings.ours["model.num_layers"]
    every = min(layers, settings.integer("moe_expert_interval", "expert_interval", default=1))
    return tuple((layer + 1) % every == 0 for layer in range(layers))


def _precision(settings: Settings) -> str:
    if settings.flag("bf16.enabled"):
        return "bf16"
    told = {"bfloat16": "bf16", "fp16": "fp16", "fp32": "fp32"}.get(settings.text("precision").casefold())
    half = "bf16" if settings.text("fp16.type") == "bfloat16" else "fp16"
    return told or (half if settings.flag("fp16.enabled") else "fp32")


ROWS: tuple[Row, ...] = (
    Row.same("layout.tensor", "model_parallel_size", default=1),
    Row.same("model.hidden_size", "hidden_size", needed=True),
    Row.same("model.num_attention_heads", "num_attention_heads", needed=True),
    Row.same("model.max_position_embeddings", "max_position_embeddings seq_length", needed=True),
    Row.same("model.num_layers", "num_layers", needed=True),
    Row(
        "model.gated_mlp",
        "activation mlp_type",
        read=lambda s: s.text("activation").casefold() in tool.GATED or s.text("mlp_type") == "llama",
    ),
    Row("model.ffn_hidden_size", "intermediate_size mlp_multiple_of", read=_ffn),
    Row.same("model.num_query_groups", "num_kv_heads"),
    Row("model.vocab_size", "padded_vocab_size vocab_size", read=_vocabulary),
    Row.word("model.tied_embeddings", "no_weight_tying", {False: True}, default=True),
    Row.word(
        "model.position_embedding",
        "pos_emb",
        {name: name for name in ("learned", "rotary", "alibi", "none")},
        default="learned",
        sinusoidal="none",
        rpe="none",
    ),
    Row(
        "model.norm_vectors",
        "norm use_bias_in_norms",
        read=lambda s: (
            1 if "rms" in s.text("norm").casefold() or not s.flag("use_bias_in_norms", default=True) else 2
        ),
    ),
    Row("model.norms", "gpt_j_residual gpt_j_tied", read=_norms),
    tool.qk_norm("use_qk_layernorm"),
    Row.same("model.attention_bias", "use_bias_in_attn_linear", default=True),
    Row.same("model.bias", "use_bias_in_mlp", default=lambda s: s.text("mlp_type") != "llama"),
    Row.same("model.head_bias", "final_linear_bias"),
    *tool.experts(
        "moe_num_experts num_experts",
        Row.same("model.experts.top_k", "moe_top_k", default=1),
        Row("model.expert_layers", "moe_expert_interval expert_interval", read=_expert_layers),
    ),
    # A pipeline of no stages is one without pipeline parallelism.
    Row(
        "layout.pipeline",
        "pipe_parallel_size",
        read=lambda s: max(1, s.integer("pipe_parallel_size", default=1, least=0, most=MOST_DEVICES)),
    ),
    Row.same("layout.micro_batch_size", "train_micro_batch_size_per_gpu batch_size", default=1),
    Row.same("layout.zero_stage", "zero_optimization.stage zero_stage", default=0, least=0, most=3),
    Row.word("layout.recompute", "checkpoint_activations", {"full": True}, default="none"),
    Row.known("checkpoint_num_layers partition_activations synchronize_each_layer fp16.fp16"),
    Row.same("recipe.seq_length", "seq_length"),
    Row("recipe.precision", "precision bf16.enabled fp16.enabled", read=_precision),
    Row("recipe.reduce_precision", "communication_data_type fp32_allreduce", read=wire),
    Row.optimizer("neox", "optimizer.type optimizer_type"),
    Row(
        "runtime.attention",
        "attention_config",
        read=lambda s: "flash" if "flash" in str(s.raw("attention_config"))[:2000] else None,
    ),
    Row(
        "recipe.dropout",
        "hidden_dropout attention_dropout",
        read=lambda s: any(s.number(f"{part}_dropout") for part in ("hidden", "attention")),
    ),
    Row.same("runtime.overlap_grad_reduce", "zero_optimization.overlap_comm", default=False),
    Row.grad_bucket("zero_optimization.reduce_bucket_size", size=2),
)


def _recognise(document: Any) -> bool:
    names = {name.replace("-", "_") for name in names_in(document, "")}
    return {"num_layers", "hidden_size", "num_attention_heads"} <= names and not names.isdisjoint(SIGNS)


def _read(source: Source, document: Mapping[str, Any]) -> Reading:
    if isinstance(document, Mapping):
        document = {str(key).replace("-", "_"): value for key, value in document.items()}
    settings = Settings.of(source, document).read(ROWS)
    layout = settings.layout()
    at_once = layout.micro_batch_size * settings.integer("gradient_accumulation_steps", "gas", default=1)
    batch = settings.integer("train_batch_size")
    devices = settings.integer("global_num_gpus", "world_size", most=MOST_DEVICES)
    if devices is None and batch is not None and batch % at_once == 0:
        devices = batch // at_once * layout.num_devices
    layout = settings.layout(devices)
    if devices is not None:
        batch = batch or at_once * layout.data
    recipe = settings.recipe | {"global_batch_size": batch}
    return Reading(settings, settings.model, recipe, layout, devices)


TOOL = Tool(
    title="GPT-NeoX",
    sign="`num_layers` and `hidden_size` with `pipe_parallel_size` or `model_parallel_size`",
    syntaxes=("yaml",),
    recognise=_recognise,
    read=_read,
    rows=ROWS,
)
