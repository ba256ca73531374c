"""Collectives expanded into the steps of their algorithm, each a flow on its own routes.

Otherwise one flow stands for a whole collective. That is exact where every step uses the same links, as in
a ring. Rounds of a tree do not: some stay inside a leaf, others cross its uplinks.

Limits: the steps of a ring together take the price of the collective, up to rounding to the time grid. Each
round of a tree sends the whole message, unpipelined: `tree.time_s` with the latency and bandwidth of a
send, where the slowest pair determines the time of a round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from perfsim.calibration import CollectiveOp
from perfsim.collectives import ring, tree
from perfsim.costs.price import Costs
from perfsim.errors import InputError, Problem
from perfsim.graph import Kind, RankGroup, TaskGraph, Work
from perfsim.graph.expand import expand
from perfsim.placement.place import place
from perfsim.prediction.evaluation import Evaluation
from perfsim.suggest import did_you_mean

ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "ring": ("all_reduce", "reduce_scatter", "all_gather"),
    "tree": ("all_reduce", "broadcast"),
}
"""The operations that each algorithm can run."""


@dataclass(frozen=True)
class StepCosts(Costs):
    """Prices for steps of collectives; other work has the prices of `whole`."""

    whole: Costs
    seconds: Mapping[tuple[str, str, float], float]
    """Seconds by operation, name and bytes of a step."""

    def duration_s(self, work: Work) -> float:
        """Seconds of one task of this class."""
        step_s = self.seconds.get((work.op, work.name, work.comm_bytes))
        return self.whole.duration_s(work) if step_s is None else step_s


def expanded(evaluation: Evaluation, text: str) -> Evaluation:
    """The evaluation with expanded collectives; `text` is `data.all_reduce=ring,tensor.all_reduce=tree`.

    Raises InputError for a collective that the step does not have or the algorithm cannot run.
    """
    plan = evaluation.plan
    graph, costs = in_steps(evaluation.graph, evaluation.costs, parse_expansion(text))
    step = replace(evaluation.step, placed=place(graph, plan.topology), costs=costs)
    trace = step.run()
    return replace(evaluation, graph=graph, step=step, trace=trace, breakdown_s=trace.mean_breakdown())


def parse_expansion(text: str) -> dict[str, str]:
    """Algorithms by name of the collective. Raises InputError for an unknown algorithm."""
    algorithms = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, algorithm = (part.strip() for part in item.partition("="))
        if algorithm not in ALGORITHMS:
            message = f"--expand {item!r}: the algorithm must be one of {', '.join(ALGORITHMS)}"
            raise InputError([Problem(message, help="write for example data.all_reduce=ring")])
        algorithms[name] = algorithm
    return algorithms


def in_steps(graph: TaskGraph, costs: Costs, algorithms: Mapping[str, str]) -> tuple[TaskGraph, StepCosts]:
    """A folded graph with collectives as chains of steps, and its prices; algorithms by name."""
    collectives = {
        work.name for work in graph.works if work.kind is Kind.COMM_COLL and work.group is not None
    }
    for name in algorithms:
        if name not in collectives:
            help_text = did_you_mean(name, sorted(collectives))
            raise InputError([Problem(f"this step has no collective {name!r}", help=help_text)])
    chains: dict[int, list[Work]] = {}
    seconds: dict[tuple[str, str, float], float] = {}
    for number, work in enumerate(graph.works):
        if work.name not in algorithms or work.group is None or work.group.size < 2:
            continue
        steps = _steps(work, work.group, algorithms[work.name], costs)
        seconds |= {(step.op, step.name, step.comm_bytes): step_s for step, step_s in steps}
        chains[number] = [step for step, _ in steps]
        chains[number][-1] = replace(chains[number][-1], writes=work.writes)
    return expand(graph, chains), StepCosts(costs, seconds)


def _steps(work: Work, group: RankGroup, algorithm: str, costs: Costs) -> list[tuple[Work, float]]:
    """The steps of one collective with their seconds; steps write no tensors."""
    if work.op not in ALGORITHMS[algorithm]:
        allowed = ", ".join(ALGORITHMS[algorithm])
        raise InputError(f"{work.name} cannot run as a {algorithm}; these can: {allowed}")
    op = cast(CollectiveOp, work.op)
    if algorithm == "ring":
        count = ring.num_steps(op, group.size)
        n_bytes, step_s = work.comm_bytes / group.size, costs.duration_s(work) / count
        step = replace(work, name=f"{work.name}.step", op=f"ring.{op}", comm_bytes=n_bytes, writes=())
        return [(step, step_s)] * count
    steps = []
    for number in range(tree.num_rounds(op, group.size)):
        step = replace(work, name=f"{work.name}.round{number}", op=f"tree.{op}.{number}", writes=())
        pairs = tree.round_pairs(op, group.size, number)
        steps.append((step, max(_send_s(work, group, pair, costs) for pair in pairs)))
    return steps


def _send_s(work: Work, group: RankGroup, pair: tuple[int, int], costs: Costs) -> float:
    """Seconds to send the whole message from one member to another."""
    low, high = sorted(pair)
    ends = RankGroup(group.ranks[low], (high - low) * group.stride, 2)
    return costs.send_s(ends, work.comm_bytes)
