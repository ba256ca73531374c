"""A sweep as it is written in YAML: a study, and the fields of it that vary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from perfsim.catalog import Catalog, parse_file
from perfsim.spec import CatalogSpec, Spec
from perfsim.studies.spec import CandidateSpec, StudySpec


class GridSpec(Spec):
    """What varies: machines under `candidates`, any other field of the study under its dotted path.

    Each path has a list of values, written as the field itself would be: `recipe.global_batch_size:
    [512, 1024]`, `system.node.nic.bandwidth: [100 Gb/s, 200 Gb/s]`, `model: [gpt3_13b, gpt3_20b]`.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    candidates: tuple[CandidateSpec, ...] = ()
    """Instead of the study's own."""


class VariantSpec(Spec):
    """What one variant changes together: any paths that a grid may have, each with its one value."""

    model_config = ConfigDict(frozen=True, extra="allow")


class SweepSpec(CatalogSpec):
    """A question asked at every point of a grid, of every variant."""

    title: str
    question: str = ""
    study: StudySpec
    """The name of a study, a path, or a study written here (with `extends`, what differs)."""
    grid: GridSpec = GridSpec()
    variants: dict[str, VariantSpec] = Field(default_factory=dict)
    """By name, what is changed at once: `twice the I/O: {system.io_ports: 24}`; the first is the base."""


class StudyCatalog(Catalog):
    """A catalogue that also reads studies, so that a sweep names one as a system names its device."""

    def load(self, kind: str, name_or_path: str, beside: Path | None = None) -> Any:
        """The description of a kind, studies included."""
        if kind == "study":
            return parse_file(self.find(kind, name_or_path, beside), StudySpec, self)
        return super().load(kind, name_or_path, beside)
