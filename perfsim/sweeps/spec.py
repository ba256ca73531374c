"""The YAML form of a sweep: a study, and the fields of it that vary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from perfsim.catalog import Catalog, parse_file
from perfsim.spec import CatalogSpec, FolderName, Spec
from perfsim.studies.spec import Candidates, StudySpec


class GridSpec(Spec):
    """The fields that vary: machines under `candidates`, any other field of the study under its dotted path.

    Each path has a list of values in the form of the field itself: `recipe.global_batch_size:
    [512, 1024]`, `system.node.nic.bandwidth: [100 Gb/s, 200 Gb/s]`, `model: [gpt3_13b, gpt3_20b]`.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    candidates: Candidates = ()
    """Replaces the study's own candidates."""


class VariantSpec(Spec):
    """The changes of one variant: paths as in a grid, each with one value."""

    model_config = ConfigDict(frozen=True, extra="allow")

    candidates: Candidates = ()
    """Replaces the candidates of the grid or the study in this variant."""


class SweepSpec(CatalogSpec):
    """A study asked at every point of a grid, for every variant."""

    name: FolderName
    title: str
    question: str = ""
    study: StudySpec
    """A study's name or path, or a study written here (with `extends`: only its differences)."""
    grid: GridSpec = GridSpec()
    variants: dict[str, VariantSpec] = Field(default_factory=dict)
    """By name, the fields it changes: `twice the I/O: {system.io_ports: 24}`; the first is the base."""


class StudyCatalog(Catalog):
    """A catalogue that also loads studies, so that a sweep can name one."""

    def load(self, kind: str, name_or_path: str, beside: Path | None = None) -> Any:
        """The description of a kind, including studies."""
        if kind == "study":
            return parse_file(self.find(kind, name_or_path, beside), StudySpec, self)
        return super().load(kind, name_or_path, beside)
