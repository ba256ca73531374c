"""Studies read from the catalogue, from files, and from mappings in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from perfsim.base.errors import CatalogError, InputError, LayoutError, PerfsimError, PlanError, Problem
from perfsim.base.text import did_you_mean
from perfsim.catalog import Catalog, LocatedMapping, default_catalog, parse_file
from perfsim.catalog.catalog import complaints_of
from perfsim.catalog.reader import OWN_VALUES, element, is_named, kind_of
from perfsim.catalog.yaml_tree import Loc
from perfsim.machines import build_topology
from perfsim.network import nearest_link
from perfsim.prediction.planner import refusal
from perfsim.studies.batches import Target
from perfsim.studies.spec import StudySpec

DEFAULTS = {"name": "study", "title": "A study", "question": ""}
"""Values of fields that a mapping may leave out."""


def kind_of_study(
    name_or_path: str, catalog: Catalog | None = None
) -> Literal["study", "sweep", "comparison"]:
    """What a file in studies/ is, by its name or path."""
    catalog = catalog or default_catalog()
    data = LocatedMapping.read(catalog.find("study", name_or_path), "study", catalog).data
    if "study" in data:
        return "sweep"
    return "comparison" if data.keys() & {"losses", "speeds", "equations"} else "study"


def load_study(name_or_path: str, catalog: Catalog | None = None) -> StudySpec:
    """A study of the catalogue by name, or from a file; CatalogError lists every problem."""
    catalog = catalog or default_catalog()
    path = catalog.find("study", name_or_path)
    study = parse_file(path, StudySpec, catalog)
    mapping = LocatedMapping.read(path, "study", catalog)
    _check_machines(study, mapping)
    _check_links(study, mapping)
    _check_loss(study, mapping)
    return study


def _at(mapping: LocatedMapping, path: Loc, error: PerfsimError) -> list[Problem]:
    """The problems of an error at the value with this path."""
    return [mapping.problem(path, problem.message, problem.help) for problem in error.problems]


def _check_machines(study: StudySpec, mapping: LocatedMapping) -> None:
    """Refuse numbers of devices that a system cannot have, and fixed layouts where none can be run.

    Raises CatalogError with all of them at their places. Where a candidate can be run, the layouts of the
    others are reasons in the answer.
    """
    devices: list[Problem] = []
    layouts: list[list[Problem]] = []
    # A list of strategies in the file is several candidates.
    lines: list[int] = []
    for line, written in enumerate(mapping.data["candidates"]):
        names = written.get("strategy")
        lines += [line] * (len(names) if isinstance(names, list) else 1)
    points = iter(study.points)
    for line, candidate in zip(lines, study.candidates, strict=True):
        for number, point in enumerate(islice(points, len(candidate.devices))):
            try:
                question = point.checked()
            except InputError as error:
                devices += _at(mapping, ("candidates", line, "devices", number), error)
                continue
            layouts.append([])
            if question.given_layout is not None and study.batch_sizes != "auto":
                refused = [refusal(question.at(batch)) for batch in study.batch_sizes]
                # A lack of constants for a price is said when the candidate is answered.
                wrong = [error for error in refused if isinstance(error, LayoutError)]
                if len(wrong) == len(refused):
                    layouts[-1] = _at(mapping, ("candidates", line, "layout"), wrong[0])
    if all(layouts):
        devices += chain(*layouts)
    if devices:
        raise CatalogError(list(dict.fromkeys(devices)))


def _check_links(study: StudySpec, mapping: LocatedMapping) -> None:
    """Raise CatalogError, with file and line, for links that no candidate of a study has."""
    links = study.perturbations.links if study.perturbations is not None else ()
    if not links:
        return
    topologies = [build_topology(point.candidate.system, point.num_devices) for point in study.points]
    systems = {topology.system.name for topology in topologies}
    problems = []
    for number, link in enumerate(links):
        where = ("perturbations", "links", number)
        addressed = [topology for topology in topologies if link.system in (None, topology.system.name)]
        if not addressed:
            words = f"no candidate is a system {link.system!r}"
            help_text = did_you_mean(str(link.system), sorted(systems))
            problems.append(mapping.problem((*where, "system"), words, help_text))
        elif not any(topology.links_named(link.link) for topology in addressed):
            whose = "no candidate" if link.system is None else f"no candidate on {link.system}"
            words = f"{whose} has a link {link.link!r}"
            problems.append(mapping.problem((*where, "link"), words, nearest_link(link.link, addressed)))
    if problems:
        raise CatalogError(problems)


def _check_loss(study: StudySpec, mapping: LocatedMapping) -> None:
    """Refuse a target loss that its law does not reach, at its place in the file."""
    if study.recipe.target_loss is None:
        return
    try:
        Target.of(study.model, study.recipe, study.convergence)
    except (InputError, PlanError) as error:
        problems = _at(mapping, ("recipe", "target_loss"), error)
        if isinstance(error, PlanError):
            raise PlanError([str(problem) for problem in problems]) from None
        raise CatalogError(problems) from None


def study_from(fields: Mapping[str, Any], catalog: Catalog) -> StudySpec:
    """A study from its fields as in YAML; names may be objects, quantities floats in SI units.

    Fields that are not given come from the study named by `extends`. CatalogError lists every problem.
    """
    given = dict(fields)
    base = given.pop("extends", None)
    inherited = (
        load_study(str(base), catalog).model_dump(exclude={*OWN_VALUES}) if base is not None else DEFAULTS
    )
    data = {**inherited, **_loaded(given, [StudySpec], catalog)}
    try:
        return StudySpec.model_validate(data)
    except ValidationError as error:
        raise CatalogError(complaints_of(error, StudySpec, data)) from None


def _loaded(value: Any, types: Sequence[Any], catalog: Catalog) -> Any:
    """A value that may be of these types, with names in it replaced by the descriptions that they name."""
    named = [known for known in types if is_named(known)]
    if isinstance(value, (str, Path)) and named and str not in types:
        return catalog.load(kind_of(named[0]), str(value))
    if isinstance(value, Mapping):
        return {key: _loaded(part, element(types, key), catalog) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_loaded(part, element(types, 0), catalog) for part in value]
    return value
