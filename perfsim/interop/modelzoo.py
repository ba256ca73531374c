"""Parameters of the Cerebras Model Zoo: batch, model and number of systems as YAML.

Names: Cerebras/modelzoo, `models/nlp/gpt3` of releases 1.9 to 2.2; later ones convert these four sections.
"""

from __future__ import annotations

from collections.abc import Sequence

import yaml

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
from perfsim.workload import StreamingLayout

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
    share, micro = chosen.job.global_batch_size / chosen.layout.data, chosen.layout.micro_batch_size
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
    release = chosen.job.recipe.software_release or getattr(chosen.system, "software_release", "")
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
