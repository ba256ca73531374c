"""Where each value comes from, a source of `sources.yaml` or an assumption, as `perfsim show` lists it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from perfsim.base.errors import CatalogError, Problem
from perfsim.catalog.kinds import classes_of, kind_of
from perfsim.catalog.reader import (
    LocatedMapping,
    Neighbourhood,
    Resolver,
    Shelf,
    complaints,
    covering,
    dotted,
    matching,
    read_mapping,
    values,
)
from perfsim.catalog.yaml_tree import Node, read_yaml
from perfsim.specs.calibration import Calibration


@dataclass(frozen=True, slots=True)
class Source:
    """A publication that was read; `url` is empty where none is known."""

    id: str
    title: str
    url: str = ""
    note: str = ""

    def __str__(self) -> str:
        return f"{self.title} <{self.url}>" if self.url else self.title


@dataclass(frozen=True, slots=True)
class Row:
    """One value of a description, as written, with its source or assumption.

    `source_or_assumption` is the source's title and address, or "assumed: " and the reason; it is
    empty for structure and for a value that has neither. `source_id` is empty for assumptions.
    """

    path: str
    value_text: str
    source_or_assumption: str = ""
    source_id: str = ""
    assumed: bool = False


def _rows(node: Node) -> list[Row]:
    """Every value of a description with the id of its source or its assumption."""
    return [_row(path, leaf, node) for path, leaf in values(node).leaves() if path]


def _row(path: str, leaf: Node, root: Node) -> Row:
    text = leaf.text if not isinstance(leaf.value, list) else ", ".join(str(v) for v in leaf.plain())
    sources = root.mapping.get("sources")
    assumed = root.mapping.get("assumed")
    source_key = covering(path, sources)
    assumed_key = covering(path, assumed)
    # The longer key is the more specific one; at equal length the assumption is the safer claim.
    if assumed and assumed_key and len(assumed_key) >= len(source_key):
        return Row(path, text, f"assumed: {assumed.mapping[assumed_key].text}", assumed=True)
    if sources and source_key:
        source_id = sources.mapping[source_key].text
        return Row(path, text, source_id, source_id)
    return Row(path, text)


SECTIONS = ("hardware", "workloads", "studies")
"""The folders of a root, each with its own register."""


class _Entry(BaseModel):
    """A source as the register lists it under its id."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    title: str
    url: str = ""
    note: str = ""


def read_sources(roots: Sequence[Path]) -> dict[str, Source]:
    """All registers merged; for a repeated id the earlier root wins.

    Raises CatalogError with the problems of all registers.
    """
    sources: dict[str, Source] = {}
    problems: list[Problem] = []
    for root in roots:
        for section in SECTIONS:
            path = root / section / "sources.yaml"
            if path.is_file():
                register, wrong = _read(path)
                sources = {**register, **sources}
                problems += wrong
    if problems:
        raise CatalogError(problems)
    return sources


def _read(path: Path) -> tuple[dict[str, Source], list[Problem]]:
    node, problems = read_yaml(path)
    register: dict[str, Source] = {}
    for key, entry in node.mapping.items():
        if not entry.is_mapping:
            problems.append(entry.mark.problem(f"{key}: a mapping with title and url is expected"))
            continue
        try:
            read = _Entry.model_validate(entry.plain())
        except ValidationError as error:
            problems += complaints(error, _Entry, entry)
        else:
            register[str(key)] = Source(str(key), read.title, read.url, read.note)
    return register, problems


@dataclass(frozen=True, slots=True)
class Describer:
    """Lists the values of descriptions."""

    shelf: Shelf
    sources: Mapping[str, Source]

    def rows(self, name_or_path: str, kind: str, *, deep: bool, beside: Path | None = None) -> list[Row]:
        """One row per value; `deep` adds those of named descriptions under their key."""
        mapping = read_mapping(self.shelf.find(kind, name_or_path, beside), kind, self.shelf)
        named = self._named(mapping, kind) if deep else {}
        listed: list[Row] = []
        for row in _rows(mapping.node):
            listed.append(self._with_source(row))
            if row.path in named:
                inner = self.rows(row.value_text, named[row.path], deep=True, beside=mapping.path.parent)
                listed += [replace(part, path=f"{row.path}.{part.path}") for part in inner]
        return listed

    def _named(self, mapping: LocatedMapping, kind: str) -> dict[str, str]:
        """The dotted paths of the values that name another description, with its kind."""
        classes = classes_of(kind)
        if not classes:
            return {}
        resolver = Resolver(Neighbourhood(self.shelf, mapping.path))
        resolver.data(mapping.node, matching(mapping.node, classes))
        return {
            dotted(path): kind_of(type(spec))
            for path, spec in resolver.references
            if not isinstance(spec, Calibration)
        }

    def _with_source(self, row: Row) -> Row:
        source = self.sources.get(row.source_id)
        return replace(row, source_or_assumption=str(source)) if source else row
