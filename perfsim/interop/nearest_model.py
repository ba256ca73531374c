"""The nearest model of perfsim to a model of a foreign file, and the parameters that it lacks.

A file may hold what `TransformerConfig` does not: experts in irregular layers, sinks, gates of shared
experts, norms with other vectors. They are counted here and named as gaps of the description, so that the
count of the file is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from perfsim.specs.model import Experts, TransformerConfig
from perfsim.work.counts import parameters

SMALL = 0.005
"""Share of the parameters up to which a difference is a remark and not another model."""
_MOST_INTERVAL = 64
"""Largest interval of layers with experts that is looked for."""
_MOST_SHOWN = 60
"""Characters of the numbers of layers in a remark."""
_ALWAYS = ("position_embedding", "gated_mlp", "tied_embeddings", "bias")
"""Fields that are written although they may have their default."""
_KNOWN = TransformerConfig.model_fields
_USUAL = {name: _KNOWN[name].default for name in (*_ALWAYS, *_KNOWN) if not _KNOWN[name].is_required()}
_USUAL_EXPERTS = {name: known.default for name, known in Experts.model_fields.items()}
"""Fields of the experts that are not written."""


class Gap(NamedTuple):
    """What a description of perfsim cannot express; `changes_model` where it then describes another model."""

    text: str
    changes_model: bool = False


@dataclass(frozen=True, kw_only=True)
class Beyond:
    """What decides the parameters of a model and is no field of `TransformerConfig`."""

    norm_vectors: int = 2
    """Vectors of a norm: 2 with scale and shift, 1 for RMSNorm, 0 without parameters."""
    norms: int = 2
    """Of one layer, norms of queries and keys apart."""
    final_norm: bool = True
    qk_norm: int = 0
    """Parameters of the norms of queries and keys of one layer."""
    output_bias: bool | None = None
    """Of the attention's output; None: as queries, keys and values have one."""
    expert_layers: tuple[bool, ...] = ()
    """Whether each layer has experts."""
    shared_gate: bool = False
    """Whether a vector of hidden width weighs the shared expert."""
    router_bias: bool = False
    extra_positions: int = 0
    """Rows of the position table beyond the longest sequence (OPT has 2)."""
    parts: Mapping[str, int] = field(default_factory=dict)
    """Further parts with their parameters: projections of the embedding, token types, sinks."""


@dataclass(frozen=True)
class Nearest:
    """The description of a model, with what it counts otherwise than the file."""

    fields: Mapping[str, Any]
    """Of a `TransformerConfig`, without its name."""
    lacking: Mapping[str, int]
    """Parts that the description counts otherwise, with the parameters that it lacks."""
    remarks: Sequence[Gap] = ()

    @property
    def described(self) -> int:
        """Parameters of the description, without layers that predict further tokens."""
        counts = parameters(TransformerConfig.model_validate({"name": "nearest", **self.fields}))
        return counts.total - counts.mtp

    @property
    def parameters(self) -> int:
        """All parameters of the file's model, without layers that predict further tokens."""
        return self.described + sum(self.lacking.values())

    def gaps(self) -> list[Gap]:
        """What the description cannot say."""
        lacking = sum(self.lacking.values())
        if not lacking:
            return list(self.remarks)
        described = self.described
        count = described + lacking
        words = f"{', '.join(self.lacking)}: the description has {described:,} parameters, the file {count:,}"
        return [*self.remarks, Gap(words, changes_model=abs(described / count - 1) > SMALL)]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Nearest:
        """The nearest model to one with these fields of `TransformerConfig` and of `Beyond`."""
        beyond = Beyond(**{name.name: given[name.name] for name in fields(Beyond) if name.name in given})
        model = {name: value for name, value in given.items() if name in _KNOWN}
        model |= {name: value for name, value in _USUAL.items() if name not in model}
        layers, hidden, heads = (model[name] for name in ("num_layers", "hidden_size", "num_attention_heads"))
        width = model["head_dim"] or hidden // heads
        groups = model["num_query_groups"] or heads
        mlp_bias = model["bias"]  # `attention_bias` means queries, keys and values
        qkv_bias = mlp_bias if model["attention_bias"] is None else model["attention_bias"]
        latent = model["latent_attention"]
        experts = model["experts"] if any(beyond.expert_layers) else None
        shifts = beyond.norm_vectors == 2
        lacking: dict[str, int] = {}
        remarks: list[Gap] = []
        if model["mtp_num_layers"]:
            remarks.append(Gap("layers that predict further tokens, which the count leaves out"))

        # Norms have shifts where a model has biases, so a model of experts alone leaves its biases to them.
        bias = mlp_bias and (shifts or experts is None or not all(beyond.expert_layers))
        if experts is not None:
            routed = sum(beyond.expert_layers)
            first, interval = _regular(beyond.expert_layers)
            if _in_layers(layers, first, interval) != beyond.expert_layers:
                numbers = ", ".join(str(layer) for layer, has in enumerate(beyond.expert_layers, 1) if has)
                shown = f"{numbers[:_MOST_SHOWN]}{'...' * (len(numbers) > _MOST_SHOWN)}"
                words = f"described in every {interval}. layer after the first {first}"
                remarks.append(Gap(f"experts in layers {shown}; {words}"))
            expert_bias = {"bias": True} if mlp_bias and not shifts else {}
            has_bias = bool(expert_bias) or bias
            layers_with = {"first_dense_layers": first, "interval": interval, **expert_bias}
            experts = _without(_USUAL_EXPERTS, {**experts, **_groups(experts), **layers_with})
            lacking["a gate of the shared experts"] = routed * hidden * beyond.shared_gate
            differing = beyond.router_bias - has_bias
            lacking["biases of the router"] = routed * experts["num_experts"] * differing
        divisor = next(count for count in range(min(heads, groups), 0, -1) if heads % count == 0)
        qk_layernorm = latent is None and beyond.qk_norm == 2 * width
        if latent is None:
            pairs = 2 * (groups - divisor) * width * (hidden + qkv_bias)
            lacking[f"{groups} key and value heads"] = layers * pairs
            lacking["norms of queries and keys"] = layers * (beyond.qk_norm if not qk_layernorm else 0)
            output_bias = qkv_bias if beyond.output_bias is None else beyond.output_bias
            alone = "query, key and value" if qkv_bias else "the attention output"
            lacking[f"biases of {alone} alone"] = layers * hidden * (output_bias - qkv_bias)
        elif qkv_bias:
            # Projections to the latents and to the output have biases, projections from the latents none.
            outputs = 2 * latent["qk_nope_head_dim"] + latent["qk_rope_head_dim"] + latent["v_head_dim"]
            lacking["biases behind the latents"] = -layers * heads * outputs
        shared_norm = beyond.norms == 1 and experts is None
        counted = (beyond.norms * layers + beyond.final_norm) * beyond.norm_vectors
        described = ((1 if shared_norm else 2) * layers + 1) * (2 if bias else 1)
        lacking[", ".join(_norm_words(beyond, mlp_bias=mlp_bias)) or "norms"] = hidden * (counted - described)
        if model["position_embedding"] == "learned":
            lacking[f"{beyond.extra_positions} more rows of positions"] = beyond.extra_positions * hidden
        lacking |= beyond.parts
        model |= {
            "num_query_groups": None if latent is not None or divisor == heads else divisor,
            "head_dim": None if latent is not None or heads * width == hidden else width,
            "qk_layernorm": qk_layernorm,
            "experts": experts,
            "bias": bias,
            "attention_bias": None if qkv_bias == bias else qkv_bias,
            "norms_per_layer": 1 if shared_norm else 2,
        }
        if not model["causal"]:
            model |= {"sliding_window": None, "mtp_num_layers": 0}
        if model["sliding_window"] is None:
            model["sliding_window_pattern"] = None
        usual = {name: value for name, value in _USUAL.items() if name not in _ALWAYS}
        missing = {name: count for name, count in lacking.items() if count}
        return cls(_without(usual, model), missing, remarks)


def _without(usual: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in usual or value != usual[name]}


def _groups(experts: Mapping[str, Any]) -> dict[str, int]:
    """The groups of experts, or one where a token could not reach enough experts in them."""
    count, groups, top_groups = (experts.get(name, 1) for name in ("num_experts", "groups", "top_groups"))
    reached = top_groups * count // groups
    fits = count % groups == 0 and top_groups <= groups and reached >= experts["top_k"]
    return {"groups": groups if fits else 1, "top_groups": top_groups if fits else 1}


def _norm_words(beyond: Beyond, *, mlp_bias: bool) -> Iterator[str]:
    if beyond.norms > 2:
        yield f"{beyond.norms} norms a layer"
    if beyond.norm_vectors != (2 if mlp_bias else 1):
        yield ("norms without parameters", "norms without shifts", "norms with shifts")[beyond.norm_vectors]
    if not beyond.final_norm:
        yield "no final norm"


def _in_layers(layers: int, first: int, interval: int) -> tuple[bool, ...]:
    return tuple(layer >= first and (layer + 1) % interval == 0 for layer in range(layers))


def _regular(pattern: tuple[bool, ...]) -> tuple[int, int]:
    """Layers before the first with experts and their interval, that give this pattern or as many layers."""
    first = pattern.index(True)
    layers = len(pattern)
    intervals = range(1, min(layers, _MOST_INTERVAL) + 1)
    candidates = [(start, interval) for start in (first, 0) for interval in intervals]
    candidates.append((layers - sum(pattern), 1))
    made = {candidate: _in_layers(layers, *candidate) for candidate in candidates}
    exact = (candidate for candidate, layers_of in made.items() if layers_of == pattern)
    as_many = (candidate for candidate, layers_of in made.items() if sum(layers_of) == sum(pattern))
    first_dense, interval = next(exact, None) or next(as_many)
    return (first_dense if first_dense >= interval or interval == 1 else 0), interval
