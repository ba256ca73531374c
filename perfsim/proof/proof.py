"""One proof: a plan's graph compiled, checked for hazards, and run in many orders."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from perfsim.errors import DeadlockError, GraphError, InputError
from perfsim.graph import TaskGraph
from perfsim.graph.unfold import Unfolded, unfold
from perfsim.machines import costs_for
from perfsim.prediction.evaluation import Evaluation, evaluate
from perfsim.proof.execution.faults import BROKEN, Fault, FaultError, failure, origin
from perfsim.proof.execution.gpu import GpuCompiler
from perfsim.proof.execution.hazards import hazards
from perfsim.proof.execution.oracle import Oracle
from perfsim.proof.execution.order import Edge, Precedence, dependencies, order_in_time, random_order
from perfsim.proof.execution.program import Compiler, Program
from perfsim.proof.execution.run import Executor, Outcome
from perfsim.proof.execution.serial import SmallTraining
from perfsim.proof.in_flight import held_unlike_promised
from perfsim.proof.prices import mispriced
from perfsim.proof.provers import prover
from perfsim.proof.small_plans import training_of
from perfsim.strategies import Plan
from perfsim.workload import Layout, ParallelLayout

MOST_FAULTS = 20
MOST_TASKS = 400_000
"""In one order: some minutes."""


@dataclass(frozen=True)
class Proof:
    """Result of proving one plan."""

    strategy: str
    layout: str
    ranks: int
    microbatches: int
    orders: int
    tasks: int
    """In one order, on all ranks and in both steps."""
    compared: int
    """Arrays compared with serial training, in all orders."""
    max_relative_error: float | None
    """None: nothing was compared. Infinite: a shape differed."""
    faults: tuple[Fault, ...] = ()
    not_executed: tuple[str, ...] = ()
    """Parts of the model that the small one does not have, in words."""

    @property
    def passed(self) -> bool:
        """Whether no fault was found."""
        return not self.faults

    def as_dict(self) -> dict[str, Any]:
        """One layout of the document that `--json` prints."""
        return {
            "layout": self.layout,
            "passed": self.passed,
            "max_relative_error": finite(self.max_relative_error),
            "orders": self.orders,
            "tasks": self.tasks,
            "ranks": self.ranks,
            "microbatches": self.microbatches,
            "compared": self.compared,
            "faults": [str(fault) for fault in self.faults],
            "not_executed": list(self.not_executed),
        }


def finite(error: float | None) -> float | None:
    """The error for JSON; None if it is not a finite number."""
    return None if error is None or not math.isfinite(error) else error


@dataclass(frozen=True)
class Subject:
    """A graph to prove, as its strategy wrote it or with a fault.

    `without` are removed dependencies; the tensors that tasks read stay the same.
    """

    graph: TaskGraph
    plan: Plan
    training: SmallTraining
    without: Collection[Edge] = ()

    @cached_property
    def compiled(self) -> tuple[Program, Compiler]:
        """The graph as a program; FaultError if it cannot be executed."""
        compiler = prover(self.plan.system.kind).compiler(self.graph, self.training, self.plan)
        return compiler.compile(), compiler

    def lacking(self, edges: Collection[Edge]) -> Subject:
        """The same graph without some dependencies; the tensors that tasks read stay the same."""
        subject = replace(self, without=tuple(edges))
        # Neither cache depends on `without`.
        subject.__dict__.update(
            {name: self.__dict__[name] for name in ("compiled", "unfolded") if name in self.__dict__}
        )
        return subject

    @cached_property
    def unfolded(self) -> Unfolded:
        """The graph with every rank; FaultError if its groups are inconsistent."""
        try:
            return unfold(self.graph)
        except GraphError as error:
            raise FaultError(Fault("refused", "the graph", "its groups", str(error))) from None

    @property
    def num_instances(self) -> int:
        """Tasks on all ranks."""
        return len(self.unfolded.task)

    def hazards(self) -> Iterator[Fault]:
        """Every missing dependency."""
        program, _ = self.compiled
        return hazards(program, Precedence(self.graph, dependencies(self.graph, self.without)))

    def mispriced(self, outcome: Outcome) -> Iterator[Fault]:
        """Every message that moved other elements than it is priced for."""
        prices = prover(self.plan.system.kind).prices(self.plan)
        return mispriced(prices, self.compiled[0], outcome.moved)

    def executor(self) -> Executor:
        """All ranks with their buffers, ready to run."""
        program, compiler = self.compiled
        layout = self.plan.layout
        of_rank = compiler.rows, compiler.places, compiler.share
        oracle = Oracle(self.training, layout.tensor, _shards(layout), *of_rank)
        if isinstance(compiler, GpuCompiler):
            oracle.sharding = compiler.sharding
        return Executor(program, self.unfolded, compiler.initial, oracle)

    def random_orders(self, count: int, seed: int) -> Iterator[list[int]]:
        """Random topological orders of all tasks on all ranks."""
        rng = np.random.default_rng(seed)
        deps = dependencies(self.unfolded.graph, self._without_on_all_ranks())
        for _ in range(count):
            yield random_order(deps, rng)

    def _without_on_all_ranks(self) -> list[Edge]:
        if not self.without:
            return []
        unfolded, unwanted = self.unfolded, set(self.without)
        deps = unfolded.graph.dependencies
        pairs = zip(deps.row_of_value.tolist(), deps.values.tolist(), strict=True)
        folded = unfolded.task.tolist()
        return [(a, b) for a, b in pairs if (folded[a], folded[b]) in unwanted]

    def faults(self) -> list[Fault]:
        """The faults of the graph alone, or if it has none, of one run compared with serial training."""
        try:
            hazards = list(islice(self.hazards(), MOST_FAULTS))
            if hazards:
                return hazards
            outcome = self.executor().run(range(self.num_instances), thorough=True)
            return outcome.faults + list(islice(self.mispriced(outcome), MOST_FAULTS))
        except FaultError as error:
            return [error.fault]


def _shards(layout: Layout) -> int:
    """Ranks that divide optimizer states."""
    return layout.shards if isinstance(layout, ParallelLayout) else layout.data


def subject_of(plan: Plan, seed: int = 0) -> Subject:
    """The graph of a small plan, with its small training."""
    return Subject(
        evaluate(plan, costs_for(plan.topology, plan.job.recipe)).graph, plan, training_of(plan, seed)
    )


def prove_plan(plan: Plan, orders: int, seed: int) -> Proof:
    """Prove a small plan: no hazards, memory as promised, and the numbers of serial training in every order.

    The orders are that of the ids, `orders` random ones, and that of the simulated start times.
    """
    try:
        evaluation = evaluated(plan)
    except FaultError as refused:
        return _proof(plan, _Tally(faults=[refused.fault]), 0)
    subject = Subject(evaluation.graph, plan, training_of(plan, seed))
    tally = _Tally()
    with tally.collecting():
        tasks = subject.num_instances
    if tally.faults:
        return _proof(plan, tally, 0)
    if tasks > MOST_TASKS:
        raise InputError(
            f"{plan.strategy} {plan.layout.short}: {tasks:,} tasks on all ranks are too many to "
            f"execute (at most {MOST_TASKS:,}); try fewer replicas or a smaller batch"
        )
    with tally.collecting():
        tally.faults += held_unlike_promised(subject.graph, plan)
        tally.faults += islice(subject.hazards(), MOST_FAULTS)
        executor = subject.executor()
        simulated = order_in_time(evaluation.trace.start_s, subject.unfolded.task)
        for number, order in enumerate([range(tasks), simulated, *subject.random_orders(orders, seed)]):
            outcome = executor.run(order, thorough=number == 0)
            tally.add(outcome)
            tally.faults += islice(subject.mispriced(outcome), MOST_FAULTS)
    return _proof(plan, tally, tasks)


def evaluated(plan: Plan) -> Evaluation:
    """The simulated graph of a plan; FaultError if the strategy cannot write it or it cannot run."""
    try:
        return evaluate(plan, costs_for(plan.topology, plan.job.recipe))
    except (GraphError, DeadlockError) as error:
        raise FaultError(Fault("refused", plan.strategy, "the graph", str(error))) from error
    except BROKEN as error:
        detail = f"it cannot be written or run, {origin(error)}"
        raise failure("refused", plan.strategy, "the graph", detail, error) from error


@dataclass
class _Tally:
    """Sum of the outcomes of all runs; an error that ends a run becomes a fault."""

    faults: list[Fault] = field(default_factory=list)
    max_relative_error: float = 0.0
    compared: int = 0
    runs: int = 0

    def add(self, outcome: Outcome) -> None:
        """Add one run."""
        self.max_relative_error = max(self.max_relative_error, outcome.max_relative_error)
        self.compared += outcome.compared
        self.faults += outcome.faults
        self.runs += 1

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Record the fault that ends the `with` block."""
        try:
            yield
        except FaultError as refused:
            self.faults.append(refused.fault)


def _proof(plan: Plan, tally: _Tally, tasks: int) -> Proof:
    return Proof(
        strategy=plan.strategy,
        layout=described(plan),
        ranks=plan.topology.num_devices,
        microbatches=plan.num_microbatches,
        orders=max(0, tally.runs - 2),
        tasks=tasks,
        compared=tally.compared,
        max_relative_error=tally.max_relative_error if tally.compared else None,
        faults=tuple(dict.fromkeys(tally.faults))[:MOST_FAULTS],
        not_executed=plan.notes,
    )


def described(plan: Plan) -> str:
    """A layout in words, with the features that its proof exercises."""
    return ", ".join([plan.layout.short, *prover(plan.system.kind).features(plan)])
