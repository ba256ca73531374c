"""The model of a file that holds none: the one that is named, or the config.json in its folder."""

from __future__ import annotations

from pathlib import Path

from perfsim.catalog import default_catalog
from perfsim.errors import InputError
from perfsim.interop.foreign import huggingface
from perfsim.interop.foreign.shape import Experts, Latent, Shape
from perfsim.interop.foreign.source import Source
from perfsim.workload import TransformerConfig

USUAL = ("config.json", "model.json")
MOST_FILES = 100
"""JSON files of a folder that are looked at."""


def model_beside(source: Source) -> Shape | None:
    """The shape of the named model, else of the one config.json in the folder of the file; None without one.

    Raises InputError for a named model that is not there or that is wrong.
    """
    if source.model:
        path = Path(source.model)
        if path.suffix == ".json" and path.is_file():
            other = Source.read(path)
            return huggingface.read_shape(other, other.as_json())[0]
        return shape_of(default_catalog().model(source.model))
    folder = source.path.resolve().parent
    usual = [folder / name for name in USUAL if (folder / name).is_file()]
    others = sorted(folder.glob("*.json"))[:MOST_FILES]
    for paths in (usual, others):
        shapes = [shape for path in paths if path != source.path.resolve() and (shape := _shape(path))]
        if len(shapes) == 1:
            return shapes[0]
    return None


def _shape(path: Path) -> Shape | None:
    try:
        source = Source.read(path)
        document = source.as_json()
        return huggingface.read_shape(source, document)[0] if huggingface.recognise(document) else None
    except (InputError, OSError):
        return None


def shape_of(model: TransformerConfig) -> Shape:
    """The shape of a model of the catalogue."""
    latent = model.latent_attention
    return Shape(
        layers=model.num_layers,
        hidden=model.hidden_size,
        heads=model.num_attention_heads,
        kv_heads=model.query_groups,
        head_dim=model.head_size,
        ffn=model.ffn_hidden_size,
        vocab=model.vocab_size,
        positions=model.max_position_embeddings,
        gated=model.gated_mlp,
        tied=model.tied_embeddings,
        causal=model.causal,
        embedding=model.position_embedding,
        norm_vectors=2 if model.bias else 1,
        norms=model.norms_per_layer,
        bias_qkv=model.has_attention_bias,
        bias_out=model.has_attention_bias,
        bias_mlp=model.bias if model.experts is None else model.has_expert_bias,
        bias_head=model.head_bias,
        qk_norm=2 * model.head_size if model.qk_layernorm else 0,
        experts=_experts(model),
        latent=None
        if latent is None
        else Latent(
            query_rank=latent.q_lora_rank,
            kv_rank=latent.kv_lora_rank,
            nope=latent.qk_nope_head_dim,
            rope=latent.qk_rope_head_dim,
            value=latent.v_head_dim,
        ),
        window=model.sliding_window,
        window_pattern=model.sliding_window_pattern,
        mtp_layers=model.mtp_num_layers,
    )


def _experts(model: TransformerConfig) -> Experts | None:
    experts = model.experts
    if experts is None:
        return None
    return Experts(
        count=experts.num_experts,
        active=experts.top_k,
        ffn=experts.ffn_hidden_size,
        pattern=tuple(experts.in_layer(layer) for layer in range(model.num_layers)),
        shared_ffn=experts.shared_ffn_hidden_size,
        groups=experts.groups,
        top_groups=experts.top_groups,
        router_bias=model.has_expert_bias,
    )
