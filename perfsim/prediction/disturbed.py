"""Steps that are not as planned: perturbed by slow devices and links, or with collectives step by step."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from perfsim.base.errors import InputError, Problem
from perfsim.base.text import did_you_mean
from perfsim.costs.price import Costs, Shares
from perfsim.engine import failures
from perfsim.engine.trace import Trace
from perfsim.machines.placement import MOST_TASKS, Placed, place
from perfsim.network import Topology
from perfsim.network.collectives import num_steps, tree_rounds
from perfsim.prediction.run import Evaluation, Perturbed
from perfsim.specs.calibration import CollectiveOp
from perfsim.specs.perturbations import PerturbationSpec
from perfsim.work import Kind, RankGroup, TaskGraph, Work
from perfsim.work.unfold import expand

ALIKE = "all replicas have the same jitter, as separate ones are too many tasks: a lower bound"


def perturbed(evaluation: Evaluation, spec: PerturbationSpec) -> Evaluation:
    """The evaluation under perturbations; of several draws, the one with the median step time.

    Raises InputError for a rank or link that does not exist, and where dead links leave no route.
    """
    plan = evaluation.plan
    for straggler in spec.stragglers:
        if straggler.rank >= plan.topology.num_devices:
            last = plan.topology.num_devices - 1
            raise InputError(f"straggler {straggler.rank}: the ranks are 0 to {last}")
    if evaluation.perturbed is not None:
        raise InputError("this step is perturbed already")
    topology = plan.topology.degraded({link.link: link.left for link in spec.links})
    replicas = evaluation.graph.width // plan.layout.tensor
    apart = bool(spec.jitter) and replicas * len(evaluation.graph) <= MOST_TASKS
    numbers = range(spec.draws if spec.jitter or spec.step_stragglers is not None else 1)
    draws = [_draw(evaluation, spec, topology, number, apart=apart) for number in numbers]
    draws.sort(key=lambda draw: draw[0].step_time_s)
    trace, placed = draws[(len(draws) - 1) // 2]
    summary = Perturbed(
        text=spec.text,
        unperturbed_step_time_s=evaluation.step_time_s,
        draws_s=tuple(drawn.step_time_s for drawn, _ in draws),
        tasks=len(trace.graph),
        note=ALIKE if spec.jitter and not apart else "",
    )
    return replace(evaluation, trace=trace, disturbed=placed, perturbed=summary)


def _draw(
    evaluation: Evaluation, spec: PerturbationSpec, topology: Topology, number: int, *, apart: bool
) -> tuple[Trace, Placed]:
    """One draw of slow ranks and jitter: the step, and its graph on its network.

    `apart`: every replica has its own jitter.
    """
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
    duration_s = failures.with_stragglers(graph, step.duration_s, placed.rank, factors)
    peers = np.minimum(np.array(graph.stands_for, dtype=np.int32)[graph.stream], plan.layout.tensor)
    duration_s = failures.with_jitter(graph, duration_s, spec.jitter, peers, rng)
    return step.run(duration_s), placed


# Collectives expanded into the steps of their algorithm, each a flow on its own routes.
#
# Otherwise one flow stands for a whole collective. That is exact where every step uses the same links, as in
# a ring. Rounds of a tree do not: some stay inside a leaf, others cross its uplinks. Limits: the steps of a
# ring together take the price of the collective, up to rounding. Each round of a tree sends
# the whole message, unpipelined: `tree.time_s` with the latency and bandwidth of a send, where the slowest
# pair determines the time of a round.

ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "ring": ("all_reduce", "reduce_scatter", "all_gather"),
    "tree": ("all_reduce", "broadcast"),
}
"""The operations that each algorithm can run."""


@dataclass(frozen=True)
class _StepCosts(Costs):
    """Prices for steps of collectives, each by the nodes of its own group; `whole` prices other work."""

    whole: Costs

    def duration_s(self, work: Work) -> float:
        """A step of a ring takes its part of the collective, a round of a tree its slowest message."""
        if work.group is not None and work.op.startswith("tree."):
            _, op, number = work.op.split(".")
            pairs = tree_rounds(cast(CollectiveOp, op), work.group.size)[int(number)]
            return max(self.whole.send_s(_ends(work.group, pair), work.comm_bytes) for pair in pairs)
        priced, steps = self._priced(work)
        return self.whole.duration_s(priced) / steps

    def latency_s(self, work: Work, /) -> float:
        priced, steps = self._priced(work)
        return self.whole.latency_s(priced) / steps

    def taken(self, work: Work, /) -> Shares:
        """What a step takes of a device: as much as its collective, or as a message in a round of a tree."""
        return self.whole.taken(self._priced(work)[0])

    def bound(self, work: Work, /) -> Shares:
        return self.whole.bound(work)

    def _priced(self, work: Work) -> tuple[Work, int]:
        """The work whose price a step has, and the number of steps that share it."""
        algorithm, _, name = work.op.partition(".")
        if work.group is None or algorithm not in ALGORITHMS:
            return work, 1
        if algorithm == "tree":
            return replace(work, op="send_recv", group=_ends(work.group, (0, 1))), 1
        op = cast(CollectiveOp, name)
        collective = replace(work, op=op, comm_bytes=work.comm_bytes * work.group.size)
        return collective, num_steps(op, work.group.size)


def expanded(evaluation: Evaluation, text: str) -> Evaluation:
    """The evaluation with expanded collectives; `text` is `data.all_reduce=ring,tensor.all_reduce=tree`.

    Raises InputError for a collective that the step does not have or the algorithm cannot run.
    """
    algorithms = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, algorithm = (part.strip() for part in item.partition("="))
        if algorithm not in ALGORITHMS:
            message = f"--expand {item!r}: the algorithm must be one of {', '.join(ALGORITHMS)}"
            raise InputError([Problem(message, help="write for example data.all_reduce=ring")])
        algorithms[name] = algorithm
    graph, costs = in_steps(evaluation.graph, evaluation.step.costs, algorithms)
    step = replace(evaluation.step, placed=place(graph, evaluation.plan.topology), costs=costs)
    return replace(evaluation, graph=graph, step=step, trace=step.run())


def in_steps(graph: TaskGraph, costs: Costs, algorithms: Mapping[str, str]) -> tuple[TaskGraph, _StepCosts]:
    """A folded graph with collectives as chains of steps, and its prices; algorithms by name."""
    collectives = {
        work.name for work in graph.works if work.kind is Kind.COMM_COLL and work.group is not None
    }
    for name in algorithms:
        if name not in collectives:
            help_text = did_you_mean(name, sorted(collectives))
            raise InputError([Problem(f"this step has no collective {name!r}", help=help_text)])
    chains: dict[int, list[Work]] = {}
    for number, work in enumerate(graph.works):
        if work.name not in algorithms or work.group is None or work.group.size < 2:
            continue
        algorithm = algorithms[work.name]
        if work.op not in ALGORITHMS[algorithm]:
            allowed = ", ".join(ALGORITHMS[algorithm])
            raise InputError(f"{work.name} cannot run as a {algorithm}; these can: {allowed}")
        op = cast(CollectiveOp, work.op)
        size = work.group.size
        if algorithm == "ring":
            part_bytes = work.comm_bytes / size
            step = replace(work, name=f"{work.name}.step", op=f"ring.{op}", comm_bytes=part_bytes, writes=())
            steps = [step] * num_steps(op, size)
        else:
            steps = [
                replace(work, name=f"{work.name}.round{turn}", op=f"tree.{op}.{turn}", writes=())
                for turn in range(len(tree_rounds(op, size)))
            ]
        steps[-1] = replace(steps[-1], writes=work.writes)
        chains[number] = steps
    return expand(graph, chains), _StepCosts(costs)


def _ends(group: RankGroup, pair: tuple[int, int]) -> RankGroup:
    low, high = sorted(pair)
    return RankGroup(group.ranks[low], (high - low) * group.stride, 2)
