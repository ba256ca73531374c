"""The result of one candidate: its prediction, batch curve and timeline as plain values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfsim.base.errors import CatalogError, InputError
from perfsim.base.text import did_you_mean
from perfsim.catalog.reader import LocatedMapping
from perfsim.engine.trace import Trace
from perfsim.machines import build_topology
from perfsim.network import Topology, ends_of, links_by_ends, nearest_link
from perfsim.network.topology import network_map
from perfsim.prediction.caveats import edge_batch, extrapolated_law, sensitive_target, worst_first
from perfsim.prediction.disturbed import perturbed
from perfsim.prediction.prediction import prediction_of
from perfsim.prediction.question import MEMORY_LIMIT
from perfsim.prediction.run import Evaluation
from perfsim.prediction.why import roofline
from perfsim.specs.perturbations import LinkSpecLeft, PerturbationSpec, StragglerSpec
from perfsim.studies.batches import BatchChoice
from perfsim.studies.result import BatchPoint, CandidateResult, TimelineBar
from perfsim.studies.spec import StudySpec
from perfsim.work import TaskGraph
from perfsim.work.graph import computes, owners_of

# The measured step as bars: like tasks in a row are one bar, and short ones are drawn together by kind.
#
# A page draws some thousand bars, and a step has up to hundreds of thousands of tasks. Where bars are too
# many,
# the lanes of some devices stand for all, and short bars that begin in the same interval of a lane are
# joined
# by kind, one kind after the other: every lane spans the whole step, and its busy time stays what it is.

MOST_DEVICES = 4
"""Computing devices whose lanes are drawn, the first and the last among them."""
COARSEST = 1 / 40
"""Longest interval in which bars are joined, as a share of the step."""
FINEST = 1 / 1280
NO_LAYER = np.iinfo(np.int32).max


def bars_of(trace: Trace, most_devices: int = MOST_DEVICES) -> list[TimelineBar]:
    """The tasks of the measured step as bars, in the order of their starts, which count from its own.

    Adjacent tasks of one kind and micro-batch on one stream are one bar.
    """
    graph = trace.graph
    low, high = trace.step_window_s
    shown = _streams(graph, most_devices)
    inside = (trace.end_s > low) & (trace.start_s < high) & (trace.end_s > trace.start_s)
    tasks = np.flatnonzero(inside & shown[graph.stream])
    tasks = tasks[np.lexsort((tasks, trace.start_s[tasks], graph.stream[tasks]))]
    if not len(tasks):
        return []
    start = np.maximum(trace.start_s[tasks], low) - low
    end = np.minimum(trace.end_s[tasks], high) - low
    kinds = {name: number for number, name in enumerate(dict.fromkeys(w.category for w in graph.works))}
    kind = np.array([kinds[work.category] for work in graph.works])[graph.work[tasks]]
    same = np.ones(len(tasks) - 1, dtype=bool)
    for column in (graph.stream[tasks], graph.tag[tasks], kind):
        same &= column[1:] == column[:-1]
    first = np.flatnonzero(np.concatenate([[True], ~(same & (start[1:] <= end[:-1]))]))
    bars = _bars(graph, tasks, first, start, end)
    return sorted(bars, key=lambda bar: bar.start_s)


def devices_of(graph: TaskGraph) -> list[str]:
    """The devices that compute, in the order of their streams."""
    return list(dict.fromkeys(owners_of(name)[0] for name in graph.streams if computes(name)))


def _streams(graph: TaskGraph, most: int) -> NDArray[np.bool_]:
    """Which streams are drawn: all but those of devices that others stand for."""
    devices = devices_of(graph)
    places = np.unique(np.linspace(0, len(devices) - 1, min(most, len(devices))).round().astype(int))
    left_out = set(devices) - {devices[place] for place in places}
    return np.array([not left_out.issuperset(owners_of(name)) for name in graph.streams])


def _bars(
    graph: TaskGraph,
    tasks: NDArray[np.int64],
    first: NDArray[np.int64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
) -> list[TimelineBar]:
    """A bar for each run of `tasks`; `first` has the places where runs begin."""
    works = graph.works
    moved = [work.bytes_accessed if work.kernels else work.comm_bytes for work in works]
    flop = np.add.reduceat(np.array([work.flop for work in works])[graph.work[tasks]], first)
    n_bytes = np.add.reduceat(np.array(moved)[graph.work[tasks]], first)
    block = graph.block[tasks].astype(int)
    lowest = np.minimum.reduceat(np.where(block < 0, NO_LAYER, block), first)
    highest = np.maximum.reduceat(block, first)
    count = np.diff(np.append(first, len(tasks)))
    ends = np.maximum.reduceat(end, first)
    columns = (tasks[first], start[first], ends, flop, n_bytes, lowest, highest, count)
    bars = []
    for task, start_s, end_s, flops, moves, low, high, number in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        work = works[graph.work[task]]
        lane = graph.streams[graph.stream[task]]
        layers = (low, high) if high >= 0 else None
        tag = int(graph.tag[task])
        bars.append(
            TimelineBar(
                lane, work.name, work.category, start_s, end_s, tag, flops, moves, layers, tasks=number
            )
        )
    return bars


def grouped(bars: Sequence[TimelineBar], most: int) -> tuple[TimelineBar, ...]:
    """At most so many bars: short ones are joined where there are more, and the last left out if need be.

    The interval in which they are joined is the shortest, of a share of the step between `FINEST` and
    `COARSEST`, that is enough.
    """
    if len(bars) <= most:
        return tuple(bars)
    whole_s = max(bar.end_s for bar in bars)
    share = FINEST
    while share <= COARSEST:
        joined = _joined(bars, share * whole_s)
        if len(joined) <= most:
            return tuple(joined)
        share *= 2
    return tuple(bars[:most])


def _joined(bars: Sequence[TimelineBar], interval_s: float) -> list[TimelineBar]:
    """Bars shorter than an interval, those of one lane that begin in the same interval joined by kind."""
    cells: dict[tuple[str, int], dict[str, list[TimelineBar]]] = {}
    kept = []
    for bar in bars:
        if bar.end_s - bar.start_s >= interval_s:
            kept.append(bar)
        else:
            cell = cells.setdefault((bar.lane, int(bar.start_s / interval_s)), {})
            cell.setdefault(bar.category, []).append(bar)
    for cell in cells.values():
        kinds = list(cell.values())
        kept += _in_a_row(kinds) if any(len(own) > 1 for own in kinds) else [bar for (bar,) in kinds]
    return sorted(kept, key=lambda bar: bar.start_s)


def _in_a_row(kinds: Sequence[list[TimelineBar]]) -> list[TimelineBar]:
    """One bar for each kind, one after the other, with the busy time of its bars."""
    clock = kinds[0][0].start_s
    row = []
    for own in kinds:
        end = clock + sum(bar.end_s - bar.start_s for bar in own)
        tags = {bar.microbatch for bar in own}
        layers = [layer for bar in own for layer in bar.layers or ()]
        row.append(
            replace(
                own[0],
                start_s=clock,
                end_s=end,
                microbatch=tags.pop() if len(tags) == 1 else -1,
                flop=sum(bar.flop for bar in own),
                n_bytes=sum(bar.n_bytes for bar in own),
                layers=(min(layers), max(layers)) if layers else None,
                tasks=sum(bar.tasks for bar in own),
            )
        )
        clock = end
    return row


# A study's perturbations applied to each candidate, as far as its system has the named ranks and links.


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


MOST_BARS = 4000
"""Timeline bars of one candidate; a step of a large run has hundreds of thousands of tasks."""


def candidate_result(
    evaluation: Evaluation,
    choice: BatchChoice,
    batch_curve: Sequence[BatchChoice],
    tried: Sequence[int] = (),
    memory_limit: float = MEMORY_LIMIT,
) -> CandidateResult:
    """A candidate at its best batch of those in `tried`."""
    prediction = prediction_of(evaluation, memory_limit)
    caveats = worst_first(
        [
            *prediction.caveats,
            *edge_batch(tried, prediction.global_batch_size),
            *extrapolated_law(choice.answer.critical.notes),
            *([] if choice.loss is None else [sensitive_target(choice.loss)]),
        ]
    )
    notes = (*prediction.notes, choice.answer.regime_text)
    values = {field.name: getattr(prediction, field.name) for field in fields(prediction)}
    return CandidateResult(
        **{**values, "caveats": caveats, "notes": notes},
        steps=choice.answer.steps,
        time_to_accuracy_s=choice.answer.time_s,
        time_to_accuracy_band_s=choice.answer.band_s,
        batch_curve=tuple(_point(point) for point in batch_curve),
        **_drawn(evaluation),
    )


def _drawn(evaluation: Evaluation) -> dict[str, Any]:
    """What only figures show: timeline, roofline and network."""
    return {
        "timeline": timeline(evaluation),
        "timeline_devices": len(devices_of(evaluation.trace.graph)),
        "roofline": roofline(evaluation),
        "network": network_map(evaluation.placed.topology),
    }


def _point(choice: BatchChoice) -> BatchPoint:
    return BatchPoint(
        global_batch_size=choice.plan.job.global_batch_size,
        batch_tokens=choice.answer.batch_tokens,
        step_time_s=choice.step_time_s,
        steps=choice.answer.steps,
        time_to_accuracy_s=choice.answer.time_s,
        time_to_accuracy_band_s=choice.answer.band_s,
        layout=choice.plan.layout.as_dict(choice.plan.num_microbatches),
    )


def timeline(evaluation: Evaluation) -> tuple[TimelineBar, ...]:
    """The measured step as at most `MOST_BARS` bars, in the order of their starts."""
    return grouped(bars_of(evaluation.trace), MOST_BARS)
