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

from perfsim.base.errors import InputError, Problem
from perfsim.base.text import did_you_mean
from perfsim.costs.price import Costs, Shares
from perfsim.machines.placement import place
from perfsim.network import ring, tree
from perfsim.prediction.evaluation import Evaluation
from perfsim.specs.calibration import CollectiveOp
from perfsim.work import Kind, RankGroup, TaskGraph, Work
from perfsim.work.unfold import expand

ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "ring": ("all_reduce", "reduce_scatter", "all_gather"),
    "tree": ("all_reduce", "broadcast"),
}
"""The operations that each algorithm can run."""


@dataclass(frozen=True)
class StepCosts(Costs):
    """Prices for steps of collectives, each by the nodes of its own group; `whole` prices other work."""

    whole: Costs

    def duration_s(self, work: Work) -> float:
        """Seconds of one task of this class."""
        algorithm, _, name = work.op.partition(".")
        if work.group is None or algorithm not in ALGORITHMS:
            return self.whole.duration_s(work)
        if algorithm == "tree":
            return self._round_s(work, work.group, *name.split("."))
        op = cast(CollectiveOp, name)
        return self.whole.duration_s(_whole(work, op)) / ring.num_steps(op, work.group.size)

    def taken(self, work: Work, /) -> Shares:
        """What a step takes of a device: that of its collective, or of a message in a round of a tree."""
        algorithm, _, name = work.op.partition(".")
        if work.group is None or algorithm not in ALGORITHMS:
            return self.whole.taken(work)
        if algorithm == "tree":
            return self.whole.taken(replace(work, op="send_recv", group=_ends(work.group, (0, 1))))
        return self.whole.taken(_whole(work, cast(CollectiveOp, name)))

    def bound(self, work: Work, /) -> Shares:
        """Shares of a compute task's time that units and memory bandwidth limit."""
        return self.whole.bound(work)

    def _round_s(self, work: Work, group: RankGroup, op: str, number: str) -> float:
        """Seconds of a round of a tree: the slowest of its messages."""
        pairs = tree.round_pairs(cast(CollectiveOp, op), group.size, int(number))
        return max(self.whole.send_s(_ends(group, pair), work.comm_bytes) for pair in pairs)


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
    for number, work in enumerate(graph.works):
        if work.name not in algorithms or work.group is None or work.group.size < 2:
            continue
        chains[number] = _steps(work, work.group, algorithms[work.name])
        chains[number][-1] = replace(chains[number][-1], writes=work.writes)
    return expand(graph, chains), StepCosts(costs)


def _steps(work: Work, group: RankGroup, algorithm: str) -> list[Work]:
    """The steps of one collective; they write no tensors."""
    if work.op not in ALGORITHMS[algorithm]:
        allowed = ", ".join(ALGORITHMS[algorithm])
        raise InputError(f"{work.name} cannot run as a {algorithm}; these can: {allowed}")
    op = cast(CollectiveOp, work.op)
    if algorithm == "ring":
        n_bytes = work.comm_bytes / group.size
        step = replace(work, name=f"{work.name}.step", op=f"ring.{op}", comm_bytes=n_bytes, writes=())
        return [step] * ring.num_steps(op, group.size)
    return [
        replace(work, name=f"{work.name}.round{number}", op=f"tree.{op}.{number}", writes=())
        for number in range(tree.num_rounds(op, group.size))
    ]


def _whole(step: Work, op: CollectiveOp) -> Work:
    """The collective of a step of a ring."""
    size = 1 if step.group is None else step.group.size
    return replace(step, op=op, comm_bytes=step.comm_bytes * size)


def _ends(group: RankGroup, pair: tuple[int, int]) -> RankGroup:
    """Two members of a group."""
    low, high = sorted(pair)
    return RankGroup(group.ranks[low], (high - low) * group.stride, 2)
