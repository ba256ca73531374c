"""One optimizer step of one plan: a graph placed on its network, priced, simulated and scaled.

Graphs are priced and simulated only here. Perturbations, expanded collectives, faster parts of a machine
and trial constants of a fit are all expressed by the fields of a `Step` or the durations given to it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.costs.price import Costs, price
from perfsim.engine import critical_path, simulate
from perfsim.engine.slowdown import Beside
from perfsim.engine.trace import Trace
from perfsim.machines.placement import Placed, place
from perfsim.network import Topology
from perfsim.prediction.question import Question
from perfsim.specs.calibration import ClusterCalibration, GpuCalibration
from perfsim.strategies import Plan, Strategy, strategy
from perfsim.work import GraphBuilder, Kind, TaskGraph, Work
from perfsim.work.counts import hardware_flop_per_step, model_flop_per_step
from perfsim.work.graph import owners_of

if TYPE_CHECKING:
    from perfsim.prediction.disturbed import Perturbed


@dataclass(frozen=True)
class Step:
    """A placed graph with a cost model; `scale` multiplies all times of its runs."""

    placed: Placed
    costs: Costs = field(repr=False)
    scale: float = 1.0

    @cached_property
    def duration_s(self) -> Floats:
        """Seconds of every task without contention, before `scale`; shape (tasks,)."""
        return price(self.placed.graph, self.costs)

    @cached_property
    def beside(self) -> Beside:
        """How communication slows the computation beside it, by class of work."""
        works = self.placed.graph.works
        costs = self.costs
        return Beside(
            taken=np.array([costs.taken(work) for work in works], dtype=np.float64).reshape(-1, 2),
            bound=np.array([costs.bound(work) for work in works], dtype=np.float64).reshape(-1, 2),
        )

    def run(self, duration_s: Floats | None = None, *, contention: bool = True) -> Trace:
        """Simulate the step, with other task durations if given.

        Without `contention`, of links or inside devices, the times are those of the critical path, which does
        not count toward the limit on simulated tasks. Raises DeadlockError and LimitError as
        `engine.simulate` does.
        """
        graph = self.placed.graph
        seconds = self.duration_s if duration_s is None else duration_s
        if contention:
            trace = simulate(graph, seconds, *self.placed.links, self.beside)
        else:
            trace = critical_path(graph, seconds)
        return trace.scaled(self.scale)


@dataclass(frozen=True, slots=True)
class Training:
    """How a predicted step trains: what an answer holds for, besides model and machine."""

    recipe: str
    """Name of the recipe."""
    seq_length: int
    """Tokens of a sequence."""
    precision: str
    """Format of the matrix products."""
    attention: str
    """Implementation of attention."""
    dropout: bool
    """Whether activations are dropped at random."""
    framework: str = ""
    """Name of the framework whose constants the step has; empty on a machine without any."""
    runtime: str = ""
    """Name of the runtime, which gives the settings of the training stack."""

    @property
    def settings(self) -> str:
        """`gpt3_pretraining: sequences of 2,048 tokens, bf16, standard attention, with dropout`."""
        return (
            f"{self.recipe}: sequences of {self.seq_length:,} tokens, {self.precision}, {self.attention} "
            f"attention, {'with' if self.dropout else 'no'} dropout"
        )

    @property
    def words(self) -> str:
        """The settings, and the runtime with its framework, where there is one."""
        ran = f"; runtime {self.runtime}, framework {self.framework}"
        return self.settings + (ran if self.framework else "")


_EXPOSED_STREAMS = ("weight_stream", "gradient_stream", "update", "input", "spill", "offload")


@dataclass(frozen=True)
class Evaluation:
    """A plan, its graph and its simulated step."""

    plan: Plan
    graph: TaskGraph
    """As the strategy wrote it; the trace's has the ranks written out that differ."""
    trace: Trace
    step: Step = field(repr=False, compare=False)
    """The graph placed and priced, before any perturbation."""
    disturbed: Placed | None = field(default=None, repr=False, compare=False)
    """The graph of a perturbed trace on its network; None: that of `step`."""
    cluster: ClusterCalibration | None = None
    """What every second of the trace was multiplied by, where the user measured steps."""
    perturbed: Perturbed | None = None
    """What disturbed the run; None: nothing."""

    @property
    def placed(self) -> Placed:
        """The graph of the trace on its network."""
        return self.step.placed if self.disturbed is None else self.disturbed

    @cached_property
    def breakdown_s(self) -> dict[str, float]:
        """Seconds of the step by category, the mean over computing devices; they add up to the step."""
        return self.trace.mean_breakdown()

    @property
    def step_time_s(self) -> float:
        return self.trace.step_time_s

    @property
    def tokens_per_s(self) -> float:
        return self.plan.job.tokens_per_step / self.step_time_s

    @cached_property
    def peak_flop_per_s(self) -> float:
        plan = self.plan
        return plan.topology.num_devices * plan.system.device.peak_flop_per_s(plan.job.recipe.precision)

    @cached_property
    def model_flop(self) -> float:
        """FLOPs that the model asks for, without recompute and zeros."""
        return self._kept_share(needed=True) * model_flop_per_step(self.plan.job)

    @cached_property
    def hardware_flop(self) -> float:
        """FLOPs that are executed, as papers count them."""
        plan = self.plan
        flop = hardware_flop_per_step(plan.job, plan.layout.recompute, plan.recomputed_share)
        return self._kept_share(needed=False) * flop

    @property
    def mfu(self) -> float:
        """Model FLOPs over what all devices could do in the step."""
        return self.model_flop / (self.step_time_s * self.peak_flop_per_s)

    @property
    def hfu(self) -> float:
        """The same of the FLOPs that are executed."""
        return self.hardware_flop / (self.step_time_s * self.peak_flop_per_s)

    @property
    def bubble_fraction(self) -> float:
        """Share of the step in which a device has nothing to do and nothing under way."""
        return self.breakdown_s.get("bubble", 0.0) / self.step_time_s

    @property
    def exposed_communication_fraction(self) -> float:
        """Share of the step in which a device only waits for communication."""
        exposed = sum(
            seconds
            for category, seconds in self.breakdown_s.items()
            if category.endswith("_communication") or category in _EXPOSED_STREAMS
        )
        return exposed / self.step_time_s

    @cached_property
    def hidden_communication_fraction(self) -> float:
        """Share of the step in which a device communicates while it computes."""
        return hidden_share(self.trace)

    @property
    def training(self) -> Training:
        """What the step holds for, besides model and machine."""
        recipe = self.plan.job.recipe
        runtime = self.plan.job.runtime
        has_host = isinstance(self.plan.system.device.calibration, GpuCalibration)
        framework = runtime.stack.name if runtime.stack and has_host else ""
        return Training(
            recipe=recipe.name,
            seq_length=recipe.seq_length,
            precision=recipe.precision,
            attention=runtime.attention,
            dropout=recipe.dropout,
            framework=framework,
            runtime=runtime.name,
        )

    def _kept_share(self, *, needed: bool) -> float:
        """Share of a dense step's FLOPs that a sparse model asks for (`needed`), or that are executed.

        Needed are the FLOPs of weights that are not zero. Executed are also those of zeros that a wafer does
        not skip.
        """
        sparsity = self.plan.job.recipe.weight_sparsity
        if not sparsity:
            return 1.0
        zeros = sparsity if needed else self.step.costs.zeros_saved
        works = self.graph.works
        counted = [work.kind is Kind.COMP and not (needed and work.category == "recompute") for work in works]
        flop = np.array([work.flop for work in works]) * counted
        streamed = flop * np.array([_sparse_share(work) for work in works])
        return 1.0 - zeros * float(streamed[self.graph.work].sum()) / float(flop[self.graph.work].sum())


def _sparse_share(work: Work) -> float:
    """Share of a class of work's FLOPs that multiply by the sparse matrices of layers."""
    if not work.op.startswith("layer.") or not work.flop:
        return 0.0
    matrices = sum(kernel.flop for kernel in work.kernels if kernel.partition == "streamed")
    return matrices / sum(kernel.flop for kernel in work.kernels)


def graph_of(plan: Plan, chosen: Strategy | None = None) -> TaskGraph:
    """The graph of a plan as its strategy writes it; `chosen` is a strategy that no registry has to know."""
    builder = GraphBuilder()
    (chosen or strategy(plan.strategy)).emit(plan, builder)
    return builder.build()


def longest_path_s(folded: TaskGraph, topology: Topology, costs: Costs) -> float:
    """Step time of a graph without contention."""
    return Step(place(folded, topology, contention=False), costs).run(contention=False).step_time_s


def evaluate(
    plan: Plan,
    costs: Costs,
    *,
    cluster: ClusterCalibration | None = None,
    graph: TaskGraph | None = None,
) -> Evaluation:
    """Price and simulate the graph of a plan, which is written here unless it is given.

    `place` writes out the ranks that differ. The scale of a `cluster` stretches the whole run, so that
    its parts keep their shares.
    """
    graph = graph_of(plan) if graph is None else graph
    step = Step(place(graph, plan.topology), costs, 1.0 if cluster is None else cluster.scale)
    return _evaluation_of(plan, graph, step, step.run(), cluster)


def _evaluation_of(
    plan: Plan, graph: TaskGraph, step: Step, trace: Trace, cluster: ClusterCalibration | None
) -> Evaluation:
    if step.placed.note:
        plan = replace(plan, notes=(*plan.notes, step.placed.note))
    return Evaluation(plan, graph, trace, step, cluster=cluster)


# Steps of many micro-batches: two shorter steps are simulated, and further micro-batches add as much each.
#
# After the first micro-batches every further one adds the same time to a step, so a step is a line in their
# number. Points of curves are found like this; a plan that is reported on its own is simulated in full.

LONG_PASSES = 256
"""Layers times micro-batches from which on a point of a curve is found from shorter steps."""
ROUNDS = 2
"""Micro-batches of the shortest step, at least this many for each pipeline rank."""


class CurveSteps:
    """Simulated steps of the points of one curve; shorter steps that several points need run once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, float] = {}

    def step_s(self, question: Question, plan: Plan) -> float:
        """Seconds of a step of `plan`, simulated, or extrapolated from two simulations if it is long."""
        count = plan.num_microbatches
        few = _few_microbatches(plan)
        if 2 * few >= count or count * plan.job.model.num_layers <= LONG_PASSES:
            return self._simulated_s(question, plan)
        short_s, longer_s = (
            self._simulated_s(question, _with_microbatches(question, plan, number))
            for number in (few, 2 * few)
        )
        return longer_s + (longer_s - short_s) / few * (count - 2 * few)

    def _simulated_s(self, question: Question, plan: Plan) -> float:
        key = (plan.layout, plan.job.global_batch_size)
        if key not in self._known:
            placed = place(graph_of(plan, question.chosen), plan.topology)
            self._known[key] = Step(placed, question.costs, question.scale).run().step_time_s
        return self._known[key]


def _few_microbatches(plan: Plan) -> int:
    """Micro-batches of the shortest step: whole rounds of the pipeline, enough for a steady state."""
    ranks = plan.layout.pipeline
    rounds = max(ROUNDS, -(-LONG_PASSES // (4 * plan.job.model.num_layers * ranks)))
    return ranks * rounds


def _with_microbatches(question: Question, plan: Plan, count: int) -> Plan:
    """The plan with fewer micro-batches; the last one stays as large as it is."""
    fewer = (plan.num_microbatches - count) * plan.layout.micro_batch_size * plan.layout.data
    job = replace(plan.job, global_batch_size=plan.job.global_batch_size - fewer)
    return question.chosen.plan(job, plan.topology, plan.layout)


# A step of many micro-batches from a simulated step of fewer.
#
# Contention and computation beside communication stretch a task of the short step by
#
#     f(work, stream, micro-batch) = simulated seconds / seconds alone
#
# and the task of the same work, stream and micro-batch of the whole step takes f times its seconds alone.
# Micro-batches are counted from the nearer end of the step; those around the middle of the short step stand
# for all between. The times of the whole step are the longest path of its graph with these durations, so
# fill, drain and uneven stages are exact. Only f in the middle is taken from fewer micro-batches.

LONG_TASKS = 50_000
"""Tasks from which on a step that is compared with others is found from a shorter one."""
MOST_IN_FULL = 200_000
"""Tasks up to which a step that is reported on its own is simulated in full, in about two seconds."""
FEWEST = 32
"""Micro-batches of a short step at least, so that some are neither among the first nor among the last."""
MIDDLE = 4
"""The middle of a short step is this part of its first half."""


def evaluate_from_fewer(
    question: Question, plan: Plan, graph: TaskGraph, step: Step, long_tasks: int | None = None
) -> Evaluation:
    """The evaluation of a placed plan; a step of `long_tasks` tasks is found from fewer micro-batches.

    `long_tasks` is `LONG_TASKS` unless given. Steps with too few micro-batches are simulated in full.
    """
    ranks = plan.layout.pipeline
    few = max(_few_microbatches(plan), -(-FEWEST // ranks) * ranks)
    trace = None
    if len(graph) >= (LONG_TASKS if long_tasks is None else long_tasks) and 2 * few <= plan.num_microbatches:
        trace = _from_fewer(question, plan, few, step)
    return _evaluation_of(plan, graph, step, step.run() if trace is None else trace, question.cluster)


def evaluate_reported(question: Question, plan: Plan) -> Evaluation:
    """The evaluation of a plan that is reported on its own, in full unless its graph is very large."""
    graph = graph_of(plan, question.chosen)
    step = Step(place(graph, question.topology), question.costs, question.scale)
    return evaluate_from_fewer(question, plan, graph, step, MOST_IN_FULL)


def in_full(run: Evaluation) -> Evaluation:
    """The same plan with all its micro-batches simulated, unless its graph is very large."""
    counts = run.trace.simulated
    if counts is None or counts.microbatches is None or len(run.graph) >= MOST_IN_FULL:
        return run
    return replace(run, trace=run.step.run())


def _from_fewer(question: Question, plan: Plan, few: int, step: Step) -> Trace | None:
    """The trace of a whole step; None where the short step lacks some of its work."""
    shorter = _with_microbatches(question, plan, few)
    short = Step(place(graph_of(shorter, question.chosen), shorter.topology), step.costs)
    trace = short.run()
    stretch = _stretch(short, trace, step.placed.graph, few, plan.num_microbatches)
    counts = trace.scaled(step.scale).simulated
    if stretch is None or counts is None:
        return None
    whole = step.run(step.duration_s * stretch, contention=False)
    return replace(whole, simulated=counts._replace(microbatches=few))


def _stretch(short: Step, trace: Trace, graph: TaskGraph, few: int, count: int) -> Floats | None:
    """How much longer each task of a graph takes than alone; shape (tasks,)."""
    known = short.placed.graph
    works, streams = ({name: n for n, name in enumerate(names)} for names in (known.works, known.streams))
    work = np.array([works.get(work, -1) for work in graph.works])
    stream = np.array([streams.get(name, -1) for name in graph.streams])
    if (work < 0).any() or (stream < 0).any():
        return None
    keys = _keys(known, np.arange(len(works)), np.arange(len(streams)), known.tag.astype(np.int64))
    wanted = _keys(graph, work, stream, _like(graph.tag.astype(np.int64), few, count))
    alone_s = short.duration_s
    took = np.divide(trace.end_s - trace.start_s, alone_s, where=alone_s > 0.0, out=np.ones(len(alone_s)))
    kinds, kind = np.unique(keys, return_inverse=True)
    mean = np.bincount(kind, took) / np.bincount(kind)
    found = np.minimum(np.searchsorted(kinds, wanted), len(kinds) - 1)
    return mean[found] if (kinds[found] == wanted).all() else None


def _keys(graph: TaskGraph, work: Ints, stream: Ints, tag: Ints) -> Ints:
    """One number for the work, stream and micro-batch of every task; micro-batches are -1 or more."""
    highest = max(int(stream.max(initial=0)), 0) + 1
    return np.asarray((work[graph.work] * highest + stream[graph.stream]) * (1 << 24) + tag + 1)


def _like(tag: Ints, few: int, count: int) -> Ints:
    """The micro-batch of the short step that behaves as each of the whole one; -1 stays."""
    half = few // 2
    middle = max(1, half // MIDDLE)
    between = half - middle + (tag - half) % middle
    return np.where(tag < half, tag, np.where(tag >= count - (few - half), tag - (count - few), between))


# Communication that hides behind compute.

Spans = tuple[Floats, Floats]
"""Starts and ends of intervals."""


def hidden_share(trace: Trace) -> float:
    """Share of the step in which a device computes while it communicates; the mean over computing devices.

    Communication is what runs on a device's streams besides its compute. Streams of no device (weights that
    a store sends to a wafer) do not count: they take nothing from a device's compute.
    """
    graph = trace.graph
    streams_of: dict[str, list[int]] = {}
    for stream, name in enumerate(graph.streams):
        for owner in owners_of(name):
            streams_of.setdefault(owner, []).append(stream)
    order = np.argsort(graph.stream, kind="stable")
    bounds = np.searchsorted(graph.stream[order], np.arange(len(graph.streams) + 1)).tolist()
    communicates = np.array([work.kind.is_communication for work in graph.works])[graph.work]

    def spans(streams: Iterable[int], *, communication: bool) -> Spans:
        tasks = np.concatenate([order[bounds[stream] : bounds[stream + 1]] for stream in streams])
        tasks = tasks[communicates[tasks] == communication]
        start_s = np.clip(trace.start_s[tasks], *trace.step_window_s)
        return _disjoint(start_s, np.clip(trace.end_s[tasks], *trace.step_window_s))

    seconds = 0.0
    devices = 0
    for streams in streams_of.values():
        computing = [stream for stream in streams if graph.streams[stream].endswith("/compute")]
        if not computing:
            continue
        ranks = min(graph.stands_for[stream] for stream in computing)
        devices += ranks
        if len(streams) > len(computing):
            background = spans(set(streams).difference(computing), communication=True)
            seconds += ranks * _both_s(spans(computing, communication=False), background)
    return seconds / devices / trace.step_time_s if devices else 0.0


def _disjoint(start_s: Floats, end_s: Floats) -> Spans:
    """Intervals in order, each without what an earlier one covers."""
    order = np.argsort(start_s, kind="stable")
    start_s = start_s[order]
    reach_s = np.maximum.accumulate(end_s[order])
    start_s[1:] = np.maximum(start_s[1:], reach_s[:-1])
    return start_s, np.maximum(start_s, reach_s)


def _both_s(busy: Spans, other: Spans) -> float:
    """Seconds that lie in both of two sets of disjoint intervals."""
    start_s, end_s = busy
    if not len(start_s):
        return 0.0
    sums_s = np.concatenate([[0.0], np.cumsum(end_s - start_s)])

    def busy_before(at_s: Floats) -> Floats:
        begun = np.searchsorted(start_s, at_s, side="right")
        return sums_s[begun] - np.maximum(0.0, np.where(begun > 0, end_s[begun - 1] - at_s, 0.0))

    return float((busy_before(other[1]) - busy_before(other[0])).sum())
