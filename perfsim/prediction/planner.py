"""The best layout: screen all with the closed form, run those that could be fastest, keep the fastest."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Floats, Ints
from perfsim.base.errors import InputError, LayoutError, MemoryCapacityError, PerfsimError, PlanError
from perfsim.base.limits import present_limits
from perfsim.interop import READ, WRITTEN, tool_named
from perfsim.machines.placement import place
from perfsim.prediction.question import Question, Rank
from perfsim.prediction.risk import MOST, Ranked, expected_ratios, points_of, ratio_of
from perfsim.prediction.run import Evaluation, Step, evaluate, evaluation_of
from perfsim.specs.layout import Layout, ParallelLayout, text_of
from perfsim.specs.trainers import ANY, ON_GPUS
from perfsim.strategies import Plan
from perfsim.strategies.plan import Screening
from perfsim.strategies.three_d.legal import RefusedLayoutError

ESTIMATE_ERROR = 0.02
"""By how much the longest path may exceed a simulated step; more is rare (`reports/regret.md`)."""
ALIKE_ERROR = 0.01
"""The same for a path that is corrected by the error of a simulated layout of its kind.

Fitted: with 0.01 all 150 questions of `reports/regret.md` keep their pick, with 683 simulations (954 before).
"""
TIE_DIGITS = 9
"""Steps that agree in these digits are equally fast; the order of the estimates decides between them."""
MOST_CONFIRMED = 16
"""How many layouts of a question are simulated at most."""
MOST_ALIKE = 6
"""How many of these may be of one kind; their errors are nearly the same."""
KIND = ("schedule", "zero_stage", "sequence_parallel", "tensor", "pipeline", "data", "micro_batch_size")
"""What layouts of a kind have in common; their estimates err alike."""
MOST_NEAREST = 3
"""How many legal layouts a refusal names."""
MOST_LISTED = 400
"""How many layouts, by their closed form, are estimated by the longest path and may be simulated at all."""


class Search:
    """The screened layouts of a question. PlanError says why it has none; `advised`, also what is near."""

    def __init__(self, question: Question, *, advised: bool = True) -> None:
        present_limits().in_time(lambda: f"no layout screened yet on {question.label}")
        self.question = question
        self._whole = _screening(question)
        other = None if self._whole.feasible else question.with_sharded_runtime
        if other is not None and (whole := _screening(other)).feasible:
            self.question = other
            self._whole = whole
        screening = self._whole
        job = question.job
        asked = f"strategy {question.chosen.name}, {question.label}, {job.global_batch_size} sequences a step"
        if screening.feasible:
            self._points = points_of(screening, self.question.job, question.system.device)
            self.keep(self.proven if question.rank == "proven" else None)
            if refused := _refused(self.question, self.screening.layout(0)):
                raise PlanError([f"no plan that {question.runs_on} runs: {asked}", *refused])
            return
        head = f"no plan fits: {asked}"
        limits = job.runtime.searched if question.machine.layout_type is ParallelLayout else None
        others = []
        if advised and limits is not None and has_plan(replace(question, runs_on=ANY)):
            others.append(f"layouts that {limits.name} does not run: --runs-on any")
        others += [
            f"nearest that divides: {other.label}, {other.job.global_batch_size} sequences a step"
            for other in (divisible(question, legal=screening.screened > 0, fit=True) if advised else ())
        ]
        if not screening.screened or screening.closest is None:
            model = f"{job.model.num_layers} layers, {job.model.num_attention_heads} heads"
            of_tool = "" if limits is None else f" that {limits.name} runs"
            why = f"batch {job.global_batch_size}, {model}: no degrees{of_tool} divide them"
            raise PlanError([f"{head}: no layout is legal ({why})", *others])
        tried = f"{head}: {screening.screened:,} layouts tried, {screening.screened:,} over memory"
        try:
            _planned(question, screening.closest)
        except MemoryCapacityError as lacking:
            reason = lacking if advised else lacking.reason
            raise PlanError([tried, f"closest: {text_of(screening.closest)}: {reason}", *others]) from None

    @cached_property
    def proven(self) -> Ints:
        """Indices of all proven layouts; where none is within the memory limit, of the least novel."""
        within = self._points[self._whole.memory_share <= self.question.allowed_share]
        return np.flatnonzero(self._points <= max(MOST, (within if len(within) else self._points).min()))

    @property
    def unproven(self) -> int:
        """Layouts that fit and are not in the rank."""
        return self._whole.feasible - self.screening.feasible

    def keep(self, kept: Ints | None) -> None:
        """Choose among some layouts; None: among all."""
        self.screening = self._whole if kept is None else self._whole.only(kept)
        self.ratio = expected_ratios(self._points if kept is None else self._points[kept])

    def _among(self, rank: Rank, kept: Ints) -> Search:
        """The search of another rank among some layouts, which are screened already."""
        other = Search.__new__(type(self))
        question = self.question.at(self.question.batch, rank=rank)
        known = {name: vars(self)[name] for name in ("_whole", "_points")}
        vars(other).update(known, question=question)
        other.keep(kept)
        return other

    def ranks(self, best: Evaluation) -> tuple[Ranked, ...]:
        """The best proven layout and the best of all, one of which is `best`; none on wafers."""
        if not isinstance(best.plan.layout, ParallelLayout):
            return ()
        runs = dict.fromkeys(get_args(Rank), best)
        if self.question.rank == "proven":
            allowed = self._whole.memory_share <= max(self.question.allowed_share, best.plan.memory_share)
            allowed[self.proven] = False
            runs["fastest"] = _fastest(self._among("fastest", np.flatnonzero(allowed)), to_beat=best)
        elif not Ranked.of("fastest", best).is_proven:
            runs["proven"] = _fastest(self._among("proven", self.proven))
        return tuple(Ranked.of(rank, run) for rank, run in runs.items())

    @cached_property
    def _listed(self) -> NDArray[np.intp]:
        """Indices of the layouts that the closed form puts first, among all and within the memory limit."""
        share = self.screening.memory_share
        first = np.argsort(self.screening.estimate_s, kind="stable")
        within = first[share[first] <= self.question.allowed_share]
        return np.unique(np.concatenate([first[:MOST_LISTED], within[:MOST_LISTED]]))

    @cached_property
    def estimate_s(self) -> Floats:
        """Step time of every layout: listed layouts by the longest path, others in closed form."""
        if self.screening.closer is None:
            return self.screening.estimate_s
        estimates = self.screening.estimate_s.copy()
        estimates[self._listed] = self.screening.closer(self._listed)
        return estimates

    @cached_property
    def ranked(self) -> NDArray[np.intp]:
        """Indices of all that fit: those listed, then others; best estimate first, of ties least memory."""
        others = np.ones(len(self.estimate_s), dtype=np.bool_)
        others[self._listed] = False
        expected_s = self.estimate_s * self.ratio
        return np.lexsort((self.screening.memory_share, np.round(expected_s, 12), others))

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """The indices of `ranked` within the memory limit; all of them where nothing is within it."""
        within = self.ranked[self.screening.memory_share[self.ranked] <= self.question.allowed_share]
        return within if len(within) else self.ranked

    @property
    def gain_above_limit(self) -> float:
        """Share of the step that the best layout of all that fit would save, by estimate."""
        return 1.0 - float(self.estimate_s[self.ranked[0]]) / float(self.estimate_s[self.order[0]])

    def leaner(self, most: int) -> list[int]:
        """Indices of at most `most` layouts, the fastest by estimate within ever less of the memory."""
        share = self.screening.memory_share[self.order]
        limits = np.geomspace(share[0], share.min(), most)
        return list(dict.fromkeys(int(self.order[np.argmax(share <= limit)]) for limit in limits))

    def plan(self, index: int) -> Plan:
        """The plan of the layout at an index."""
        layout = self.screening.layout(index)
        try:
            return _planned(self.question, layout)
        except (LayoutError, MemoryCapacityError) as error:
            name = self.question.chosen.name
            raise PlanError([f"strategy {name} screens {text_of(layout)}: {error}"]) from None


def confirmed(searched: Search, *, to_beat: Evaluation | None = None) -> Iterator[Evaluation]:
    """Simulated plans, each faster than all before it: the last is the fastest.

    `to_beat` is a plan that was simulated before; it comes first.
    Plans are simulated in the order of their estimates, corrected by what layouts of their kind took, until
    the rest cannot be faster than the best, given the error of the closed form, or until `MOST_CONFIRMED` are
    done. Times are those to be expected of layouts as novel as each (`risk.expected_ratios`). The longest
    path is a lower bound of a step: a plan whose path is longer than the best step is left out.
    """
    question = searched.question
    indices = searched.order[:MOST_LISTED].tolist()
    layouts = map(searched.screening.layout, indices)
    kinds = [tuple(getattr(layout, name, None) for name in KIND) for layout in layouts]
    factor = np.ones(len(indices))
    left = np.ones(len(indices), dtype=bool)
    tried: Counter[tuple[Hashable, ...]] = Counter()
    ratio = searched.ratio[indices]
    best_s = np.inf
    if to_beat is not None:
        best_s = to_beat.step_time_s * ratio_of(to_beat.plan)
        yield to_beat
    error_of = np.full(len(indices), ESTIMATE_ERROR)
    for number in range(MOST_CONFIRMED):
        expected_s = searched.estimate_s[indices] * ratio * factor
        could = left & (expected_s * (1 - error_of) <= best_s / question.scale)
        if not could.any():
            break
        nearest = int(np.where(could, expected_s, np.inf).argmin())
        plan = searched.plan(indices[nearest])
        words = f"{number} of at most {MOST_CONFIRMED} layouts simulated on {question.label}"
        present_limits().in_time(partial(str, words))
        graph = plan.graph()
        # Ranks that are alike without contention have equal paths however links are shared.
        placed = place(graph, question.topology, contention=False)
        placed = place(graph, question.topology) if placed.note else placed
        step_s = Step(placed, question.costs, question.scale).run(contention=False).step_time_s
        if step_s * ratio[nearest] < best_s:
            run = evaluate(plan, question.costs, cluster=question.cluster, graph=graph)
            step_s = run.step_time_s
            if round(step_s * ratio[nearest] / best_s, TIE_DIGITS) < 1:
                best_s = step_s * ratio[nearest]
                yield run
        kind = kinds[nearest]
        alike = np.array([other == kind for other in kinds])
        error = step_s / question.scale / searched.estimate_s[indices[nearest]]
        factor[alike] = np.fmin(factor[alike], error) if tried[kind] else error
        error_of[alike] = ALIKE_ERROR
        left[nearest] = False
        tried[kind] += 1
        if tried[kind] >= MOST_ALIKE:
            left &= ~alike


def _fastest(searched: Search, to_beat: Evaluation | None = None) -> Evaluation:
    """The fastest of some layouts; the graphs of slower ones are not kept."""
    return deque(confirmed(searched, to_beat=to_beat), maxlen=1).pop()


def has_plan(question: Question) -> bool:
    """Whether a layout of a question is legal and within the memory."""
    with suppress(PlanError):  # a strategy may refuse the batch itself
        return _screening(question).feasible > 0
    return False


def _refused(question: Question, layout: Layout) -> list[str]:
    """What of a job the tool that is named does not run, and the tools that do; empty where it does."""
    if question.runs_on not in READ:
        return []
    plan = _planned(question, layout)
    reasons = tool_named(question.runs_on).refusals_of_job(plan)
    others = (name for name in WRITTEN if reasons and not tool_named(name).refusals_of_job(plan))
    taken: list[str] = [
        name for name in others if name in ON_GPUS and has_plan(replace(question, runs_on=name))
    ]
    return reasons + [" or ".join(f"--runs-on {name}" for name in taken or [ANY])] * bool(reasons)


def _screening(question: Question) -> Screening:
    return question.chosen.screen(question.job, question.topology, question.costs)


def _planned(question: Question, layout: Layout, *, check_memory: bool = True) -> Plan:
    """The plan of one layout; LayoutError or MemoryCapacityError says what is wrong with it."""
    return question.chosen.plan(question.job, question.topology, layout, check_memory=check_memory)


def plan_of(question: Question) -> Plan:
    """The plan of the given layout, or the fastest. Raises LayoutError, MemoryCapacityError or PlanError."""
    layout = question.given_layout
    if layout is None:
        return best_plan(question).plan
    try:
        return _planned(question, layout, check_memory=question.must_fit)
    except RefusedLayoutError as error:
        legal: dict[str, bool] = {}
        for near in [near for refused in error.refusals for near in refused.nearest]:
            # Where another degree leaves devices idle or takes too many, replicas make up for it.
            replicas = question.devices * near.data // near.num_devices
            for other in dict.fromkeys((near, replace(near, data=max(1, replicas)))):
                with suppress(LayoutError):
                    plan = _planned(question, other, check_memory=False)
                    legal[text_of(other)] = all(use.fits for use in plan.memory)
        fit = [text for text, fits in legal.items() if fits or not question.must_fit]
        words = " or ".join(f"--layout {text}" for text in (fit or [*legal])[:MOST_NEAREST])
        help_text = f"nearest that is legal{'' if fit else ', but over memory'}: {words}"
        raise RefusedLayoutError(error.refusals, help_text if legal else "") from None


def refusal_of(question: Question) -> PerfsimError | None:
    """Why a question has no answer whatever the memory of the devices, found without simulating."""
    try:
        if question.given_layout is None:
            Search(question)
        else:
            plan_of(replace(question, must_fit=False))
    except InputError as error:
        return error
    except PlanError as error:
        with suppress(PlanError):  # a strategy may refuse the batch itself
            if _screening(question).screened:
                return None  # some are legal, and none fits in memory
        return error
    return None


def best_estimate(question: Question, *, advised: bool = True) -> tuple[Question, Plan]:
    """The given layout, or that of best estimate, and what it answers. Raises as `plan_of` and `Search`."""
    if question.layout is not None:
        return question, plan_of(question)
    searched = Search(question, advised=advised)
    return searched.question, searched.plan(int(searched.order[0]))


def best_plan(question: Question, *, ranks: bool = False, reported: bool = True) -> Evaluation:
    """The given layout, or the fastest plan of the rank within the memory limit, simulated.

    With `ranks` the answer has the fastest of each rank. What is `reported` is followed once more, by the
    engine of such steps. A cluster's scale favours no plan. Raises PlanError where no plan fits, LayoutError
    for an illegal layout.
    """
    if question.layout is not None:
        return evaluation_of(question, plan_of(question), reported=reported)
    searched = Search(question)
    best = _fastest(searched)
    trace = best.step.run(reported=True) if reported else best.trace
    plan = best.plan
    limit = question.allowed_share
    if plan.memory_share > limit:
        plan = replace(plan, notes=(*plan.notes, f"without offload no plan is under {limit:.0%} of memory"))
    else:
        fuller = searched.plan(int(searched.ranked[0]))
        faster = 100 * searched.gain_above_limit
        if fuller.memory_share > limit and faster >= 0.05:
            note = (
                f"above the memory limit of {limit:.0%}: {text_of(fuller.layout)} fills "
                f"{100 * fuller.memory_share:.0f} % and takes about {faster:.1f} % less time"
            )
            plan = replace(plan, notes=(*plan.notes, note))
    return replace(best, trace=trace, plan=plan, ranks=searched.ranks(best) if ranks else ())


# The nearest batch and the nearest number of devices that divide, where those that are asked hardly do.
#
# Replicas share a batch evenly, so their number divides batch and devices: of 216 devices with 250 sequences
# only 1 or 2 replicas can be made, and all other devices become stages.

SHARE = 8
"""A batch divides where one in SHARE devices, a node of a DGX, can be a replica."""
RANGE = 0.1
"""How far another batch, by at least one, or number of devices may be away, where the asked are legal."""
MOST_NEAR = 16
"""How many other batches, and numbers of devices, are looked at for one that has a plan."""


def divides(batch: int, devices: int) -> bool:
    """Whether enough replicas can be made."""
    return math.gcd(batch, devices) * SHARE >= devices


def divisible(question: Question, *, legal: bool = True, fit: bool = False) -> list[Question]:
    """The question with the nearest batch or number of devices that divides; none where its own do.

    Of a question without a `legal` layout, or where a plan is to `fit`, the nearest that has a plan.
    """
    batch = question.job.global_batch_size
    devices = question.devices
    if not question.machine.fragments_memory or (legal and divides(batch, devices)):
        return []
    within = max(1, int(RANGE * batch)), int(RANGE * devices)
    near, far = within if legal else (max(batch, devices), devices)
    batches = (batch + sign * step for step in range(1, 1 + near) for sign in (-1, 1))
    found = (replace(question, batch=other) for other in batches if other > 0 and divides(other, devices))
    numbers = (number for number in _numbers(question, far) if divides(batch, number))
    others = (replace(question, devices=number, batch=batch) for number in numbers)
    tried = (islice(some, MOST_NEAREST if legal else MOST_NEAR) for some in (found, others))
    answers = has_plan if fit or not legal else None
    return [nearest for some in tried for nearest in islice(filter(answers, some), 1)]


def _numbers(question: Question, far: int) -> list[int]:
    """Other numbers of devices, at most `far` away, that are whole servers; the nearest first."""
    server = question.topology.devices_per_server
    least = max(1, question.devices - far)
    numbers = range(-(-least // server) * server, question.devices + far + 1, server)
    apart = (number for number in numbers if number != question.devices)
    return sorted(apart, key=lambda number: abs(number - question.devices))


def within_nodes(question: Question, best: Plan) -> list[Question]:
    """At most one: the nearest number of devices whose tensor groups lie in nodes; `best` has others.

    Then layers hardly divide over the devices, so that tensor ranks take what stages cannot.
    """
    node = question.topology.devices_per_node
    batch = question.job.global_batch_size
    for devices in _numbers(question, int(RANGE * question.devices)) if _tensor(best) > node else ():
        other = replace(question, devices=devices, batch=batch)
        with suppress(PlanError):
            if _tensor(best_estimate(other, advised=False)[1]) <= node:
                return [other]
    return []


def _tensor(plan: Plan) -> int:
    return getattr(plan.layout, "tensor", 1)
