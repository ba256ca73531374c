"""Offload of optimizer and parameters to the host (ZeRO-Offload [2101.06840], ZeRO-Infinity [2104.07857]).

The update on the host is written in place of one on the device, and copies inside passes are added to the
graph of a plan without them:

- The optimizer's states are in the host's memory or on drives, and the CPU updates them. Where ZeRO shards
  gradients (2, 3), each leaves the device as soon as it is reduced, and two more may be on the device. Else
  all leave after the last micro-batch. The update is in as many equal pieces as the rank has blocks; copies
  of gradients, updates and copies of parameters follow one another piece by piece.
- Parameters of ZeRO 3 are copied to the device before they are gathered (or used, by a single rank), with two
  copies ahead. Updated parameters then stay where they are.
- What a layer keeps for its backward leaves after its forward, and comes back next to the backward of the
  layer after the next. No layer begins before the second before it has left.

Copies have a stream for each direction, and the CPU has one for the rank's updates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.costs.gpu import LOADS, STORE, UPDATES
from perfsim.costs.memory import stage_parameters, state_bytes
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Recipe
from perfsim.strategies.three_d.closed_form import Priced
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, IN_FLIGHT, LOCAL_NORM, SHARDED, WAIT, Replicas
from perfsim.strategies.three_d.emission import StepWriter, ThreeDPlan
from perfsim.strategies.three_d.layers import slice_of
from perfsim.strategies.three_d.memory import rank_bytes
from perfsim.strategies.three_d.space import Columns, distinct_rows
from perfsim.work import (
    EMBEDDING,
    EMBEDDING_AND_HEAD,
    HEAD,
    WHOLE_DEVICE,
    GraphBuilder,
    Kind,
    Task,
    TaskGraph,
    TensorClass,
    Work,
)
from perfsim.work.graph import compute_stream, computes
from perfsim.work.kernels import elementwise
from perfsim.work.repeat import repeated

ACTIVATIONS = "offload.activations"
SAVED = "saved"
"""The copies of activations, and the class of tensors that a layer keeps."""
REPEATS_FROM = 4
PERIOD = 2
"""The micro-batch from which on the order of a single rank repeats, and after how many it does."""
LEAST_REPEATED = 4
"""Fewer repetitions are written task by task."""
COMPLETES = ("attention.backward", "attention.wgrad", "embedding.backward")
"""The last operation that adds to the gradients of a block; embedding and LM head are on one rank."""


@dataclass(frozen=True)
class _HostWorks:
    """The work that a layout's offload adds, for a number of parameters of one rank's shard."""

    recipe: Recipe
    layout: ParallelLayout

    def store(self, num_parameters: float) -> Work:
        n_bytes = num_parameters * state_bytes(self.recipe).reduced
        return _copy("offload.gradients", Kind.MEM_STORE, STORE, n_bytes)

    def load(self, num_parameters: float) -> Work:
        """Copies parameters to the device, from memory after an update of states that are on drives."""
        n_bytes = num_parameters * self.recipe.element_bytes
        place = "nvme" if self.layout.offload_param == "nvme" else "host"
        return _copy("offload.parameters", Kind.MEM_LOAD, f"{place}.load", n_bytes)

    def update(self, num_parameters: float) -> Work:
        """The optimizer on the CPU: reads gradients and states, writes states and parameters."""
        states = state_bytes(self.recipe).updated
        per_parameter = state_bytes(self.recipe).reduced + 2 * states + self.recipe.element_bytes
        drives = 2 * states if self.layout.offload_optimizer == "nvme" else 0.0
        drives += self.recipe.element_bytes if self.layout.offload_param == "nvme" else 0.0
        op = "nvme.update" if drives else "host.update"
        kernel = elementwise("optimizer.cpu", num_parameters * per_parameter, launches=0)
        moved = num_parameters * drives
        made = TensorClass("parameters", 0.0)
        return Work("offload.optimizer", Kind.COMP, op, "optimizer", (kernel,), moved, writes=(made,))


def _copy(name: str, kind: Kind, op: str, n_bytes: float, made: str = "copied") -> Work:
    writes = (TensorClass(made, n_bytes if made == SAVED else 0.0),)
    return Work(name, kind, op, "offload", comm_bytes=n_bytes, writes=writes)


def _leaves(layout: ParallelLayout) -> bool:
    """Whether gradients leave the device as they are made."""
    return layout.offload_optimizer != "none" and layout.zero_stage >= GRADIENTS_SHARDED


def emit_offloaded(plan: ThreeDPlan, builder: GraphBuilder) -> None:
    """Write a plan with offload; layouts with copies inside passes have no pipeline."""
    layout = plan.layout
    if not _leaves(layout) and layout.offload_param == layout.offload_activations == "none":
        _HostedWriter(plan, builder).write()
        return
    whole = _resident(plan)
    builder.take(_by_repetition(plan, whole) or _rewritten(plan, whole))


def _resident(plan: ThreeDPlan) -> TaskGraph:
    """The graph of a plan without the copies inside passes."""
    builder = GraphBuilder()
    writer = StepWriter if plan.layout.offload_optimizer == "none" else _HostedWriter
    writer(plan, builder).write()
    return builder.build()


class _HostedWriter(StepWriter):
    """Writes a plan whose optimizer is on the host."""

    def _updated(self, replicas: Replicas, reads: Sequence[int], final: bool, /) -> int:
        """Copies of gradients, updates and copies of parameters, piece by piece, in place of an update."""
        layout = self.plan.layout
        works = _HostWorks(self.plan.job.recipe, layout)
        device = replicas.device
        compute = compute_stream(device)
        own = [stage for stage in self.stages if stage.group.device == device]
        pieces = [EMBEDDING_AND_HEAD] if any(stage.first or stage.last for stage in own) else []
        for stage in own:
            pieces += range(stage.first_layer, stage.first_layer + stage.num_layers)
        if not pieces:
            return super()._updated(replicas, reads, final)
        peers = layout.tensor * (layout.shards if layout.zero_stage else 1)
        if peers * layout.pipeline == 1:  # the update has the norm of its gradients, which pieces need
            reads = [*reads, self.builder.task(LOCAL_NORM, compute, reads).tensor]
        updated = reads[-1]
        for block in pieces:
            share = replicas.updated / len(pieces)
            inputs = reads
            if not _leaves(layout):
                stored = self.builder.task(works.store(share), f"{device}/d2h", reads, block=block).tensor
                inputs = [*reads, stored]
            updated = self.builder.task(works.update(share), f"{device}/cpu", inputs, block=block).tensor
            if layout.offload_param == "none":
                updated = self.builder.task(works.load(share), f"{device}/h2d", [updated], block=block).tensor
        if not final:  # the next step waits for its parameters
            for stream in (compute, f"{device}/h2d"):
                self.builder.task(WAIT, stream, [updated])
        return updated


def _rewritten(plan: ThreeDPlan, graph: TaskGraph) -> TaskGraph:
    """A graph with the copies inside passes added, task by task."""
    builder = GraphBuilder()
    builder.fold(graph.width)
    rewriter = _Rewriter(plan, builder)
    for task in graph.tasks():
        rewriter.write(task)
        if task.id + 1 in graph.step_ends:
            builder.end_step()
    return builder.build()


def _by_repetition(plan: ThreeDPlan, whole: TaskGraph) -> TaskGraph | None:
    """The same from graphs of few micro-batches; None where these do not repeat, or are hardly fewer.

    Two comparisons prove that they repeat: `whole` is the graph of few micro-batches with a run of tasks
    repeated, and a rewritten graph with one more run repeated is the rewritten graph of more. What offload
    adds to a task depends on the latest tasks alone, so further runs add the same.
    """
    times, rest = divmod(plan.num_microbatches - REPEATS_FROM, PERIOD)
    if times < LEAST_REPEATED:
        return None
    few = [replace(plan, num_microbatches=REPEATS_FROM + rest + more * PERIOD) for more in range(3)]
    graphs = list(map(_resident, few))
    if not _alike(repeated(graphs[0], graphs[1], times), whole):
        return None
    short, longer, longest = map(_rewritten, few, graphs)
    return repeated(short, longer, times) if _alike(repeated(short, longer, 2), longest) else None


def _alike(made: TaskGraph | None, graph: TaskGraph) -> bool:
    return made is not None and made.digest() == graph.digest()


class _Rewriter:
    """Copies the graph of a single rank task by task, with the copies of offload added."""

    def __init__(self, plan: ThreeDPlan, builder: GraphBuilder) -> None:
        layout = plan.layout
        self.recipe = plan.job.recipe
        self.builder = builder
        self.layout = layout
        self.works = _HostWorks(self.recipe, layout)
        self.part = slice_of(plan.job, layout)
        self.alone = layout.replicas == 1
        self.leaves = _leaves(layout)
        self.tasks: list[int] = []
        self.tensors: list[int] = []
        """What stands for each task and tensor of the graph without copies."""
        self.computed = -1
        """The latest task that computed in a pass."""
        self.stores: list[tuple[int, int]] = []
        """Task and tensor of each copy of gradients."""
        self.freed: list[int] = []
        """For each copy of parameters the task that frees a buffer for a later one; -1: none."""
        self.loaded = (0, False, -1)
        """Block, direction and micro-batch of the latest copy of parameters that a lone rank made."""
        self.left: list[int] = []
        """Tasks that copied activations to the host."""
        self.kept: dict[int, tuple[int, float]] = {}
        """Activations on the host, by their tensor in the graph without copies: the copy, and its bytes."""
        self.returned = -1
        """The latest task that computed before the latest copy of activations was written."""

    def write(self, task: Task) -> None:
        """Write a task of the graph without copies."""
        after = [self.tasks[before] for before in task.after]
        saved: dict[int, float] = {}
        if self.layout.offload_activations != "none":
            self._return(task)
            written = zip(task.writes, task.work.writes, strict=True)
            saved = {old: made.n_bytes for old, made in written if made.name == SAVED and made.n_bytes > 0.0}
            if saved and len(self.left) >= IN_FLIGHT:
                after.append(self.left[-IN_FLIGHT])
        reads = [self.tensors[read] for read in task.reads]
        if self.layout.offload_param != "none":
            reads += self._loads(task, after)
        if self.stores and task.work.op in (LOCAL_NORM.op, *UPDATES):
            reads.append(self.stores[-1][1])
        made = self.leaves and self._completes(task)
        if made and len(self.stores) >= IN_FLIGHT:
            after.append(self.stores[-IN_FLIGHT][0])
        handles = self.builder.task(task.work, task.stream, reads, after, tag=task.tag, block=task.block)
        self.tasks.append(handles.id)
        self.tensors += range(handles.tensor, handles.tensor + len(task.writes))
        if computes(task.stream) and task.work not in (LOCAL_NORM, WAIT):
            self.computed = handles.id
        for old, n_bytes in saved.items():  # what a layer keeps leaves
            work = _copy(ACTIVATIONS, Kind.MEM_STORE, STORE, n_bytes)
            copied = self._copied(work, "d2h", [self.tensors[old]], [], task)
            self.left.append(copied[0])
            self.kept[old] = copied[1], n_bytes
        if made:
            if self.alone:
                parameters = self._parameters(task.block, last=True)
            else:
                shards = self.layout.shards if task.work.op == "reduce_scatter" else 1
                parameters = task.work.comm_bytes / state_bytes(self.recipe).reduced / shards
            store = self.works.store(parameters)
            self.stores.append(self._copied(store, "d2h", [handles.tensor], [], task))
            if not self.alone:  # who reads reduced gradients reads the copy
                self.tasks[-1], self.tensors[-1] = self.stores[-1]

    def _copied(
        self, work: Work, lane: str, reads: list[int], after: list[int], next_to: Task
    ) -> tuple[int, int]:
        """Write a copy that a task makes necessary."""
        stream = f"{next_to.stream.partition('/')[0]}/{lane}"
        return self.builder.task(work, stream, reads, after, tag=next_to.tag, block=next_to.block)

    def _return(self, task: Task) -> None:
        """Copy activations back that a task is the first to read."""
        for old in task.reads:
            if old in self.kept:
                copied, n_bytes = self.kept.pop(old)
                work = _copy(ACTIVATIONS, Kind.MEM_LOAD, LOADS[0], n_bytes, SAVED)
                freed = [self.returned] if self.returned >= 0 else []
                self.tensors[old] = self._copied(work, "h2d", [copied], freed, task)[1]
                self.returned = self.computed

    def _completes(self, task: Task) -> bool:
        """Whether a task makes gradients that leave: a reduction, or a lone rank's last pass over a block."""
        if self.alone:
            return task.work.op in COMPLETES
        reduces = task.work.op != "all_gather" and task.work.name != LOCAL_NORM.name
        sums = task.work.category == "data_communication" and reduces
        # Shards of a group of replicas are still to be summed over groups.
        summed_on = task.work.op == "reduce_scatter" and self.layout.shards < self.layout.replicas
        return sums and not summed_on

    def _parameters(self, block: int, *, last: bool) -> float:
        """Parameters of a layer, or of embedding and LM head."""
        if block >= 0:
            return stage_parameters(self.part, 1, first=False, last=False)
        return stage_parameters(self.part, 0, first=block != HEAD, last=last or block == HEAD)

    def _loads(self, task: Task, after: list[int]) -> list[int]:
        """The copy of parameters that a task needs, if it is the first to need them."""
        if self.alone:
            forward = task.work.op.endswith(".forward")
            needs = forward or task.work.category in ("backward", "recompute")
            needs = needs and task.block != WHOLE_DEVICE
            key = (task.block, forward, task.tag)
            if not needs or key == self.loaded or (task.block == EMBEDDING and not forward):
                return []
            self.loaded = key
            parameters = self._parameters(task.block, last=False)
            before = self.freed[-1:]
        else:
            if task.work.op != "all_gather" or task.work.category != "data_communication":
                return []
            parameters = task.work.comm_bytes / self.recipe.element_bytes / self.layout.shards
            before = after + ([self.freed[-IN_FLIGHT]] if len(self.freed) >= IN_FLIGHT else [])
        known = [earlier for earlier in before if earlier >= 0]
        loaded = self._copied(self.works.load(parameters), "h2d", [], known, task)
        # The end of the block before frees its buffer, or the gather that is written next.
        self.freed.append(self.computed if self.alone else loaded[0] + 1)
        return [loaded[1]]


MANY = 1e9
"""Parameters of the works from which the seconds of one parameter are taken."""
Estimate = Callable[[Priced, Ints], Floats]
"""Step time of chosen layouts with all states on their devices, without an update that is on the host."""


def estimate_layouts_s(priced: Priced, chosen: Ints, estimate: Estimate) -> Floats:
    """Step time of chosen layouts with their states where each has them, shape (chosen,)."""
    seconds = estimate(priced, chosen)
    columns = priced.columns.rows(chosen)
    first, kinds = distinct_rows(columns.offloads)
    for kind, row in enumerate(first.tolist()):
        if columns.layout(row).offloads:
            rows = np.flatnonzero(kinds == kind)
            seconds[rows] = _offloaded_s(priced, columns.rows(rows), seconds[rows])
    return seconds


def _offloaded_s(priced: Priced, columns: Columns, base: Floats) -> Floats:
    """Step time of layouts that offload alike; `base` is the time of their passes. Shape (rows,).

        step = passes + update on the host
        forward = max(compute, copies of parameters)
        backward = max(compute, copies of parameters, copies of gradients but two that the next forward hides)
        update of n pieces = s + u + l + (n - 1) max(s, u, l)

    s, u and l are the seconds to copy the gradients of a piece, to update it and to copy its parameters.
    """
    places = columns.layout(0)
    on_host = places.offload_optimizer != "none"
    job = priced.job
    ranks = columns.ranks()
    parts = rank_bytes(job, columns, ranks, priced.topology.system)
    fullest = parts["optimizer"].argmax(axis=1)[:, None]

    def of_fullest(column: Any) -> Floats:
        return np.asarray(np.take_along_axis(column.astype(float), fullest, axis=1)[:, 0])

    ends = np.maximum(of_fullest(ranks.first), of_fullest(ranks.last))
    # The parameters that the rank with most of them updates, and the pieces of its update.
    shard = of_fullest(parts["optimizer"]) / state_bytes(job.recipe).optimizer
    pieces = of_fullest(ranks.layers) + ends
    works = _HostWorks(job.recipe, places)
    many = [works.store(MANY), works.update(MANY), works.load(MANY)]
    store, update, load = (float(seconds) / MANY for seconds in priced.costs.durations_s(many))
    leaves = (columns.zero_stage >= GRADIENTS_SHARDED) & on_host
    loads = (columns.zero_stage == SHARDED) & (places.offload_param != "none")
    piece = shard / pieces
    stages = [np.where(leaves, 0.0, store * piece), update * piece, np.where(loads, 0.0, load * piece)]
    updated = sum(stages) + (pieces - 1) * np.maximum.reduce(stages)
    updated = updated if on_host else np.zeros(len(columns))
    stored = leaves * store * shard
    loaded = loads * load * shard
    kept = np.zeros(len(columns))
    if places.offload_activations != "none":
        per_byte = float(priced.costs.durations_s([works.load(MANY)])[0]) / works.load(MANY).comm_bytes
        kept = parts["activations"].max(axis=1) * per_byte
    microbatches = columns.microbatches(job)
    pass_s = base / (microbatches + columns.pipeline - 1)
    forward = np.where(columns.recompute > 0, 1 / 4, 1 / 3) * pass_s
    backward = pass_s - forward
    longer = np.maximum.reduce([forward, loaded, kept])
    last = stored / pieces
    hidden = np.minimum(IN_FLIGHT * last, longer)  # copies of gradients that end during the next forward
    bound = stored - hidden > backward
    waits = longer + np.maximum.reduce([backward, loaded + kept, stored - hidden]) - pass_s
    waits = waits + kept / job.model.num_layers  # the last layer's return
    tail = np.where(bound, IN_FLIGHT * last, last)
    return np.asarray(base + microbatches * (waits + loaded / pieces) + tail + updated)
