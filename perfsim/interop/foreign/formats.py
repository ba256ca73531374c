"""The foreign formats, told apart by what stands in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfsim.errors import InputError, Problem, UnknownNameError
from perfsim.interop.chakra import is_chakra, read_chakra
from perfsim.interop.foreign import (
    deepspeed_json,
    huggingface,
    megatron_arguments,
    mllog,
    model_zoo,
    nemo,
    neox,
    titan,
)
from perfsim.interop.foreign.beside import model_beside
from perfsim.interop.foreign.imported import (
    Imported,
    Reading,
    all_gaps,
    layout_text,
    model_document,
    name_of,
    recipe_document,
)
from perfsim.interop.foreign.measured import measured_document
from perfsim.interop.foreign.source import Source
from perfsim.interop.models import GAP
from perfsim.workload import TransformerConfig


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
        megatron_arguments.recognise_text,
        megatron_arguments.read_text,
    ),
    "modelzoo": Format(
        "the Cerebras Model Zoo",
        "`model` with `num_heads`, at the top or under `trainer.init`",
        ("yaml",),
        model_zoo.recognise,
        model_zoo.read,
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
        deepspeed_json.recognise,
        lambda source, document: deepspeed_json.read(source, document, model_beside(source)),
    ),
    "torchtitan": Format(
        "torchtitan",
        "`[training]` with `seq_len`, or `Running with configs:` in a log",
        ("toml", "json", "text"),
        titan.recognise,
        lambda source, document: titan.read(source, document, model_beside(source) if source.model else None),
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
    return imported(name, reading, part, system)


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


def imported(format_name: str, reading: Reading, part: str = "", system: str = "") -> Imported:
    """The result for a part of what was read. Raises InputError for a part that the file lacks."""
    title, name = FORMATS[format_name].title, name_of(reading)
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
            raise UnknownNameError("format", format_name, [*FORMATS, CHAKRA])
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
