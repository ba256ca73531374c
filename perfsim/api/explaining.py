"""`why` a study has its answer or a step takes its time, and the `diff` of two studies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perfsim.api.naming import Named, names_of
from perfsim.api.predicting import question_of
from perfsim.catalog.complaints import place as place_in
from perfsim.catalog.nodes import read_yaml
from perfsim.errors import CatalogError, InputError, Problem, refused_values, within_floats
from perfsim.prediction.gap import GapExplained, explain_gap
from perfsim.studies.comparisons.spec import is_comparison
from perfsim.studies.differences import AnswerDocument, Difference, compare_answers, compare_studies
from perfsim.studies.loading import load_study
from perfsim.studies.spec import StudySpec, with_verify
from perfsim.studies.trials import Explained, explain
from perfsim.sweeps.runner import is_sweep
from perfsim.units import parse_quantity


@within_floats
def why(study: Named, compare: Iterable[str] = ()) -> tuple[Explained, ...]:
    """What limits every candidate of a study, and the changes that were tried, those that help most first.

    `study` is a name, a YAML file or the summary.json of an answer. Raises InputError for a file of another
    kind, and what answering the study raises.
    """
    return explain(with_verify(study_named(study), "off"), names_of(compare, "compare"))[1]


@within_floats
def why_measured(measured: str | float, **asked: Any) -> GapExplained:
    """The inputs that would explain a measured step, the likeliest first.

    `measured` is text with a unit (`5.4 s`) or seconds; the rest are arguments of `predict`. Raises what it
    raises.
    """
    if isinstance(measured, str):
        try:
            measured = parse_quantity(measured, "seconds", usual="s")
        except InputError as error:
            problems = [replace(own, message=f"measured: {own.message}") for own in error.problems]
            raise InputError(problems) from None
    return explain_gap(question_of(**asked), measured)


def study_named(study: Named) -> StudySpec:
    """A study by name, by its file, or by the document of its answer, without resilience curves."""
    if Path(study).suffix != ".json":
        kind = "sweep" if is_sweep(str(study)) else "comparison" if is_comparison(str(study)) else ""
        if kind:
            text = f"{study} is a {kind}, and why and diff take a study of candidates"
            advice = "give the study that it varies, or write one of its points" if kind == "sweep" else ""
            raise InputError([Problem(text, help=advice)])
        return load_study(str(study)).model_copy(update={"resilience": None})
    document = _document(Path(study))
    spec = load_study(document.study)
    asked = {
        (candidate.strategy, candidate.system.name, devices)
        for candidate in spec.candidates
        for devices in candidate.devices
    }
    answered = {(row.strategy, row.system, row.num_devices) for row in document.candidates}
    if document.title not in (None, spec.title) or not answered <= asked:
        text = f"answers another study than the catalogue's {spec.name}"
        raise InputError([Problem(text, str(study), 1, help="give the study's file")])
    return spec.model_copy(update={"resilience": None})


def _document(path: Path) -> AnswerDocument:
    """The document of a study's answer. Raises InputError for anything else."""
    try:
        return AnswerDocument.model_validate_json(path.read_bytes())
    except OSError as error:
        text = error.strerror or str(error)
    except ValidationError as error:
        raise InputError([_no_answer(error, path)]) from None
    raise InputError([Problem(text, str(path), help="give the study's file")])


def _no_answer(error: ValidationError, path: Path) -> Problem:
    """The first reason why a document is no answer of a study, with its line."""
    first = error.errors()[0]
    text = f"is no answer of `perfsim study --json`: {refused_values([first])[0]}"
    said = re.search(r"at line (\d+) column (\d+)", first["msg"])
    if said:
        return Problem(text, str(path), int(said[1]), int(said[2]), help="give the study's file")
    try:
        mark = place_in(read_yaml(path)[0], first["loc"])
    except CatalogError:
        return Problem(text, str(path), 1, help="give the study's file")
    return mark.problem(text, "give the study's file")


@within_floats
def diff(first: Named, second: Named) -> Difference:
    """What differs between two studies, and what each changed input alone does to the first.

    Two files `summary.json` are compared as they stand: the times of their candidates, and the inputs that
    differ. Raises InputError for one of each, and what answering the studies raises.
    """
    answers = [Path(own).suffix == ".json" for own in (first, second)]
    if all(answers):
        return compare_answers(*(_document(Path(own)) for own in (first, second)))
    if any(answers):
        raise InputError("compare two studies or two answers, not one of each")
    specs = (with_verify(study_named(own), "off") for own in (first, second))
    return compare_studies(*specs)
