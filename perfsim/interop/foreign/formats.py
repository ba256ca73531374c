"""The foreign formats, told apart by what stands in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfsim.catalog import Catalog
from perfsim.errors import InputError, Problem, UnknownNameError
from perfsim.interop.foreign import huggingface
from perfsim.interop.foreign.imported import (
    Imported,
    Reading,
    all_gaps,
    layout_text,
    model_document,
    name_of,
    recipe_document,
)
from perfsim.interop.foreign.source import Source
from perfsim.workload import TransformerConfig


@dataclass(frozen=True)
class Format:
    """A foreign format: how its files are parsed, recognised and read."""

    title: str
    sign: str
    """What its files are recognised by, for messages."""
    syntax: str
    """json, yaml, toml or text."""
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
        "json",
        huggingface.recognise,
        _read_huggingface,
    ),
}

PARSERS: Mapping[str, Callable[[Source], Any]] = {
    "json": Source.as_json,
    "yaml": Source.as_yaml,
    "toml": Source.as_toml,
    "text": lambda source: source.text,
}


def import_file(path: Path, format_name: str = "", *, part: str = "") -> Imported:
    """Read a foreign file; its format is recognised by its content unless it is given.

    `part` is what the document holds: model, recipe, ...; by default the model where there is one. Raises
    InputError for an unknown format, a file of none or of several, and for wrong values, at their lines.
    """
    source = Source.read(path)
    name, document = _chosen(source, format_name)
    chosen = FORMATS[name]
    return imported(name, chosen.read(source, document), part)


def read_model(path: Path, format_name: str = "") -> TransformerConfig:
    """The model of a foreign file; what it cannot express stands under `assumed`.

    Raises InputError where the description would be another model than the file's.
    """
    result = import_file(path, format_name, part="model")
    if result.changes_model:
        lacking = [f"cannot be expressed: {gap.text}" for gap in result.gaps if gap.changes_model]
        help_text = f"perfsim import {path} --out FILE.yaml writes the nearest model, to be used knowingly"
        raise InputError([Problem(text, str(path), help=help_text) for text in lacking])
    gaps = {f"gap {number}": text for number, text in enumerate(result.unsupported, 1)}
    return TransformerConfig.model_validate(result.document | {"assumed": gaps})


def model_named(name_or_path: str, catalog: Catalog) -> TransformerConfig:
    """The model of a name of the catalogue, of a YAML file of perfsim, or of a foreign file.

    Raises InputError for an unknown name and for what is wrong in a file.
    """
    path = Path(name_or_path)
    is_file = (path.suffix != "" or len(path.parts) > 1) and path.is_file()
    if is_file and (path.suffix not in (".yaml", ".yml") or format_of(path)):
        return read_model(path)
    return catalog.model(name_or_path)


def format_of(path: Path) -> str:
    """The foreign format of a file; empty where it has none, or is no text."""
    try:
        matches = _matches(Source.read(path))
    except InputError:
        return ""
    return next(iter(matches), "")


def imported(format_name: str, reading: Reading, part: str = "") -> Imported:
    """The result for a part of what was read. Raises InputError for a part that the file lacks."""
    title, name = FORMATS[format_name].title, name_of(reading)
    documents: dict[str, dict[str, Any] | None] = {
        "model": None if reading.shape is None else model_document(reading, name, title),
        "recipe": recipe_document(reading, name, title),
        "convergence": reading.points,
    }
    present = {kind: document for kind, document in documents.items() if document is not None}
    kind = part or next(iter(present), "")
    if kind not in present:
        source = reading.settings.source
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
        layout=layout_text(reading.layout),
        devices=reading.devices,
        steps=reading.steps,
    )


def _chosen(source: Source, format_name: str) -> tuple[str, Any]:
    """The format of a file with its parsed document."""
    if format_name:
        if format_name not in FORMATS:
            raise UnknownNameError("format", format_name, FORMATS)
        return format_name, PARSERS[FORMATS[format_name].syntax](source)
    matches = _matches(source)
    if len(matches) == 1:
        return next(iter(matches.items()))
    if matches:
        names = ", ".join(matches)
        source.refuse(f"this may be a file of {names}", "choose with --format " + " or ".join(matches))
    signs = [f"    {name}: {known.title}, by {known.sign}" for name, known in FORMATS.items()]
    looked_for = "\n".join(["formats and what they are recognised by:", *signs, *_syntax_errors(source)])
    raise InputError([Problem("no known format was recognised", str(source.path), help=looked_for)])


def _matches(source: Source) -> dict[str, Any]:
    """The formats that recognise a file, with its document in their syntax."""
    documents: dict[str, Any] = {}
    for syntax, parse in PARSERS.items():
        try:
            documents[syntax] = parse(source)
        except InputError:
            continue
    return {
        name: documents[known.syntax]
        for name, known in FORMATS.items()
        if known.syntax in documents and known.recognise(documents[known.syntax])
    }


def _syntax_errors(source: Source) -> Sequence[str]:
    """Why the file is not of the syntax that its name or first character promises."""
    first = source.text.lstrip()[:1]
    syntax = {".json": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}.get(
        source.path.suffix, "json" if first == "{" else ""
    )
    try:
        if syntax:
            PARSERS[syntax](source)
    except InputError as error:
        return [f"    it is no {syntax.upper()}: {error}"]
    return ()
