"""A study's perturbations applied to each candidate, as far as its system has the named ranks and links."""

from __future__ import annotations

import math
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
from perfsim.topology import Topology, ends_of, links_by_ends, nearest_link


def perturbed_candidate(evaluation: Evaluation, spec: PerturbationSpec, label: str) -> Evaluation:
    """A candidate under the perturbations that apply to it; remarks are added to the notes of its plan.

    Raises InputError, naming the candidate, if dead links leave no route.
    """
    plan = evaluation.plan
    applicable, remarks = restricted(spec, plan.topology)
    try:
        disturbed = perturbed(evaluation, applicable)
    except InputError as error:
        raise InputError(
            [
                replace(problem, message=f"perturbations of {label}: {problem.message}")
                for problem in error.problems
            ]
        ) from None
    if disturbed.perturbed is not None and disturbed.perturbed.note:
        remarks.append(disturbed.perturbed.note)
    return replace(disturbed, plan=replace(plan, notes=(*plan.notes, *remarks)))


def restricted(spec: PerturbationSpec, topology: Topology) -> tuple[PerturbationSpec, list[str]]:
    """The perturbations that apply to one system, and remarks on those that do not.

    Stragglers beyond the last rank become one straggler at the last rank, with the largest of their factors.
    """
    last = topology.num_devices - 1
    stragglers = [straggler for straggler in spec.stragglers if straggler.rank <= last]
    beyond = [straggler for straggler in spec.stragglers if straggler.rank > last]
    remarks = [
        f"perturbed: rank {straggler.rank} does not exist; rank {last} is slow instead"
        for straggler in beyond
    ]
    if beyond:
        # Several stragglers at one rank multiply.
        at_last = math.prod(straggler.factor for straggler in stragglers if straggler.rank == last)
        slowest = max(at_last, *(straggler.factor for straggler in beyond))
        stragglers = [straggler for straggler in stragglers if straggler.rank != last]
        stragglers.append(StragglerSpec(rank=last, factor=slowest))
    present = links_by_ends(topology) if spec.links else {}
    addressed = [link for link in spec.links if link.system in (None, topology.system.name)]
    links = tuple(link for link in addressed if ends_of(link.link, present) is not None)
    remarks += [f"perturbed: this system has no link {link.link}" for link in addressed if link not in links]
    return spec.model_copy(update={"stragglers": tuple(stragglers), "links": links}), remarks


def check_links(study: StudySpec, mapping: LocatedMapping) -> None:
    """Raise CatalogError, with file and line, for links that no candidate of a study has."""
    links = study.perturbations.links if study.perturbations is not None else ()
    if not links:
        return
    topologies = [
        build_topology(candidate.system, devices)
        for candidate in study.candidates
        for devices in candidate.devices
    ]
    problems = [
        mapping.problem(("perturbations", "links", number, key), message, help_text)
        for number, link in enumerate(links)
        for key, message, help_text in _missing(link, topologies)
    ]
    if problems:
        raise CatalogError(problems)


def _missing(link: LinkSpecLeft, topologies: list[Topology]) -> Iterator[tuple[str, str, str]]:
    """Key, message and help for a link that no candidate has."""
    systems = {topology.system.name for topology in topologies}
    if link.system is not None and link.system not in systems:
        message = f"no candidate is a system {link.system!r}"
        yield "system", message, did_you_mean(link.system, sorted(systems))
        return
    addressed = [topology for topology in topologies if link.system in (None, topology.system.name)]
    ends = {pair: None for topology in addressed for pair in links_by_ends(topology)}
    if ends_of(link.link, ends) is None:
        where = "no candidate" if link.system is None else f"no candidate on {link.system}"
        yield "link", f"{where} has a link {link.link!r}", nearest_link(link.link, ends)
