"""Arguments of Megatron-LM: a shell script, a line of flags, or the dump at the head of a log, and `--emit`.

Names: NVIDIA/Megatron-LM, `megatron/training/arguments.py`, `core/transformer/transformer_config.py` and
`core/model_parallel_config.py`, with the older spellings of version 2.5. NeMo and Megatron-Bridge have the
same names in YAML, so their reader uses these rows. Megatron numbers ranks as perfsim does: tensor innermost,
then context, then data, then pipeline.
"""

import math
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

from perfsim.base.errors import LayoutError
from perfsim.base.sizes import MOST_DEVICES, MOST_HEADS, MOST_LAYERS, MOST_VOCABULARY
from perfsim.interop import tool
from perfsim.interop.shell import UNKNOWN, flags_of
from perfsim.interop.source import Settings, Source
from perfsim.interop.tool import Chosen, Reading, Row, Step, Tool, only, qk_norm
from perfsim.specs.calibration import HIDES_SHARED
from perfsim.specs.layout import RECOMPUTED, ParallelLayout, layers_of_stages, recompute_of
from perfsim.specs.model import layer_kinds
from perfsim.specs.trainers import TRAINERS, Limits
from perfsim.strategies.schedules import JOINED

SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
"""Strategies of Megatron-FSDP by ZeRO stage."""
RECOMPUTES = ("full", "selective")
MODULES = {mode: tuple(sorted(names)) for mode, names in RECOMPUTED.items() if mode not in ("none", "full")}
"""The modules that selective recompute runs again."""
WITH_OFFLOAD = ("overlap_cpu_optimizer_d2h_h2d", "use_precision_aware_optimizer")
POSITIONS = {"learned": "learned_absolute", "rotary": "rope", "none": "none"}
POSITIONS_READ = {
    **dict.fromkeys(("learned", "absolute", "learned_absolute"), "learned"),
    **dict.fromkeys(("rotary", "rope", "yarn", "mrope"), "rotary"),
    **dict.fromkeys(("none", "nope", "relative"), "none"),
}
RANKS_IN_ALL = re.compile(r"torchrun with (\d{1,6}) ranks in all")
"""The comment of the emitted flags that says how many ranks they are for."""
BACKENDS = {"flash": "flash", "standard": "unfused"}
LATENT_BACKENDS = BACKENDS | {"flash": "fused"}
"""FlashAttention 2 has no values of another width than the keys."""
BACKENDS_READ = dict.fromkeys(("flash", "fused", "auto"), "flash") | {
    "unfused": "standard",
    "local": "standard",
}
EXCHANGES = {"ring": "p2p", "all_to_all": "a2a"}
DISPATCHERS = {"all_to_all": "alltoall", "deepep": "flex", "all_gather": "allgather"}
WIDE_OR_FP16 = ("fp32", "tf32", "fp16")
CORE = "megatron-core-te"
"""The framework of the flags that are written."""
OF_CORE = ("use_mcore_models", "mcore_gpt", "tp_comm_overlap", "cross_entropy_loss_fusion")
"""Flags without which a file of Megatron-LM may be of before Megatron-Core."""
BEFORE_CORE = "2023-12"


def _usual_ffn(settings: Settings) -> int:
    """Two thirds of the plain width for SwiGLU, a multiple of 64."""
    hidden: int = settings.ours["model.hidden_size"]
    return int(hidden * 4 * 2 / 3 / 64) * 64 if settings.flag("swiglu") else 4 * hidden


def _groups(settings: Settings) -> int | None:
    groups = settings.integer("num_query_groups", most=MOST_HEADS)
    return groups if settings.flag("group_query_attention", default=groups is not None) else None


def _embedding(settings: Settings) -> str:
    none = settings.flag("no_position_embedding") or not settings.flag("add_position_embedding", default=True)
    usual = "rotary" if settings.flag("use_rotary_position_embeddings") else "none" if none else "learned"
    return settings.choice(("position_embedding_type",), POSITIONS_READ, usual)


def _vocabulary(settings: Settings) -> int:
    """As given, else as the log says, else as the tokenizer's name tells."""
    if (given := settings.integer("vocab_size", most=MOST_VOCABULARY)) is not None:
        return given
    if logged := re.search(r"padded vocab \(size: (\d{1,8})\)", settings.source.text):
        return int(logged[1])
    keys = ("tokenizer_model", "tokenizer_name_or_path", "vocab_file", "tokenizer_type")
    words = " ".join(map(settings.text, keys)).casefold()
    for name, size in tool.VOCABULARIES.items():
        if name in words:
            settings.gap(f"a vocabulary of {size}, taken from the tokenizer's name")
            return size
    padded = settings.integer("padded_vocab_size", most=MOST_VOCABULARY)
    if padded is None:
        raise settings.missing("vocab_size", "padded_vocab_size")
    settings.gap(f"a vocabulary of {padded} that is padded for tensor parallelism")
    return padded


def _window(settings: Settings) -> int | None:
    """Positions of the window, where it is said in numbers."""
    given = str(settings.raw("window_size"))
    if given in ("None", "(-1,-1)"):
        return None
    size = re.match(r"[\[(]?(\d{1,8})", given)
    if size is None or isinstance(settings.raw("window_attn_skip_freq"), list) or int(size[1]) < 1:
        settings.gap("attention in a sliding window; taken as full attention")
        return None
    return int(size[1])


def _expert_layers(settings: Settings) -> tuple[bool, ...]:
    """Which layers have experts: one in `moe_layer_freq`, or a pattern such as `([0]*3+[1]*58)`."""
    layers: int = settings.ours["model.num_layers"]
    given = settings.raw("moe_layer_freq", "expert_interval")
    if isinstance(given, list):
        given = [int(layer in (1, True)) for layer in given]
    text = str(1 if given is None else given).replace(" ", "")
    blocks = re.findall(r"\[([01,]*)\](?:\*(\d{1,4}))?", text)
    if text.isdigit() and int(text) > 0:
        pattern = [layer % int(text) == 0 for layer in range(layers)]
    elif blocks:
        digits = "".join(block.replace(",", "") * int(times or 1) for block, times in blocks)
        pattern = [digit == "1" for digit in digits]
    else:
        raise settings.error("moe_layer_freq", f"{text[:60]!r} is neither a number nor a pattern of 0 and 1")
    if len(pattern) != layers or not any(pattern):
        words = f"a pattern of {len(pattern)} layers, {sum(pattern)} of them with experts"
        raise settings.error("moe_layer_freq", f"{words}, for {layers} layers")
    return tuple(pattern)


def _hides_shared(chosen: Chosen) -> bool:
    """Whether shared experts compute while rows travel; Megatron-LM has no flag for it in joined passes."""
    experts = chosen.job.model.experts
    shared = experts is not None and experts.shared_ffn_hidden_size > 0 and chosen.layout.expert > 1
    hides = chosen.job.recipe.expert_dispatcher == HIDES_SHARED
    return shared and hides and chosen.layout.schedule not in JOINED.values()


def _write_expert_layers(chosen: Chosen) -> str | None:
    """Which layers have experts, as a list of 0 and 1; None where all or none have."""
    kinds = layer_kinds(chosen.job.model)[: chosen.job.model.num_layers]
    digits = [str(int(kind.experts)) for kind in kinds]
    return f"[{','.join(digits)}]" if len(set(digits)) > 1 else None


TENSOR = Row.same("layout.tensor", "tensor_model_parallel_size model_parallel_size", default=1)
MODEL: tuple[Row, ...] = (
    Row.same("model.num_layers", "num_layers encoder_num_layers", needed=True),
    Row.same("model.hidden_size", "hidden_size", needed=True),
    Row.same("model.ffn_hidden_size", "ffn_hidden_size", default=_usual_ffn),
    Row.same("model.num_attention_heads", "num_attention_heads", needed=True),
    Row("model.num_query_groups", "group_query_attention", only(tool.shared_heads)),
    Row("model.num_query_groups", "num_query_groups", tool.shared_heads, _groups),
    Row.same("model.head_dim", "kv_channels"),
    # Without biases norms have no shifts.
    Row(
        "model.norm_vectors",
        "normalization",
        lambda c: None if c.job.model.bias else "RMSNorm",
        lambda s: 1 if s.text("normalization").casefold() == "rmsnorm" else 2,
    ),
    # Latents have their norms by this flag as well.
    qk_norm("qk_layernorm", only(lambda c: c.job.model.qk_layernorm or c.job.model.latent_attention)),
    Row("model.latent_attention", "multi_latent_attention", only(lambda c: c.job.model.latent_attention)),
    *tool.when(
        lambda settings: settings.flag("multi_latent_attention"),
        Row.same("model.latent_attention.q_lora_rank", "q_lora_rank"),
        Row.same("model.latent_attention.kv_lora_rank", "kv_lora_rank", default=32),
        Row.same("model.latent_attention.qk_nope_head_dim", "qk_head_dim", default=128),
        Row.same("model.latent_attention.qk_rope_head_dim", "qk_pos_emb_head_dim", default=64),
        Row.same("model.latent_attention.v_head_dim", "v_head_dim", default=128),
    ),
    Row(
        "model.sliding_window",
        "window_size",
        lambda c: None if c.job.model.sliding_window is None else f"{c.job.model.sliding_window},0",
        _window,
    ),
    *tool.when(
        lambda settings: "model.sliding_window" in settings.ours,
        Row.same("model.sliding_window_pattern", "window_attn_skip_freq"),
    ),
    Row.same("model.mtp_num_layers", "mtp_num_layers", usual=0),
    *tool.experts(
        "num_experts num_moe_experts",
        Row.same("model.experts.top_k", "moe_router_topk topk", default=lambda s: 2 - s.has("deepspeed")),
        # A softmax over one expert alone has no gradient.
        Row.spelled("model.experts.top_k", "moe_router_pre_softmax", {1: True}),
        Row.same("model.experts.ffn_hidden_size", "moe_ffn_hidden_size"),
        Row.same("model.experts.shared_ffn_hidden_size", "moe_shared_expert_intermediate_size", usual=0),
        Row("model.expert_layers", "moe_layer_freq expert_interval", _write_expert_layers, _expert_layers),
        Row("model.shared_gate", "moe_shared_expert_gate", read=lambda s: s.flag("moe_shared_expert_gate")),
        Row.same("model.experts.groups", "moe_router_num_groups", usual=1),
        Row.same("model.experts.top_groups", "moe_router_group_topk"),
        Row.same("layout.expert_tensor", "expert_tensor_parallel_size", default=TENSOR.read),
        Row.word("runtime.dispatcher", "moe_token_dispatcher_type", DISPATCHERS),
        # DeepEP takes probabilities in fp32 alone.
        Row.spelled("runtime.dispatcher", "moe_enable_deepep", {"deepep": True}),
        Row.spelled("runtime.dispatcher", "moe_router_dtype", {"deepep": "fp32"}),
        Row("runtime.dispatcher", "moe_shared_expert_overlap", only(_hides_shared)),
        Row.same("recipe.expert_capacity", "moe_expert_capacity_factor"),
        Row.word("recipe.routing", "moe_router_force_load_balancing", {"balanced": True}),
        Row.same("runtime.grouped_products", "moe_grouped_gemm", usual=False),
    ),
    Row.same("layout.expert", "expert_model_parallel_size moe_expert_parallel_size", default=1),
    Row.same("model.vocab_size", "vocab_size", read=_vocabulary),
    Row.same(
        "model.max_position_embeddings", "max_position_embeddings seq_length encoder_seq_length", needed=True
    ),
    Row.spelled("model.position_embedding", "position_embedding_type", POSITIONS, _embedding),
    Row.spelled(
        "model.gated_mlp",
        "swiglu gated_linear_unit",
        {True: True},
        lambda s: s.flag("swiglu", "gated_linear_unit") or s.text("activation") in tool.GATED,
    ),
    Row.spelled(
        "model.bias",
        "disable_bias_linear",
        {False: True},
        lambda s: s.flag("add_bias_linear", "bias", default=not s.flag("disable_bias_linear")),
    ),
    Row(
        "model.attention_bias",
        "add_qkv_bias",
        only(lambda c: c.job.model.attention_bias and not c.job.model.bias),
        lambda s: s.ours["model.bias"] or s.flag("add_qkv_bias"),
    ),
    Row("model.output_bias", read=lambda s: s.ours.get("model.bias")),
    Row.spelled(
        "model.tied_embeddings",
        "untie_embeddings_and_output_weights share_embeddings_and_output_weights",
        {False: True},
        lambda s: (
            not s.flag("untie_embeddings_and_output_weights")
            and s.flag("share_embeddings_and_output_weights", default=True)
        ),
    ),
    Row.lacks(
        "model.attention_bias", "a bias of the attention's output alone", when=lambda c: not c.job.model.bias
    ),
    Row.lacks(
        "model.attention_bias",
        "biases of the linears of the MLP alone",
        unless=(True,),
        when=lambda c: c.job.model.bias,
    ),
    Row.lacks("model.norms_per_layer", "attention and MLP on one norm", unless=(2,)),
    Row.lacks("model.head_bias", "a bias of the LM head"),
    Row.lacks("model.experts.bias", "biases of the experts"),
    Row.lacks("model.position_embedding", "{} positions", unless=POSITIONS),
    Row.lacks("model.causal", "attention in both directions; take pretrain_bert.py", unless=(True,)),
)


def _pipeline_layout(chosen: Chosen) -> str | None:
    """`E,t*3|t*4|t*3,m,L`: embedding, layers of each virtual stage, multi-token prediction, loss."""
    if chosen.layout.layers_per_stage is None:
        return None
    stages = [[f"t*{count}"] if count else [] for count in chosen.layout.layers_per_stage]
    stages[0].insert(0, "E")
    stages[-1] += [*"m" * chosen.job.model.mtp_num_layers, "L"]
    return "|".join(",".join(parts) for parts in stages)


def _recomputed(chosen: Chosen) -> int | None:
    """Layers of a virtual stage that are recomputed with `block`; one at once with `uniform`."""
    every = chosen.layout.recompute_every
    if chosen.layout.recompute != "full":
        return None
    longest = max(chosen.layout.layers_per_stage or (tool.layers_of_stage(chosen),))
    return 1 if every == 1 else math.ceil(longest / every)


def _recompute(settings: Settings) -> str:
    keys = ("recompute_granularity", "activations_checkpoint_granularity")
    # Before there were granularities a method, or a flag, said it of whole layers.
    full = settings.flag("checkpoint_activations") or settings.has("activations_checkpoint_method")
    usual = "selective" if settings.flag("recompute_activations") else "full" if full else "none"
    mode = settings.choice(keys, {**{mode: mode for mode in RECOMPUTES}, "None": "none"}, usual)
    modules = set(re.findall(r"\w+", str(settings.raw("recompute_modules") or "")))
    if mode != "selective" or not modules:
        return mode
    ours = recompute_of(modules)
    if ours is None:
        ours = recompute_of(modules - {"core_attn"}) or "full"
        settings.gap(f"recompute of {', '.join(sorted(modules))} together; described as {ours}")
    return ours


def _zero_stage(settings: Settings) -> int:
    if settings.flag("use_torch_fsdp2"):
        return 3
    distributed = settings.text("optim.name").startswith("distributed")
    whole = settings.text("optimizer") == "dist_muon"
    least = int(settings.flag("use_distributed_optimizer") or distributed or whole)
    stage = settings.integer("zero_stage", default=least, least=0, most=3)
    if not (settings.flag("use_megatron_fsdp") or settings.flag("use_custom_fsdp")):
        return stage
    stages = {name: stage for stage, name in SHARDING.items()}
    return stages.get(settings.text("data_parallel_sharding_strategy"), stage)


def _context_exchange(settings: Settings) -> str:
    usual = "a2a" if settings.has("ds_sequence_parallel_size") else "p2p"
    kind = (settings.text("cp_comm_type").split() or [usual])[0]
    ours = next((ours for ours, name in EXCHANGES.items() if name == kind), "")
    if not ours and settings.ours["layout.context"] > 1:
        settings.gap(f"context ranks that exchange by {kind}; a ring is taken")
    return ours or "ring"


def _cuts_flat(chosen: Chosen) -> bool:
    """Whether ZeRO cuts states flat, as `--use-distributed-optimizer` does; Muon shards whole matrices."""
    return chosen.layout.zero_stage > 0 and not _is_muon(chosen)


def _is_muon(chosen: Chosen) -> bool:
    return chosen.job.recipe.optimizer == "muon"


LAYOUT: tuple[Row, ...] = (
    Row.same("recipe.seq_length", "seq_length encoder_seq_length"),
    Row.same("layout.micro_batch_size", "micro_batch_size batch_size", default=1),
    Row.same("recipe.global_batch_size", "global_batch_size"),
    TENSOR,
    Row.same("layout.context", "context_parallel_size ds_sequence_parallel_size", usual=1, default=1),
    Row.spelled("layout.context_exchange", "cp_comm_type", EXCHANGES, _context_exchange),
    Row.same("layout.pipeline", "pipeline_model_parallel_size", default=1),
    # Reading these and the share of recomputed layers needs ranks or layers, so `_divided` does it.
    Row(
        "layout.virtual_pipeline",
        "num_layers_per_virtual_pipeline_stage",
        only(lambda c: c.layout.virtual_pipeline > 1 and not c.layout.layers_per_stage, tool.layers_of_stage),
    ),
    Row("layout.layers_per_stage", "pipeline_model_parallel_layout", _pipeline_layout),
    Row.spelled(
        "layout.sequence_parallel",
        "sequence_parallel",
        {True: True},
        lambda settings: settings.flag("sequence_parallel") and settings.ours["layout.tensor"] > 1,
    ),
    Row("layout.zero_stage", "use_distributed_optimizer", only(_cuts_flat), _zero_stage),
    Row(
        "layout.shard_group",
        "num_distributed_optimizer_instances",
        lambda c: c.layout.replicas // c.layout.shards if c.layout.shards < c.layout.replicas else None,
    ),
    Row.word("layout.offload_optimizer", "optimizer_cpu_offload cpu_optimizer", {"cpu": True}),
    Row.noted("what {} says to DeepSpeed", "deepspeed_config"),
    *(Row.spelled("layout.offload_optimizer", key, {"cpu": True}) for key in WITH_OFFLOAD),
    tool.share_on_cpu("optimizer_offload_fraction"),
    Row.spelled("layout.zero_stage", "use_megatron_fsdp use_custom_fsdp", dict.fromkeys(SHARDING, True)),
    Row.spelled("layout.zero_stage", "data_parallel_sharding_strategy", SHARDING),
    # Megatron-FSDP demands these two.
    Row.spelled("layout.zero_stage", "no_gradient_accumulation_fusion", dict.fromkeys(SHARDING, True)),
    Row.spelled("layout.zero_stage", "ckpt_format", dict.fromkeys(SHARDING, "fsdp_dtensor")),
    Row.spelled(
        "layout.recompute",
        "recompute_granularity activations_checkpoint_granularity",
        dict.fromkeys(MODULES, "selective") | {mode: mode for mode in RECOMPUTES},
        _recompute,
    ),
    Row.spelled("layout.recompute", "recompute_modules", MODULES),
    # `block` recomputes the first layers of each virtual stage, `uniform` all of them.
    Row(
        "layout.recompute_every",
        "recompute_method",
        only(_recomputed, lambda c: "uniform" if c.layout.recompute_every == 1 else "block"),
    ),
    Row("layout.recompute_every", "recompute_num_layers", _recomputed),
    Row.known("checkpoint_num_layers distribute_checkpointed_activations"),
    Row.spelled("layout.schedule", "overlap_moe_expert_parallel_comm", dict.fromkeys(JOINED.values(), True)),
)


GRAPHS = ("local", "transformer_engine")
"""Words of `--cuda-graph-impl` for a graph; the other is `none`."""
SCALED = {"mxfp8": "mxfp8", "blockwise": "fp8_block"}
"""Words of `--fp8-recipe` that give blocks of numbers scales of their own, and our precisions."""


def _precision(settings: Settings) -> str:
    four, eight = (settings.text(*keys).casefold() for keys in (("fp4", "fp4_format"), ("fp8", "fp8_format")))
    if four not in ("", "none", "false"):
        return "nvfp4"
    if eight not in ("", "none", "false") or settings.flag("fp8_hybrid") or settings.flag("fp8_e4m3"):
        return SCALED.get(settings.text("fp8_recipe").casefold(), "fp8")
    flagged = next(filter(settings.flag, ("bf16", "fp16")), "")
    word = flagged or settings.text("precision", "mixed_precision").casefold()
    return "bf16" if "bf16" in word else "fp16" if "16" in word else "fp32"


def _scales(chosen: Chosen) -> str | None:
    """The recipe of scales: delayed ones, the default, do not go with norms that are computed again."""
    again = "layernorm" in MODULES.get(chosen.layout.recompute, ())
    scaled = {ours: word for word, ours in SCALED.items()} | {"fp8": "tensorwise" if again else None}
    return scaled.get(chosen.job.recipe.precision)


def _reduced(settings: Settings) -> str | None:
    """Precision in which gradients are reduced: fp32, but in fp16 training only if a flag says so."""
    told = settings.text("main_grads_dtype", "grad_sync_dtype") in ("bf16", "torch.bfloat16")
    flagged = settings.flag("grad_reduce_in_bf16") or not settings.flag("grad_reduce_in_fp32", default=True)
    if told or flagged:
        return "bf16"
    wide = settings.flag("accumulate_allreduce_grads_in_fp32")
    return "fp16" if settings.ours["recipe.precision"] == "fp16" and not wide else None


def _framework(settings: Settings) -> str | None:
    """Megatron-Core with Transformer Engine, where a setting says that it runs."""
    told = settings.text("transformer_impl") == "transformer_engine" or settings.has("attention_backend")
    is_narrow = settings.ours["recipe.precision"] not in ("bf16", *WIDE_OR_FP16)
    is_later = not Limits("megatron", BEFORE_CORE).runs(settings.layout())
    return CORE if told or is_narrow or is_later or any(map(settings.flag, OF_CORE)) else None


def _attention(settings: Settings) -> str | None:
    backend = settings.text("attention_backend").casefold().removeprefix("attnbackend.")
    if settings.flag("use_flash_attn") or settings.flag("use_flash_attention"):
        return "flash"
    usual = {"transformer_engine": "flash"}
    return BACKENDS_READ.get(backend) or usual.get(settings.text("transformer_impl"))


def _graphed(settings: Settings) -> bool | None:
    """Whether a CUDA graph replays steps or layers; one that replays parts of a layer is a gap."""
    kind = settings.text("cuda_graph_impl")
    if kind not in GRAPHS and not settings.flag("enable_cuda_graph"):
        return None
    scope = " ".join(re.findall(r"\w+", str(settings.raw("cuda_graph_scope") or "full")))
    if scope in ("full", "full_iteration"):
        return True
    settings.gap(f"a CUDA graph of {scope} alone; none is taken")
    return None


def _connections(chosen: Chosen) -> str:
    """What `CUDA_DEVICE_MAX_CONNECTIONS` has to be; Megatron refuses to start else on Hopper and before."""
    layout = chosen.layout
    # With 1 the exchange of joined passes waits for their products.
    if layout.zero_stage in SHARDING or layout.schedule in JOINED.values():
        return "leave CUDA_DEVICE_MAX_CONNECTIONS unset (or above 1); "
    return "export CUDA_DEVICE_MAX_CONNECTIONS=1; " if max(layout.tensor, layout.context) > 1 else ""


def _optimizer_word(settings: Settings) -> str:
    """`distributed_fused_adam` of NeMo is Adam, `dist_muon` is Muon."""
    word = settings.text("optimizer", "optim.name", default="adam")
    return next((name for name in ("sgd", "adamw", "adam", "muon") if name in word.casefold()), word)


RECIPE: tuple[Row, ...] = (
    Row.same(
        "runtime.overlap_grad_reduce", "overlap_grad_reduce overlap_grad_sync", usual=False, default=False
    ),
    Row(
        "runtime.overlap_param_gather",
        "overlap_param_gather overlap_param_sync",
        only(lambda c: c.job.runtime.overlap_param_gather and _cuts_flat(c) and c.layout.replicas > 1),
        lambda s: s.flag("overlap_param_gather", "overlap_param_sync"),
    ),
    Row.same("runtime.overlap_tensor", "tp_comm_overlap", usual=False, default=False),
    Row.spelled("recipe.precision", "fp16", {"fp16": True}),
    Row("recipe.precision", "bf16", only(lambda c: c.job.recipe.precision not in WIDE_OR_FP16)),
    Row.spelled(
        "recipe.precision",
        "fp8_format fp8",
        {"fp8": "hybrid", **dict.fromkeys(SCALED.values(), "e4m3")},
        _precision,
    ),
    Row("recipe.precision", "fp8_recipe", _scales),
    Row.spelled("recipe.precision", "fp4_format fp4", {"nvfp4": "e2m1"}),
    Row.spelled("recipe.reduce_precision", "accumulate_allreduce_grads_in_fp32", {None: True, "fp32": True}),
    Row.spelled("recipe.reduce_precision", "grad_reduce_in_bf16", {"bf16": True}, _reduced),
    Row.word(
        "recipe.moment_precision", "exp_avg_dtype exp_avg_sq_dtype", {}, fp32=None, fp16="fp16", bf16="bf16"
    ),
    Row.grad_bucket("ddp_bucket_size bucket_size"),
    Row.spelled("runtime.cuda_graph", "cuda_graph_impl enable_cuda_graph", {True: "local"}, _graphed),
    Row.spelled("runtime.cuda_graph", "cuda_graph_scope", {True: "full_iteration"}),
    # A graph of whole steps demands these two.
    Row.spelled("runtime.cuda_graph", "te_rng_tracker", {True: True}),
    Row.spelled("runtime.cuda_graph", "no_check_for_nan_in_loss_and_grad", {True: True}),
    Row(
        "runtime.attention",
        "attention_backend",
        lambda c: (LATENT_BACKENDS if c.job.model.latent_attention else BACKENDS)[c.job.runtime.attention],
        _attention,
    ),
    # Megatron has both dropouts where a file does not tell.
    Row.spelled(
        "recipe.dropout",
        "attention_dropout",
        {False: 0.0},
        lambda s: any(s.number(f"{part}_dropout", default=0.1) for part in ("attention", "hidden")),
    ),
    Row.spelled("recipe.dropout", "hidden_dropout", {False: 0.0}),
    Row.word("runtime.fused_cross_entropy", "cross_entropy_loss_fusion", {True: True}, default=False),
    Row("runtime.framework", f"transformer_impl attention_backend {' '.join(OF_CORE)}", read=_framework),
    Row.lacks("runtime.framework.name", "the predicted speed, which is that of {}", unless=(CORE,)),
    Row.optimizer("megatron", "optimizer optim.name", word=_optimizer_word),
    Row("recipe.optimizer", "optimizer", only(lambda c: _is_muon(c) and c.layout.zero_stage, "dist_muon")),
    # Megatron demands this of Muon, and neither fp16 nor instances of an optimizer.
    Row.spelled("recipe.optimizer", "ckpt_format", {"muon": "torch"}),
    Row.refuses(
        "recipe.precision", "muon in {}", when=lambda c: _is_muon(c) and c.job.recipe.precision == "fp16"
    ),
    Row.refuses("layout.shard_group", "muon on groups of {}", when=_is_muon),
    Row.refuses(
        "runtime.overlap_param_gather",
        "it gathers parameters ahead only with overlap_grad_reduce",
        when=lambda c: not c.job.runtime.overlap_grad_reduce,
    ),
    tool.TF32_PRODUCTS,
    Row.lacks(
        "recipe.precision",
        "products in {}; bf16 is written",
        unless=(*WIDE_OR_FP16, "bf16", "fp8", "nvfp4", *SCALED.values()),
    ),
    Row.lacks("recipe.reduce_precision", "gradients reduced in {}", unless=("fp32", "bf16")),
    Row.noted("a batch that grows at the start of the run", "rampup_batch_size"),
)
ROWS = (*MODEL, *LAYOUT, *RECIPE)


def _world_size(settings: Settings, variables: Mapping[str, str], text: str) -> int | None:
    """Number of ranks: of the dump, of torchrun's flags, of Slurm's, or of the usual variables."""
    if (world := settings.integer("world_size", most=MOST_DEVICES)) is not None:
        return world
    if in_all := RANKS_IN_ALL.search(text):
        return int(in_all[1])
    settings.ignore("master_addr", "master_port", "node_rank", "rdzv_id", "rdzv_backend", "rdzv_endpoint")

    def count(flags: str, names: str = "", directive: str = "$") -> int | None:
        words = [*map(settings.text, flags.split()), *(variables.get(name, "") for name in names.split())]
        words += re.findall(rf"^#SBATCH.*?(?:{directive})(\d{{1,6}})", text, re.MULTILINE)[:1]
        return next((int(word) for word in words if re.fullmatch(r"\d{1,6}", word)), None)

    nodes = count("nnodes nodes num_nodes", "NNODES NUM_NODES SLURM_NNODES", r"--nodes[= ]|-N ")
    ranks = count(
        "nproc_per_node ntasks_per_node gpus_per_node npernode num_gpus",
        "GPUS_PER_NODE NPROC_PER_NODE NUM_GPUS_PER_NODE",
        r"--(?:ntasks-per-node|gpus-per-node|gres)[= ](?:gpu:)?(?:\w+:)?",
    )
    if (started := count("ranks")) is not None:
        return started
    return count("", "WORLD_SIZE") if ranks is None else ranks * (nodes or 1)


def _divided(settings: Settings, layout: ParallelLayout, layers: int) -> ParallelLayout:
    """The layout with its virtual stages, uneven stages, and the share of layers that is recomputed."""
    pipeline = layout.pipeline
    if pipeline > layers:
        raise settings.error("pipeline_model_parallel_size", f"{pipeline} stages for {layers} layers")
    key = "pipeline_model_parallel_layout"
    pattern = settings.text(key).replace("None", "")
    counts: tuple[int, ...] = ()
    if pattern:  # such as `E,t*3|t*4|t*3,L`, where m is a layer of multi-token prediction
        try:
            counts = layers_of_stages(pattern.replace("m", ""))
        except LayoutError as error:
            raise settings.error(key, error.line) from None
        if sum(counts) != layers:
            raise settings.error(key, f"{sum(counts)} decoder layers, the model has {layers}")
    chunk = settings.integer("num_layers_per_virtual_pipeline_stage", default=layers, most=MOST_LAYERS)
    keys = ("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size")
    virtual = settings.integer(*keys, default=layers // pipeline // chunk, most=MOST_LAYERS)
    uneven = len(set(counts)) > 1
    if uneven:
        virtual = len(counts) // pipeline
    if virtual > 1 and pipeline > 1:
        layout = replace(layout, virtual_pipeline=virtual, schedule="interleaved")
    if settings.flag("overlap_moe_expert_parallel_comm") and layout.expert > 1:
        layout = replace(layout, schedule=JOINED[layout.schedule])
    counts = counts if uneven else _end_stages(settings, layers, layout)
    keys = ("recompute_num_layers", "activations_checkpoint_num_layers")
    recomputed = settings.integer(*keys, least=0, most=MOST_LAYERS)
    method = settings.text("recompute_method", "activations_checkpoint_method")
    every = 1
    if layout.recompute == "full" and method == "block" and recomputed:
        every = math.ceil(max(counts, default=layers // layout.num_stages) / recomputed)
    return replace(layout, layers_per_stage=counts or None, recompute_every=max(1, every))


def _end_stages(settings: Settings, layers: int, layout: ParallelLayout) -> tuple[int, ...]:
    """Layers of each virtual stage where the first or last rank has another number of them; else empty."""
    pipeline = layout.pipeline
    virtual = layout.virtual_pipeline
    keys = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
    first, last = (settings.integer(key, default=0, most=MOST_LAYERS) for key in keys)
    counted = [settings.flag(f"account_for_{end}_in_pipeline_split") for end in ("embedding", "loss")]
    if pipeline == 1 or not (first or last or any(counted)):
        return ()
    if any(counted):  # embedding and loss count as a layer each
        per_stage, rest = divmod(layers + sum(counted), layout.num_stages)
        counts = [per_stage] * layout.num_stages
        counts[0] -= counted[0]
        counts[-1] -= counted[1]
    else:
        others = pipeline - bool(first) - bool(last)
        inner, rest = divmod(layers - first - last, max(1, others) * virtual)
        of_chunk = [inner] * pipeline
        of_chunk[0] = first // virtual or inner
        of_chunk[-1] = last // virtual or inner
        counts = of_chunk * virtual
    if rest or sum(counts) != layers or min(counts) < 0:
        message = f"{layers} layers do not divide so over {layout.num_stages} stages"
        raise settings.error("pipeline_model_parallel_size", message)
    return tuple(counts)


def _text(comments: list[str], values: Mapping[str, Any]) -> str:
    flags = []
    for key, value in values.items():
        words = () if value is True else value if isinstance(value, tuple) else (str(value),)
        flags.append(" ".join([f"--{key.replace('_', '-')}", *map(shlex.quote, words)]))
    return "\n".join([*comments, *flags, ""])


# Format: `megatron/training/training.py`, with the older spellings; also Megatron-DeepSpeed's.
DUMPED = re.compile(r"(?<![\w.])([a-zA-Z_]\w*) \.{2,} ?([^\n]*)")
"""A line of the dump: `num_layers ........ 24`; ranks or times may stand before it."""
ELAPSED = re.compile(
    r"iteration\s+\d{1,12}\s*/\s*\d+\s*\|[^\n]*?elapsed time per iteration \((?P<unit>ms|s)\):"
    r"\s*(?P<value>[0-9.eE+]+)[^\n]*"
)
BATCH = re.compile(r"global batch size:\s*(\d{1,9})")
WARM_UP = 1
"""Lines at the start that include compilation, allocation and the first reading of data."""
INTERVALS = 2
"""Of a run with one batch size, so that the spread of its steps is seen."""
FEWEST = 3
"""Lines of one batch size below which none is left out as warm-up."""


def _steps(text: str, parts: int = 1) -> tuple[Step, ...]:
    """The median step of each batch size, or of each of its `parts`, in the order of the log."""
    by_batch: dict[int, list[float]] = defaultdict(list)
    for match in ELAPSED.finditer(text):
        batch = BATCH.search(match[0])
        with suppress(ValueError):
            elapsed_s = float(match["value"]) * (1e-3 if match["unit"] == "ms" else 1.0)
            if 0.0 < elapsed_s < math.inf:
                by_batch[int(batch[1]) if batch else 0].append(elapsed_s)
    steps = []
    for size, logged in by_batch.items():
        steady = logged[WARM_UP:] if len(logged) >= FEWEST else logged
        count = min(parts, len(steady))
        bounds = [len(steady) * part // count for part in range(count + 1)]
        steps += [Step(size, median(steady[a:b]), b - a) for a, b in pairwise(bounds)]
    return tuple(steps)


def _recognise(text: Any) -> bool:
    if not isinstance(text, str):
        return False
    dump = bool(DUMPED.search(text)) and re.search(r"\bnum_layers \.{2,}", text) is not None
    return dump or ("--num-layers" in text and "--hidden-size" in text) or _steps(text) != ()


def _read(source: Source, _text: Any) -> Reading:
    dumped = {match[1]: match[2].strip() for match in DUMPED.finditer(source.text)}
    values: Mapping[str, Any] = {key: None if told in ("None", "") else told for key, told in dumped.items()}
    variables: Mapping[str, str] = {}
    steps = _steps(source.text)
    if not values and steps and "--num-layers" not in source.text:
        source.refuse(
            "a log of iterations without the arguments of the run",
            "keep the lines from `arguments` to `end of arguments`, which Megatron prints at the start",
        )
    if not values:
        values, variables = flags_of(source.text, "--num-layers", ("recompute_modules", "cuda_graph_scope"))
    settings = Settings(source, values, textual=True)
    # Values that only running the script would tell count as absent, and are named where they are needed.
    unknown = {name for name, value in settings.values.items() if isinstance(value, str) and UNKNOWN in value}
    settings.values = {name: value for name, value in settings.values.items() if name not in unknown}
    settings.unknown |= unknown
    reading = read_settings(settings, _world_size(settings, variables, source.text))
    return replace(reading, steps=steps, intervals=_steps(source.text, INTERVALS))


def read_settings(settings: Settings, world: int | None) -> Reading:
    """Model, recipe and layout of Megatron's arguments by name; also of YAML that has these names."""
    layout = settings.read(ROWS).layout(world)
    recipe = settings.recipe
    instances = settings.integer("num_distributed_optimizer_instances", default=1, most=MOST_DEVICES)
    if world is not None and 1 < instances < layout.replicas and layout.replicas % instances == 0:
        layout = replace(layout, shard_group=layout.replicas // instances)
    layout = _divided(settings, layout, settings.ours["model.num_layers"])
    if world is not None and settings.has("micro_batch_size", "batch_size"):
        recipe.setdefault("global_batch_size", layout.micro_batch_size * layout.data)
    return Reading(settings, settings.model, recipe, layout, world)


_MEGATRON = TRAINERS["megatron"]
TOOL = Tool(
    title=_MEGATRON.title,
    sign="`--num-layers` with `--hidden-size`, or the dump `num_layers ...... 24`",
    syntaxes=("text",),
    recognise=_recognise,
    read=_read,
    rows=ROWS,
    runs=ParallelLayout,
    render=_text,
    start=lambda c: (
        f"{_connections(c)}torchrun with {c.layout.num_devices} ranks in all, pretrain_gpt.py and flags "
        f"of {_MEGATRON.releases.get(c.job.recipe.optimizer, _MEGATRON.releases[''])}; "
        f"data parallel {c.layout.data} follows from {c.layout.num_devices} / "
        f"({c.layout.tensor} x {c.layout.pipeline}"
        f"{f' x {c.layout.context}' if c.layout.context > 1 else ''})"
    ),
)
