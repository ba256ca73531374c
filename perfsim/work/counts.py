"""Counts of a model: parameters, FLOPs of a step, activations of a layer; each cites its equation."""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache

from perfsim.specs.layout import RECOMPUTED, Recompute
from perfsim.specs.model import PLAIN, LayerKind, TransformerConfig, layer_kinds
from perfsim.specs.recipe import Job
from perfsim.work import layer
from perfsim.work.graph import EMBEDDING, HEAD
from perfsim.work.kernels import FULL, LayerSlice
from perfsim.work.tensors import AXES, EXPERTS, is_whole, tensors_of


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of a model [2104.04473 Eq. 2 term by term, without its approximation].

    What depends on the layer takes its kind; `active` counts leave out the experts that do not compute a
    token.
    """

    model: TransformerConfig

    def of(self, kind: LayerKind = PLAIN, *, active: bool = False, matrices: bool = False) -> int:
        """Parameters of a layer, or its `matrices`: weights that multiply activations."""
        routed = self.routed_of(kind, active=active, matrices=matrices)
        return _count(self.model, kind, matrices=matrices) + routed

    def on_tensor_rank(self, kind: LayerKind, tensor: int) -> float:
        """Parameters of a layer without routed experts on a tensor rank; norms and biases once a group."""
        everywhere = _count(self.model, kind, matrices=True, whole=True)
        return (_count(self.model, kind) - everywhere) / tensor + everywhere

    def routed_of(self, kind: LayerKind, *, active: bool = False, matrices: bool = False) -> int:
        """Parameters of a layer's routed experts, which expert parallelism divides; 0 without experts."""
        experts = self.model.experts
        if experts is None or not kind.experts:
            return 0
        whole = _count(self.model, EXPERTS, matrices=matrices)
        return whole // experts.num_experts * experts.top_k if active else whole

    @cached_property
    def _kinds(self) -> Counter[LayerKind]:
        return Counter(layer_kinds(self.model))

    @property
    def embedding(self) -> int:
        """Word embedding, and position embedding if positions are learned."""
        return _count(self.model, EMBEDDING)

    @property
    def head(self) -> int:
        """LM head; shared with the embedding if tied, but for its bias."""
        words = 0 if self.model.tied_embeddings else self.model.vocab_size * self.model.hidden_size
        return words + (self.model.vocab_size if self.model.head_bias else 0)

    @property
    def final_norm(self) -> int:
        """Norm before the LM head."""
        return self.model.hidden_size * list(tensors_of(self.model, HEAD).values()).count("h")

    @property
    def layers(self) -> int:
        """Parameters of all layers, layers of multi-token prediction included."""
        return sum(count * self.of(kind) for kind, count in self._kinds.items())

    @property
    def mtp(self) -> int:
        """Parameters of the layers of multi-token prediction, which published totals may leave out."""
        return sum(count * self.of(kind) for kind, count in self._kinds.items() if kind.mtp)

    @property
    def total(self) -> int:
        return self.layers + self.embedding + self.head + self.final_norm

    @property
    def active(self) -> int:
        """Parameters that compute a token of the model itself, embedding and LM head included."""
        layers = sum(
            count * self.of(kind, active=True) for kind, count in self._kinds.items() if not kind.mtp
        )
        return layers + self.embedding + self.head + self.final_norm

    @property
    def body_matrices(self) -> int:
        """Weights of all layers that multiply activations."""
        return sum(count * self.of(kind, matrices=True) for kind, count in self._kinds.items())

    @property
    def active_body_matrices(self) -> int:
        """The same with only those experts of a layer that compute a token."""
        return sum(count * self.of(kind, active=True, matrices=True) for kind, count in self._kinds.items())


@lru_cache(maxsize=1024)
def _count(
    model: TransformerConfig, block: LayerKind | int, *, matrices: bool = False, whole: bool = False
) -> int:
    """Entries of the tensors of a block, of its `matrices`, or of those that tensor ranks hold `whole`."""
    total = 0
    for name, axes in tensors_of(model, block).items():
        multiplies = len(axes) > 1 and not name.endswith("_bias")
        if (multiplies or not matrices) and (is_whole(axes) or not whole):
            total += math.prod(AXES[axis].length(model) for axis in axes)
    return total


@lru_cache(maxsize=256)
def parameters(model: TransformerConfig) -> Parameters:
    """Parameter counts of `model`."""
    return Parameters(model)


def _core_flop_per_token(model: TransformerConfig, kind: LayerKind, seq_length: int) -> float:
    """FLOPs of a forward of the attention core: scores and context."""
    # Papers count attention without halving it under the causal mask. In a window of w a position sees
    # w - w^2 / 2 s positions in the mean, doubled here, so that a window of the whole sequence counts s.
    window = min(kind.window or seq_length, seq_length)
    attended = 2.0 * window - window**2 / seq_length if window < seq_length else float(seq_length)
    return 2.0 * attended * (model.query_width + model.attention_width)


def attention_flop_per_step(job: Job) -> float:
    """Model FLOPs of the attention cores of a step, forward and backward."""
    per_token = sum(_core_flop_per_token(job.model, kind, job.seq_length) for kind in layer_kinds(job.model))
    return 3.0 * per_token * job.tokens_per_step


def model_flop_per_step(job: Job) -> float:
    """Model FLOPs of a step: 6 N_mm + 12 L s h per token, without causal halving or recompute.

    [2205.05198 App. A: 72 B l s h^2 (1 + s/6h + V/12hl)]; the LM head counts positions that reach it. With
    experts N_mm counts the weights that compute a token; each layer of multi-token prediction has an LM head.
    """
    model = job.model
    recipe = job.recipe
    counts = parameters(model)
    body = 6.0 * counts.active_body_matrices
    positions = recipe.lm_head_positions or recipe.seq_length
    head = 6.0 * model.vocab_size * model.hidden_size
    heads = positions / recipe.seq_length + model.mtp_num_layers
    return (body + head * heads) * job.tokens_per_step + attention_flop_per_step(job)


def recompute_flop_per_step(job: Job, recompute: Recompute, share: float = 1.0) -> float:
    """FLOPs of recompute: one forward of the layers (full), or of the modules that a mode runs again.

    [2104.04473 Eq. 3; 2205.05198 App. A]. `share` is the share of layers that recompute. What a mode keeps
    (`layer.py`) is not counted; the last linear of a layer is, which full recompute may skip.
    """
    model = job.model
    counts = parameters(job.model)
    flop_per_token = 0.0
    for kind in layer_kinds(model) if recompute != "none" else ():
        part = LayerSlice.of(job, kind)
        modules = RECOMPUTED[recompute]
        if "core_attn" in modules and (part.attention == "standard" or not part.by_operator(recompute)):
            flop_per_token += _core_flop_per_token(model, kind, job.seq_length)
        if not part.repeats_layer(recompute):
            mlp = layer.mlp_products(part) if "mlp" in modules else ()
            latents = layer.up_projections(part) if "mla_up_proj" in modules else ()
            flop_per_token += sum(product.flop for product in (*mlp, *latents)) / part.tokens
            continue
        # Experts are kept whole, and nothing reads the result of the MLP's last product.
        products = (*layer.attention_products(part), *(() if kind.experts else layer.mlp_products(part)[:1]))
        shares = layer.kept_shares(part, recompute)
        kept_flop = sum(shares.get(product.name, 0.0) * product.flop for product in products)
        if part.by_operator(recompute):
            flop_per_token += (sum(product.flop for product in products) - kept_flop) / part.tokens
        else:
            flop_per_token += 2.0 * counts.of(kind, active=True, matrices=True)
            flop_per_token -= kept_flop / part.tokens
    return share * flop_per_token * job.tokens_per_step


SELECTIVE_AS_PRINTED = 3.0
"""Factor of selective recompute in the printed HFU formula, which counts forward and backward of the
attention core once more; a device executes only one forward."""


def hardware_flop_per_step(job: Job, recompute: Recompute, share: float = 1.0) -> float:
    """FLOPs that HFU counts: model FLOPs and recompute, as papers print them.

    none: model FLOPs; full: one more forward of the layers, 96 B l s h^2 (1 + s/6h + V/16lh)
    [2104.04473 Eq. 3]; selective: 72 B l s h^2 (1 + s/3h + V/12hl) [2205.05198 App. A], which the
    utilisations of its Table 5 follow.
    """
    recomputed = recompute_flop_per_step(job, recompute, share)
    core_alone = recompute == "selective" and not LayerSlice.of(job).by_operator(recompute)
    factor = SELECTIVE_AS_PRINTED if core_alone else 1.0
    return model_flop_per_step(job) + recomputed * factor


def layer_activation_bytes(part: LayerSlice, recompute: Recompute) -> float:
    """Bytes that one layer keeps for its backward, one micro-batch [2205.05198 Table 2].

    In 16 bits with dropout, none: sbh (10 + 24/t + 5 a s / h t), with sequence parallelism
    sbh (34 + 5 a s / h) / t; selective drops the 5 a s / h term, mlp 16 sbh / t of the MLP; full keeps the
    layer's input, 2 sbh, or 2 sbh / t where sequence parallelism splits it. The mode norms drops the outputs
    of norms, 4 sbh, and of the activation of experts; latents drops queries, keys, values and the outputs of
    inner norms. A score takes 2 bytes as the softmax's output and, with dropout, a mask byte and 2 bytes of
    dropped output. Flash attention never stores the scores. Gated and wide MLPs scale the 19 sbh of the MLP:
    3 sbh outside the ffn activations and 2 bytes for each of its inputs to GELU and to the second linear.
    Where attention and MLP share a norm, its input and output are kept once. A mode that keeps some results
    adds them to the input (`layer.py`). In fp32 and tf32 every number but a mask takes 4 bytes.
    """
    model = part.model
    size = part.element_bytes
    if recompute == "full" or part.by_operator(recompute):
        experts_bytes = _experts_kept_bytes(part) if part.kind.experts and recompute != "full" else 0.0
        return part.activation_bytes / part.norm_share + layer.kept_bytes(part, recompute) + experts_bytes
    t = part.tensor
    tokens = float(part.tokens)
    mask = 1.0 if part.dropout else 0.0
    modules = RECOMPUTED[recompute]
    latents = model.latent_attention is not None
    heads = model.attention_width
    if not (latents and "mla_up_proj" in modules):
        heads += model.query_width + part.pair_width
    mlp = "mlp" not in modules
    ffn = model.ffn_hidden_size * (1.5 if model.gated_mlp else 1.0) if mlp and not part.kind.experts else 0
    norm = 1 if "layernorm" in modules else 2
    shared = (norm * size * model.norms_per_layer + 2 * mask) * model.hidden_size
    total = tokens * (size * (heads + 2 * ffn) / t + shared / part.norm_share)
    if "core_attn" not in modules and part.attention == "standard":
        scores = tokens * model.num_attention_heads * part.seq_length
        total += (2 * size + 1 if part.dropout else size) * scores / t
    total += (2 if latents and "mla_up_proj" not in modules else 1) * layer.inner_norm_bytes(part)
    if part.kind.experts and mlp:
        total += _experts_kept_bytes(part, "moe_act" in modules)
    if part.kind.mtp:
        logits = tokens * layer.padded_vocab_size(model, t) / t
        total += 5 * part.activation_bytes / part.norm_share + size * logits
    return total


def _experts_kept_bytes(part: LayerSlice, activation_again: bool = False) -> float:
    """Bytes that the experts keep for the backward of one micro-batch.

    The permuted rows, the inputs of the activation and of the second product, and scores and probabilities of
    the router in fp32 (Megatron-Core with the weights applied in the activation); shared experts likewise.
    """
    model = part.model
    experts = part.experts
    gate = 1.5 if model.gated_mlp else 1.0
    kept = 2 * gate - activation_again
    routed = model.hidden_size + kept * experts.ffn_hidden_size / part.expert_split
    shared = 2 * gate * experts.shared_ffn_hidden_size / part.tensor
    scores = 2 * FULL * part.routed_tokens * experts.num_experts
    return part.element_bytes * (part.expert_rows * routed + part.tokens * shared) + scores


def attention_weight_input_bytes(part: LayerSlice) -> float:
    """Bytes that the attention block holds between its dgrad and its wgrad, one micro-batch.

    Input and output gradient of its linear layers and of the norm: in 16 bits with equal heads and
    t = 1, sbh (8 of QKV + 4 of the projection + 4 of the norm).
    """
    model = part.model
    latent = model.latent_attention
    # Output gradients and the projection's input.
    split = model.query_width + part.pair_width + model.attention_width
    shared = (1 + 1 + 2) * model.hidden_size  # QKV's input, the projection's output gradient, the norm's pair
    if latent is not None:  # latents and their gradients
        shared += 2 * ((latent.q_lora_rank or 0) + latent.kv_lora_rank + latent.qk_rope_head_dim)
    return part.element_bytes * part.tokens * (split / part.tensor + shared / part.norm_share)


def mlp_weight_input_bytes(part: LayerSlice) -> float:
    """The same for the MLP block: sbh (20 of both linear layers + 4 of the norm) with ffn = 4 h, t = 1."""
    if part.kind.experts:
        products = layer.mlp_products(part)
        weights = sum(float(product.batch) * product.n * product.k for product in products)
        inputs = sum(product.bytes_accessed for product in products) - part.element_bytes * weights
        return inputs + 2 * part.activation_bytes / part.norm_share
    ffn = part.model.ffn_hidden_size / part.model.hidden_size
    split = (2 if part.model.gated_mlp else 1) * ffn + ffn
    shared = 1 + 1 + 2
    return part.activation_bytes * (split / part.tensor + shared / part.norm_share)


def head_weight_input_bytes(part: LayerSlice, positions: int) -> float:
    """The same for the LM head: the gradient of the logits, its input, and the final norm's pair."""
    tokens = float(part.micro_batch_size * positions)
    logits = tokens * layer.padded_vocab_size(part.model, part.tensor) / part.tensor
    hidden = tokens * part.model.hidden_size + 2 * part.activation_elements / part.norm_share
    return part.element_bytes * (logits + hidden)
