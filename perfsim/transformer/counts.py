"""Counts of a model: parameters, FLOPs of a step, activations of a layer; each cites its equation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from perfsim.transformer.ends import padded_vocab_size
from perfsim.transformer.kernels import LayerSlice
from perfsim.workload import Job, TransformerConfig


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of a model [2104.04473 Eq. 2 term by term, without its approximation]."""

    model: TransformerConfig

    @cached_property
    def layer_matrices(self) -> int:
        """Weights of one layer that multiply activations."""
        model = self.model
        kv = model.query_groups * model.head_size
        attention = model.hidden_size * (2 * model.hidden_size + 2 * kv)
        return attention + (3 if model.gated_mlp else 2) * model.hidden_size * model.ffn_hidden_size

    @cached_property
    def layer_vectors(self) -> int:
        """Biases and norms of one layer."""
        model = self.model
        vectors = model.norms_per_layer * (2 if model.bias else 1) * model.hidden_size
        if model.has_attention_bias:
            vectors += 2 * model.hidden_size + 2 * model.query_groups * model.head_size
        if model.bias:
            vectors += (2 if model.gated_mlp else 1) * model.ffn_hidden_size + model.hidden_size
        return vectors

    @property
    def layer(self) -> int:
        """All parameters of one layer."""
        return self.layer_matrices + self.layer_vectors

    @property
    def embedding(self) -> int:
        """Word embedding, and position embedding if positions are learned."""
        model = self.model
        positions = model.max_position_embeddings if model.position_embedding == "learned" else 0
        return (model.vocab_size + positions) * model.hidden_size

    @property
    def head(self) -> int:
        """LM head beside the embedding; if the two are tied, only its bias."""
        model = self.model
        bias = model.vocab_size if model.head_bias else 0
        return bias + (0 if model.tied_embeddings else model.vocab_size * model.hidden_size)

    @property
    def final_norm(self) -> int:
        """Norm before the LM head."""
        return (2 if self.model.bias else 1) * self.model.hidden_size

    @property
    def total(self) -> int:
        """All parameters of the model."""
        return self.model.num_layers * self.layer + self.embedding + self.head + self.final_norm

    @property
    def matrices(self) -> int:
        """N_mm: matrix parameters with the LM head and without the embedding lookup."""
        return self.model.num_layers * self.layer_matrices + self.model.vocab_size * self.model.hidden_size


@lru_cache(maxsize=256)
def parameters(model: TransformerConfig) -> Parameters:
    """Parameter counts of `model`."""
    return Parameters(model)


def model_flop_per_step(job: Job) -> float:
    """Model FLOPs of a step: 6 N_mm + 12 L s h per token, without causal halving or recompute.

    [2205.05198 App. A: 72 B l s h^2 (1 + s/6h + V/12hl)]; the LM head counts only the positions that
    reach it.
    """
    model, recipe = job.model, job.recipe
    counts = parameters(model)
    body = 6.0 * model.num_layers * counts.layer_matrices
    body += 12.0 * model.num_layers * recipe.seq_length * model.hidden_size
    positions = recipe.lm_head_positions or recipe.seq_length
    head = 6.0 * model.vocab_size * model.hidden_size * positions / recipe.seq_length
    return (body + head) * job.tokens_per_step


def recompute_flop_per_step(
    job: Job, recompute: str, *, stops_early: bool = False, share: float = 1.0
) -> float:
    """FLOPs of recompute: one forward of the layers (full) or of the attention core (selective).

    [2104.04473 Eq. 3; 2205.05198 App. A]. `share` is that of the layers that recompute. With `stops_early`
    full recompute skips the MLP's second linear, whose output no backward reads.
    """
    model = job.model
    core = 4.0 * job.recipe.seq_length * model.hidden_size
    flop_per_token = {
        "none": 0.0,
        "selective": core,
        "full": 2.0 * parameters(model).layer_matrices + core,
    }[recompute]
    if recompute == "full" and stops_early:
        flop_per_token -= 2.0 * model.hidden_size * model.ffn_hidden_size
    return share * flop_per_token * model.num_layers * job.tokens_per_step


SELECTIVE_AS_PRINTED = 3.0
"""Factor of selective recompute in the printed HFU formula, which counts forward and backward of the
attention core once more; a device executes only one forward."""


def hardware_flop_per_step(job: Job, recompute: str, share: float = 1.0) -> float:
    """FLOPs that HFU counts: model FLOPs and recompute, as papers print them.

    none: model FLOPs; full: one more forward of the layers, 96 B l s h^2 (1 + s/6h + V/16lh)
    [2104.04473 Eq. 3]; selective: 72 B l s h^2 (1 + s/3h + V/12hl) [2205.05198 App. A], which the
    utilisations of its Table 5 follow.
    """
    recomputed = recompute_flop_per_step(job, recompute, share=share)
    return model_flop_per_step(job) + recomputed * (SELECTIVE_AS_PRINTED if recompute == "selective" else 1.0)


def layer_activation_bytes(part: LayerSlice, recompute: str) -> float:
    """Bytes that one layer keeps for its backward, one micro-batch [2205.05198 Table 2].

    In 16 bits with dropout, none: sbh (10 + 24/t + 5 a s / h t), with sequence parallelism
    sbh (34 + 5 a s / h) / t; selective drops the 5 a s / h term; full keeps the layer's input, 2 sbh, or
    2 sbh / t where sequence parallelism splits it. A score takes 2 bytes as the softmax's output and, with
    dropout, a mask byte and 2 bytes of dropped output. Flash attention never stores the scores. Gated and
    wide MLPs scale the 19 sbh of the MLP: 3 sbh outside the ffn activations and 2 bytes for each of its
    inputs to GELU and to the second linear. Where attention and MLP share a norm, its input and output are
    kept once. In fp32 and tf32 every number but a mask takes 4 bytes.
    """
    model, size = part.model, part.element_bytes
    sbh = float(part.activation_elements)
    if recompute == "full":
        return part.activation_bytes / part.norm_share
    t = part.tensor
    ffn_ratio = model.ffn_hidden_size / model.hidden_size * (1.5 if model.gated_mlp else 1.0)
    kv_ratio = part.kv_size / model.hidden_size
    mask = 1.0 if part.dropout else 0.0
    split = size * (1 + 2 * kv_ratio + 1 + 2 * ffn_ratio)
    shared = 2 * size * model.norms_per_layer + 2 * mask
    total = split / t + shared / part.norm_share
    if recompute == "none" and part.attention == "standard":
        scores = part.model.num_attention_heads * part.seq_length / model.hidden_size
        total += (2 * size + 1 if part.dropout else size) * scores / t
    return total * sbh


def attention_weight_input_bytes(part: LayerSlice) -> float:
    """Bytes that the attention block holds between its dgrad and its wgrad, one micro-batch.

    Input and output gradient of both linear layers and of the norm: in 16 bits with equal heads and
    t = 1, sbh (8 of QKV + 4 of the projection + 4 of the norm).
    """
    heads = 1 + 2 * part.kv_size / part.model.hidden_size
    split = heads + 1  # QKV's output gradient, the projection's input
    shared = 1 + 1 + 2  # QKV's input, the projection's output gradient, the norm's pair
    return part.activation_bytes * (split / part.tensor + shared / part.norm_share)


def mlp_weight_input_bytes(part: LayerSlice) -> float:
    """The same for the MLP block: sbh (20 of both linear layers + 4 of the norm) with ffn = 4 h, t = 1."""
    ffn = part.model.ffn_hidden_size / part.model.hidden_size
    split = (2 if part.model.gated_mlp else 1) * ffn + ffn
    shared = 1 + 1 + 2
    return part.activation_bytes * (split / part.tensor + shared / part.norm_share)


def head_weight_input_bytes(part: LayerSlice, positions: int) -> float:
    """The same for the LM head: the gradient of the logits, its input, and the final norm's pair."""
    tokens = float(part.micro_batch_size * positions)
    logits = tokens * padded_vocab_size(part.model, part.tensor) / part.tensor
    hidden = tokens * part.model.hidden_size + 2 * part.activation_elements / part.norm_share
    return part.element_bytes * (logits + hidden)
