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


def _device(chosen: Chosen) -> str:
    device = chosen.system.device
    return "" if device.kind == "wafer" else f"{chosen.system.name} streams to {device.name}, not to wafers"


def _precision(chosen: Chosen) -> str:
    precision = chosen.job.recipe.precision
    known = (*HALF, "fp32")
    return "" if precision in known else f"it trains in {', '.join(known)}, not {precision}"


def _recompute(chosen: Chosen) -> str:
    layout = chosen.layout
    if layout.recompute == "none":
        return ""
    interval = f" every {layout.recompute_layers} layers" if layout.recompute_layers else ""
    return f"recompute {layout.recompute}{interval}; the compiler decides it"


def _uneven(chosen: Chosen) -> str:
    share, micro = chosen.job.global_batch_size / chosen.layout.data, chosen.layout.micro_batch_size
    return "" if share % micro == 0 else f"micro-batches of {micro} in {share:g} sequences a system"


def _sparsity(chosen: Chosen) -> str:
    share = chosen.job.recipe.weight_sparsity
    return f"{share:.0%} of zeros in the weights, whose algorithm is a section of its own" if share else ""


GAPS: tuple[Limit, ...] = (
    _uneven,
    _recompute,
    (lambda c: "activations on activation servers; the compiler decides it" if c.layout.spill else ""),
    (
        lambda c: (
            f"weights streamed in {c.layout.stream_chunks} pieces a layer"
            if c.layout.stream_chunks > 1
            else ""
        )
    ),
    _sparsity,
    (
        lambda c: (
            f"{c.job.model.query_groups} key and value heads; take a model class with grouped queries"
            if c.job.model.query_groups != c.job.model.num_attention_heads
            else ""
        )
    ),
    (lambda c: "attention and MLP on one norm" if c.job.model.norms_per_layer == 1 else ""),
    (lambda c: "" if c.job.model.causal else "attention in both directions; take models/nlp/bert"),
    (lambda c: "a model without position embedding" if c.job.model.position_embedding == "none" else ""),
    (
        lambda c: (
            f"the rate of dropout, which the recipe does not give; {DROPOUT} is written"
            if c.job.recipe.dropout
            else ""
        )
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
    refusals=(only_optimizers(OPTIMIZERS), equal_dense_layers, _device, _precision),
    gaps=GAPS,
    render=_text,
    how_to_start=_start,
)
