"""The layouts of one machine that the model cannot tell apart, what would, and why the others fell.

A predicted ratio of two layouts has an error that does not cancel (`Accuracy.unshared_error` of each, in
quadrature in log time). Layouts nearer to the fastest are the answer; a run on the machine picks one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from perfsim.base.errors import InputError, PerfsimError, PlanError
from perfsim.base.units import format_quantity, parse_quantity
from perfsim.convergence.bill import HOUR_S
from perfsim.convergence.time_to_accuracy import TimeToAccuracy
from perfsim.prediction.caveats import batch_caveats
from perfsim.prediction.dates import date_caveats
from perfsim.prediction.planner import Search, best_plan, confirmed, divisible, has_plan, within_nodes
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.question import Objective, Question
from perfsim.prediction.risk import Ranked, ratio_of
from perfsim.prediction.run import Evaluation, evaluation_of
from perfsim.specs.layout import Layout, text_of
from perfsim.strategies import Plan
from perfsim.strategies.plan import MEMORY
from perfsim.strategies.three_d.data import SHARDED
from perfsim.studies.batches import Target
from perfsim.studies.spec import ConvergenceSpec

# The cheapest run on the machine that tells two layouts apart.

STEPS = 25
"""assumed: 5 steps to warm up and 20 to measure. Steps of a healthy machine that scatter by 2 % give a mean
within 0.7 %, so that two layouts are compared within 1 %."""


@dataclass(frozen=True)
class Trial:
    """A layout of the shortlist on the fewest replicas that hold it."""

    entry: int
    """Its number in the shortlist, from 1."""
    plan: Plan
    device_hours: float
    """Devices times hours of all steps, at the time of a step with all replicas: an upper bound."""

    @property
    def devices(self) -> int:
        return self.plan.layout.num_devices

    @staticmethod
    def fewest_replicas(question: Question, plan: Plan) -> Plan:
        """The plan with as few replicas as fit in memory, each with the same work as before.

        One replica shows all but the communication between replicas. State that ZeRO shards may need more,
        and under ZeRO 3 all replicas take part in every layer.
        """
        layout = plan.layout
        if layout.zero_stage == SHARDED or "data" not in {field.name for field in fields(layout)}:
            return plan
        for replicas in (number for number in range(1, layout.data) if layout.data % number == 0):
            smaller = replace(layout, data=replicas)
            batch = plan.job.global_batch_size * replicas // layout.data
            asked = replace(question, devices=smaller.num_devices, batch=batch, layout=None)
            with suppress(PerfsimError):
                return asked.chosen.plan(asked.job, asked.topology, smaller)
        return plan


@dataclass(frozen=True)
class Experiment:
    """Two layouts to run next to one another."""

    trials: tuple[Trial, Trial]
    ratio: float
    """Predicted step time of the second over the first."""
    ratio_error: float
    """The model's own error in this ratio, as the half-width of a 90 % band."""
    fewer_replicas: bool
    """Whether a trial leaves out replicas, and the communication between them."""
    steps: int = STEPS
    """Steps of each run."""

    @property
    def device_hours(self) -> float:
        """Of both runs together."""
        return sum(trial.device_hours for trial in self.trials)

    @staticmethod
    def rival(plans: Sequence[Plan]) -> int | None:
        """The index of the plan to run next to the first: the fastest unlike it where predictions err.

        Whether parameters are sharded weighs most in the likeness to published runs, then the degrees.
        Between layouts of equal degrees, with nearly the same kernels and messages, errors cancel.
        """
        sharded = [plan.layout.zero_stage == SHARDED for plan in plans]
        degrees = [(plan.layout.tensor, plan.layout.pipeline, plan.layout.data) for plan in plans]
        for traits in (sharded, degrees):
            for index, trait in enumerate(traits):
                if trait != traits[0]:
                    return index
        return 1 if len(plans) > 1 else None


SHOWN = 5
"""Layouts of the shortlist that are shown unless more are asked for."""
REASONS = {
    MEMORY: "need more memory than a device has",
    "unproven": "fit, but are unlike every published run",
    "memory_limit": "fit, but above the memory limit",
    "dominated": "fit and are slower than the model's error can explain",
    "divisibility": "with degrees that do not divide model, batch or nodes",
}
"""Why layouts (of `divisibility`: combinations of degrees) are no answer; a strategy may have others."""
MOST_TRIED = 5000
"""How many layouts are looked at in the order of their estimates: for the shortlist, and for a tool."""
FOLLOWS = ("num_microbatches",)
"""Settings that follow from others."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Entry(Prediction):
    """A layout that may be the fastest, with its simulated step."""

    number: int
    """Its place in the shortlist, from 1."""
    step_time_band_s: tuple[float, float]
    """90 % band of the step time."""
    ratio: float
    """Step time over the step time of the first entry."""
    ratio_error: float
    """The model's own error in this ratio: the half-width e of its 90 % band [r / (1 + e), r (1 + e)]."""
    differs: Mapping[str, Any]
    """Settings that differ from the first entry's."""
    time: TimeToAccuracy | None = None
    """Time to the target, where the recipe has one."""

    @property
    def plan(self) -> Plan:
        """The checked layout."""
        return self.run.plan

    @property
    def layout_text(self) -> str:
        """The settings as `--layout` takes them."""
        return text_of(self.plan.layout)

    @property
    def memory_left_bytes(self) -> float:
        """What the fullest device leaves."""
        return self.memory_capacity_bytes - self.peak_memory_bytes

    @property
    def device_hours(self) -> float:
        """Devices times hours: to the target where there is one, else for a billion tokens."""
        seconds = 1e9 / self.tokens_per_s if self.time is None else self.time.time_s
        return self.num_devices * seconds / HOUR_S


MOST_FEWER = 64
"""Numbers of nodes under a power cap of which one that has a plan is looked for."""
LEAST_GAIN = 1.02
"""assumed: a smaller gain is not worth another batch."""


@dataclass(frozen=True, slots=True)
class Nearby:
    """The answer to a question with another batch or another number of devices."""

    num_devices: int
    global_batch_size: int
    """Sequences of a step."""
    layout: str
    """As `--layout` takes it."""
    step_time_s: float
    """Simulated step time."""
    gain: float
    """Tokens per second and device, as a multiple of what the question's own answer has."""


@dataclass(frozen=True)
class _AboveLimit:
    """The fastest layout of all that fit, where it lies above the memory limit."""

    layout: Mapping[str, Any]
    """Settings by their YAML names."""
    gain: float
    """Share of the step that it would save, by the closed form."""
    memory_share: float
    """Share of a device's memory that is used."""


@dataclass(frozen=True)
class Planned:
    """The shortlist of one question, what would separate it, and what was left out."""

    question: Question = field(repr=False)
    search: Search = field(repr=False)
    objective: Objective
    """What the shortlist is ranked by."""
    shortlist: tuple[Entry, ...]
    """Ascending by the expected step (`risk.expected_ratios`); every task of every entry is simulated."""
    within: int
    """Layouts that the closed form puts inside the model's error of the fastest."""
    refused: Mapping[str, int]
    """Number of layouts by the reason for which they are no answer; for divisibility of degrees."""
    closest_share: float | None = None
    """Memory over capacity of the layout that misses it by least; None where all fit."""
    above_limit: _AboveLimit | None = None
    """The fastest layout above the limit of memory; None where it gains nothing."""
    experiment: Experiment | None = None
    tried_batches: tuple[int, ...] = ()
    """Global batches that were tried."""
    nearby: tuple[Nearby, ...] = ()
    """Answers for the nearest batch and number of devices, where the asked ones hardly divide."""
    ranks: tuple[Ranked, ...] = ()
    """The proven layout and the fastest of all, on GPUs."""

    @property
    def best(self) -> Entry:
        """The fastest entry."""
        return self.shortlist[0]

    def emit(self, tool: str) -> str:
        """Flags or a file of the first layout. Raises InputError where the tool cannot run it."""
        return self.best.emit(tool)


def plan_layouts(question: Question, objective: Objective = "step-time", shown: int = SHOWN) -> Planned:
    """The shortlist of a question.

    Without a batch, `time-to-accuracy` and `cost` take the best batch to the recipe's target, `step-time` the
    recipe's or the default one. On a fixed number of devices cost (devices times time) orders layouts as time
    does. Raises InputError where `time-to-accuracy` has no target, PlanError where nothing fits, in memory or
    under the power cap.
    """
    if question.power_cap:
        _keep_to(parse_quantity(question.power_cap, "watts"), question)
    target = None
    try:
        target = Target.of(question.model, question.recipe, ConvergenceSpec())
    except InputError:
        if objective == "time-to-accuracy":
            raise
    tried: tuple[int, ...] = ()
    given = question.batch or question.recipe.batch_over(question.devices)
    if target is not None and given is None and objective != "step-time":
        grid = target.grid(question.recipe.seq_length, question.devices)
        curve = target.curve(question, grid, extend=True)
        tried = curve.tried
        question = question.at(curve.best)
    searched = Search(question)
    question = searched.question
    screening = searched.screening
    asked = [*batch_caveats(question), *date_caveats(question)]
    runs = _fastest_runs(searched, shown)
    first = runs[0]
    of_first = first.plan.layout.as_dict(first.plan.num_microbatches)
    entries: list[Entry] = []
    for run in runs:
        error = ratio_error(run, first)
        if run.step_time_s / first.step_time_s > 1.0 + error:
            continue
        layout = run.plan.layout.as_dict(run.plan.num_microbatches)
        entry = Entry.of(
            run,
            question.allowed_share,
            asked,
            number=len(entries) + 1,
            step_time_band_s=run.band_s,
            ratio=run.step_time_s / first.step_time_s,
            ratio_error=error,
            differs={
                name: value
                for name, value in layout.items()
                if name not in FOLLOWS and value != of_first.get(name)
            },
            time=None if target is None else target.time_of_run(run),
        )
        entries.append(entry)
    estimates = searched.estimate_s[searched.order]
    within = max(len(entries), int((estimates <= (1.0 + entries[0].ratio_error) * estimates[0]).sum()))
    closest = screening.closest
    if closest is not None:
        plan = question.chosen.plan(question.job, question.topology, closest, check_memory=False)
    # The fastest layout that fits at all, where it is faster than all within the limit.
    fastest = searched.plan(int(searched.ranked[0]))
    gain = searched.gain_above_limit
    settings = fastest.layout.as_dict(fastest.num_microbatches)
    return Planned(
        question=question,
        search=searched,
        objective=objective,
        shortlist=tuple(entries),
        within=within,
        refused={
            **screening.refused,
            "unproven": searched.unproven,
            "memory_limit": searched.screening.feasible - len(searched.order),
            "dominated": len(searched.order) - within,
            "divisibility": screening.indivisible,
        },
        closest_share=None if closest is None else plan.memory_share,
        above_limit=_AboveLimit(settings, gain, fastest.memory_share) if gain > 0 else None,
        experiment=_experiment(question, entries),
        tried_batches=tried,
        nearby=tuple(_nearby(question, first)),
        ranks=searched.ranks(first),
    )


def _keep_to(cap_w: float, question: Question) -> None:
    """Raise PlanError where all nodes together draw more than the cap at the typical power of training."""
    system = question.system
    if system.power is None:
        raise InputError(f"power_cap: the power of {system.name} is not known")
    drawn_w = question.topology.filled_nodes * system.power.typical
    if drawn_w > cap_w:
        per_node = question.topology.devices_per_node
        fit = cap_w / system.power.typical
        most = int(fit) * per_node or int(fit * per_node)
        cap, drawn = (format_quantity(known_w, "watts", 3) for known_w in (cap_w, drawn_w))
        fewer = (replace(question, devices=count) for count in range(most, 0, -per_node)[:MOST_FEWER])
        planned = next(filter(has_plan, fewer), None)
        advice = f"; with a plan: --devices {planned.devices}" if planned else ""
        fits = f"at most {system.machine(most)} fit{advice}" if most else "one node draws more"
        raise PlanError([f"{question.label} draw {drawn} in training, above the power cap of {cap}", fits])


def _fastest_runs(searched: Search, shown: int) -> list[Evaluation]:
    """The fastest layout of each choice of degrees and micro-batch, simulated, ascending by expected step."""

    def kind(layout: Layout) -> tuple[int, ...]:
        return layout.tensor, layout.pipeline, layout.data, layout.micro_batch_size

    question = searched.question
    screening = searched.screening
    simulated = list(confirmed(searched))
    first = simulated[-1]
    slowest_s = first.step_time_s * (1.0 + ratio_error(first, first))
    runs = {kind(first.plan.layout): first}
    known = {run.plan.layout: run for run in simulated}
    # In the order of estimates, until these are outside the model's error of the first.
    for index in searched.order[:MOST_TRIED].tolist():
        if len(runs) >= shown or question.scale * searched.estimate_s[index] > slowest_s:
            break
        layout = screening.layout(index)
        if kind(layout) in runs:
            continue
        if layout not in known:
            plan = question.chosen.plan(question.job, question.topology, layout)
            known[layout] = evaluation_of(question, plan)
        runs[kind(layout)] = known[layout]
    return sorted(runs.values(), key=lambda run: run.step_time_s * ratio_of(run.plan))


def ratio_error(run: Evaluation, other: Evaluation) -> float:
    """The part of the model's error that remains in the ratio of two layouts of one machine."""
    errors = (known.accuracy.unshared_error for known in (run, other))
    return math.expm1(math.hypot(*map(math.log1p, errors)))


def _nearby(question: Question, best: Evaluation) -> Iterator[Nearby]:
    """Answers for the nearest batch and number of devices that divide, where they are faster."""
    for other in divisible(question) or within_nodes(question, best.plan):
        with suppress(PlanError, InputError):
            run = best_plan(other, reported=False)
            gain = run.tokens_per_s / other.devices / (best.tokens_per_s / question.devices)
            if gain > LEAST_GAIN:
                batch = other.job.global_batch_size
                yield Nearby(other.devices, batch, text_of(run.plan.layout), run.step_time_s, gain)


def _experiment(question: Question, entries: Sequence[Entry]) -> Experiment | None:
    """The first entry next to the one that it is least surely faster than."""
    other = Experiment.rival([entry.plan for entry in entries])
    if other is None:
        return None
    trials = []
    for entry in (entries[0], entries[other]):
        plan = Trial.fewest_replicas(question, entry.plan)
        hours = plan.layout.num_devices * STEPS * entry.step_time_s / HOUR_S
        trials.append(Trial(entry.number, plan, hours))
    first, second = trials
    fewer = min(first.devices, second.devices) < question.devices
    return Experiment((first, second), entries[other].ratio, entries[other].ratio_error, fewer)
