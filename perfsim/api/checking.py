"""`perfsim check`: a file of any kind read with everything that it names, and nothing computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from perfsim.catalog import Catalog, default_catalog, parse_file
from perfsim.catalog.kinds import classes_of
from perfsim.errors import InputError, Problem, UnknownNameError
from perfsim.files import must_exist
from perfsim.fitting.cluster_fit import MeasuredFile
from perfsim.published.rows import RefusedRow, convergence_rows, step_rows
from perfsim.schemas import KINDS, OWN
from perfsim.studies.loading import load_study
from perfsim.studies.runner import check_question, question_of
from perfsim.sweeps.runner import load_sweep


@dataclass(frozen=True)
class Checked:
    """A file without mistakes: its kind, and what it holds in words."""

    file: str
    kind: str
    words: str


def check(file: str | Path, kind: str = "", catalog: Catalog | None = None) -> Checked:
    """Read a file with all that it names; raises InputError with every mistake.

    `kind` is one of `perfsim.schemas.KINDS`; without it the file's own keys tell it.
    """
    path, catalog = Path(file), catalog or default_catalog()
    must_exist(path)
    if path.suffix not in (".yaml", ".yml"):
        said = "is no YAML file, whose name ends in .yaml or .yml"
        raise InputError([Problem(said, file=str(path), help="perfsim import reads files of other tools")])
    if kind and kind not in KINDS:
        raise UnknownNameError("kind", kind, KINDS)
    kind = kind or kind_of_file(path)
    reader = _READERS.get(kind)
    words = reader(path, catalog) if reader else str(catalog.load(kind, str(path.resolve())).name)
    return Checked(str(path), kind, words)


def kind_of_file(path: Path) -> str:
    """The kind whose fields have most of the file's keys; InputError where none has any."""
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        data = None  # the reader of a study says where the mistake is
    keys = set(data) if isinstance(data, dict) else set()
    if not keys or "candidates" in keys:
        return "study"
    if isinstance(data, dict) and isinstance(data.get("cases"), list):
        return "convergence" if "points" in str(data["cases"][:1]) else "cases"
    counts = {
        kind: max(
            len(keys & set(cls.model_fields)) for cls in ((OWN[kind],) if kind in OWN else classes_of(kind))
        )
        for kind in KINDS
    }
    best = max(counts, key=lambda kind: counts[kind])
    if counts[best] == len(keys & {"name", "description", "extends"}):
        known = ", ".join(KINDS)
        raise InputError(
            [Problem("what kind of file is this?", file=str(path), help=f"--kind, one of {known}")]
        )
    return best


def _study(path: Path, catalog: Catalog) -> str:
    spec = load_study(str(path), catalog)
    machines = [(own, devices) for own in spec.candidates for devices in own.devices]
    for own, devices in machines:
        check_question(question_of(spec, own, devices))
    return f"{spec.model.name} by {spec.recipe.name} on " + "; ".join(
        own.label(count) for own, count in machines
    )


def _sweep(path: Path, catalog: Catalog) -> str:
    return f"{len(load_sweep(str(path), catalog).points):,} points"


def _steps(path: Path, catalog: Catalog) -> str:
    read = step_rows(path, catalog)
    return _rows(path, len(read.cases), read.refused)


def _convergence(path: Path, catalog: Catalog) -> str:
    read = convergence_rows(path, catalog)
    return _rows(path, len(read.cases), read.refused)


def _rows(path: Path, count: int, refused: tuple[RefusedRow, ...]) -> str:
    if refused:
        raise InputError(
            [Problem(f"case {row.id}: {row.reason}", file=str(path), line=row.line) for row in refused]
        )
    return f"{count} cases"


def _measured(path: Path, catalog: Catalog) -> str:
    parse_file(path, MeasuredFile, catalog)
    return "measured steps"


_READERS: dict[str, Callable[[Path, Catalog], str]] = {
    "study": _study,
    "sweep": _sweep,
    "cases": _steps,
    "convergence": _convergence,
    "measured": _measured,
}
