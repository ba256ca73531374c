"""Jobs of torchtitan: configurations in Python, TOML files until January 2026, and what logs print of both.

Names: pytorch/torchtitan, `torchtitan/config/configs.py` of 2026 (commit 0014ac2c), and `job_config.py` of
2024 and 2025. What is emitted are assignments to a configuration that has the model, as its README advises.
The model is named by its flavor, whose shape stands in `torchtitan/models/*/__init__.py`.
"""

import ast
import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from perfsim.base.errors import InputError
from perfsim.base.sizes import MOST_POSITIONS
from perfsim.interop import tool
from perfsim.interop.huggingface import known_model, model_beside
from perfsim.interop.nearest_model import Nearest
from perfsim.interop.source import Settings, Source, names_in, nested
from perfsim.interop.tool import Chosen, Reading, Row, Tool
from perfsim.specs.layout import ParallelLayout

SECTIONS = {"parallelism.": ("parallelism.", "training.", "experimental.")}
"""Sections in which a degree stands, by release."""
PIPELINE = "parallelism.pipeline_parallel_"
SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
SCHEDULES_READ = {name: schedule for schedule, name in SCHEDULES.items()} | {
    "LoopedBFS": "interleaved",
    "InterleavedZeroBubble": "interleaved",
}
ON_CPU: Mapping[str, Any] = {"offload_optimizer": "cpu", "offload_param": "cpu"}
"""The only offload that it has: of both states."""
WIDE = {"bf16": "bfloat16", "fp32": "float32", "tf32": "float32"}
CONVERTED = {"rowwise": "fp8_rowwise", "mx": "mxfp8", "float8": "fp8"}
"""Precisions of a model whose layers are converted, by a word for the converter; the first decides."""
DTYPES = WIDE | dict.fromkeys(CONVERTED.values(), "bfloat16")
FLAVORS = {
    "llama2 7b": "llama_7b",
    "llama2 13b": "llama_13b",
    "llama2 70b": "llama2_70b",
    "llama3 8b": "llama3_8b",
    "llama3 70b": "llama31_70b",
    "llama3 405b": "llama31_405b",
}
"""The models of the catalogue that have the shapes of its flavors."""
RECOMPUTES = {"none": "none", "selective": "selective", "mlp": "full", "full": "full"}
"""The mode that needs as little memory."""
PRINTED = re.compile(r"Running with (?:args|configs?|config): *(?=\{)")
MOST_PRINTED = 200_000
IN_PYTHON = "Trainer.Config"
"""The class of a configuration in Python."""
MESH = re.compile(r"device mesh with \[[^\]]*\], \[(\d{1,6}(?:, \d{1,6})*)\]")


def _staged(chosen: Chosen) -> bool:
    return bool(chosen.layout.pipeline > 1)


def _even(chosen: Chosen) -> bool:
    return _staged(chosen) and chosen.layout.layers_per_stage is None


def _modules(chosen: Chosen) -> list[list[str]] | None:
    if chosen.layout.layers_per_stage is None:
        return None
    ends = [0, *accumulate(chosen.layout.layers_per_stage)]
    stages = [[f"layers.{layer}" for layer in range(*between)] for between in pairwise(ends)]
    # The head is `output`, and `lm_head` since 2026; torchtitan passes over names that a model lacks.
    return [["tok_embeddings", *stages[0]], *stages[1:-1], [*stages[-1], "norm", "output", "lm_head"]]


def _compiled(chosen: Chosen) -> list[str]:
    """What is compiled: the loss where it is fused, and the model with it or for async tensor parallelism."""
    loss = ["loss"] if chosen.job.runtime.fused_cross_entropy else []
    is_async = chosen.job.recipe.overlaps_tensor and chosen.layout.sequence_parallel
    return ["model", *loss] if loss or is_async else []


def _fused_loss(settings: Settings) -> bool:
    components = settings.raw("compile.components")
    return settings.flag("compile.enable", "training.compile") and "loss" in (components or ["loss"])


def _micro(settings: Settings) -> int:
    """Sequences at once: the local batch, but with a pipeline its micro-batches."""
    local = settings.integer("training.local_batch_size", "training.batch_size", default=1)
    if settings.ours["layout.pipeline"] == 1:
        return local
    passes = settings.integer(f"{PIPELINE}microbatches", default=local)
    return settings.integer(f"{PIPELINE}microbatch_size", default=max(1, local // passes))


def _recompute(settings: Settings) -> str:
    mode = settings.text("activation_checkpoint.mode", default="selective")
    if mode not in ("none", "full", "selective", "memory_budget"):
        raise settings.error("activation_checkpoint.mode", f"{mode[:40]!r} is none of none, selective, full")
    return "selective" if mode == "memory_budget" else mode


def _recompute_every(settings: Settings) -> int:
    option = settings.text("activation_checkpoint.selective_ac_option", default="op")
    selective = settings.text("activation_checkpoint.mode", default="selective") == "selective"
    if not selective or not option.isdigit() or not 0 < int(option) < 1000:
        return 1
    settings.ours["layout.recompute"] = "full"
    return int(option)


def _schedule(settings: Settings) -> str:
    schedule = settings.choice((f"{PIPELINE}schedule",), SCHEDULES_READ, "1f1b")
    return schedule if settings.ours["layout.pipeline"] > 1 else "1f1b"


def _precision(settings: Settings) -> str:
    dtypes = {WIDE[ours]: ours for ours in ("bf16", "fp32")}
    wide = settings.choice(("training.mixed_precision_param",), dtypes, "bf16")
    sections = ("model", "model_spec", "model_converters")
    told = settings.raw(*(f"{section}.converters" for section in sections))
    enabled = "float8" if settings.flag("float8.enable_float8_linear") else ""
    recipes = (settings.text(f"{section}float8.recipe_name") for section in ("", "quantize.linear."))
    words = " ".join((str(told)[:1000], enabled, *recipes)).casefold() if told or enabled else ""
    return next((ours for word, ours in CONVERTED.items() if word in words), wide)


def _flavor(settings: Settings) -> Nearest | None:
    names = (settings.text(f"model.{part}", f"model_spec.{part}") for part in ("name", "flavor"))
    words = " ".join(filter(None, names)).casefold()
    if words not in FLAVORS:
        text = "the shape stands in torchtitan's code; give the model with --model"
        settings.gap(f"{words or 'its model'}: {text}", changes_model=True)
        return None
    positions = settings.integer("training.seq_len", default=2048, most=MOST_POSITIONS)
    of_flavor = {"norm_vectors": 1, "max_position_embeddings": positions}
    return Nearest.of(known_model(FLAVORS[words]) | of_flavor)


def _degree(field: str, name: str, **more: Any) -> Row:
    return Row.same(field, f"parallelism.{name}_degree", default=1, **more)


ROWS: tuple[Row, ...] = (
    # Sequences of a replica at once: all micro-batches of a pipeline, else one.
    Row(
        "(micro-batches)",
        "training.local_batch_size training.batch_size",
        lambda c: c.layout.micro_batch_size * (c.num_microbatches if _staged(c) else 1),
    ),
    Row.same("recipe.global_batch_size", "training.global_batch_size", least=-1),
    Row.same("recipe.seq_length", "training.seq_len"),
    Row.spelled("recipe.precision", "training.mixed_precision_param model.converters", DTYPES, _precision),
    Row("recipe.reduce_precision", "training.mixed_precision_reduce", lambda _: "float32"),
    Row.word("recipe.optimizer_precision", "training.dtype", {"bf16": "bfloat16"}, float32="fp32"),
    _degree(
        "(groups of shards)",
        "data_parallel_replicate",
        write=lambda c: c.layout.replicas // c.layout.shards if c.layout.zero_stage else c.layout.data,
    ),
    # -1 is what the other degrees leave.
    Row.same(
        "(shards)",
        "parallelism.data_parallel_shard_degree",
        default=-1,
        least=-1,
        write=lambda c: c.layout.shards // c.layout.context if c.layout.zero_stage else 1,
    ),
    Row(
        "layout.zero_stage",
        "parallelism.fsdp_reshard_after_forward",
        lambda c: "always" if c.layout.zero_stage == 3 else "never",
    ),
    _degree("layout.context", "context_parallel", usual=1),
    Row.spelled(
        "layout.context_exchange", "parallelism.context_parallel_rotate_method", {"ring": "alltoall"}
    ),
    _degree("layout.tensor", "tensor_parallel"),
    Row("layout.sequence_parallel", read=lambda s: s.ours["layout.tensor"] > 1),
    _degree("layout.expert", "expert_parallel", usual=1),
    Row("layout.expert_tensor", read=_degree("layout.expert_tensor", "expert_tensor_parallel").read),
    _degree("layout.pipeline", "pipeline_parallel"),
    Row.spelled("layout.schedule", f"{PIPELINE}schedule", SCHEDULES, _schedule),
    Row.same(
        "layout.micro_batch_size",
        f"{PIPELINE}microbatch_size",
        read=_micro,
        write=lambda c: c.layout.micro_batch_size if _staged(c) else None,
    ),
    # The layers of stages need the number of layers, so `_read_layout` reads them.
    Row("layout.virtual_pipeline", f"{PIPELINE}layers_per_stage", tool.only(_even, tool.layers_of_stage)),
    # The first and last stages have as many layers as the others.
    Row("layout.virtual_pipeline", f"{PIPELINE}first_stage_less_layers", tool.only(_even, 0)),
    Row("layout.virtual_pipeline", f"{PIPELINE}last_stage_less_layers", tool.only(_even, 0)),
    Row("layout.layers_per_stage", "parallelism.module_fqns_per_model_part", _modules),
    Row.spelled("layout.recompute", "activation_checkpoint.mode", RECOMPUTES, _recompute),
    Row("layout.recompute_every", "activation_checkpoint.selective_ac_option", read=_recompute_every),
    Row.same(
        "runtime.overlap_tensor", "parallelism.enable_async_tensor_parallel", usual=False, default=False
    ),
    Row("runtime.fused_cross_entropy", "compile.enable training.compile", tool.only(_compiled), _fused_loss),
    Row("runtime.fused_cross_entropy", "compile.components", lambda c: _compiled(c) or None),
    Row("layout.offload_param", "training.enable_cpu_offload", lambda c: c.layout.offloads == ON_CPU or None),
    Row.optimizer("torchtitan", "optimizer.name", default="adamw"),
    Row.known("job.config_file job.print_config job.description job.dump_folder"),
    Row("layout.offloads"),
    Row.refuses("recipe.precision", "it does not train in {}", unless=DTYPES),
    Row.lacks(
        "recipe.precision",
        "products in {}; the model of BASE() has a converter, as Float8LinearConverter",
        unless=WIDE,
    ),
    Row.lacks("model", f"the model: {tool.SHAPE}; BASE() names one of torchtitan's, or one of yours"),
    Row.lacks("model.parts", "{}, which the model of BASE() has"),
    Row.lacks(
        "layout.recompute",
        "recompute {}: of attention alone 'op' is near, of the MLP alone 'full'",
        unless=("none", "full"),
    ),
    Row.lacks("recipe.optimizer_precision", "states in {}", unless=("fp32", "bf16")),
    Row.lacks("recipe.reduce_precision", "gradients reduced in {}", unless=("fp32",)),
    Row.lacks("runtime.overlap_grad_reduce", "gradients reduced after the backward", unless=(True,)),
    Row.lacks("runtime.grad_bucket", "buckets of gradients of {:.3g} bytes"),
    Row.lacks("runtime.framework.name", "the predicted speed, which is that of {}", unless=("torchtitan",)),
    tool.TF32_PRODUCTS,
    Row.lacks("runtime.attention", "attention that keeps its scores; SDPA is used", unless=("flash",)),
    Row.lacks("recipe.dropout", "dropout; its models have none"),
)


def _recognise(document: Any) -> bool:
    if isinstance(document, str):
        return PRINTED.search(document) is not None or IN_PYTHON in document
    others = {"parallelism", "activation_checkpoint", "experimental", "job"}
    sizes = names_in(document, "training") & {"seq_len", "local_batch_size"}
    return bool(sizes and names_in(document, "") & others)


def _read(source: Source, document: Any) -> Reading:
    """Recipe, layout and, by flavor or from `--model`, the model."""
    text = document if isinstance(document, str) else ""
    if text:
        document = _printed(source, text) if PRINTED.search(text) else _assigned(source, text)
    settings = Settings.of(source, document, SECTIONS).read(ROWS)
    model = (model_beside(source) if source.model else None) or _flavor(settings)
    mesh = MESH.search(text)
    world = math.prod(map(int, mesh[1].split(", "))) if mesh else None
    layout, devices = _read_layout(settings, world, {} if model is None else model.fields)
    usual = {"attention": "flash", "dropout": False, "overlap_grad_reduce": True, "framework": "torchtitan"}
    recipe = settings.recipe | usual
    if recipe.get("global_batch_size", 0) < 1:
        local = settings.integer("training.local_batch_size", "training.batch_size")
        recipe["global_batch_size"] = None if devices is None or local is None else local * layout.data
    name = "-".join(filter(None, (settings.text("model.name"), settings.text("model.flavor"))))
    return Reading(settings, model, recipe, layout, devices, name=name)


def _assigned(source: Source, text: str) -> Any:
    """The literals of a configuration in Python: keywords of its classes, and assignments to its fields."""
    try:
        nodes = [*ast.walk(ast.parse(text[:MOST_PRINTED]))]
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        raise InputError([source.problem("the configuration is no Python", line=line)]) from None
    values: dict[str, Any] = {}
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == IN_PYTHON:
            values |= _literals("", node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            values |= _literals(ast.unparse(node.targets[0]).partition(".")[2], node.value)
    return nested(values)


def _literals(path: str, node: ast.expr) -> dict[str, Any]:
    """A literal, or the literals of all keywords of a call and of the calls inside it, by dotted path."""
    values: dict[str, Any] = {}
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            values |= _literals(f"{path}.{keyword.arg}".lstrip("."), keyword.value)
    else:
        with suppress(ValueError):
            values[path] = ast.literal_eval(node)
        if isinstance(node, ast.List) and path not in values:
            values[path] = ast.unparse(node)
    return values


def _printed(source: Source, text: str) -> Any:
    """The configuration in a log: JSON, or the text of a Python dictionary."""
    match = PRINTED.search(text)
    start = match.end() if match else 0
    with suppress(ValueError, RecursionError):
        return json.JSONDecoder().raw_decode(text, start)[0]
    try:
        return ast.literal_eval(text[start:].split("\n", 1)[0].strip()[:MOST_PRINTED])
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        line = source.text.count("\n", 0, start) + 1
        raise InputError([source.problem("the printed configuration cannot be read", line=line)]) from None


def _read_layout(
    settings: Settings, world: int | None, model: Mapping[str, Any]
) -> tuple[ParallelLayout, int | None]:
    """The layout, and the number of ranks where the file tells it; `model` has the fields that are known."""
    layout = settings.layout()
    replicas: int = settings.ours["(groups of shards)"]
    shards: int = settings.ours["(shards)"]
    if layout.expert > 1 and model and "experts" not in model:
        settings.gap(f"expert parallelism over {layout.expert} ranks: its model has none")
        layout = replace(layout, expert=1)
    if shards < 1 and world is not None:
        shards = max(1, settings.replicas(layout, world) // replicas)
    if shards < 1 < replicas:
        settings.gap(f"{replicas} groups of shards, each of as many ranks as start")
    reshard = settings.text("parallelism.fsdp_reshard_after_forward", default="default")
    always = reshard == "always" or (reshard == "default" and layout.pipeline == 1)
    # Context ranks shard together, whatever is asked of replicas.
    stage = 0 if shards * layout.context == 1 else 3 if always else 2
    on_cpu = settings.flag("training.enable_cpu_offload") and stage == 3
    whole = layout.tensor if "experts" in model else 1
    layout = replace(
        layout,
        data=max(1, replicas * shards),
        zero_stage=stage,
        shard_group=shards * layout.context if stage and replicas > 1 and shards > 0 else None,
        expert_tensor=layout.expert_tensor if layout.expert > 1 else whole,
        **(ON_CPU if on_cpu else {}),
    )
    if layout.pipeline > 1:
        modules = settings.raw("parallelism.module_fqns_per_model_part")
        listed = isinstance(modules, list) and all(isinstance(part, list) for part in modules)
        parts = modules if listed else ()
        counts = tuple(sum(str(name).startswith("layers.") for name in part) for part in parts)
        per_stage = settings.integer(f"{PIPELINE}layers_per_stage")
        even = -(-model["num_layers"] // per_stage) if per_stage and model else 0
        usual = 1 if layout.schedule in ("1f1b", "gpipe") else 2
        stages = len(counts) or even or usual * layout.pipeline
        uneven = counts if len(set(counts)) > 1 else None
        layout = replace(layout, virtual_pipeline=max(1, stages // layout.pipeline), layers_per_stage=uneven)
    return layout, None if shards < 1 else layout.num_devices


def _text(comments: list[str], values: Mapping[str, Any]) -> str:
    """A function that puts the plan into a configuration."""
    fields = [
        f"    config.{section}.{name} = {json.dumps(value) if isinstance(value, str) else repr(value)}"
        for section, settings in values.items()
        for name, value in settings.items()
    ]
    head = f"from torchtitan.trainer import Trainer\n\n\ndef planned(config: {IN_PYTHON}) -> {IN_PYTHON}:"
    return "\n".join([*comments, "", head, *fields, "    return config", ""])


TOOL = Tool(
    title="torchtitan",
    sign="`Trainer.Config` in Python, `[training]` with `seq_len`, or `Running with configs:` in a log",
    syntaxes=("toml", "json", "text"),
    recognise=_recognise,
    read=_read,
    rows=ROWS,
    told=("data", "shard_group"),
    runs=ParallelLayout,
    render=_text,
    start=lambda c: (
        f"run_train.sh with {c.layout.num_devices} ranks in all; MODULE and CONFIG name a function that "
        "returns planned(BASE()), where BASE() is a configuration with the model"
    ),
)
