"""Proofs of plans: of one, of a request, and of the cases of the whole catalogue.

The cases have every strategy, schedule, ZeRO stage and recompute mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import cycle, islice, product
from traceback import walk_tb
from typing import Any, NamedTuple

import numpy as np

from perfsim.base.errors import DeadlockError, GraphError, InputError
from perfsim.catalog import Catalog, default_catalog
from perfsim.catalog.yaml_tree import Node
from perfsim.interop import model_named
from perfsim.machines import build_topology, costs_for, machine
from perfsim.prediction.question import changes_by_root
from perfsim.prediction.run import Evaluation, evaluate
from perfsim.proof.executor import Executor, Outcome
from perfsim.proof.interpreter import Interpreter
from perfsim.proof.program import (
    BROKEN,
    Edge,
    Fault,
    FaultError,
    Precedence,
    dependencies,
    hazards,
    random_order,
)
from perfsim.proof.promises import held_unlike_promised
from perfsim.proof.provers import prover, small_plan, training_of
from perfsim.proof.serial import STEPS, SmallTraining
from perfsim.specs.calibration import StateExchange
from perfsim.specs.layout import (
    EXCHANGES,
    OF_LATENTS,
    RECOMPUTED,
    Layout,
    ParallelLayout,
    Recompute,
    StreamingLayout,
    text_of,
)
from perfsim.specs.model import RecomputeKeeps, TransformerConfig
from perfsim.specs.recipe import Job
from perfsim.strategies import STRATEGIES, Plan, strategy, strategy_names
from perfsim.strategies.schedules import SCHEDULES, least_chunks
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study
from perfsim.work import TaskGraph
from perfsim.work.unfold import Unfolded, unfold

# One proof: a plan's graph compiled, checked for hazards, and run in many orders.

MOST_FAULTS = 20
MOST_TASKS = 400_000
"""In one order: some minutes."""
EXECUTED = 3
"""Orders whose numbers are computed; in other random ones every task must read what it read in these."""


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
        return not self.faults

    def as_dict(self) -> dict[str, Any]:
        """One layout of the document that `--json` prints."""
        document = asdict(self) | {
            "passed": self.passed,
            "max_relative_error": _finite(self.max_relative_error),
            "faults": [str(fault) for fault in self.faults],
            "not_executed": list(self.not_executed),
        }
        del document["strategy"]
        return document


def _finite(error: float | None) -> float | None:
    """The error for JSON; None if it is not a finite number."""
    return None if error is None or not math.isfinite(error) else error


@dataclass(frozen=True)
class Subject:
    """A graph to prove, as its strategy wrote it or with a fault."""

    graph: TaskGraph
    plan: Plan[Any, Any]
    training: SmallTraining
    without: Collection[Edge] = ()
    """Removed dependencies; the tensors that tasks read stay the same."""

    @classmethod
    def of(cls, plan: Plan, seed: int = 0) -> Subject:
        """The graph of a small plan, with its small training."""
        return cls(plan.graph(), plan, training_of(plan, seed))

    @cached_property
    def interpreter(self) -> Interpreter:
        """The graph with what its tasks do; FaultError if it cannot be executed."""
        return Interpreter(self.graph, self.training, self.plan)

    def lacking(self, edges: Collection[Edge]) -> Subject:
        """The same graph without some dependencies."""
        subject = replace(self, without=tuple(edges))
        # Neither depends on `without`.
        subject.__dict__.update(interpreter=self.interpreter, unfolded=self.unfolded)
        return subject

    @cached_property
    def unfolded(self) -> Unfolded:
        """The graph with every rank; FaultError if its groups are inconsistent."""
        try:
            return unfold(self.graph)
        except GraphError as error:
            raise FaultError(Fault("refused", "the graph", "its groups", str(error))) from None

    def hazards(self) -> Iterator[Fault]:
        """Every missing dependency."""
        precedence = Precedence(self.graph, dependencies(self.graph, self.without))
        return hazards(self.interpreter.program, precedence)

    def mispriced(self, outcome: Outcome) -> Iterator[Fault]:
        """Every message that moved other elements than it is priced for."""
        program = self.interpreter.program
        prices = prover(self.plan.system.kind).prices(self.plan)
        for task, elements in outcome.moved.items():
            if message := program.actions[task].message:
                work = self.graph.task(task).work
                executed = prices.counted(message, elements, work)
                priced = work.comm_bytes / prices.bytes_per_element(message)
                if abs(executed - priced) > prices.rounding(message, work):
                    detail = f"moves {executed:,.0f} elements, is priced for {priced:,.0f}"
                    yield Fault("value", program.name(task), f"its message ({message.content})", detail)

    def executor(self) -> Executor:
        """All ranks with their buffers, ready to run."""
        return Executor(self.interpreter, self.unfolded)

    def random_orders(self, count: int, seed: int) -> Iterator[list[int]]:
        """Random topological orders of all tasks on all ranks."""
        rng = np.random.default_rng(seed)
        graph = self.unfolded.graph
        folded = self.unfolded.task.tolist()
        deps = graph.dependencies
        if unwanted := set(self.without):
            edges = zip(deps.row_of_value.tolist(), deps.values.tolist(), strict=True)
            deps = dependencies(graph, [(a, b) for a, b in edges if (folded[a], folded[b]) in unwanted])
        for _ in range(count):
            yield random_order(deps, rng)

    @property
    def is_wrong(self) -> bool:
        """Whether a proof names a fault with its task and its tensor."""
        return any(fault.task and fault.tensor for fault in self.faults(first_only=True))

    def faults(self, *, first_only: bool = False) -> list[Fault]:
        """The faults of the graph alone, or if it has none, of one run compared with serial training."""
        try:
            if found := list(islice(self.hazards(), 1 if first_only else MOST_FAULTS)):
                return found
            outcome = Outcome(first_only=first_only)
            self.executor().run(range(len(self.unfolded.task)), outcome, thorough=True)
            return outcome.faults + list(islice(self.mispriced(outcome), MOST_FAULTS))
        except FaultError as error:
            return [error.fault]


def prove_plan(plan: Plan, orders: int, seed: int) -> Proof:
    """Prove a small plan: no hazards, memory as promised, and the numbers of serial training."""
    outcome = Outcome()
    tasks = runs = 0
    try:
        evaluation = _evaluated(plan)
        subject = Subject(evaluation.graph, plan, training_of(plan, seed))
        tasks = len(subject.unfolded.task)
        if tasks > MOST_TASKS:
            raise InputError(
                f"{plan.strategy} {text_of(plan.layout)}: {tasks:,} tasks on all ranks are too many to "
                f"execute (at most {MOST_TASKS:,}); try fewer replicas or a smaller batch"
            )
        outcome.faults += held_unlike_promised(subject.graph, plan)
        outcome.faults += islice(subject.hazards(), MOST_FAULTS)
        executor = subject.executor()
        task = subject.unfolded.task
        simulated = np.lexsort((np.arange(tasks), np.asarray(evaluation.trace.start_s)[task])).tolist()
        # Tasks in the order of their ids, by their simulated start times, and in random orders.
        for order in (range(tasks), simulated, *subject.random_orders(orders, seed)):
            if runs < EXECUTED:
                executor.run(order, outcome, thorough=runs == 0)
            else:
                executor.follow(order)
            if runs == 0:
                outcome.faults += islice(subject.mispriced(outcome), MOST_FAULTS)
            runs += 1
    except FaultError as refused:
        outcome.faults.append(refused.fault)
    return Proof(
        strategy=plan.strategy,
        layout=layout_in_words(plan),
        ranks=plan.topology.num_devices,
        microbatches=plan.num_microbatches,
        orders=max(0, runs - 2),
        tasks=tasks,
        compared=outcome.compared,
        max_relative_error=outcome.max_relative_error if outcome.compared else None,
        faults=tuple(dict.fromkeys(outcome.faults))[:MOST_FAULTS],
        not_executed=plan.notes,
    )


def _evaluated(plan: Plan) -> Evaluation:
    """The simulated graph of a plan; FaultError if the strategy cannot write it or it cannot run."""
    try:
        return evaluate(plan, costs_for(plan.topology, plan.job.recipe))
    except (GraphError, DeadlockError) as error:
        raise FaultError(Fault("refused", plan.strategy, "the graph", str(error))) from error
    except BROKEN as error:
        *_, (frame, line) = walk_tb(error.__traceback__)
        where = f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}, line {line}"
        detail = f"it cannot be written or run, in {where}"
        raise FaultError.of("refused", plan.strategy, "the graph", detail, error) from error


def layout_in_words(plan: Plan[Any, Any]) -> str:
    """A layout in words, with the features that its proof exercises."""
    features = prover(plan.system.kind).features(plan).items()
    return ", ".join([text_of(plan.layout), *(feature for feature, holds in features if holds)])


PLAIN_MODES = tuple(mode for mode in RECOMPUTED if mode not in OF_LATENTS)
"""Recompute modes that every model has."""
RECIPE = "gpt3_pretraining"


class Case(NamedTuple):
    """One layout to prove; `microbatches` of each replica."""

    strategy: str
    layout: Layout | None
    """None: the first layout that the strategy lists."""
    microbatches: int = 2
    overlap: bool = False
    ahead: bool = False
    """Whether parameters are gathered next to the first forward of a step."""
    capacity: float | None = None
    """Most tokens of an expert over their mean; None: none is dropped."""
    keeps: RecomputeKeeps = "nothing"
    """What a full recompute keeps besides inputs of layers."""
    states: StateExchange = "scatter_gather"

    def plan(self, model: TransformerConfig, catalog: Catalog) -> Plan:
        chosen = strategy(self.strategy)
        recipe = catalog.recipe(RECIPE).ran_with(
            overlap_grad_reduce=self.overlap,
            overlap_param_gather=self.ahead,
            recompute_keeps=self.keeps,
            states=self.states,
        )
        recipe = recipe.model_copy(update={"expert_capacity": self.capacity})
        devices = self.layout.num_devices if self.layout else 2
        topology = build_topology(catalog.system(prover(chosen.system_kind).system), devices)
        job = Job(model, recipe, 8 * devices)
        layout: Layout = self.layout or next(iter(chosen.layouts(job, topology)))
        return small_plan(chosen, job, topology, layout, self.microbatches)


def catalogue_cases(*, experts: bool = False, latents: bool = False) -> list[Case]:
    """Every case; a model with experts has others; other packages' strategies take their first layout."""
    if experts:
        return [*_experts(), *(_latents() if latents else ()), *_weight_streaming()]
    cases = [*_single_degrees(), *_three_d(), *_context(), *_offload(), *_weight_streaming()]
    return cases + [Case(name, None) for name in strategy_names() if name not in STRATEGIES]


def _single_degrees() -> Iterator[Case]:
    """Replicas with every ZeRO stage, tensor peers, and pipelines of every schedule; every recompute mode."""
    for stage, overlap in product((0, 1, 2), (False, True)):
        yield Case("data", ParallelLayout(data=3 if stage else 2, zero_stage=stage), 3, overlap)
    for mode in PLAIN_MODES:
        yield Case("zero3", ParallelLayout(data=2, zero_stage=3, recompute=mode))
    yield Case("zero3", ParallelLayout(data=4, zero_stage=3, shard_group=2))
    peers = ParallelLayout(tensor=2, sequence_parallel=True)
    yield Case("zero3", replace(peers, data=2, zero_stage=3, recompute="full"))
    for shares, mode in product((False, True), PLAIN_MODES):
        yield Case("tensor", replace(peers, recompute=mode, sequence_parallel=shares))
    yield Case("tensor", replace(peers, tensor=4))
    # Pipelines have enough micro-batches, and also recompute every second layer.
    for name in SCHEDULES:
        base = ParallelLayout(pipeline=3, schedule=name, virtual_pipeline=least_chunks(name))
        for mode in PLAIN_MODES:
            yield Case("pipeline", replace(base, recompute=mode), 6)
        yield Case("pipeline", replace(base, pipeline=2, recompute="full", recompute_every=2), 4)


def _three_d() -> Iterator[Case]:
    """Every schedule and ZeRO stage, states in groups and gathered ahead; recompute and overlap alternate."""
    modes = cycle(PLAIN_MODES)
    overlaps = cycle((False, True))
    sequence_parallel = cycle((True, False, True))
    base = ParallelLayout(tensor=2, pipeline=2, data=2)
    unjoined = [name for name, schedule in SCHEDULES.items() if not schedule.has("joins")]
    for name, stage in product(unjoined, (0, 1, 2)):
        layout = replace(
            base,
            schedule=name,
            virtual_pipeline=least_chunks(name),
            zero_stage=stage,
            recompute=next(modes),
            sequence_parallel=next(sequence_parallel),
        )
        yield Case("3d", layout, 2 if name == "interleaved" else 3, next(overlaps))
    in_groups = ParallelLayout(tensor=2, data=4, zero_stage=1, shard_group=2)
    for stage, overlap in product((1, 2), (False, True)):
        yield Case("3d", replace(in_groups, zero_stage=stage), 2, overlap)
    yield Case("3d", replace(in_groups, tensor=1, pipeline=2, zero_stage=2), 3, overlap=True)
    for stage in (1, 2):
        data = ParallelLayout(data=2, zero_stage=stage)
        yield Case("data", data, overlap=True, ahead=True)
        for name in ("1f1b", "interleaved", "zbv"):
            layout = replace(data, pipeline=2, schedule=name, virtual_pipeline=least_chunks(name))
            yield Case("3d", layout, 4, overlap=stage > 1, ahead=True)
    yield Case("3d", replace(in_groups, recompute="full"), 1, overlap=True, ahead=True)
    for overlap in (False, True):
        yield Case("data", ParallelLayout(data=3, zero_stage=1), 3, overlap, states="owner_broadcast")
        yield Case("3d", in_groups, 2, overlap, states="owner_broadcast")


def _context() -> Iterator[Case]:
    """Both exchanges of context ranks, with recompute, split backwards, tensor peers and sharded states."""
    for exchange in EXCHANGES:
        base = ParallelLayout(context=2, context_exchange=exchange)
        yield Case("3d", base)
        yield Case("3d", replace(base, context=4, recompute="full"))
        yield Case("3d", replace(base, recompute="norms"))
        sharded = replace(base, tensor=2, data=2, sequence_parallel=True, zero_stage=2)
        yield Case("3d", sharded, 2, overlap=True)
        yield Case("3d", replace(base, pipeline=2, schedule="zb1p", zero_stage=1), 3)
        yield Case("zero3", replace(base, data=2, zero_stage=3, recompute="full"))


def _experts() -> Iterator[Case]:
    """Expert degrees, schedules, recompute, context ranks, dropped tokens, tensor peers and ZeRO stages."""
    for (ranks, peers), stage in product(((1, 1), (2, 1), (4, 1), (2, 2)), (0, 1)):
        layout = ParallelLayout(data=4, expert=ranks, expert_tensor=peers, zero_stage=stage)
        yield Case("3d", layout, overlap=stage == 0)
    base = ParallelLayout(data=2, expert=2)
    for stage in (0, 1, 2):
        yield Case("3d", replace(base, schedule="combined-1f1b", zero_stage=stage), 3, overlap=stage > 0)
    for mode in PLAIN_MODES:
        yield Case("3d", replace(base, recompute=mode))
    yield Case("3d", replace(base, context=2, expert=4, recompute="norms"))
    yield Case("3d", replace(base, data=4, zero_stage=1, recompute="full"), 2, capacity=0.5)
    yield Case("3d", replace(base, context=2, expert=4, recompute="full"), keeps="qkv")
    yield Case("3d", replace(base, context=2, expert=4, context_exchange="all_to_all"))
    for name in SCHEDULES:
        layout = replace(base, pipeline=2, schedule=name, virtual_pipeline=least_chunks(name), zero_stage=1)
        yield Case("3d", layout, 4)
    # Tensor peers that compute their own positions; experts over the same peers, others or both.
    base = ParallelLayout(tensor=2, data=2, sequence_parallel=True, expert=2)
    yield Case("3d", replace(base, data=1, expert=1))
    yield Case("3d", replace(base, expert_tensor=2, recompute="full"))
    yield Case("3d", replace(base, context=2, expert=4, zero_stage=1), overlap=True)
    yield Case("3d", replace(base, pipeline=2, recompute="selective"), 3)
    yield Case("3d", replace(base, pipeline=2, data=4, schedule="zb1p", zero_stage=2), 3, overlap=True)
    # Gradients and parameters of experts sharded over fewer ranks than the rest, as many, or none.
    base = ParallelLayout(data=4, expert=2)
    for layout in (base, replace(base, data=2), replace(base, expert=1)):
        yield Case("3d", replace(layout, zero_stage=2), 3, overlap=True, ahead=layout.data > base.expert)
        yield Case("zero3", replace(layout, zero_stage=3, recompute="full"))
    yield Case("3d", ParallelLayout(pipeline=2, data=2, virtual_pipeline=2, schedule="zbv", zero_stage=2), 4)
    yield Case("zero3", replace(base, tensor=2, sequence_parallel=True, zero_stage=3))


def _latents() -> Iterator[Case]:
    """Recompute of up-projections alone and with other modules, of context ranks and split backwards."""
    for mode in OF_LATENTS:
        base = ParallelLayout(tensor=2, data=2, sequence_parallel=True, expert=2, recompute=mode)
        yield Case("3d", base)
        yield Case("3d", replace(base, pipeline=2, schedule="zb1p", zero_stage=1), 3)
        for exchange in EXCHANGES:
            yield Case("3d", replace(base, tensor=1, context=2, context_exchange=exchange))


def _offload() -> Iterator[Case]:
    """Optimizer and parameters on the host, with every ZeRO stage, pipelines, tensor peers and recompute."""
    off = ParallelLayout(offload_optimizer="cpu")
    yield Case("3d", off)
    yield Case("3d", replace(off, tensor=2, pipeline=2, recompute="full"), 3)
    for stage, overlap in product((0, 1, 2, 3), (False, True)):
        yield Case("3d", replace(off, data=2, zero_stage=stage), 3, overlap)
    yield Case("3d", replace(off, tensor=2, pipeline=2, data=2, zero_stage=1), 3, overlap=True)
    yield Case("3d", replace(off, tensor=2, data=2, zero_stage=2), 3, overlap=True)
    for mode in PLAIN_MODES:
        yield Case("3d", ParallelLayout(tensor=2, recompute=mode, offload_activations="cpu"))
        yield Case("zero3", replace(off, data=2, zero_stage=3, offload_param="cpu", recompute=mode))


def _weight_streaming() -> Iterator[Case]:
    for group, systems, microbatches in ((0, 1, 1), (0, 3, 2), (1, 2, 3), (2, 2, 2), (4, 4, 1)):
        mode: Recompute = "full" if group else "none"
        layout = StreamingLayout(data=systems, micro_batch_size=2, recompute=mode, recompute_layers=group)
        yield Case("weight-streaming", layout, microbatches)
        if systems == 2:
            yield Case("weight-streaming", replace(layout, spill=True), microbatches)


# `perfsim prove`: the plans of a request, their proofs and the overall result.

DEFAULT_ORDERS = 10


@dataclass(frozen=True)
class Request:
    """A request of the command line; its target is a model or a study."""

    target: str
    strategy: str = ""
    layout: str = ""
    devices: int | None = None
    batch: int | None = None
    orders: int = DEFAULT_ORDERS
    seed: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Values by their path in the question of a study, or in the model."""


@dataclass(frozen=True)
class ProofResult:
    """All proofs of a request."""

    target: str
    orders: int
    proofs: tuple[Proof, ...]

    @property
    def passed(self) -> bool:
        return all(proof.passed for proof in self.proofs)

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        of_strategy = {proof.strategy: list[Proof]() for proof in self.proofs}
        for proof in self.proofs:
            of_strategy[proof.strategy].append(proof)
        strategies = {
            name: {**_summary(proofs), "layouts": [proof.as_dict() for proof in proofs]}
            for name, proofs in of_strategy.items()
        }
        about = {"target": self.target, "orders": self.orders, "executed": min(self.orders + 2, EXECUTED)}
        about["steps"] = STEPS
        return {**about, **_summary(self.proofs), "strategies": strategies}


def _summary(proofs: Sequence[Proof]) -> dict[str, Any]:
    """Whether all proofs passed, the largest error of all comparisons if there were any, and their tasks."""
    errors = [proof.max_relative_error for proof in proofs if proof.max_relative_error is not None]
    return {
        "passed": all(proof.passed for proof in proofs),
        "max_relative_error": _finite(max(errors, default=None)),
        "tasks": sum(proof.tasks for proof in proofs),
    }


def prove_all(request: Request, progress: Callable[[str], None] = lambda _: None) -> ProofResult:
    """Prove a layout, the plans of a study, or the whole catalogue."""
    proofs = []
    plans = list(plans_of(request))
    for done, plan in enumerate(plans):
        progress(f"{done} of {len(plans)} layouts: {plan.strategy} on {plan.topology.num_devices} ranks")
        proofs.append(prove_plan(plan, request.orders, request.seed))
    if not proofs:
        raise InputError(f"nothing to prove for strategy {request.strategy}")
    return ProofResult(request.target, request.orders, tuple(proofs))


def plans_of(request: Request) -> Iterator[Plan]:
    """The small plans of a request."""
    catalog = default_catalog()
    if request.strategy:
        strategy(request.strategy)  # refuses an unknown name before anything slow
    given = {"--devices": request.devices, "--batch": request.batch}
    idle = [name for name, value in given.items() if value is not None and not request.layout]
    if idle:
        said = " and ".join(idle)
        problem = f"{said} {'is' if len(idle) == 1 else 'are'} for a --layout"
        raise InputError(problem, f"add --layout, or leave out {said}")
    if _is_study(request.target, catalog):
        if request.layout:
            raise InputError("--layout is for a model", "a study chooses its layouts itself")
        spec = load_study(request.target, catalog, request.changes)
        for candidate in run_study(spec, [request.strategy] if request.strategy else []).candidates:
            plan = candidate.run.plan
            yield small_plan(plan.chosen, plan.job, plan.topology, plan.layout, plan.num_microbatches)
        return
    changes = changes_by_root(request.changes)
    if other := [path for path in request.changes if not path.startswith("model.")]:
        raise InputError(f"--set {other[0]}: a proof of a model has paths in it", "model....")
    model = catalog.override_part("model", model_named(request.target, catalog), changes.get("model", {}))
    if request.layout:
        yield _of_layout(request, model, catalog)
        return
    latents = model.latent_attention is not None
    for case in catalogue_cases(experts=model.experts is not None, latents=latents):
        if request.strategy in ("", case.strategy):
            yield case.plan(model, catalog)


def _is_study(target: str, catalog: Catalog) -> bool:
    """Whether a target is a study, or a sweep; a name that a model has means the model."""
    if not target.endswith((".yaml", ".yml")):
        return target not in catalog.names("model") and target in catalog.names("study")
    keys = Node.read(catalog.find("study", target))[0].mapping
    return "candidates" in keys or "study" in keys


def _of_layout(request: Request, model: TransformerConfig, catalog: Catalog) -> Plan:
    """The small plan of a layout that the request names."""
    chosen = strategy(request.strategy or "3d")
    of_kind = prover(chosen.system_kind)
    layout = machine(chosen.system_kind).parse_layout(request.layout, request.devices or 1)
    sequences = layout.data * layout.micro_batch_size
    batch = request.batch or sequences * 2 * layout.pipeline
    if batch % sequences and of_kind.even_batches:
        raise InputError(f"--batch {batch} is not a multiple of data x micro_batch_size, {sequences}")
    topology = build_topology(catalog.system(of_kind.system), request.devices or layout.num_devices)
    job = Job(model, catalog.recipe(RECIPE), batch)
    fused = replace(job, recipe=job.recipe.ran_with(attention="flash"))
    chosen.plan(fused, topology, layout, check_memory=False)  # refuses what the model as it is cannot have
    return small_plan(chosen, job, topology, layout, max(1, -(-batch // sequences)))
