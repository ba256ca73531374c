"""A comparison: published runs beside a law, or equations beside simulated bytes, with its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from perfsim.catalog import Catalog, default_catalog, load_mapping, parse_file
from perfsim.hardware import GpuClusterSpec
from perfsim.sizes import MOST_DEVICES, MOST_SEQUENCES
from perfsim.spec import CatalogSpec, FolderName, Spec
from perfsim.units import Seconds, number
from perfsim.workload import TrainingRecipe, TransformerConfig

Amount = Annotated[float, *number(1e-9, 1e30)]
Count = Annotated[int, *number(1, MOST_DEVICES)]
Sequences = Annotated[int, *number(1, MOST_SEQUENCES)]


class TrainedRun(Spec):
    """A trained model: its size, its tokens or FLOP, and its loss where one is published."""

    name: str
    family: str = ""
    """Runs of one family are told of together."""
    params: Amount
    tokens: Amount
    flop: Amount | None = None
    """Of the whole run; None: 6 N D."""
    loss: Amount | None = None
    """Nats per token."""


class LossesSpec(Spec):
    """Losses of runs over their FLOP, beside a law: a named one, or the line through some of the runs."""

    law: str | None = None
    fitted_to: tuple[str, ...] = ()
    """Names of the runs that the line is fitted to; the others are predicted."""
    runs: Annotated[tuple[TrainedRun, ...], Field(min_length=2)]

    @model_validator(mode="after")
    def _has_one_law(self) -> Self:
        if (self.law is None) == (not self.fitted_to):
            raise ValueError("write law (a named one) or fitted_to (names of runs), one of them")
        known = {run.name: run for run in self.runs}
        for name in self.fitted_to:
            if name not in known or known[name].loss is None:
                raise ValueError(f"fitted_to: {name!r} is no run with a loss")
        return self


class TimedRun(Spec):
    """A published run to a quality target."""

    name: str
    devices: Count
    batch: Amount
    examples: Amount
    """To the target, in any unit that all runs share (samples, epochs)."""
    time: Seconds


class SpeedsSpec(Spec):
    """Times of runs on more and more devices; the first is what the others are compared with."""

    device: str
    runs: Annotated[tuple[TimedRun, ...], Field(min_length=2)]


class EquationsSpec(Spec):
    """Equations of communication and memory in L, T, B, P and N, for a model on a few GPUs."""

    model: TransformerConfig
    recipe: TrainingRecipe
    system: GpuClusterSpec
    batch: Sequences
    devices: Annotated[tuple[Count, ...], Field(min_length=2)]


class ComparisonSpec(CatalogSpec):
    """A question that published figures, laws and equations answer, without a choice of machines."""

    name: FolderName
    title: str
    question: str = ""
    losses: LossesSpec | None = None
    speeds: SpeedsSpec | None = None
    equations: EquationsSpec | None = None

    @model_validator(mode="after")
    def _has_one_subject(self) -> Self:
        if sum(part is not None for part in (self.losses, self.speeds, self.equations)) != 1:
            raise ValueError("write one of losses, speeds and equations")
        return self


SUBJECTS = ("losses", "speeds", "equations")


def is_comparison(name_or_path: str, catalog: Catalog | None = None) -> bool:
    """Whether a file in studies/ is a comparison rather than a study or a sweep."""
    catalog = catalog or default_catalog()
    data = load_mapping(catalog.study_path(name_or_path), catalog).data
    return any(subject in data for subject in SUBJECTS)


def load_comparison(name_or_path: str, catalog: Catalog | None = None) -> ComparisonSpec:
    """A comparison of the catalogue by name, or from a file; CatalogError lists every problem."""
    catalog = catalog or default_catalog()
    return parse_file(Path(catalog.study_path(name_or_path)), ComparisonSpec, catalog)


Value = str | float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A table of plain values with its answer in words."""

    name: str
    title: str
    question: str
    verdict: str
    columns: Mapping[str, str]
    """Key of a row's value to its heading."""
    rows: tuple[Mapping[str, Value], ...]
    notes: tuple[str, ...] = ()
    """What each column is, and where it is from."""
