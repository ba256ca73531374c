"""Resilience to one slow device: step time against the severity of a straggler."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from perfsim.base.errors import InputError
from perfsim.engine.failures import (
    Checkpoints,
    FailedRun,
    exponential_failures,
    run_with_failures,
    with_jitter,
    with_stragglers,
)
from perfsim.engine.trace import Trace
from perfsim.machines.placement import MOST_TASKS, Placed, PlacedStragglers, place, place_stragglers
from perfsim.network import Topology, degraded
from perfsim.prediction.evaluation import Evaluation
from perfsim.prediction.result import Perturbed, Resilience, ResiliencePoint
from perfsim.specs.perturbations import FailureSpec, PerturbationSpec, ResilienceSpec

# Steps and runs under perturbations; the graph is unfolded where ranks differ.


def perturbed(evaluation: Evaluation, spec: PerturbationSpec) -> Evaluation:
    """The evaluation under perturbations; of several draws, the one with the median step time.

    Raises InputError for a rank or link that does not exist, and where dead links leave no route.
    """
    plan = evaluation.plan
    _check_ranks(spec, plan.topology)
    if evaluation.perturbed is not None:
        raise InputError("this step is perturbed already")
    topology = degraded(plan.topology, {link.link: link.left for link in spec.links})
    numbers = range(spec.draws if spec.is_random else 1)
    drawn = [_draw(evaluation, spec, topology, number) for number in numbers]
    draws = sorted(drawn, key=lambda draw: draw.trace.step_time_s)
    trace, placed, _ = draws[(len(draws) - 1) // 2]
    summary = Perturbed(
        text=text_of(spec),
        unperturbed_step_time_s=evaluation.step_time_s,
        draws_s=tuple(draw.trace.step_time_s for draw in draws),
        tasks=len(trace.graph),
        note="; ".join(
            dict.fromkeys(filter(None, [_note(evaluation, spec), *(draw.note for draw in drawn)]))
        ),
        run=_run(trace.step_time_s, spec.failure, spec.seed),
    )
    breakdown_s = trace.mean_breakdown()
    return replace(evaluation, trace=trace, disturbed=placed, breakdown_s=breakdown_s, perturbed=summary)


class _Draw(NamedTuple):
    """One draw of the step, its graph on its network, and a note on how it is simulated."""

    trace: Trace
    placed: Placed
    note: str


def _draw(evaluation: Evaluation, spec: PerturbationSpec, topology: Topology, number: int) -> _Draw:
    """One draw of the step."""
    plan = evaluation.plan
    folded = evaluation.graph
    rng = np.random.default_rng([spec.seed, number])
    factors = _factors(spec, plan.topology.num_devices, rng)
    apart = bool(spec.jitter) and _fits(evaluation)
    marks: dict[int, Hashable] = dict(factors)
    if apart:
        width = folded.width
        replica = {rank: rank % width // plan.layout.tensor for rank in range(plan.topology.num_devices)}
        marks = {rank: (factors.get(rank), number) for rank, number in replica.items()}
    if spec.jitter:
        slow = PlacedStragglers(place(folded, topology, marks=marks), factors)
    else:
        slow = place_stragglers(folded, plan, factors, topology)
    graph = slow.placed.graph
    step = replace(evaluation.step, placed=slow.placed)
    duration_s = with_stragglers(graph, step.duration_s, slow.placed.rank, slow.factors)
    peers = np.minimum(np.array(graph.stands_for, dtype=np.int32)[graph.stream], plan.layout.tensor)
    duration_s = with_jitter(graph, duration_s, spec.jitter, peers, rng)
    return _Draw(step.run(duration_s), slow.placed, slow.note)


def _factors(spec: PerturbationSpec, devices: int, rng: np.random.Generator) -> dict[int, float]:
    """Compute time factors of the slow ranks in one draw."""
    factors: dict[int, float] = {}
    for straggler in spec.stragglers:
        factors[straggler.rank] = factors.get(straggler.rank, 1.0) * straggler.factor
    if spec.step_stragglers is not None:
        for rank in np.flatnonzero(rng.random(devices) < spec.step_stragglers.share).tolist():
            factors[rank] = factors.get(rank, 1.0) * spec.step_stragglers.factor
    return {rank: factor for rank, factor in factors.items() if factor != 1.0}


def _fits(evaluation: Evaluation) -> bool:
    replicas = evaluation.graph.width // evaluation.plan.layout.tensor
    return replicas * len(evaluation.graph) <= MOST_TASKS


def _note(evaluation: Evaluation, spec: PerturbationSpec) -> str:
    if spec.jitter and not _fits(evaluation):
        return "all replicas have the same jitter, as separate ones are too many tasks: a lower bound"
    return ""


def _check_ranks(spec: PerturbationSpec, topology: Topology) -> None:
    for straggler in spec.stragglers:
        if straggler.rank >= topology.num_devices:
            raise InputError(f"straggler {straggler.rank}: the ranks are 0 to {topology.num_devices - 1}")


def _run(step_time_s: float, failure: FailureSpec | None, seed: int) -> FailedRun | None:
    """The whole run through failures; None where there are none."""
    if failure is None:
        return None
    checkpoints = Checkpoints(failure.checkpoint, failure.restart, failure.write)
    times = iter([failure.at]) if failure.at is not None else exponential_failures(failure.mttf or 0.0, seed)
    return run_with_failures(failure.steps * step_time_s, checkpoints, times)


def text_of(spec: PerturbationSpec) -> str:
    """The perturbations in one line."""
    parts = [f"rank {slow.rank} computes {slow.factor:g} times as long" for slow in spec.stragglers]
    if spec.step_stragglers is not None:
        share = spec.step_stragglers.share
        factor = spec.step_stragglers.factor
        parts.append(f"{100 * share:g} % of the ranks of a step compute {factor:g} times as long")
    if spec.jitter:
        parts.append(f"jitter with sigma {spec.jitter:g}")
    for link in spec.links:
        name = link.link if link.system is None else f"{link.link} of {link.system}"
        parts.append(f"{name} {f'at {100 * link.left:g} %' if link.left else 'dead'}")
    if spec.failure is not None:
        when = "one failure" if spec.failure.at is not None else "failures"
        parts.append(f"{when} with restart from checkpoints")
    return ", ".join([*parts, f"seed {spec.seed}"])


def resilience(evaluation: Evaluation, label: str, spec: ResilienceSpec) -> Resilience:
    """Step times of an unperturbed evaluation's plan with one straggler, for each severity.

    The graph is unfolded once, into the classes of ranks that the straggler separates.
    """
    plan = evaluation.plan
    rank = min(spec.rank, plan.topology.num_devices - 1)
    severities = sorted({1.0, *spec.severities})
    placed, slow, _ = place_stragglers(evaluation.graph, plan, {rank: severities[-1]}, step_only=True)
    step = replace(evaluation.step, placed=placed)
    points = []
    for severity in severities:
        slow_s = with_stragglers(placed.graph, step.duration_s, placed.rank, dict.fromkeys(slow, severity))
        points.append(ResiliencePoint(severity, step.run(slow_s).step_time_s))
    return Resilience(label, rank, tuple(points))
