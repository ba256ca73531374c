"""One list of perturbations for unlike candidates: what of it falls on which, and what falls on none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfsim.catalog.reader import LocatedMapping
from perfsim.errors import CatalogError, InputError
from perfsim.machines import build_topology
from perfsim.prediction.evaluation import Evaluation
from perfsim.prediction.perturbation import perturbed
from perfsim.prediction.perturbation_spec import LinkSpecLeft, PerturbationSpec, StragglerSpec
from perfsim.studies.spec import StudySpec
from perfsim.suggest import did_you_mean
from perfsim.topology import Topology, ends_of, links_with_state, nearest_link


def perturbed_candidate(evaluation: Evaluation, spec: PerturbationSpec, label: str) -> Evaluation:
    """A candidate under what of a study's perturbations falls on it; remarks join its plan's notes.

    Raises InputError, naming the candidate, where dead links leave no route.
    """
    plan = evaluation.plan
    fitting, remarks = restricted(spec, plan.topology)
    try:
        found = perturbed(evaluation, fitting)
    except InputError as error:
        problems = [
            replace(each, message=f"perturbations of {label}: {each.message}") for each in error.problems
        ]
        raise InputError(problems) from None
    if found.perturbed is not None and found.perturbed.note:
        remarks.append(found.perturbed.note)
    return replace(found, plan=replace(plan, notes=(*plan.notes, *remarks)))


def restricted(spec: PerturbationSpec, topology: Topology) -> tuple[PerturbationSpec, list[str]]:
    """The perturbations that apply to one system, and remarks on those that do not.

    A straggler beyond the last rank is moved to it; the slowest of those moved counts.
    """
    last = topology.num_devices - 1
    inside = [each for each in spec.stragglers if each.rank <= last]
    beyond = [each for each in spec.stragglers if each.rank > last]
    remarks = [
        f"perturbed: there is no rank {each.rank}, so the last one, rank {last}, is slow" for each in beyond
    ]
    if beyond:
        slowest = max(each.factor for each in beyond)
        own = 1.0
        for each in inside:
            own *= each.factor if each.rank == last else 1.0
        inside = [each for each in inside if each.rank != last]
        inside.append(StragglerSpec(rank=last, factor=max(own, slowest)))
    known = links_with_state(topology) if spec.links else {}
    own_links = [each for each in spec.links if each.system in (None, topology.system.name)]
    there = tuple(each for each in own_links if ends_of(each.link) in known)
    remarks += [f"perturbed: this one has no link {each.link}" for each in own_links if each not in there]
    return spec.model_copy(update={"stragglers": tuple(inside), "links": there}), remarks


def check_links(study: StudySpec, mapping: LocatedMapping) -> None:
    """Raise CatalogError, with file and line, for links that no candidate of a study has."""
    links = study.perturbations.links if study.perturbations is not None else ()
    if not links:
        return
    candidates = [
        build_topology(each.system, devices) for each in study.candidates for devices in each.devices
    ]
    problems = []
    for number, link in enumerate(links):
        for key, message, help_text in _missing(link, candidates):
            problems.append(mapping.problem(("perturbations", "links", number, key), message, help_text))
    if problems:
        raise CatalogError(problems)


def _missing(link: LinkSpecLeft, candidates: list[Topology]) -> Iterator[tuple[str, str, str]]:
    """Key, message and help of what is wrong with a link that no candidate has."""
    systems = {each.system.name for each in candidates}
    if link.system is not None and link.system not in systems:
        message = f"no candidate is a system {link.system!r}"
        yield "system", message, did_you_mean(link.system, sorted(systems))
        return
    asked = [each for each in candidates if link.system in (None, each.system.name)]
    ends = {each: None for topology in asked for each in links_with_state(topology)}
    if ends_of(link.link) not in ends:
        where = "no candidate" if link.system is None else f"no candidate on {link.system}"
        yield "link", f"{where} has a link {link.link!r}", nearest_link(link.link, ends)
