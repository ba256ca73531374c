"""One optimizer step of one plan: a graph placed on its network, priced, simulated and scaled.

Graphs are priced and simulated only here. Perturbations, faster parts of a machine and trial constants of a
fit are all expressed by the fields of a `Step` or the durations given to it.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.costs.price import Costs, price
from perfsim.engine import critical_path, simulate
from perfsim.engine.tables import Flow, Slowdown
from perfsim.engine.trace import EXPOSED, Trace
from perfsim.machines import machine_of
from perfsim.machines.placement import Placed, place
from perfsim.prediction.bands import Accuracy
from perfsim.prediction.question import Question
from perfsim.prediction.risk import Ranked
from perfsim.specs.calibration import ClusterCalibration
from perfsim.strategies import Plan
from perfsim.work import Kind, TaskGraph
from perfsim.work.counts import hardware_flop_per_step, model_flop_per_step


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
    def slowdown(self) -> Slowdown:
        """How communication slows the computation next to it, by class of work."""
        works = self.placed.graph.works
        costs = self.costs
        return Slowdown(
            taken=np.array([costs.taken(work) for work in works], dtype=np.float64).reshape(-1, 2),
            bound=np.array([costs.bound(work) for work in works], dtype=np.float64).reshape(-1, 2),
        )

    @cached_property
    def flows(self) -> dict[int, Flow]:
        """The load of each class of communication on links that it shares, after its latency."""
        works = self.placed.graph.works
        flows: dict[int, Flow] = {}
        for number, flow in self.placed.links.flows.items():
            whole_s = self.costs.duration_s(works[number])
            latency_s = self.costs.latency_s(works[number])
            flows[number] = flow._replace(latency=latency_s / whole_s if whole_s > 0.0 else 0.0)
        return flows

    def run(
        self, duration_s: Floats | None = None, *, contention: bool = True, reported: bool = False
    ) -> Trace:
        """Simulate the step, with other task durations if given; `reported` as for `engine.simulate`.

        Without `contention`, of links or inside devices, the times are the critical path's, which does
        not count toward the limit on tasks. Raises DeadlockError and LimitError as `engine.simulate`.
        """
        graph = self.placed.graph
        seconds = self.duration_s if duration_s is None else duration_s
        if contention:
            trace = simulate(
                graph, seconds, self.flows, self.placed.links.capacities, self.slowdown, reported=reported
            )
        else:
            trace = critical_path(graph, seconds)
        return trace.scaled(self.scale)


@dataclass(frozen=True, slots=True)
class Perturbed:
    """The perturbations of a run, and the step time without them."""

    text: str
    unperturbed_step_time_s: float
    draws_s: tuple[float, ...]
    """Step times of all draws, ascending."""
    tasks: int
    """Tasks of the unfolded graph."""
    note: str = ""


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


@dataclass(frozen=True)
class Evaluation:
    """A plan, its graph and its simulated step."""

    plan: Plan
    graph: TaskGraph
    """As the strategy wrote it; the trace's has the ranks written out that differ."""
    trace: Trace
    step: Step = field(repr=False, compare=False)
    """The graph placed and priced, before any perturbation."""
    perturbed_placed: Placed | None = field(default=None, repr=False, compare=False)
    """The graph of a perturbed trace on its network; None: the network of `step`."""
    cluster: ClusterCalibration | None = None
    """What every second of the trace was multiplied by, where the user measured steps."""
    perturbed: Perturbed | None = None
    ranks: tuple[Ranked, ...] = ()
    """The proven layout and the fastest, where both were asked for."""

    @property
    def placed(self) -> Placed:
        """The graph of the trace on its network."""
        return self.step.placed if self.perturbed_placed is None else self.perturbed_placed

    @cached_property
    def by_category_s(self) -> dict[str, float]:
        """Seconds of the step by category, the mean over computing devices; they add up to the step."""
        return self.trace.mean_breakdown()

    @cached_property
    def named_shares(self) -> dict[int, dict[str, float]]:
        """By class of work of the trace, the shares of its time that the machine names, if it names any."""
        costs = self.step.costs
        named = ((number, work, costs.parts_s(work)) for number, work in enumerate(self.trace.graph.works))
        return {
            number: {part: seconds / costs.duration_s(work) for part, seconds in parts.items()}
            for number, work, parts in named
            if parts
        }

    @cached_property
    def breakdown_s(self) -> dict[str, float]:
        """The same with what the machine names inside its computing apart, such as rows of weights."""
        graph = self.trace.graph
        lasting_s = np.bincount(graph.work, self.trace.end_s - self.trace.start_s, minlength=len(graph.works))
        apart_s = dict(self.by_category_s)
        for number, shares in self.named_shares.items():
            category = graph.works[number].category
            alike = [other for other, work in enumerate(graph.works) if work.category == category]
            part = float(lasting_s[number] / lasting_s[alike].sum())
            all_s = self.by_category_s.get(category, 0.0) * part
            for name, share in shares.items():
                apart_s[category] -= share * all_s
                apart_s[name] = apart_s.get(name, 0.0) + share * all_s
        return apart_s

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
        exposed = (
            seconds
            for category, seconds in self.breakdown_s.items()
            if category in EXPOSED or category.endswith("_communication")
        )
        return sum(exposed) / self.step_time_s

    @cached_property
    def accuracy(self) -> Accuracy:
        """The errors on the published runs most like the plan, and the 90 % band of the step time."""
        cluster = self.cluster
        apart = cluster is None or cluster.others_than(self.plan.job.runtime.stack)
        own = [] if cluster is None or apart else [case.residual for case in cluster.cases]
        return Accuracy.of(self.plan, self.trace.hidden_share, measured=own)

    @property
    def band_s(self) -> tuple[float, float]:
        """The 90 % band of the step time, from the errors on published runs."""
        factor = 1.0 + self.accuracy.step_time_error
        return self.step_time_s / factor, self.step_time_s * factor

    @property
    def training(self) -> Training:
        """What the step holds for, besides model and machine."""
        recipe = self.plan.job.recipe
        runtime = self.plan.job.runtime
        has_host = machine_of(self.plan.system).has_host(self.plan.system)
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
        """Share of a dense step's FLOPs of weights that are not zero (`needed`), or that are executed."""
        sparsity = self.plan.job.recipe.weight_sparsity
        if not sparsity:
            return 1.0
        zeros = sparsity if needed else self.step.costs.zeros_saved
        works = self.graph.works
        counted = [work.kind is Kind.COMP and not (needed and work.category == "recompute") for work in works]
        flop = np.array([work.flop for work in works]) * counted
        of_matrices = [
            work.share
            * sum(kernel.flop for kernel in work.kernels if kernel.partition != "none" and kernel.has_weights)
            if not work.op.startswith(("embedding", "head", "optimizer"))
            else 0.0
            for work in works
        ]
        streamed = np.array(of_matrices) * counted
        return 1.0 - zeros * float(streamed[self.graph.work].sum()) / float(flop[self.graph.work].sum())


def evaluate(
    plan: Plan,
    costs: Costs,
    *,
    cluster: ClusterCalibration | None = None,
    graph: TaskGraph | None = None,
    reported: bool = False,
) -> Evaluation:
    """Price and simulate a plan, whose graph is written here unless given; `reported` as for `Step.run`."""
    graph = plan.graph() if graph is None else graph
    # The scale of a cluster stretches the whole run, so that its parts keep their shares.
    step = Step(place(graph, plan.topology), costs, 1.0 if cluster is None else cluster.scale)
    if step.placed.note:
        plan = replace(plan, notes=(*plan.notes, step.placed.note))
    return Evaluation(plan, graph, step.run(reported=reported), step, cluster=cluster)


def evaluation_of(question: Question, plan: Plan, *, reported: bool = False) -> Evaluation:
    """A plan of a question, priced and simulated; see `Step.run` for `reported`."""
    return evaluate(plan, question.costs, cluster=question.cluster, reported=reported)
