"""The foreign formats, told apart by what stands in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfsim.base.errors import InputError, Problem
from perfsim.interop import CHAKRA, GAP, READ, mllog, tool_named
from perfsim.interop.chakra import is_chakra, read_chakra
from perfsim.interop.imported import Imported, Reading, layout_text
from perfsim.interop.megatron import iteration_steps
from perfsim.interop.source import Source
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.model import TransformerConfig

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
        if not mllog.TOOL.recognise(source.text) or not mllog.TOOL.recognise(Source.read(other).text):
            raise InputError([Problem("several files can only be logs of MLPerf runs", str(other))])
        source = replace(source, text=f"{source.text}\n{Source.read(other).text}")
    name, reading = read(source, format_name)
    if spare := [key for key in given or {} if key not in reading.settings.used]:
        raise InputError([Problem(f"--set {key}: this format has no use for it here") for key in spare])
    return _imported(name, reading, part, system)


def read(source: Source, format_name: str = "") -> tuple[str, Reading]:
    """The format of a file and all that it says."""
    name, document = _chosen(source, format_name)
    return name, tool_named(name).read(source, document)


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
    title = tool_named(format_name).title
    documents: dict[str, dict[str, Any] | None] = {
        "measured": measured_document(reading, system) if system else None,
        "model": None if reading.model is None else reading.model_document(title),
        "recipe": reading.recipe_document(title),
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
        parameters=None if reading.model is None else reading.model.parameters,
        unused_keys=reading.settings.unused(),
        gaps=reading.gaps,
        recipe=present.get("recipe"),
        layout=layout_text(reading.layout, whole=reading.devices is not None),
        devices=reading.devices,
        steps=reading.steps,
    )


def _chosen(source: Source, format_name: str) -> tuple[str, Any]:
    """The format of a file with its parsed document."""
    if format_name:
        chosen = tool_named(format_name)
        documents = _documents(source, chosen.syntaxes)
        if documents:
            recognised = [document for document in documents if chosen.recognise(document)]
            return format_name, (recognised or documents)[0]
        return format_name, PARSERS[chosen.syntaxes[0]](source)
    matches = _matches(source)
    if len(matches) == 1:
        return next(iter(matches.items()))
    if matches:
        names = ", ".join(matches)
        source.refuse(f"this may be a file of {names}", "choose with --format " + " or ".join(matches))
    signs = [f"    {CHAKRA}: a Chakra execution trace, by its metadata"]
    signs += [f"    {name}: {tool_named(name).title}, by {tool_named(name).sign}" for name in READ]
    looked_for = "\n".join(["formats and what they are recognised by:", *signs])
    unknown = source.problem("no known format was recognised", looked_for)
    raise InputError([*_syntax_problems(source), unknown])


def _matches(source: Source) -> dict[str, Any]:
    """The formats that recognise a file, with its document in their syntax."""
    matches: dict[str, Any] = {}
    parsed = {syntax: _documents(source, (syntax,)) for syntax in PARSERS}
    for name in READ:
        for syntax in tool_named(name).syntaxes:
            if parsed[syntax] and name not in matches and tool_named(name).recognise(parsed[syntax][0]):
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
    if reading.model is None or not isinstance(layout, ParallelLayout) or reading.devices is None:
        source.refuse(
            "the number of ranks is unknown", "the dump of arguments has world_size; or --set world_size=N"
        )
    reading.model_document("")  # refuses numbers that no model can have
    if lacking := [gap.text for gap in reading.gaps if gap.changes_model]:
        raise InputError([source.problem(f"cannot be expressed: {text}") for text in lacking])
    steps = iteration_steps(source.text, PARTS) if alone and len(reading.steps) == 1 else reading.steps
    batches = [step.global_batch_size or reading.recipe.get("global_batch_size") for step in steps]
    if None in batches:
        source.refuse("the global batch size is unknown", "give it with --set global_batch_size=N")
    training = {key: reading.recipe[key] for key in TRAINING_FIELDS if reading.recipe.get(key) is not None}
    split = {field: getattr(layout, field) for field in LAYOUT_FIELDS if getattr(layout, field) is not None}
    if "layers_per_stage" in split:
        split["layers_per_stage"] = list(split["layers_per_stage"])
    fields = reading.model.fields
    model = {field: fields[field] for field in MODEL_FIELDS if field in fields}
    cases = [
        {
            "id": f"{reading.title}-{number}",
            "system": {"device": device, "num_devices": reading.devices},
            "model": model | {"seq_length": reading.recipe["seq_length"]},
            "strategy": "zero3" if layout.zero_stage == 3 else "3d",
            "parallel": deepcopy(split),  # YAML would write one object twice as a reference
            "training": {
                "global_batch_size": batch,
                "micro_batch_size": layout.micro_batch_size,
                "recompute": layout.recompute,
                **training,
            },
            "measured": {"step_time_s": step.step_time_s},
        }
        for number, (batch, step) in enumerate(zip(batches, steps, strict=True), 1)
    ]
    return {"schema": 1, "cluster": reading.title, "cases": cases}
