"""The registers of sources: `sources.yaml` beside the folders of the descriptions that cite them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from perfsim.catalog.complaints import complaints
from perfsim.catalog.nodes import read_yaml
from perfsim.catalog.provenance import Source
from perfsim.errors import CatalogError, Problem

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
