"""The foreign formats, told apart by what stands in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfsim.base.errors import InputError, Problem, UnknownNameError
from perfsim.catalog import default_catalog
from perfsim.interop import deepspeed, huggingface, megatron, mllog, modelzoo, nemo, neox, torchtitan
from perfsim.interop.chakra import is_chakra, read_chakra
from perfsim.interop.imported import (
    Imported,
    Reading,
    all_gaps,
    layout_text,
    model_document,
    name_of,
    recipe_document,
)
from perfsim.interop.megatron import iteration_steps
from perfsim.interop.models import GAP
from perfsim.interop.shape import ExpertShape, Latent, Shape
from perfsim.interop.source import Source
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.model import TransformerConfig

# The model of a file that holds none: the one that is named, or the config.json in its folder.

USUAL = ("config.json", "model.json")
MOST_FILES = 100
"""JSON files of a folder that are looked at."""


def _model_beside(source: Source) -> Shape | None:
    """The shape of the named model, else of the one config.json in the folder of the file; None without one.

    Raises InputError for a named model that is not there or that is wrong.
    """
    if source.model:
        path = Path(source.model)
        if path.suffix == ".json" and path.is_file():
            other = Source.read(path)
            return huggingface.read_shape(other, other.as_json())[0]
        return _shape_of(default_catalog().model(source.model))
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


def _shape_of(model: TransformerConfig) -> Shape:
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


def _experts(model: TransformerConfig) -> ExpertShape | None:
    experts = model.experts
    if experts is None:
        return None
    return ExpertShape(
        count=experts.num_experts,
        active=experts.top_k,
        ffn=experts.ffn_hidden_size,
        pattern=tuple(experts.in_layer(layer) for layer in range(model.num_layers)),
        shared_ffn=experts.shared_ffn_hidden_size,
        groups=experts.groups,
        top_groups=experts.top_groups,
        router_bias=model.has_expert_bias,
    )


# Measured steps of a run as cases of a file of measurements, for a scale of the cluster.

PARTS = 2
"""Intervals of a run with one batch size, so that the spread of its steps is seen."""
LAYOUT_FIELDS = (
    *("tensor", "pipeline", "data", "virtual_pipeline", "sequence_parallel", "zero_stage", "schedule"),
    "layers_per_stage",
)
MODEL_FIELDS = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "gated_mlp"),
    *("vocab_size", "tied_embeddings", "bias", "position_embedding"),
)
TRAINING_FIELDS = ("precision", "attention", "overlap_grad_reduce", "reduce_precision")


def measured_document(reading: Reading, device: str, *, alone: bool = True) -> dict[str, Any]:
    """The YAML of the measured steps of a run on `device`, one case for each batch size.

    A run with a single batch size that stands `alone` is divided into two intervals. Raises InputError for
    a log without steps, or without the number of ranks, and for a model that cannot be expressed.
    """
    source = reading.settings.source
    layout = reading.layout
    if not reading.steps:
        source.refuse("no measured step: there is no line with `elapsed time per iteration`")
    if reading.shape is None or not isinstance(layout, ParallelLayout) or reading.devices is None:
        source.refuse(
            "the number of ranks is unknown", "the dump of arguments has world_size; or --set world_size=N"
        )
    model_document(reading, name_of(reading), "")  # refuses a shape that no model can have
    if lacking := [gap.text for gap in all_gaps(reading) if gap.changes_model]:
        raise InputError([source.problem(f"cannot be expressed: {text}") for text in lacking])
    steps = iteration_steps(source.text, PARTS) if alone and len(reading.steps) == 1 else reading.steps
    batch = reading.recipe.get("global_batch_size")
    name = name_of(reading)
    cases = [
        _case(reading, f"{name}-{number}", device, step.global_batch_size or batch, step.step_time_s)
        for number, step in enumerate(steps, 1)
    ]
    return {"schema": 1, "cluster": name, "cases": cases}


def _case(reading: Reading, name: str, device: str, batch: Any, step_time_s: float) -> dict[str, Any]:
    fields = reading.shape.fields() if reading.shape is not None else {}
    layout: Any = reading.layout
    if batch is None:
        reading.settings.source.refuse(
            "the global batch size is unknown", "give it with --set global_batch_size=N"
        )
    training = {key: reading.recipe[key] for key in TRAINING_FIELDS if reading.recipe.get(key) is not None}
    split = {field: getattr(layout, field) for field in LAYOUT_FIELDS if getattr(layout, field) is not None}
    if "layers_per_stage" in split:
        split["layers_per_stage"] = list(split["layers_per_stage"])
    return {
        "id": name,
        "system": {"device": device, "num_devices": reading.devices},
        "model": {
            **{field: fields[field] for field in MODEL_FIELDS if field in fields},
            "seq_length": reading.recipe["seq_length"],
        },
        "strategy": "zero3" if layout.zero_stage == 3 else "3d",
        "parallel": split,
        "training": {
            "global_batch_size": batch,
            "micro_batch_size": layout.micro_batch_size,
            "recompute": layout.recompute,
            **training,
        },
        "measured": {"step_time_s": step_time_s},
    }


@dataclass(frozen=True)
class Format:
    """A foreign format: how its files are parsed, recognised and read."""

    title: str
    sign: str
    """What its files are recognised by, for messages."""
    syntaxes: tuple[str, ...]
    """json, yaml, toml, text."""
    recognise: Callable[[Any], bool]
    """Whether a parsed document (or the text) is of this format."""
    read: Callable[[Source, Any], Reading]


def _read_huggingface(source: Source, document: Any) -> Reading:
    shape, settings = huggingface.read_shape(source, document)
    return Reading(settings, shape=shape, name=settings.text("_name_or_path").rstrip("/").split("/")[-1])


FORMATS: Mapping[str, Format] = {
    "huggingface": Format(
        "Hugging Face config.json",
        "`model_type` with `hidden_size` or `n_embd`",
        ("json",),
        huggingface.recognise,
        _read_huggingface,
    ),
    "megatron": Format(
        "Megatron-LM arguments or log",
        "`--num-layers` with `--hidden-size`, or the dump `num_layers ...... 24`",
        ("text",),
        megatron.recognise_text,
        megatron.read_text,
    ),
    "modelzoo": Format(
        "the Cerebras Model Zoo",
        "`model` with `num_heads`, at the top or under `trainer.init`",
        ("yaml",),
        modelzoo.recognise,
        modelzoo.read,
    ),
    "nemo": Format(
        "NeMo or Megatron-Bridge",
        "`model` with `num_layers` and Megatron's names",
        ("yaml",),
        nemo.recognise,
        nemo.read,
    ),
    "neox": Format(
        "GPT-NeoX",
        "`num_layers` and `hidden_size` with `pipe_parallel_size` or `model_parallel_size`",
        ("yaml",),
        neox.recognise,
        neox.read,
    ),
    "deepspeed": Format(
        "DeepSpeed",
        "`zero_optimization` or `train_micro_batch_size_per_gpu`",
        ("json",),
        deepspeed.recognise,
        lambda source, document: deepspeed.read(source, document, _model_beside(source)),
    ),
    "torchtitan": Format(
        "torchtitan",
        "`[training]` with `seq_len`, or `Running with configs:` in a log",
        ("toml", "json", "text"),
        torchtitan.recognise,
        lambda source, document: torchtitan.read(
            source, document, _model_beside(source) if source.model else None
        ),
    ),
    "mllog": Format(
        "MLPerf Training log",
        "lines that begin with `:::MLLOG`",
        ("text",),
        mllog.recognise,
        mllog.read,
    ),
}

CHAKRA = "chakra"
"""The format of files that are no text: traces, of which a summary is the document."""
NAMES = (*FORMATS, CHAKRA)

PARSERS: Mapping[str, Callable[[Source], Any]] = {
    "json": Source.as_json,
    "yaml": Source.as_yaml,
    "toml": Source.as_toml,
    "text": lambda source: source.text,
}


def import_file(
    path: Path,
    format_name: str = "",
    *,
    part: str = "",
    model: str = "",
    system: str = "",
    given: Mapping[str, Any] | None = None,
    more: Sequence[Path] = (),
) -> Imported:
    """Read a foreign file; its format is recognised by its content unless it is given.

    `part` is what the document holds: model, recipe, ...; by default the model where there is one.
    `model` is that of a file without one, `system` the machine of measured steps, `given` are values by key
    that the file lacks, and `more` are logs of further runs. Raises InputError for an unknown
    format, a file of none or of several, and for wrong values, at their lines.
    """
    if format_name == CHAKRA or (not format_name and is_chakra(path)):
        trace = read_chakra(path)
        return Imported(CHAKRA, "trace", trace.summary(), None, (), ())
    source = replace(Source.read(path, given), model=model)
    for other in more:
        if not mllog.recognise(source.text) or not mllog.recognise(Source.read(other).text):
            raise InputError([Problem("several files can only be logs of MLPerf runs", str(other))])
        source = replace(source, text=f"{source.text}\n{Source.read(other).text}")
    name, reading = read(source, format_name)
    if spare := [key for key in given or {} if key not in reading.settings.used]:
        raise InputError([Problem(f"--set {key}: this format has no use for it here") for key in spare])
    return _imported(name, reading, part, system)


def read(source: Source, format_name: str = "") -> tuple[str, Reading]:
    """The format of a file and all that it says."""
    name, document = _chosen(source, format_name)
    return name, FORMATS[name].read(source, document)


def read_model(path: Path, format_name: str = "") -> TransformerConfig:
    """The model of a foreign file; what it cannot express stands under `assumed`.

    Raises InputError where the description would be another model than the file's.
    """
    result = import_file(path, format_name, part="model")
    if result.changes_model:
        lacking = [f"cannot be expressed: {gap.text}" for gap in result.gaps if gap.changes_model]
        help_text = f"perfsim import {path} --out FILE.yaml writes the nearest model, to be used knowingly"
        raise InputError([Problem(text, str(path), 1, help=help_text) for text in lacking])
    gaps = {f"{GAP} {number}": text for number, text in enumerate(result.unsupported, 1)}
    return TransformerConfig.model_validate(result.document | {"assumed": gaps})


def format_of(path: Path) -> str:
    """The foreign format of a file; empty where it has none, or is no text."""
    try:
        matches = _matches(Source.read(path))
    except InputError:
        return ""
    return next(iter(matches), "")


def _imported(format_name: str, reading: Reading, part: str = "", system: str = "") -> Imported:
    """The result for a part of what was read. Raises InputError for a part that the file lacks."""
    title = FORMATS[format_name].title
    name = name_of(reading)
    documents: dict[str, dict[str, Any] | None] = {
        "measured": measured_document(reading, system) if system else None,
        "model": None if reading.shape is None else model_document(reading, name, title),
        "recipe": recipe_document(reading, name, title),
        "convergence": reading.points,
    }
    present = {kind: document for kind, document in documents.items() if document is not None}
    kind = part or next(iter(present), "")
    if kind not in present:
        source = reading.settings.source
        if part == "measured":
            source.refuse("measured steps need the machine on which they ran", "add --system NAME")
        there = f"the file has {', '.join(present)}" if present else "the file has nothing to import"
        source.refuse(f"there is no {kind or 'model'} in this file of {title}", there)
    return Imported(
        format=format_name,
        kind=kind,
        document=present[kind],
        parameters=None if reading.shape is None else reading.shape.parameters,
        unused_keys=reading.settings.unused(),
        gaps=all_gaps(reading),
        recipe=present.get("recipe"),
        layout=layout_text(reading.layout, whole=reading.devices is not None),
        devices=reading.devices,
        steps=reading.steps,
    )


def _chosen(source: Source, format_name: str) -> tuple[str, Any]:
    """The format of a file with its parsed document."""
    if format_name:
        if format_name not in FORMATS:
            raise UnknownNameError("format", format_name, NAMES)
        documents = _documents(source, FORMATS[format_name].syntaxes)
        if documents:
            known = [document for document in documents if FORMATS[format_name].recognise(document)]
            return format_name, (known or documents)[0]
        return format_name, PARSERS[FORMATS[format_name].syntaxes[0]](source)
    matches = _matches(source)
    if len(matches) == 1:
        return next(iter(matches.items()))
    if matches:
        names = ", ".join(matches)
        source.refuse(f"this may be a file of {names}", "choose with --format " + " or ".join(matches))
    signs = [f"    {CHAKRA}: a Chakra execution trace, by its metadata"]
    signs += [f"    {name}: {known.title}, by {known.sign}" for name, known in FORMATS.items()]
    looked_for = "\n".join(["formats and what they are recognised by:", *signs])
    unknown = source.problem("no known format was recognised", looked_for)
    raise InputError([*_syntax_problems(source), unknown])


def _matches(source: Source) -> dict[str, Any]:
    """The formats that recognise a file, with its document in their syntax."""
    matches: dict[str, Any] = {}
    parsed = {syntax: _documents(source, (syntax,)) for syntax in PARSERS}
    for name, known in FORMATS.items():
        for syntax in known.syntaxes:
            if parsed[syntax] and name not in matches and known.recognise(parsed[syntax][0]):
                matches[name] = parsed[syntax][0]
    return matches


def _documents(source: Source, syntaxes: Sequence[str]) -> list[Any]:
    """The document in each syntax in which the file can be parsed."""
    documents = []
    for syntax in syntaxes:
        try:
            documents.append(PARSERS[syntax](source))
        except InputError:
            continue
    return documents


def _syntax_problems(source: Source) -> Sequence[Problem]:
    """Why the file is not of the syntax that its name or first character promises."""
    first = source.text.lstrip()[:1]
    syntax = {".json": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}.get(
        source.path.suffix, "json" if first == "{" else ""
    )
    try:
        if syntax:
            PARSERS[syntax](source)
    except InputError as error:
        return error.problems
    return ()
