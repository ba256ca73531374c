"""Why a step takes as long as it does: its causes, its links, its kernels, and what explains a measured step.

The seconds by cause add up to the step; the sentence names the limiting cause and the nearest remedy.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import numpy as np

from perfsim.base.errors import InputError, PerfsimError, attempt
from perfsim.base.limits import present_limits
from perfsim.convergence.uncertain import Z_90
from perfsim.costs.gpu import HOST
from perfsim.costs.wafer import ASSUMED_LOSS, ATTENTION, ROWS, SLOWEST, StreamingRoof
from perfsim.engine.trace import Trace
from perfsim.machines import machine_of
from perfsim.machines.machine import LARGER_BATCH, Lane
from perfsim.machines.placement import Placed
from perfsim.prediction.planner import best_plan
from perfsim.prediction.question import Question, changes_by_root
from perfsim.prediction.run import Evaluation
from perfsim.specs.calibration import Dispatcher
from perfsim.specs.layout import Layout, text_of


@dataclass(frozen=True, slots=True)
class Why:
    """The causes of a step time."""

    cause: str
    """The largest part of compute, or the wait that limits the step."""
    parts_s: Mapping[str, float]
    """Seconds by cause, which add up to the step time."""
    remedy: str
    """The nearest change that would help."""
    sentence: str
    """Cause and remedy in words."""
    streaming_roof: StreamingRoof | None = None
    """Tokens that hide the weight stream; None on GPUs."""

    @classmethod
    def of(cls, run: Evaluation) -> Why:
        """The causes of a step time, which add up to it; the sentence names the limiting cause."""
        plan = run.plan
        step = run.step
        graph = step.placed.graph
        step_s = run.step_time_s
        sums: dict[str, float] = defaultdict(float, compute=0.0)
        for category, seconds in run.breakdown_s.items():
            kind = category.removesuffix("_communication")
            named = f"exposed {kind} communication" if kind != category else "compute"
            sums[STREAMS.get(category, named)] += seconds
        if "weight_stream" in run.breakdown_s:
            # The first weights of a step are sent when their update is done: a stall for them is its bubble.
            late_s = run.trace.mean_boundary().get("weight_stream", 0.0)
            sums["exposed streaming"] -= late_s
            sums["update bubble"] += late_s
        parts = {cause: seconds for cause, seconds in sums.items() if seconds > 0 or cause == "compute"}
        machine = machine_of(plan.system)
        roof = machine.roof(plan, graph, step.costs, step.duration_s)
        inside = [part for part in INSIDE if part in parts]
        waits = [own for own in sorted(parts, key=lambda own: -parts[own]) if own not in ("compute", *inside)]
        cause = max(("compute", ROWS, ATTENTION), key=lambda part: parts.get(part, 0.0))
        lane = None
        rows_s = parts.get(ROWS, 0.0)
        recompute = run.by_category_s.get("recompute", 0.0) / step_s
        remedy = machine.compute_remedy(plan, rows_s / step_s, recompute)
        if waits and parts[waits[0]] >= DECIDES * step_s:
            lane = _limiting_lane(run)
            cause = waits[0] if lane is None else machine.cause(lane, waits[0])
            faster = machine.wait_remedy(cause, plan, lane, roof)
            remedy = f"{faster}; {remedy}" if rows_s > parts[waits[0]] else faster
        parts = {part: parts[part] for part in dict.fromkeys(("compute", *inside, *parts))}
        others = (part for part in (*inside, *waits) if parts[part] >= MENTIONED * step_s)
        mentioned = ["compute", *others]
        shares = ", ".join(f"{name} {100 * parts[name] / step_s:.1f} %" for name in mentioned)
        verb = f"Slowed by {cause}" if cause in waits else f"Bound by {cause}"
        about = "" if roof is None else roof.about("" if lane is None else lane.name)
        sentence = f"{verb}: {shares} of the step. {about}Nearest remedy: {remedy}."
        return cls(cause, parts, remedy, sentence, roof)

    @property
    def of_later_target(self) -> Why:
        """The same where a larger batch may shorten the step, but not the run to the target."""
        said = f"{LARGER_BATCH} (which takes longer to the target)"
        told = {name: getattr(self, name).replace(LARGER_BATCH, said) for name in ("remedy", "sentence")}
        return replace(self, **told)


INSIDE = (ROWS, ATTENTION, SLOWEST, ASSUMED_LOSS)
"""What is no wait, and is told apart from the rest of computing."""
DECIDES = 0.1
"""Share of the step from which the longest wait is the cause; below it, compute is."""
MENTIONED = 0.005
"""Share of the step below which a wait is not mentioned."""
STREAMS = {
    "weight_stream": "exposed streaming",
    "gradient_stream": "gradient egress",
    "update": "update bubble",
    "input": "input",
    "spill": "exposed spilling",
    "offload": "exposed offload",
    "bubble": "bubble",
    "optimizer": "optimizer",
    HOST: HOST,
    **dict(zip(INSIDE, INSIDE, strict=True)),
}
"""The cause for each category of tasks, or `bubble`; other waits keep their name."""


# Which part of a machine limits a step: the lane that shortens it most when it is twice as fast. The lane
# that is busy longest is not always the cause, since lanes wait for one another.

SPEED_UP = 2.0
LEAST_BUSY = 0.05
"""Share of the step below which a lane is not tried."""
LEAST_SAVED = 0.01
"""Share of the step that a faster part must save to be a remedy."""


def _limiting_lane(run: Evaluation) -> Lane | None:
    """The lane that shortens the step most when it is twice as fast; None where no lane does."""
    machine = machine_of(run.plan.system)
    step = run.step
    graph = step.placed.graph
    before_s = run.step_time_s if run.perturbed is None else run.perturbed.unperturbed_step_time_s
    best = Lane("", LEAST_SAVED)
    for name in dict.fromkeys(machine.lanes.values()):
        busy_s = machine.busy_s(run.plan.topology, graph, step.duration_s, name)
        if busy_s * step.scale >= LEAST_BUSY * before_s:
            faster_s = np.where(machine.on_lane(graph, name), step.duration_s / SPEED_UP, step.duration_s)
            after_s = step.run(faster_s, contention=bool(step.placed.links.flows)).step_time_s
            best = max(best, Lane(name, 1.0 - after_s / before_s), key=lambda lane: lane.saved)
    return best if best.name else None


# How much of the network's capacity a step uses, by kind of link.


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Use of one kind of link in a step, as shares of its capacity."""

    mean: float
    """Bytes of the step on all links of the kind, in both directions, over what they could carry."""
    peak: float
    """The most that the busiest link carries at any instant."""

    @classmethod
    def by_kind(cls, trace: Trace, placed: Placed) -> dict[str, LinkUse]:
        """Use of each kind of link that a step's communication crosses, from the trace of a placed graph."""
        # A communication is spread evenly over its duration, contention included. Bytes are those on the
        # wire: what a ring sends, not the message. An exchange that a product hides lasts only as long as it
        # is exposed, and carries no more than its link does. Communications priced apart, such as updates and
        # streams in the memory of one weight server, may together exceed a capacity: a peak above 1 says so.
        graph = trace.graph
        network = placed.network
        loads = network.by_work(graph.works, placed.peers.astype(np.int64), limiting=False)
        if not loads:
            return {}
        low_s, high_s = trace.step_window_s
        lasting_s = trace.end_s - trace.start_s
        inside_s = np.minimum(trace.end_s, high_s) - np.maximum(trace.start_s, low_s)
        part = np.divide(inside_s.clip(0.0), lasting_s, where=lasting_s > 0, out=np.zeros_like(lasting_s))
        runs = np.bincount(graph.work, part, minlength=len(graph.works))
        # Bytes of one run of a class of work (row) on a link (column), for the links that are crossed.
        crossed, column = np.unique(
            np.concatenate([load.links for load in loads.values()]), return_inverse=True
        )
        row = np.repeat(list(loads), [len(load.links) for load in loads.values()])
        sent = np.array([network.sent_bytes(work) for work in graph.works])
        n_bytes = np.concatenate([load.times for load in loads.values()]) * sent[row]
        on_link = np.bincount(column, n_bytes * runs[row], minlength=len(crossed))
        rate = network.capacities[crossed]

        def peak(link: int) -> float:
            """The most that a link carries at any instant, as a share of its capacity."""
            of_work = np.zeros(len(graph.works))
            of_work[row[column == link]] = n_bytes[column == link]
            tasks = np.flatnonzero((of_work[graph.work] > 0) & (lasting_s > 0))
            carried = np.minimum(of_work[graph.work[tasks]] / lasting_s[tasks], rate[link])
            when = np.concatenate([trace.end_s[tasks], trace.start_s[tasks]])
            order = np.argsort(when, kind="stable")  # at one instant communications end before others start
            total = np.cumsum(np.concatenate([-carried, carried])[order])
            within = (when[order] >= low_s) & (when[order] < high_s)
            share = float(total[within].max(initial=0.0)) / float(rate[link])
            return share if share > ROUNDED else min(1.0, share)

        edges = network.topology.edges
        shared = edges.bytes_per_s * (edges.medium == np.arange(len(edges)))
        capacity = np.bincount(edges.kind, shared, minlength=len(edges.kinds)) * (high_s - low_s)
        use = {}
        for number, kind in enumerate(edges.kinds):
            links = np.flatnonzero((edges.kind[crossed] == number) & (on_link > 0.0))
            if len(links):
                busiest = int(links[np.argmax(on_link[links] / rate[links])])
                use[kind] = cls(float(on_link[links].sum() / capacity[number]), peak(busiest))
        return use


ROUNDED = 1.0 + 1e-6
"""A peak up to this is a full link; a higher one is more than the link carries, and is shown as it is."""


# Which inputs would explain the gap between a predicted step and a measured one, the likeliest first.
#
# Rates of the machine are varied until the predicted step is the measured one: with x the factor on a rate,
# T(x) is close to a + b / x, which two predictions give and a third confirms. Settings that a description may
# have wrong (recompute, overlap, attention, micro-batch, how rows travel to experts) are changed one at a
# time. Each suspect has a distance in standard deviations: of how far its rate would be from what is
# described, and of what is left of the gap over the errors of predictions. All steps have the run's layout.

LEAST_FACTOR = 0.25
MOST_FACTOR = 4.0
"""Range of factors on a rate."""
CLOSE = 0.01
"""Share of the measured step below which a suspect explains the gap."""
NOTHING = CLOSE / 10
"""Share of the predicted step below which a change makes no difference."""
SETTING_DEVIATIONS = 1.0
"""assumed: a setting that was not as described is as likely as a standard deviation of a rate."""
HOST_DEVIATION = 0.4
"""assumed: the time of the host to launch a kernel differs by half between processors and releases."""
Changes = dict[str, Any]
"""Values by their paths in a question, such as `recipe.dropout` or `layout.micro_batch_size`."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    """An input that may not be as described, and the step with it changed."""

    change: str
    factor: float | None
    """The factor on a rate at which the step is nearest to the measured one; None for a setting."""
    step_time_s: float
    explains: float
    """Share of the gap that it closes, in log time; negative where it widens it."""
    deviations: float
    """How unlikely it is as the only cause, in standard deviations."""
    suffices: bool
    """Whether the measured step is inside the 90 % band of the step with it changed."""


@dataclass(frozen=True, slots=True)
class GapExplained:
    """A measured step next to the predicted one, and what would explain the difference."""

    predicted_s: float
    measured_s: float
    band_s: tuple[float, float]
    """The 90 % band of the prediction."""
    deviations: float
    """The gap over the errors of predictions on published runs."""
    layout: str
    mfu: float
    """Model FLOPs over what all devices could do in the measured step; above 1 no device is so fast."""
    trained: str
    """Recipe, sequence and framework in words."""
    suspects: tuple[_Suspect, ...]
    """The likeliest first."""

    @property
    def inside(self) -> bool:
        """Whether the measured step is inside the band."""
        return self.band_s[0] <= self.measured_s <= self.band_s[1]

    @classmethod
    def of(cls, question: Question, measured_s: float) -> GapExplained:
        """Explain a measured step. Raises InputError for one that is no time, and what planning raises."""
        if not 0.0 < measured_s < math.inf:
            raise InputError(f"a measured step takes more than 0 s, not {measured_s}")
        run = best_plan(question)
        plan = run.plan
        question = replace(question, layout=plan.layout, runtime=plan.job.runtime, must_fit=False)
        predicted_s = run.step_time_s
        spread = math.log1p(run.accuracy.step_time_error) / Z_90
        gap = math.log(measured_s / predicted_s)
        suspects: list[_Suspect] = []

        def suspect(change: str, factor: float | None, step_s: float, prior: float) -> None:
            """Note a change; `prior` is how far it is from what is described, in standard deviations."""
            left = math.log(measured_s / step_s)
            explains = 1.0 - left / gap if gap else 0.0
            deviations = math.hypot(prior, left / spread)
            suffices = abs(left) <= Z_90 * spread
            suspects.append(_Suspect(change, factor, step_s, explains, deviations, suffices))

        for words, faster, deviation in _rates(question):
            factor = 0.5 if gap > 0 else 2.0
            step_s = _step_s(question, faster(factor))
            if step_s is None or abs(step_s / predicted_s - 1.0) < NOTHING:
                continue
            # The factor that comes nearest to the measured step, by secants through the predicted one.
            for turn in range(2):
                between = LEAST_FACTOR < factor < MOST_FACTOR
                if turn and not (between and abs(step_s / measured_s - 1.0) > CLOSE):
                    break
                slope = (step_s - predicted_s) / (1.0 / factor - 1.0)
                inverse = (measured_s - predicted_s) / slope + 1.0
                factor = min(MOST_FACTOR, max(LEAST_FACTOR, 1.0 / inverse if inverse > 0 else MOST_FACTOR))
                step_s = _step_s(question, faster(factor)) or step_s
            suspect(words, factor, step_s, abs(math.log(factor)) / deviation)
        for words, changes in _settings(question, plan.layout):
            step_s = _step_s(question, changes)
            if step_s is not None and abs(step_s / predicted_s - 1.0) >= NOTHING:
                suspect(words, None, step_s, SETTING_DEVIATIONS)
        suspects.sort(key=lambda suspect: suspect.deviations)
        mfu = run.mfu * predicted_s / measured_s
        times_s = (predicted_s, measured_s, run.band_s)
        told = (text_of(plan.layout), mfu, run.training.words)
        return cls(*times_s, abs(gap) / spread, *told, tuple(suspects))


def _step_s(question: Question, changes: Changes) -> float | None:
    """The step of a question with some of its values changed; None where it has no plan."""
    present_limits().in_time(lambda: "inputs tried that may explain a measured step")

    def step_s() -> float:
        asked = question
        for root, inside in changes_by_root(changes).items():
            part = getattr(asked, root)
            of_layout = root == "layout"
            changed = replace(part, **inside) if of_layout else part.with_(name=part.name, **inside)
            asked = replace(asked, **{root: changed})
        return best_plan(asked).step_time_s

    seconds = attempt(step_s)
    return None if isinstance(seconds, PerfsimError) else seconds


def _rates(question: Question) -> Iterator[tuple[str, Callable[[float], Changes], float]]:
    """Rates of the machine and its host: words, what changes where one is faster, its deviation."""
    for words, template, deviation in question.machine.rates:
        path = template.format(precision=question.system.device.peak_of(question.recipe.precision))
        rate: Any = question.system
        for name in path.split("."):
            rate = rate.get(name) if isinstance(rate, dict) else getattr(rate, name, None)
        if rate:
            yield words, partial(_times, f"system.{path}", rate), deviation
    stack = question.job.runtime.stack
    if stack is None or stack.cuda_graph:
        return
    names = ("host_s_per_kernel", "expert_pass_s")
    times_s = {f"runtime.framework.{name}": getattr(stack, name) for name in names}
    wait = "the host, which waits for counts of experts" if question.model.experts else "launches of the host"
    yield wait, lambda factor: {path: time_s / factor for path, time_s in times_s.items()}, HOST_DEVIATION


def _times(path: str, rate: float, factor: float) -> Changes:
    return {path: factor * rate}


def _settings(question: Question, layout: Layout) -> Iterator[tuple[str, Changes]]:
    """Settings as they may have been instead: words, and what changes."""
    recipe = question.recipe
    runtime = question.job.runtime
    instead: dict[str, list[Any]] = {
        "runtime.attention": ["flash" if runtime.attention == "standard" else "standard"],
        "runtime.overlap_grad_reduce": [not runtime.overlap_grad_reduce],
        "runtime.overlap_param_gather": [not runtime.overlap_param_gather],
        "runtime.fused_cross_entropy": [not runtime.fused_cross_entropy],
        "recipe.dropout": [not recipe.dropout],
    }
    if runtime.stack is not None:
        instead["runtime.cuda_graph"] = [not runtime.stack.cuda_graph]
    if question.model.experts is not None:
        used = question.job.recipe.expert_dispatcher
        instead["runtime.dispatcher"] = [name for name in get_args(Dispatcher) if name != used]
        instead["recipe.routing"] = ["balanced" if recipe.routing == "drawn" else "drawn"]
        instead["runtime.grouped_products"] = [not runtime.grouped_products]
    for path, values in instead.items():
        for value in values:
            yield f"{path.partition('.')[2]} {str(value).lower()}", {path: value}
    for mode in question.machine.recompute_modes:
        if mode != layout.recompute:
            yield f"recompute {mode}", {"layout.recompute": mode, "layout.recompute_every": 1}
    for size in (2 * layout.micro_batch_size, layout.micro_batch_size // 2):
        if size:
            yield f"micro-batches of {size}", {"layout.micro_batch_size": size}
