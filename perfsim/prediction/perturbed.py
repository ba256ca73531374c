"""Steps that are not as planned: slow devices, slow or dead links, and jitter, drawn from one seed."""

from collections.abc import Hashable, Mapping
from dataclasses import replace

import numpy as np

from perfsim.base.arrays import Floats, Ids
from perfsim.base.errors import InputError
from perfsim.engine.trace import Trace
from perfsim.machines.placement import MOST_TASKS, Placed, place
from perfsim.network import Topology
from perfsim.prediction.run import Evaluation, Perturbed
from perfsim.specs.perturbations import PerturbationSpec
from perfsim.work import TaskGraph

ALIKE = "all replicas have the same jitter, as separate ones are too many tasks: a lower bound"


def perturbed(evaluation: Evaluation, spec: PerturbationSpec) -> Evaluation:
    """A healthy evaluation perturbed, of draws the median one; InputError for what does not exist."""
    plan = evaluation.plan
    for straggler in spec.stragglers:
        if straggler.rank >= plan.topology.num_devices:
            last = plan.topology.num_devices - 1
            raise InputError(f"straggler {straggler.rank}: the ranks are 0 to {last}")
    topology = plan.topology.degraded({link.link: link.left for link in spec.links})
    replicas = evaluation.graph.width // plan.layout.tensor
    apart = bool(spec.jitter) and replicas * len(evaluation.graph) <= MOST_TASKS
    numbers = range(spec.draws if spec.jitter or spec.step_stragglers is not None else 1)
    draws = [_draw(evaluation, spec, topology, number, apart=apart) for number in numbers]
    draws.sort(key=lambda draw: draw[0].step_time_s)
    trace, placed = draws[(len(draws) - 1) // 2]
    draws_s = tuple(drawn.step_time_s for drawn, _ in draws)
    note = ALIKE if spec.jitter and not apart else ""
    summary = Perturbed(spec.text, evaluation.step_time_s, draws_s, len(trace.graph), note)
    return replace(evaluation, trace=trace, perturbed_placed=placed, perturbed=summary)


def _draw(
    evaluation: Evaluation, spec: PerturbationSpec, topology: Topology, number: int, *, apart: bool
) -> tuple[Trace, Placed]:
    """One draw of slow ranks and jitter, `apart` for every replica: the step, its graph on its network."""
    plan = evaluation.plan
    folded = evaluation.graph
    devices = plan.topology.num_devices
    rng = np.random.default_rng([spec.seed, number])
    factors: dict[int, float] = {}
    for straggler in spec.stragglers:
        factors[straggler.rank] = factors.get(straggler.rank, 1.0) * straggler.factor
    if spec.step_stragglers is not None:
        for rank in np.flatnonzero(rng.random(devices) < spec.step_stragglers.share).tolist():
            factors[rank] = factors.get(rank, 1.0) * spec.step_stragglers.factor
    factors = {rank: factor for rank, factor in factors.items() if factor != 1.0}
    marks: dict[int, Hashable] = dict(factors)
    if apart:
        replica = {rank: rank % folded.width // plan.layout.tensor for rank in range(devices)}
        marks = {rank: (factors.get(rank), number) for rank, number in replica.items()}
    placed = place(folded, topology, marks=marks)
    graph = placed.graph
    step = replace(evaluation.step, placed=placed)
    duration_s = _straggling(graph, step.duration_s, placed.rank, factors)
    peers = np.minimum(np.array(graph.stands_for, dtype=np.int32)[graph.stream], plan.layout.tensor)
    duration_s = with_jitter(graph, duration_s, spec.jitter, peers, rng)
    return step.run(duration_s), placed


def _straggling(graph: TaskGraph, duration_s: Floats, ranks: Ids, factors: Mapping[int, float]) -> Floats:
    """Durations where rank r computes `factors[r]` times as long; `ranks` has one entry per task."""
    if not factors:
        return duration_s
    slow_ranks = np.array(list(factors))
    factor = np.ones(int(max(ranks.max(initial=0), slow_ranks.max())) + 1)
    factor[slow_ranks] = list(factors.values())
    return np.where(graph.is_compute & (ranks >= 0), duration_s * factor[np.maximum(ranks, 0)], duration_s)


def with_jitter(
    graph: TaskGraph, duration_s: Floats, sigma: float, together: Ids, rng: "np.random.Generator"
) -> Floats:
    """Durations with lognormal noise of mean 1 on every computation.

    `together` is how many of the ranks behind each task synchronise right after it, as tensor peers do:
    the slowest of that many draws counts. Sigma 0 changes nothing.
    """
    if not sigma:
        return duration_s
    tasks = np.flatnonzero(graph.is_compute)
    worst = np.full(len(tasks), -np.inf)
    counts = together[tasks]
    for number in range(int(counts.max(initial=0))):
        drawn = rng.standard_normal(len(tasks))
        np.maximum(worst, drawn, out=worst, where=counts > number)
    noisy = duration_s.copy()
    noisy[tasks] *= np.exp(sigma * worst - sigma**2 / 2)  # the shift makes the mean of one draw 1
    return noisy
