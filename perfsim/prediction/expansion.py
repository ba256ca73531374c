"""A collective as the steps that its algorithm takes, each a flow on the routes of that step.

One flow stands for a whole collective otherwise, which is the same as long as every step uses the same
links, as a ring's do. A tree's rounds do not: near ones stay inside a leaf, far ones cross its uplinks.

Bounds: a ring's steps together take what the collective is priced at, to a step of the time grid each. A
tree's rounds send the whole message each, unpipelined: `tree.time_s` with the latency and bandwidth of a
send, the slowest pair of a round deciding.
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
"""Which operations run as which steps."""


@dataclass(frozen=True)
class StepCosts(Costs):
    """Prices steps of collectives, and everything else as before."""

    whole: Costs
    seconds: Mapping[tuple[str, str, float], float]
    """By operation, name and bytes of a step."""

    def duration_s(self, work: Work) -> float:
        """Seconds of one task of this class."""
        found = self.seconds.get((work.op, work.name, work.comm_bytes))
        return self.whole.duration_s(work) if found is None else found


def expanded(evaluation: Evaluation, text: str) -> Evaluation:
    """The same plan with collectives written as steps: `data.all_reduce=ring,tensor.all_reduce=tree`.

    Raises InputError for a collective that the step does not have, or that does not run so.
    """
    plan = evaluation.plan
    graph, costs = in_steps(evaluation.graph, evaluation.costs, parse_expansion(text))
    step = replace(evaluation.step, placed=place(graph, plan.topology), costs=costs)
    trace = step.run()
    return replace(evaluation, graph=graph, step=step, trace=trace, breakdown_s=trace.mean_breakdown())


def parse_expansion(text: str) -> dict[str, str]:
    """Algorithm by name of the collective. Raises InputError for an algorithm that there is not."""
    found = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, algorithm = (part.strip() for part in item.partition("="))
        if algorithm not in ALGORITHMS:
            message = f"--expand {item!r}: the algorithm must be one of {', '.join(ALGORITHMS)}"
            raise InputError([Problem(message, help="write for example data.all_reduce=ring")])
        found[name] = algorithm
    return found


def in_steps(graph: TaskGraph, costs: Costs, wanted: Mapping[str, str]) -> tuple[TaskGraph, StepCosts]:
    """A folded graph with the wanted collectives as chains of steps, and what prices them."""
    collectives = {
        work.name for work in graph.works if work.kind is Kind.COMM_COLL and work.group is not None
    }
    for name in wanted:
        if name not in collectives:
            help_text = did_you_mean(name, sorted(collectives))
            raise InputError([Problem(f"this step has no collective {name!r}", help=help_text)])
    chains: dict[int, list[Work]] = {}
    seconds: dict[tuple[str, str, float], float] = {}
    for number, work in enumerate(graph.works):
        if work.name not in wanted or work.group is None or work.group.size < 2:
            continue
        steps = _steps(work, work.group, wanted[work.name], costs)
        seconds |= {(step.op, step.name, step.comm_bytes): each_s for step, each_s in steps}
        chains[number] = [step for step, _ in steps]
        chains[number][-1] = replace(chains[number][-1], writes=work.writes)
    return expand(graph, chains), StepCosts(costs, seconds)


def _steps(work: Work, group: RankGroup, algorithm: str, costs: Costs) -> list[tuple[Work, float]]:
    """The steps of one collective with their seconds; none of them writes."""
    if work.op not in ALGORITHMS[algorithm]:
        allowed = ", ".join(ALGORITHMS[algorithm])
        raise InputError(f"{work.name} does not run as a {algorithm}: {allowed} do")
    op = cast(CollectiveOp, work.op)
    if algorithm == "ring":
        count = ring.num_steps(op, group.size)
        n_bytes, each_s = work.comm_bytes / group.size, costs.duration_s(work) / count
        step = replace(work, name=f"{work.name}.step", op=f"ring.{op}", comm_bytes=n_bytes, writes=())
        return [(step, each_s)] * count
    steps = []
    for number in range(tree.num_rounds(op, group.size)):
        step = replace(work, name=f"{work.name}.round{number}", op=f"tree.{op}.{number}", writes=())
        steps.append(
            (
                step,
                max(_send_s(work, group, pair, costs) for pair in tree.round_pairs(op, group.size, number)),
            )
        )
    return steps


def _send_s(work: Work, group: RankGroup, pair: tuple[int, int], costs: Costs) -> float:
    """The whole message from one member to another."""
    low, high = sorted(pair)
    ends = RankGroup(group.ranks[low], (high - low) * group.stride, 2)
    return costs.send_s(ends, work.comm_bytes)
