"""What `perfsim show` prints: each value of a description with its source or assumption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from perfsim.calibration import Calibration
from perfsim.catalog.kinds import classes_of, kind_of
from perfsim.catalog.provenance import Row, Source, rows
from perfsim.catalog.reader import LocatedMapping, Neighbourhood, Shelf, read_mapping
from perfsim.catalog.resolve import Resolver, dotted, matching


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
        for row in rows(mapping.node):
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
