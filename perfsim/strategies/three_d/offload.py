"""Offload of optimizer and parameters to the host (ZeRO-Offload [2101.06840], ZeRO-Infinity [2104.07857]).

It rewrites the graph of a plan without offload:

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

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.costs.gpu import LOADS, STORE
from perfsim.costs.memory import stage_parameters, state_bytes
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Recipe
from perfsim.strategies.three_d.closed_form import Priced
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, IN_FLIGHT, LOCAL_NORM, SHARDED, WAIT
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
from perfsim.work.graph import computes
from perfsim.work.kernels import elementwise
from perfsim.work.repeat import repeated

ACTIVATIONS = "offload.activations"
SAVED = "saved"
"""The copies of activations, and the class of tensors that a layer keeps."""
REPEATS = ((2, 4), (3, 4), (2, 8))
"""After how many micro-batches orders repeat and from which on, over the pipeline's ranks; tried in turn."""
LEAST_REPEATED = 4
"""Fewer repetitions are written task by task."""
COMPLETES = ("attention.backward", "attention.wgrad", "embedding.backward", "head.backward", "head.wgrad")
"""The last operation that adds to the gradients of a block."""


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


@dataclass
class _Device:
    """What was written for a device so far."""

    name: str
    blocks: dict[int, None] = field(default_factory=dict)
    """Blocks that it computed, in order."""
    stores: list[tuple[int, int]] = field(default_factory=list)
    """Task and tensor of each copy of gradients."""
    freed: list[int] = field(default_factory=list)
    """For each copy of parameters the task that frees a buffer for a later one; -1: none."""
    computed: int = -1
    left: list[int] = field(default_factory=list)
    """Tasks that copied activations to the host."""
    returned: int = -1
    """The latest task that computed before the latest copy of activations was written."""
    loaded: tuple[int, bool, int] = (0, False, -1)
    """Block, direction and micro-batch of the latest copy of parameters that a single rank made."""


def emit_offloaded(plan: ThreeDPlan, builder: GraphBuilder) -> None:
    """Write a plan with offload from its graph without."""
    whole = _resident(plan)
    builder.take(_by_repetition(plan, whole) or _rewritten(plan, whole))


def _resident(plan: ThreeDPlan) -> TaskGraph:
    """The graph of a plan without its offload."""
    builder = GraphBuilder()
    StepWriter(plan, builder).write()
    return builder.build()


def _rewritten(plan: ThreeDPlan, graph: TaskGraph) -> TaskGraph:
    """A graph with the tasks of offload added, task by task."""
    builder = GraphBuilder()
    builder.fold(graph.width)
    rewriter = _Rewriter(plan, builder)
    ends = graph.step_ends
    for task in graph.tasks():
        rewriter.write(task, final=len(ends) == 1 or task.id >= ends[-2])
        if task.id + 1 in ends:
            builder.end_step()
    return builder.build()


def _by_repetition(plan: ThreeDPlan, whole: TaskGraph) -> TaskGraph | None:
    """The same from graphs of few micro-batches; None where these do not repeat, or are hardly fewer.

    Two comparisons prove that they repeat: `whole` is the graph of few micro-batches with a run of tasks
    repeated, and a rewritten graph with one more run repeated is the rewritten graph of more. What offload
    adds to a task depends on the latest tasks alone, so further runs add the same.
    """
    for period, begin in REPEATS:
        run = period * plan.layout.pipeline
        times, rest = divmod(plan.num_microbatches - begin * plan.layout.pipeline, run)
        if times < LEAST_REPEATED:
            break
        fewer = begin * plan.layout.pipeline + rest
        few = [replace(plan, num_microbatches=fewer + more * run) for more in range(3)]
        graphs = list(map(_resident, few))
        if _alike(repeated(graphs[0], graphs[1], times), whole):
            short, longer, longest = map(_rewritten, few, graphs)
            return repeated(short, longer, times) if _alike(repeated(short, longer, 2), longest) else None
    return None


def _alike(made: TaskGraph | None, graph: TaskGraph) -> bool:
    return made is not None and made.digest() == graph.digest()


class _Rewriter:
    """Copies a graph task by task, with the tasks of offload added."""

    def __init__(self, plan: ThreeDPlan, builder: GraphBuilder) -> None:
        layout = plan.layout
        self.plan = plan
        self.builder = builder
        self.layout = layout
        self.works = _HostWorks(plan.job.recipe, layout)
        self.alone = layout.replicas == 1
        self.leaves = layout.offload_optimizer != "none" and layout.zero_stage >= GRADIENTS_SHARDED
        """Whether gradients leave the device as they are made."""
        self.devices: dict[str, _Device] = {}
        self.kept: dict[int, tuple[int, float]] = {}
        """Activations on the host, by their tensor in the graph without offload: the copy, and its bytes."""
        self.tasks: list[int] = []
        self.tensors: list[int] = []
        self.part = slice_of(plan.job, layout)

    def write(self, task: Task, *, final: bool) -> None:
        """Write a task of the graph without offload; `final` is the last step."""
        name = task.stream.partition("/")[0]
        device = self.devices.setdefault(name, _Device(name))
        reads = [self.tensors[read] for read in task.reads]
        after = [self.tasks[before] for before in task.after]
        if task.work.op == "optimizer" and self.layout.offload_optimizer != "none":
            self._update(task, device, reads, after, final=final)
            return
        saved: dict[int, float] = {}
        if self.layout.offload_activations != "none":
            self._return(task, device)
            reads = [self.tensors[read] for read in task.reads]
            written = zip(task.writes, task.work.writes, strict=True)
            saved = {old: made.n_bytes for old, made in written if made.name == SAVED and made.n_bytes > 0.0}
            if saved and len(device.left) >= IN_FLIGHT:
                after.append(device.left[-IN_FLIGHT])
        if self.layout.offload_param != "none":
            reads += self._loads(task, device, after)
        made = self.leaves and self._completes(task, device)
        if made and len(device.stores) >= IN_FLIGHT:
            after.append(device.stores[-IN_FLIGHT][0])
        handles = self._task(task.work, task.stream, reads, after, task)
        self.tasks.append(handles[0])
        self.tensors += range(handles[1], handles[1] + len(task.writes))
        if computes(task.stream):
            device.computed = handles[0]
            if task.work.op.endswith(".forward"):
                device.blocks[task.block] = None
        for old, n_bytes in saved.items():  # what a layer keeps leaves
            work = _copy(ACTIVATIONS, Kind.MEM_STORE, STORE, n_bytes)
            copied = self._task(work, f"{name}/d2h", [self.tensors[old]], [], task)
            device.left.append(copied[0])
            self.kept[old] = copied[1], n_bytes
        if made:
            if self.alone:
                parameters = self._parameters(task.block, last=HEAD in device.blocks)
            else:
                shards = self.layout.shards if task.work.op == "reduce_scatter" else 1
                parameters = task.work.comm_bytes / state_bytes(self.plan.job.recipe).reduced / shards
            store = self.works.store(parameters)
            device.stores.append(self._task(store, f"{name}/d2h", [handles[1]], [], task))
            if not self.alone:  # who reads reduced gradients reads the copy
                self.tasks[-1], self.tensors[-1] = device.stores[-1]

    def _task(
        self, work: Work, stream: str, reads: list[int], after: list[int], like: Task
    ) -> tuple[int, int]:
        return self.builder.task(work, stream, reads, after, tag=like.tag, block=like.block)

    def _return(self, task: Task, device: _Device) -> None:
        """Copy activations back that a task is the first to read."""
        for old in task.reads:
            if old in self.kept and task.work.category != "offload":
                copied, n_bytes = self.kept.pop(old)
                work = _copy(ACTIVATIONS, Kind.MEM_LOAD, LOADS[0], n_bytes, SAVED)
                freed = [device.returned] if device.returned >= 0 else []
                self.tensors[old] = self._task(work, f"{device.name}/h2d", [copied], freed, task)[1]
                device.returned = device.computed

    def _completes(self, task: Task, device: _Device) -> bool:
        """Whether a task makes gradients that leave: a reduction, or a lone rank's last pass over a block."""
        if self.alone:
            tied = task.block == HEAD and EMBEDDING in device.blocks
            return task.work.op in COMPLETES and not tied
        reduces = task.work.op != "all_gather" and task.work.name != LOCAL_NORM.name
        sums = task.work.category == "data_communication" and reduces
        # Shards of a group of replicas are still to be summed over groups.
        summed_on = task.work.op == "reduce_scatter" and self.layout.shards < self.layout.replicas
        return sums and not summed_on

    def _parameters(self, block: int, *, last: bool) -> float:
        """Parameters of a layer, or of embedding and LM head on a rank."""
        if block >= 0:
            return stage_parameters(self.part, 1, first=False, last=False)
        return stage_parameters(self.part, 0, first=block != HEAD, last=last or block == HEAD)

    def _loads(self, task: Task, device: _Device, after: list[int]) -> list[int]:
        """The copy of parameters that a task needs, if it is the first to need them."""
        if self.alone:
            forward = task.work.op.endswith(".forward")
            needs = forward or task.work.category in ("backward", "recompute")
            needs = needs and task.block != WHOLE_DEVICE
            key = (task.block, forward, task.tag)
            if not needs or key == device.loaded or (task.block == EMBEDDING and not forward):
                return []
            device.loaded = key
            parameters = self._parameters(task.block, last=False)
            before = device.freed[-1:]
        else:
            if task.work.op != "all_gather" or task.work.category != "data_communication":
                return []
            parameters = task.work.comm_bytes / self.plan.job.recipe.element_bytes / self.layout.shards
            before = after + ([device.freed[-IN_FLIGHT]] if len(device.freed) >= IN_FLIGHT else [])
        known = [earlier for earlier in before if earlier >= 0]
        loaded = self._task(self.works.load(parameters), f"{device.name}/h2d", [], known, task)
        # The end of the block before frees its buffer, or the gather that is written next.
        device.freed.append(device.computed if self.alone else loaded[0] + 1)
        return [loaded[1]]

    def _update(
        self, task: Task, device: _Device, reads: list[int], after: list[int], *, final: bool
    ) -> None:
        """Copies of gradients, updates and copies of parameters, piece by piece, in place of an update."""
        layers = [block for block in device.blocks if block >= 0]
        pieces = [*([EMBEDDING_AND_HEAD] if len(layers) < len(device.blocks) else []), *layers]
        share = task.work.writes[0].n_bytes / self.plan.job.recipe.element_bytes / len(pieces)
        if self.leaves and device.stores:
            reads = [*reads, device.stores[-1][1]]
        peers = self.layout.tensor * (self.layout.shards if self.layout.zero_stage else 1)
        if peers * self.layout.pipeline == 1:  # the update has the norm of its gradients, which pieces need
            reads = [*reads, self._task(LOCAL_NORM, task.stream, reads, after, task)[1]]
        handles = (-1, -1)
        for block in pieces:
            piece = task._replace(block=block)
            inputs = reads
            if not self.leaves:
                store = self.works.store(share)
                inputs = [*reads, self._task(store, f"{device.name}/d2h", reads, after, piece)[1]]
            handles = self._task(self.works.update(share), f"{device.name}/cpu", inputs, after, piece)
            if self.layout.offload_param == "none":
                handles = self._task(self.works.load(share), f"{device.name}/h2d", [handles[1]], [], piece)
        self.tasks.append(handles[0])
        self.tensors += [handles[1]] * len(task.writes)
        if not final:  # the next step waits for its parameters
            for stream in (task.stream, f"{device.name}/h2d"):
                self._task(WAIT, stream, [handles[1]], [], task)


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
