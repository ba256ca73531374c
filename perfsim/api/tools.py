"""JSON Schemas of every kind of YAML file that perfsim reads, studies, sweeps and runs included."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ValidationError

from perfsim.api.questions import Named, Row, Rows, Tabular, names_of
from perfsim.base.errors import InputError, Problem, UnknownNameError, refused_values, within_floats
from perfsim.base.files import must_exist
from perfsim.base.units import parse_quantity
from perfsim.catalog import Catalog, LocatedMapping, default_catalog, parse_file
from perfsim.catalog.reader import KINDS as CATALOGUED
from perfsim.catalog.schema import yaml_schema
from perfsim.catalog.yaml_tree import Node
from perfsim.evidence import cases
from perfsim.evidence.own_runs import MeasuredFile
from perfsim.evidence.score import validate_file
from perfsim.interop.formats import read_model
from perfsim.prediction.planner import refusal_of
from perfsim.prediction.question import question_of
from perfsim.prediction.why import GapExplained
from perfsim.specs.model import TransformerConfig
from perfsim.specs.prices import Prices
from perfsim.studies import trials
from perfsim.studies.comparisons import ComparisonSpec, comparison
from perfsim.studies.loading import SweepSpec, changed_study, kind_of_study, load_study, load_sweep
from perfsim.studies.runner import refusals
from perfsim.studies.spec import StudySpec


def schema_of(kind: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of files of a kind; InputError suggests the nearest kind."""
    if kind not in KINDS:
        raise UnknownNameError("kind", kind, KINDS)
    return yaml_schema(kind, _classes(kind))


def _classes(kind: str) -> Sequence[type[BaseModel]]:
    """The classes of which a file of a kind describes one."""
    return (_OWN[kind][0],) if kind in _OWN else CATALOGUED[kind].classes


def schema_text(schema: dict[str, Any]) -> str:
    """A schema as JSON text, keys in their own order, with a final newline."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


# `perfsim check`: a file of any kind read with everything that it names, and nothing computed.


class _Checked(NamedTuple):
    """A file without mistakes: its kind, and what it holds in words."""

    file: str
    kind: str
    words: str


def check(file: str | Path, kind: str = "", catalog: Catalog | None = None) -> _Checked:
    """Read a file, or a shipped study by its name, with all that it names; InputError has every mistake.

    `kind` is one of `KINDS`; without it the file's own keys, and the name that it extends, tell it.
    """
    catalog = catalog or default_catalog()
    path = Path(file) if Path(file).exists() else catalog.find("study", str(file))
    must_exist(path)
    if path.suffix not in (".yaml", ".yml"):
        said = "is no YAML: such files end in .yaml or .yml"
        raise InputError([Problem(said, file=str(path), help="perfsim import reads files of other tools")])
    if kind and kind not in KINDS:
        raise UnknownNameError("kind", kind, KINDS)
    kind = kind or _kind_of_file(path, catalog)
    words = _OWN[kind][1](path, catalog) if kind in _OWN else _catalogued(path, kind, catalog)
    return _Checked(str(path), kind, words)


def _kind_of_file(path: Path, catalog: Catalog) -> str:
    """The kind with most of the file's keys, the name that it extends included; InputError without any."""
    root = Node.read(path)[0]
    keys = {str(key) for key in root.mapping}
    if not keys or "candidates" in keys:
        return "study"
    if (cases := root.mapping.get("cases")) and "kind" not in keys:
        of_convergence = any("points" in case.mapping for case in cases.sequence[:1])
        return "measured" if "cluster" in keys else "convergence" if of_convergence else "cases"
    own = keys - {"name", "description", "sources", "assumed"}
    counts = {kind: max(len(own & set(cls.model_fields)) for cls in _classes(kind)) for kind in KINDS}
    base = root.mapping["extends"].value if "extends" in keys else None
    for kind in CATALOGUED:
        counts[kind] += base in catalog.names(kind)
    best = max(counts, key=lambda kind: counts[kind])
    if not counts[best]:
        known = f"--kind, one of {', '.join(KINDS)}"
        raise InputError([Problem("what kind of file is this?", str(path), 1, help=known)])
    return kind_of_study(str(path), catalog) if best in ("study", "sweep", "comparison") else best


def _study(path: Path, catalog: Catalog) -> str:
    spec = load_study(str(path), catalog)
    reasons = {refused.label: f" (no answer: {refused.reason})" for refused in refusals(spec)}
    machines = [f"{point.label}{reasons.get(point.label, '')}" for point in spec.points]
    return f"{spec.model.name} by {spec.recipe.name} on {'; '.join(machines)}"


def _cases(kind: type[cases.CaseT], path: Path, catalog: Catalog) -> str:
    read = cases.CaseRows.read(path, kind, catalog)
    told = [(row.id, row.line, row.reason) for row in read.refused]
    told += [(case.id, read.lines[case.id], _unplaced(case, catalog)) for case in read.cases]
    problems = [Problem(f"case {name}: {reason}", str(path), line) for name, line, reason in told if reason]
    if problems:
        raise InputError(problems)
    return f"{len(read.cases)} cases"


def _unplaced(case: cases.StepCase | cases.ConvergenceCase, catalog: Catalog) -> str:
    """Why a measured step cannot be predicted: its row contradicts itself, or no machine runs it."""
    if not isinstance(case, cases.StepCase):
        return ""
    try:
        error = refusal_of(case.question(catalog))
    except InputError as contradiction:
        error = contradiction
    reasons = "; ".join(problem.message for problem in error.problems) if error else ""
    return reasons.removeprefix(f"case {case.id}: ")


def _catalogued(path: Path, kind: str, catalog: Catalog) -> str:
    described = catalog.load(kind, str(path.resolve()))
    if isinstance(described, Prices):
        # A system of one's own stands next to its price, and is known by the name of its file.
        known = [*catalog.names("system"), *(other.stem for other in path.resolve().parent.glob("*.yaml"))]
        place = LocatedMapping.read(path, kind, catalog).problem
        wrong = described.unknown(known).items()
        if problems := [place(("machines", name), f"prices: {own.message}", own.help) for name, own in wrong]:
            raise InputError(problems)
    return str(described.name)


def _measured(path: Path, catalog: Catalog) -> str:
    read = parse_file(path, MeasuredFile, catalog)
    place = LocatedMapping.read(path, "study", catalog).problem
    reasons = {number: _unplaced(case, catalog) for number, case in enumerate(read.cases)}
    if problems := [place(("cases", number), reason) for number, reason in reasons.items() if reason]:
        raise InputError(problems)
    return f"{len(read.cases)} measured steps"


_OWN: Mapping[str, tuple[type[BaseModel], Callable[[Path, Catalog], str]]] = {
    "study": (StudySpec, _study),
    "sweep": (SweepSpec, lambda path, catalog: f"{len(load_sweep(str(path), catalog).points):,} points"),
    "comparison": (ComparisonSpec, lambda path, catalog: comparison(path, catalog=catalog).title),
    "cases": (cases.CaseFile, partial(_cases, cases.StepCase)),
    "convergence": (cases.ConvergenceFile, partial(_cases, cases.ConvergenceCase)),
    "measured": (MeasuredFile, _measured),
}
"""Kinds outside the catalogue: the class of a file, and what reads it with all that it names and says what it
holds. `validate` reads cases, `calibrate steps` reads measured steps."""
KINDS = tuple(dict.fromkeys([*CATALOGUED, *_OWN]))


# `why` a study has its answer or a step takes its time, and the `diff` of two studies.


@within_floats
def why(
    study: Named, compare: Iterable[str] = (), changes: Mapping[str, Any] | None = None
) -> tuple[trials.Explained, ...]:
    """What limits every candidate of a study, and the changes that were tried, those that help most first.

    `study` is a name, a YAML file or the summary.json of an answer, `changes` are as of `perfsim.study`.
    Raises InputError for a file of another kind, and what answering the study raises.
    """
    spec = changed_study(_study_named(study), changes or {}, default_catalog())
    return trials.explain(spec.with_verify("off"), names_of(compare, "compare"))


@within_floats
def why_measured(measured: str | float, **given: Any) -> GapExplained:
    """The inputs that would explain a measured step, the likeliest first.

    `measured` is text with a unit (`5.4 s`) or seconds; the rest is given, and refused, as of `predict`.
    """
    if isinstance(measured, str):
        try:
            measured = parse_quantity(measured, "seconds", usual="s")
        except InputError as error:
            raise InputError([replace(p, message=f"measured: {p.message}") for p in error.problems]) from None
    return GapExplained.of(question_of(given), measured)


def _study_named(study: Named) -> StudySpec:
    """A study by name, by its file, or by the document of its answer."""
    if Path(study).suffix != ".json":
        return load_study(str(study))
    document = _document(Path(study))
    spec = load_study(document.study)
    machines = {
        (point.candidate.strategy, point.candidate.system.name, point.num_devices) for point in spec.points
    }
    answered = {(row.strategy, row.system, row.num_devices) for row in document.candidates}
    if document.title not in (None, spec.heading) or not answered <= machines:
        text = f"answers another study than the catalogue's {spec.name}"
        raise InputError([Problem(text, str(study), 1, help="give the study's file")])
    return spec


def _document(path: Path) -> trials.AnswerDocument:
    """The document of a study's answer. Raises InputError for anything else, with the line of the mistake."""
    advice = "give the study's file"
    try:
        return trials.AnswerDocument.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError([Problem(error.strerror or str(error), str(path), help=advice)]) from None
    except ValidationError as error:
        first = error.errors()[0]
    text = f"is no answer of `perfsim study --json`: {refused_values([first])[0]}"
    problem = Problem(text, str(path), 1, help=advice)
    if said := re.search(r"at line (\d+) column (\d+)", first["msg"]):
        problem = Problem(text, str(path), int(said[1]), int(said[2]), help=advice)
    else:
        with suppress(InputError):
            problem = Node.read(path)[0].mark_at(first["loc"]).problem(text, advice)
    raise InputError([problem])


@within_floats
def diff(first: Named, second: Named) -> trials.Difference:
    """What differs between two studies, and what each changed input alone does to the first.

    Two files `summary.json` are compared as they stand: the times of their candidates, and the inputs that
    differ. Raises InputError for one of each, and what answering the studies raises.
    """
    answers = [Path(name).suffix == ".json" for name in (first, second)]
    if all(answers):
        documents = [_document(Path(name)) for name in (first, second)]
        for name, known in zip((first, second), documents, strict=True):
            if any(not row.label or row.time_to_accuracy_s is None for row in known.candidates):
                raise InputError([Problem("a candidate lacks label or time_to_accuracy_s", str(name), 1)])
        return trials.compare_answers(*documents)
    if any(answers):
        raise InputError("compare two studies or two answers, not one of each")
    return trials.compare_studies(*(_study_named(name).with_verify("off") for name in (first, second)))


# `perfsim.Model` and `perfsim.import_file`: models from the files of other tools.


class Model(TransformerConfig):
    """A model as an object: its fields, or a file of another tool."""

    @classmethod
    def from_file(cls, path: str | Path, format: str = "") -> Self:  # noqa: A002  # as `--format`
        """The model of a file that `perfsim import` reads, such as a config.json.

        The content tells the format unless it is given. Raises InputError for what cannot be expressed.
        """
        return cls(**read_model(Path(path), format).model_dump())


# `perfsim.validate`: predictions next to measured runs.


@within_floats
def validate(file: str | Path, catalog: Catalog | None = None) -> Validation:
    """Predict the runs of a file of cases and compare with what was measured.

    `published_cases` lists the files that come with perfsim. Raises InputError for a file that is not there
    or that is malformed; a case that cannot be predicted is listed in `failed`.
    """
    if not isinstance(file, (str, Path)):
        raise InputError(f"validate: a path is expected, not {file!r}")
    must_exist(Path(file))
    return Validation(validate_file(Path(file), catalog))


@dataclass(frozen=True, repr=False)
class Validation(Tabular):
    """Errors of the predictions of one file, case by case and together."""

    document: Mapping[str, Any]
    """All of it, as `perfsim validate --json` prints it."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """Number of scored cases, median, mean and 90th percentile of the error, and bias."""
        return dict(self.document["summary"])

    @property
    def verdict(self) -> str:
        """The same in words."""
        figures = {name: value for name, value in self.summary.items() if isinstance(value, (int, float))}
        return ", ".join(f"{name} {value:.3g}" for name, value in figures.items())

    @property
    def baseline(self) -> Mapping[str, Any]:
        """The same for one constant efficiency in place of the model."""
        return dict(self.document["baseline"])

    @property
    def cases(self) -> Rows:
        """One row a case: measured, predicted, error."""
        return Rows(dict(case) for case in self.document["cases"])

    def rows(self) -> Rows:
        """`cases`, as every answer has them."""
        return self.cases

    @property
    def failed(self) -> list[Row]:
        """Cases that could not be predicted, with the reason."""
        return [dict(case) for case in self.document.get("failed", ())]

    def __repr__(self) -> str:
        return f"<validation of {self.document['file']}: {self.verdict}>"
