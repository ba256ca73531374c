"""One plan answered: graph, prices, run, and the numbers that every result carries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from perfsim.calibration import ClusterCalibration
from perfsim.costs.price import Costs
from perfsim.graph import GraphBuilder, Kind, TaskGraph, Work
from perfsim.placement.place import Placed, place
from perfsim.prediction.cluster import scale_of
from perfsim.prediction.hidden import hidden_share
from perfsim.prediction.result import Perturbed
from perfsim.prediction.run import Step
from perfsim.strategies import Plan, Strategy, strategy
from perfsim.topology import Topology
from perfsim.trace import Trace
from perfsim.transformer import hardware_flop_per_step, model_flop_per_step
from perfsim.workload import Job

COMMUNICATION = "_communication"
EXPOSED_STREAMS = ("weight_stream", "gradient_stream", "update", "input", "spill", "offload")


@dataclass(frozen=True)
class Evaluation:
    """A plan, its graph and its simulated step."""

    plan: Plan
    graph: TaskGraph
    """As the strategy wrote it; the trace's has the ranks written out that differ."""
    trace: Trace
    breakdown_s: dict[str, float]
    """Seconds of the step by category, the mean over computing devices; they add up to the step."""
    model_flop: float
    hardware_flop: float
    """What HFU counts: `transformer.hardware_flop_per_step`."""
    peak_flop_per_s: float
    """All devices together."""
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

    @property
    def costs(self) -> Costs:
        """What priced the step."""
        return self.step.costs

    @property
    def step_time_s(self) -> float:
        return self.trace.step_time_s

    @property
    def tokens_per_s(self) -> float:
        return self.plan.job.tokens_per_step / self.step_time_s

    @property
    def mfu(self) -> float:
        """Model FLOPs over what all devices could do in the step; recompute and zeros not counted."""
        return self.model_flop / (self.step_time_s * self.peak_flop_per_s)

    @property
    def hfu(self) -> float:
        """The same with the FLOPs of recompute, as papers count them."""
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
            if category.endswith(COMMUNICATION) or category in EXPOSED_STREAMS
        )
        return exposed / self.step_time_s

    @cached_property
    def hidden_communication_fraction(self) -> float:
        """Share of the step in which a device communicates while it computes."""
        return hidden_share(self.trace)


def graph_of(plan: Plan, chosen: Strategy | None = None) -> TaskGraph:
    """The graph of a plan as its strategy writes it; `chosen` is a strategy that no registry has to know."""
    builder = GraphBuilder()
    (chosen or strategy(plan.strategy)).emit(plan, builder)
    return builder.build()


def longest_path_s(folded: TaskGraph, topology: Topology, costs: Costs, scale: float = 1.0) -> float:
    """Step time of a graph without contention."""
    step = Step(place(folded, topology, contention=False), costs, scale)
    return step.run(contention=False).step_time_s


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
    step = Step(place(graph, plan.topology), costs, scale_of(cluster))
    return evaluation_of(plan, graph, step, step.run(), cluster)


def evaluation_of(
    plan: Plan, graph: TaskGraph, step: Step, trace: Trace, cluster: ClusterCalibration | None = None
) -> Evaluation:
    """The evaluation of a plan from the trace of its placed step."""
    if step.placed.note:
        plan = replace(plan, notes=(*plan.notes, step.placed.note))
    job, costs = plan.job, step.costs
    return Evaluation(
        plan=plan,
        graph=graph,
        trace=trace,
        breakdown_s=trace.mean_breakdown(),
        model_flop=kept_share(graph, costs, job, needed=True) * model_flop_per_step(job),
        hardware_flop=kept_share(graph, costs, job)
        * hardware_flop_per_step(job, plan.layout.recompute, plan.recomputed_share),
        peak_flop_per_s=plan.topology.num_devices * plan.system.device.peak_flop_per_s(job.recipe.precision),
        step=step,
        cluster=cluster,
    )


def kept_share(graph: TaskGraph, costs: Costs, job: Job, *, needed: bool = False) -> float:
    """Share of a dense step's FLOPs that a sparse model asks for (`needed`), or that are executed.

    Needed are those of weights that are not zero; executed also those of zeros that a wafer does not skip.
    """
    if not job.recipe.weight_sparsity:
        return 1.0
    zeros = job.recipe.weight_sparsity if needed else costs.zeros_saved
    counted = [
        work.kind is Kind.COMP and not (needed and work.category == "recompute") for work in graph.works
    ]
    flop = np.array([work.flop for work in graph.works]) * counted
    streamed = flop * np.array([sparse_share(work) for work in graph.works])
    return 1.0 - zeros * float(streamed[graph.work].sum()) / float(flop[graph.work].sum())


def sparse_share(work: Work) -> float:
    """Share of a class of work's FLOPs that multiply by the sparse matrices of layers."""
    if not work.op.startswith("layer.") or not work.flop:
        return 0.0
    matrices = sum(kernel.flop for kernel in work.kernels if kernel.partition == "streamed")
    return matrices / sum(kernel.flop for kernel in work.kernels)
