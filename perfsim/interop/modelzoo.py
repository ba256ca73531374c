"""YAML of the Cerebras Model Zoo: releases 1.6 to 1.9 and 2.0 to 2.2 (`train_input`, `model`), and `trainer`.

Names: Cerebras/modelzoo, `models/nlp/*/configs` of releases 1.6 to 2.10. The fields of the model have the
same names in all three; where they stand differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from perfsim.base.sizes import MOST_HEADS, MOST_LAYERS, MOST_POSITIONS, MOST_VOCABULARY, MOST_WIDTH
from perfsim.interop.imported import Reading
from perfsim.interop.shape import ExpertShape, Gap, Shape
from perfsim.interop.source import Settings, Source
from perfsim.interop.tool import (
    Chosen,
    Limit,
    Setting,
    Tool,
    Values,
    commented,
    equal_dense_layers,
    nested,
    only_optimizers,
    where,
)
from perfsim.specs.streaming_layout import StreamingLayout

# Parameters of the Cerebras Model Zoo: batch, model and number of systems as YAML.
#
# Names: Cerebras/modelzoo, `models/nlp/gpt3` of releases 1.9 to 2.2; later ones convert these four
# sections.

POSITIONS = {"learned": "learned", "rotary": "rotary", "alibi": "alibi"}
HALF = {"bf16": "bfloat16", "fp16": "float16"}
OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}
DROPOUT = 0.1
"""Of a recipe with dropout, which does not give the rate: Megatron's default."""


def _dropout(chosen: Chosen) -> float:
    return DROPOUT if chosen.job.recipe.dropout else 0.0


SETTINGS: tuple[Setting, ...] = (
    ("train_input.batch_size", lambda c: c.job.global_batch_size),
    ("train_input.micro_batch_size", lambda c: c.layout.micro_batch_size),
    ("train_input.max_sequence_length", lambda c: c.job.seq_length),
    ("model.vocab_size", lambda c: c.job.model.vocab_size),
    ("model.hidden_size", lambda c: c.job.model.hidden_size),
    ("model.num_hidden_layers", lambda c: c.job.model.num_layers),
    ("model.num_heads", lambda c: c.job.model.num_attention_heads),
    ("model.filter_size", lambda c: c.job.model.ffn_hidden_size),
    ("model.max_position_embeddings", lambda c: c.job.model.max_position_embeddings),
    ("model.position_embedding_type", lambda c: POSITIONS.get(c.job.model.position_embedding)),
    ("model.share_embedding_weights", lambda c: c.job.model.tied_embeddings),
    ("model.nonlinearity", lambda c: "swiglu" if c.job.model.gated_mlp else "gelu"),
    ("model.use_projection_bias_in_attention", lambda c: c.job.model.has_attention_bias),
    ("model.use_ffn_bias_in_attention", lambda c: c.job.model.has_attention_bias),
    ("model.use_ffn_bias", lambda c: c.job.model.bias),
    ("model.use_bias_in_output", lambda c: c.job.model.head_bias),
    ("model.dropout_rate", _dropout),
    ("model.attention_dropout_rate", _dropout),
    ("model.mixed_precision", lambda c: c.job.recipe.precision in HALF),
    ("model.fp16_type", lambda c: HALF.get(c.job.recipe.precision)),
    ("optimizer.optimizer_type", lambda c: OPTIMIZERS[c.job.recipe.optimizer]),
    ("runconfig.num_csx", lambda c: c.layout.data),
)


PRECISIONS = (*HALF, "fp32")
REFUSALS: tuple[Limit, ...] = (
    only_optimizers(OPTIMIZERS),
    equal_dense_layers,
    where(
        lambda c: c.system.device.kind != "wafer",
        "{c.system.name} streams to {c.system.device.name}, not to wafers",
    ),
    where(
        lambda c: c.job.recipe.precision not in PRECISIONS,
        f"it trains in {', '.join(PRECISIONS)}, not {{c.job.recipe.precision}}",
    ),
)


def _recompute(chosen: Chosen) -> str:
    layout = chosen.layout
    if layout.recompute == "none":
        return ""
    interval = f" every {layout.recompute_layers} layers" if layout.recompute_layers else ""
    return f"recompute {layout.recompute}{interval}; the compiler decides it"


def _uneven(chosen: Chosen) -> str:
    share = chosen.job.global_batch_size / chosen.layout.data
    micro = chosen.layout.micro_batch_size
    return "" if share % micro == 0 else f"micro-batches of {micro} in {share:g} sequences a system"


GAPS: tuple[Limit, ...] = (
    _uneven,
    _recompute,
    where(lambda c: c.layout.spill, "activations on activation servers; the compiler decides it"),
    where(
        lambda c: c.layout.stream_chunks > 1, "weights streamed in {c.layout.stream_chunks} pieces a layer"
    ),
    where(
        lambda c: c.job.recipe.weight_sparsity,
        "{c.job.recipe.weight_sparsity:.0%} of zeros in the weights, whose algorithm is a section of its own",
    ),
    where(
        lambda c: c.job.model.query_groups != c.job.model.num_attention_heads,
        "{c.job.model.query_groups} key and value heads; take a model class with grouped queries",
    ),
    where(lambda c: c.job.model.norms_per_layer == 1, "attention and MLP on one norm"),
    where(lambda c: not c.job.model.causal, "attention in both directions; take models/nlp/bert"),
    where(lambda c: c.job.model.position_embedding == "none", "a model without position embedding"),
    where(
        lambda c: c.job.recipe.dropout,
        f"the rate of dropout, which the recipe does not give; {DROPOUT} is written",
    ),
)


def _text(comments: Sequence[str], values: Values) -> str:
    body = yaml.safe_dump(nested(values), sort_keys=False, allow_unicode=True)
    return "\n".join([*commented(comments), body])


def _start(chosen: Chosen) -> str:
    release = chosen.job.runtime.software_release or getattr(chosen.system, "software_release", "")
    predicted = f"; predicted for software release {release}" if release else ""
    return f"run.py CSX --params and this file, mode train{predicted}"


MODELZOO = Tool(
    name="modelzoo",
    title="the Cerebras Model Zoo",
    layout_type=StreamingLayout,
    runs_on="wafers",
    settings=SETTINGS,
    refusals=REFUSALS,
    gaps=GAPS,
    render=_text,
    how_to_start=_start,
)


MODEL = ("model.", "trainer.init.model.", "trainer.init.model.config.")
INPUT = ("train_input.", "trainer.fit.train_dataloader.")
RUN = ("runconfig.", "trainer.init.backend.cluster_config.", "trainer.init.backend.")
EMBEDDINGS: Mapping[str, Any] = {
    **{name: position for position, name in POSITIONS.items()},
    "relative": "none",
    "fixed": "none",
    "none": "none",
}
GATED = ("swiglu", "geglu", "reglu", "glu", "bilinear")
PRECISIONS_READ = {
    **{name: precision for precision, name in HALF.items()},
    "cbfloat16": "bf16",
    "float32": "fp32",
}
"""cbfloat16 is Cerebras' own 16-bit format; its products take the time of bf16."""
SHIFTLESS = ("rmsnorm", "biasless-layernorm")


def recognise(document: Any) -> bool:
    """Whether this is a file of the Model Zoo."""
    if not isinstance(document, Mapping):
        return False
    model = _first_phase(document).get("model")
    trainer = _first_phase(document).get("trainer")
    if isinstance(trainer, Mapping) and isinstance(trainer.get("init"), Mapping):
        model = trainer["init"].get("model", model)
    if not isinstance(model, Mapping):
        return False
    inner = model["config"] if isinstance(model.get("config"), Mapping) else model
    return "num_heads" in inner and ("filter_size" in inner or "hidden_size" in inner)


def _first_phase(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document, or the first of the phases that `trainer` lists."""
    phases = document.get("trainer")
    if isinstance(phases, list) and phases and isinstance(phases[0], Mapping):
        return phases[0] if "trainer" in phases[0] else {"trainer": phases[0]}
    return document


def read(source: Source, document: Mapping[str, Any]) -> Reading:
    """Model, recipe, number of systems and micro-batch."""
    if not isinstance(document, Mapping):
        document = {}
    settings = Settings.of(source, _first_phase(document))
    model = settings.under(*MODEL)
    data = settings.under(*INPUT)
    shape = _shape(model, data)
    batch = data.integer("batch_size")
    systems = settings.under(*RUN).integer("num_csx")
    micro = _micro(settings.under(*INPUT, *MODEL))
    layout = None
    if systems is not None or micro is not None:
        share = None if batch is None else max(1, batch // (systems or 1))
        layout = StreamingLayout(data=systems or 1, micro_batch_size=micro or share or 1)
    return Reading(
        settings,
        shape=shape,
        recipe=_recipe(settings, shape, batch),
        layout=layout,
        devices=systems,
        gaps=tuple(_gaps(model, document)),
    )


def _shape(model: Settings, data: Settings) -> Shape:
    hidden = model.needed("hidden_size", most=MOST_WIDTH)
    heads = model.needed("num_heads", "num_attention_heads", most=MOST_HEADS)
    family = model.text("name").casefold()
    encoder = "bert" in family or "bert" in data.text("data_processor").casefold()
    # Classes of TensorFlow (their vocabulary is beside the data) and BERT have biases by default.
    usual = encoder or not model.has("vocab_size")
    qkv = model.flag("use_projection_bias_in_attention", default=usual)
    embedding = model.choice(("position_embedding_type",), EMBEDDINGS, "learned")
    if not model.flag("use_position_embedding", default=True):
        embedding = "none"
    head_bias = model.flag("use_bias_in_output", default=encoder)
    ffn = model.integer("filter_size", default=4 * hidden, most=MOST_WIDTH)
    embedding_norm = model.flag("embedding_layer_norm") or encoder
    vocab = model.integer("vocab_size", most=MOST_VOCABULARY)
    return Shape(
        layers=model.needed("num_hidden_layers", most=MOST_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=_groups(model, heads),
        head_dim=max(1, (model.integer("attention_inner_dim", most=MOST_WIDTH) or hidden) // heads),
        ffn=ffn,
        vocab=vocab or data.needed("vocab_size", most=MOST_VOCABULARY),
        positions=model.integer("max_position_embeddings", most=MOST_POSITIONS)
        or data.needed("max_sequence_length", most=MOST_POSITIONS),
        gated=model.text("nonlinearity", "encoder_nonlinearity").casefold() in GATED,
        tied=model.flag("share_embedding_weights", default=True),
        causal=not encoder,
        embedding=embedding,
        norm_vectors=_norm_vectors(model),
        norms=_norms(model, family, shared=embedding == "rotary" and head_bias and not qkv),
        final_norm=not encoder,
        bias_qkv=qkv,
        bias_out=model.flag("use_ffn_bias_in_attention", default=qkv),
        bias_mlp=model.flag("use_ffn_bias", default=usual),
        bias_head=head_bias,
        other=(("a norm of the embedding", 2 * hidden),) if embedding_norm else (),
        experts=_experts(model, ffn),
    )


def _norm_vectors(model: Settings) -> int:
    shiftless = model.text("norm_type").casefold() in SHIFTLESS
    return 1 if shiftless or model.flag("use_rms_norm") or model.flag("use_biasless_norm") else 2


def _groups(model: Settings, heads: int) -> int:
    names = ("extra_attention_params.num_kv_groups", "attention_module_params.num_kv_groups")
    groups = model.integer(*names, most=MOST_HEADS)
    module = model.text("attention_module")
    if "multiquery" not in module:
        return heads
    return 1 if groups is None else groups


def _norms(model: Settings, family: str, *, shared: bool) -> int:
    """Norms of a layer: one where attention and MLP share it, as in GPT-J; four where each has two."""
    if model.flag("norm_first_sandwich"):
        return 4
    if model.has("use_untied_layer_norm"):
        return 2 if model.flag("use_untied_layer_norm") else 1
    return 1 if family in ("gptj", "gpt-j", "falcon") or shared else 2


def _experts(model: Settings, ffn: int) -> ExpertShape | None:
    names = ("moe_params.num_experts", "num_experts", "moe.num_experts")
    count = model.integer(*names, least=0, most=MOST_WIDTH)
    if not count or count == 1:
        return None
    layers = model.needed("num_hidden_layers", most=MOST_LAYERS)
    shared = model.integer("moe_params.num_shared_experts", default=0, least=0)
    active = model.integer("moe_params.top_k", "top_k", "moe.top_k", default=1, most=count)
    return ExpertShape(
        count=count, active=active or 1, ffn=ffn, pattern=(True,) * layers, shared_ffn=shared * ffn
    )


# ----------------------------------------------------------------------------------------- recipe
def _recipe(settings: Settings, shape: Shape, batch: int | None) -> dict[str, Any]:
    model = settings.under(*MODEL)
    data = settings.under(*INPUT)
    rates = [
        model.number(name, default=0.0)
        for name in ("dropout_rate", "attention_dropout_rate", "residual_dropout_rate")
    ]
    sparsity = settings.number("sparsity.sparsity", "trainer.init.sparsity.sparsity", default=None)
    return {
        "seq_length": data.integer("max_sequence_length", default=shape.positions, most=MOST_POSITIONS),
        "precision": _precision(settings),
        "optimizer": _optimizer(settings),
        "global_batch_size": batch,
        "dropout": any(rates),
        "weight_sparsity": sparsity if sparsity is not None and 0 <= sparsity < 1 else None,
    }


def _precision(settings: Settings) -> str:
    model = settings.under("trainer.init.precision.", *MODEL, "train_input.")
    named = model.choice(("fp16_type",), PRECISIONS_READ, "")
    bf16 = model.flag("use_bfloat16")
    if not model.flag("enabled", "mixed_precision", default=True):
        return "fp32"
    return named or ("bf16" if bf16 else "fp16")


def _optimizer(settings: Settings) -> str:
    """As a value, or as the name of the only section below `trainer.init.optimizer`."""
    known = {name.casefold(): ours for ours, name in OPTIMIZERS.items()}
    word = settings.text("optimizer.optimizer_type", "trainer.init.optimizer.name").casefold()
    prefix = "trainer.init.optimizer."
    sections = [path[len(prefix) :].split(".")[0] for path in settings.values if path.startswith(prefix)]
    return known.get(word or next(iter(sections), "").casefold(), "adamw")


def _micro(settings: Settings) -> int | None:
    """A whole number; `auto` and `explore` leave it to the compiler."""
    given = settings.raw("micro_batch_size")
    return None if isinstance(given, (str, dict)) else settings.integer("micro_batch_size")


def _gaps(model: Settings, document: Mapping[str, Any]) -> Iterator[Gap]:
    position = model.text("position_embedding_type")
    if position in ("relative", "fixed"):
        yield Gap(f"{position} positions; described without a table of positions")
    window = model.integer("attention_sliding_window_length")
    if window:
        yield Gap(f"attention in a sliding window of {window}; taken as full attention")
    if isinstance(document.get("trainer"), list) and len(document["trainer"]) > 1:
        count = len(document["trainer"])
        yield Gap(f"{count} phases of training, of which the first is described")
