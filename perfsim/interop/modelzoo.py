"""YAML of the Cerebras Model Zoo: releases 1.6 to 1.9 and 2.0 to 2.2 (`train_input`, `model`), and `trainer`.

Names: Cerebras/modelzoo, `models/nlp/*/configs` of releases 1.6 to 2.10. The fields of the model have the
same names in all three; where they stand differs. Written are the four sections of releases 1.9 to 2.2,
which later ones convert.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from perfsim.base.sizes import MOST_WIDTH
from perfsim.interop import tool
from perfsim.interop.source import Settings, Source, names_in
from perfsim.interop.tool import Chosen, Reading, Row, Tool
from perfsim.specs.layout import StreamingLayout

MODEL = ("model.", "trainer.init.model.", "trainer.init.model.config.")
INPUT = ("train_input.", "trainer.fit.train_dataloader.")
SECTIONS = {
    "model.": MODEL,
    "train_input.": INPUT,
    "runconfig.": ("runconfig.", "trainer.init.backend.cluster_config.", "trainer.init.backend."),
    "(precision).": ("trainer.init.precision.", *MODEL, "train_input."),
    "(micro-batch).": (*INPUT, *MODEL),
}
"""Where a section stands, by release."""
POSITIONS = {name: name for name in ("learned", "rotary", "alibi")}
TABLELESS = ("relative", "fixed")
HALF = {"bf16": "bfloat16", "fp16": "float16"}
TRAINED_IN = (*HALF, "fp32")
DROPOUT = 0.1
"""Of a recipe with dropout, which does not give the rate: Megatron's default."""
RATES = {True: DROPOUT, False: 0.0}
RATE_KEYS = [f"model.{part}dropout_rate" for part in ("", "attention_", "residual_")]
WINDOW = "model.attention_sliding_window_length"
SHIFTLESS = ("rmsnorm", "biasless-layernorm")
NORMS = {False: SHIFTLESS[0], True: None}  # by whether layers have biases


def _uneven(chosen: Chosen) -> str:
    share = chosen.job.global_batch_size / chosen.layout.data
    micro = chosen.layout.micro_batch_size
    return "" if share % micro == 0 else f"micro-batches of {micro} in {share:g} sequences a system"


def _is_encoder(settings: Settings) -> bool:
    words = settings.text("model.name"), settings.text("train_input.data_processor")
    return any("bert" in word.casefold() for word in words)


def _has_biases(settings: Settings) -> bool:
    """Classes of TensorFlow (their vocabulary stands with the data) and BERT have biases by default."""
    return _is_encoder(settings) or not settings.has("model.vocab_size")


def _head_dim(settings: Settings) -> int:
    hidden: int = settings.ours["model.hidden_size"]
    inner = settings.integer("model.attention_inner_dim", default=hidden, most=MOST_WIDTH)
    return inner // int(settings.ours["model.num_attention_heads"])


def _groups(settings: Settings) -> int | None:
    modules = ("model.extra_attention_params", "model.attention_module_params")
    groups = settings.integer(*(f"{module}.num_kv_groups" for module in modules), default=1)
    return groups if "multiquery" in settings.text("model.attention_module") else None


def _embedding(settings: Settings) -> str:
    key = "model.position_embedding_type"
    embedding = settings.choice((key,), POSITIONS | dict.fromkeys((*TABLELESS, "none"), "none"), "learned")
    if settings.text(key) in TABLELESS:
        settings.gap(f"{settings.text(key)} positions; described without a table of positions")
    return embedding if settings.flag("model.use_position_embedding", default=True) else "none"


def _norm_vectors(settings: Settings) -> int:
    shiftless = settings.text("model.norm_type").casefold() in SHIFTLESS
    plain = settings.flag("model.use_rms_norm") or settings.flag("model.use_biasless_norm")
    return 1 if shiftless or plain else 2


def _norms(settings: Settings) -> int:
    """Norms of a layer: one where attention and MLP share it, as in GPT-J; four where each has two."""
    if settings.flag("model.norm_first_sandwich"):
        return 4
    if settings.has("model.use_untied_layer_norm"):
        return 2 if settings.flag("model.use_untied_layer_norm") else 1
    rotary = settings.ours["model.position_embedding"] == "rotary"
    shared = rotary and settings.ours["model.head_bias"] and not settings.ours["model.attention_bias"]
    return 1 if settings.text("model.name").casefold() in ("gptj", "gpt-j", "falcon") or shared else 2


def _parts(settings: Settings) -> dict[str, int]:
    has = settings.flag("model.embedding_layer_norm") or _is_encoder(settings)
    return {"a norm of the embedding": 2 * settings.ours["model.hidden_size"]} if has else {}


def _precision(settings: Settings) -> str:
    """cbfloat16 is Cerebras' own 16-bit format; its products take the time of bf16."""
    words = {name: ours for ours, name in HALF.items()} | {"cbfloat16": "bf16", "float32": "fp32"}
    usual = "bf16" if settings.flag("(precision).use_bfloat16") else "fp16"
    word = settings.choice(("(precision).fp16_type",), words, usual)
    if not settings.flag("(precision).enabled", "(precision).mixed_precision", default=True):
        return "fp32"
    return word


def _optimizer_word(settings: Settings) -> str:
    """As a value, or as the name of the only section below `trainer.init.optimizer`."""
    section = "trainer.init.optimizer."
    inside = (path[len(section) :].split(".")[0] for path in settings.values if path.startswith(section))
    return settings.text("optimizer.optimizer_type", f"{section}name") or next(inside, "")


def _micro(settings: Settings) -> int | None:
    """A whole number; `auto` and `explore` leave it to the compiler."""
    given = settings.raw("(micro-batch).micro_batch_size")
    return None if isinstance(given, (str, dict)) else settings.integer("(micro-batch).micro_batch_size")


ROWS: tuple[Row, ...] = (
    Row.same("recipe.global_batch_size", "train_input.batch_size"),
    Row.same("layout.micro_batch_size", "train_input.micro_batch_size", read=_micro),
    Row.same("recipe.seq_length", "train_input.max_sequence_length"),
    Row.same("model.hidden_size", "model.hidden_size", needed=True),
    Row.same("model.num_layers", "model.num_hidden_layers", needed=True),
    Row.same("model.num_attention_heads", "model.num_heads model.num_attention_heads", needed=True),
    # Older releases have these two with the data.
    Row.same("model.vocab_size", "model.vocab_size train_input.vocab_size", needed=True),
    Row.same(
        "model.max_position_embeddings",
        "model.max_position_embeddings train_input.max_sequence_length",
        needed=True,
    ),
    Row("model.head_dim", "model.attention_inner_dim", read=_head_dim),
    Row(
        "model.num_query_groups",
        "model.attention_module",
        tool.only(tool.shared_heads, "multiquery_attention"),
    ),
    Row("model.num_query_groups", "model.extra_attention_params.num_kv_groups", tool.shared_heads, _groups),
    Row.same("model.ffn_hidden_size", "model.filter_size", default=lambda s: 4 * s.ours["model.hidden_size"]),
    Row.spelled("model.position_embedding", "model.position_embedding_type", POSITIONS, _embedding),
    Row.same("model.tied_embeddings", "model.share_embedding_weights", default=True),
    Row.spelled(
        "model.gated_mlp",
        "model.nonlinearity model.encoder_nonlinearity",
        {True: "swiglu", False: "gelu"},
        lambda s: s.text("model.nonlinearity", "model.encoder_nonlinearity").casefold() in tool.GATED,
    ),
    Row.same(
        "model.attention_bias",
        "model.use_projection_bias_in_attention",
        default=_has_biases,
        write=lambda c: c.job.model.has_attention_bias,
    ),
    Row.same(
        "model.output_bias", "model.use_ffn_bias_in_attention", write=lambda c: c.job.model.has_attention_bias
    ),
    Row.same("model.bias", "model.use_ffn_bias", default=_has_biases),
    Row.same("model.head_bias", "model.use_bias_in_output", default=_is_encoder),
    Row("model.causal", read=lambda s: not _is_encoder(s)),
    Row("model.final_norm", read=lambda s: not _is_encoder(s)),
    Row("model.norm_vectors", "model.norm_type", lambda c: NORMS[c.job.model.bias], _norm_vectors),
    Row("model.norms", "model.norm_first_sandwich", read=_norms),
    Row("model.parts", "model.embedding_layer_norm", read=_parts),
    *tool.experts(
        "model.moe_params.num_experts model.num_experts model.moe.num_experts",
        Row.same("model.experts.top_k", "model.moe_params.top_k model.top_k model.moe.top_k", default=1),
        Row(
            "model.experts.shared_ffn_hidden_size",
            "model.moe_params.num_shared_experts",
            read=lambda s: (
                s.integer("model.moe_params.num_shared_experts", default=0, least=0)
                * s.ours["model.ffn_hidden_size"]
            ),
        ),
        Row("model.expert_layers", read=lambda s: (True,) * s.ours["model.num_layers"]),
    ),
    Row.noted("attention in a sliding window of {}; taken as full attention", WINDOW),
    Row.spelled("recipe.dropout", "model.dropout_rate", RATES, lambda s: any(map(s.number, RATE_KEYS))),
    Row.spelled("recipe.dropout", "model.attention_dropout_rate", RATES),
    Row("recipe.precision", "model.mixed_precision", lambda c: c.job.recipe.precision in HALF),
    Row.spelled("recipe.precision", "model.fp16_type", HALF, _precision),
    Row.optimizer("modelzoo", "optimizer.optimizer_type", default="adamw", word=_optimizer_word),
    Row(
        "recipe.weight_sparsity",
        "sparsity.sparsity",
        read=lambda s: s.number("sparsity.sparsity", "trainer.init.sparsity.sparsity"),
    ),
    Row.same("layout.data", "runconfig.num_csx"),
    Row.refuses("model.parts", "its settings here do not describe {}"),
    Row.refuses(
        "system.device.kind",
        "{c.system.name} streams to {c.system.device.name}, not to wafers",
        unless=("wafer",),
    ),
    Row.refuses("recipe.precision", f"it trains in {', '.join(TRAINED_IN)}, not {{}}", unless=TRAINED_IN),
    Row("layout.micro_batch_size", gap=_uneven),
    Row.lacks("layout.recompute", "recompute {}; the compiler decides it"),
    Row.lacks("layout.recompute_layers", "recompute every {} layers; the compiler decides it"),
    Row.lacks("layout.spill", "activations on activation servers; the compiler decides it"),
    Row.lacks("layout.stream_chunks", "weights streamed in {} pieces a layer"),
    Row.lacks("model.norms_per_layer", "attention and MLP on one norm", unless=(2,)),
    Row.lacks("model.causal", "attention in both directions; take models/nlp/bert", unless=(True,)),
    Row.lacks("model.position_embedding", "a model without position embedding", unless=POSITIONS),
    Row.lacks("recipe.dropout", f"the rate of dropout, which the recipe does not give; {DROPOUT} is written"),
)


def _recognise(document: Any) -> bool:
    places = ("trainer.init.model.config", "trainer.init.model", "model.config", "model")
    names = names_in(_first_phase(document), *places)
    return "num_heads" in names and not names.isdisjoint(("filter_size", "hidden_size"))


def _first_phase(document: Any) -> Any:
    """The document, or the first of the phases that `trainer` lists."""
    phases = document.get("trainer") if isinstance(document, Mapping) else None
    if isinstance(phases, list) and phases and isinstance(phases[0], Mapping):
        return phases[0] if "trainer" in phases[0] else {"trainer": phases[0]}
    return document


def _read(source: Source, document: Any) -> Reading:
    document = document if isinstance(document, Mapping) else {}
    settings = Settings.of(source, _first_phase(document), SECTIONS).read(ROWS)
    phases = document.get("trainer")
    if isinstance(phases, list) and len(phases) > 1:
        settings.gap(f"{len(phases)} phases of training, of which the first is described")
    recipe = settings.recipe
    systems = settings.ours.get("layout.data")
    micro = settings.ours.get("layout.micro_batch_size")
    layout = None
    if systems is not None or micro is not None:
        share = max(1, recipe.get("global_batch_size", 1) // (systems or 1))
        layout = StreamingLayout(data=systems or 1, micro_batch_size=micro or share)
    return Reading(settings, settings.model, recipe, layout, systems)


def _start(chosen: Chosen) -> str:
    release = chosen.job.runtime.software_release or getattr(chosen.system, "software_release", "")
    predicted = f"; predicted for software release {release}" if release else ""
    return f"run.py CSX --params and this file, mode train{predicted}"


TOOL = Tool(
    title="the Cerebras Model Zoo",
    sign="`model` with `num_heads`, at the top or under `trainer.init`",
    syntaxes=("yaml",),
    recognise=_recognise,
    read=_read,
    rows=ROWS,
    runs=StreamingLayout,
    render=lambda comments, values: "\n".join(
        [*comments, yaml.safe_dump(values, sort_keys=False, allow_unicode=True)]
    ),
    start=_start,
)
