"""Which inputs would explain the gap between a predicted step and a measured one, the likeliest first.

Rates of the machine are varied until the predicted step is the measured one: with x the factor on a rate,
T(x) is close to a + b / x, which two predictions give and a third confirms. Settings that a description may
have wrong (recompute, overlap, attention, micro-batch, how rows travel to experts) are changed one at a time.
Each suspect has a distance in standard deviations: of how far its rate would be from what is described, and
of what is left of the gap over the errors of predictions. All steps have the layout of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

from perfsim.base.errors import InputError, LimitError, PerfsimError
from perfsim.engine.limits import present_limits
from perfsim.prediction.bands import accuracy_of
from perfsim.prediction.planner import best_plan
from perfsim.prediction.predict import training_of
from perfsim.prediction.question import Question
from perfsim.specs.calibration import Dispatcher

BAND_DEVIATIONS = 1.645
"""Standard deviations of a 90 % band."""
LEAST_FACTOR = 0.25
MOST_FACTOR = 4.0
"""Range of factors on a rate."""
CLOSE = 0.01
"""Share of the measured step below which a suspect explains the gap."""
SETTING_DEVIATIONS = 1.0
"""assumed: a setting that was not as described is as likely as a standard deviation of a rate."""
RATES: tuple[tuple[str, str, float], ...] = (
    ("arithmetic of the devices", "device.peak.{precision}", 0.1),
    ("device memory", "device.memory.bandwidth", 0.1),
    ("links inside a node", "node.scale_up.bandwidth", 0.2),
    ("the network between nodes", "node.nic.bandwidth", 0.3),
    ("links of MemoryX", "memoryx.server.bandwidth", 0.2),
    ("links of SwarmX", "swarmx.bandwidth", 0.2),
    ("flash of MemoryX", "memoryx.server.flash.bandwidth", 0.4),
)
"""A rate in words, its dotted path in the system, and its standard deviation in log.

assumed: clocks under a power limit and memory differ by a tenth between devices of one kind, a shared network
by more than links of one machine; figures of flash are the least certain.
"""
HOST_DEVIATION = 0.4
"""assumed: the time of the host to launch a kernel differs by half between processors and releases."""


@dataclass(frozen=True, slots=True)
class Suspect:
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
    """A measured step beside the predicted one, and what would explain the difference."""

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
    suspects: tuple[Suspect, ...]
    """The likeliest first."""

    @property
    def inside(self) -> bool:
        """Whether the measured step is inside the band."""
        return self.band_s[0] <= self.measured_s <= self.band_s[1]


def explain_gap(question: Question, measured_s: float) -> GapExplained:
    """Explain a measured step. Raises InputError for one that is no time, and what planning raises."""
    if not 0.0 < measured_s < math.inf:
        raise InputError(f"a measured step takes more than 0 s, not {measured_s}")
    run = best_plan(question)
    asked = replace(question, layout=run.plan.layout, must_fit=False)
    predicted_s = run.step_time_s
    error = 1.0 + accuracy_of(run.plan, run.hidden_communication_fraction).step_time_error
    spread = math.log(error) / BAND_DEVIATIONS
    gap = math.log(measured_s / predicted_s)
    trial = _Trial(predicted_s, measured_s, gap, spread)
    suspects = [*_rates(asked, trial), *_settings(asked, trial)]
    return GapExplained(
        predicted_s,
        measured_s,
        (predicted_s / error, predicted_s * error),
        abs(gap) / spread,
        run.plan.layout.short,
        run.mfu * predicted_s / measured_s,
        training_of(run.plan).words,
        tuple(sorted(suspects, key=lambda suspect: suspect.deviations)),
    )


@dataclass(frozen=True)
class _Trial:
    """Predictions of changed questions beside the measured step."""

    predicted_s: float
    measured_s: float
    gap: float
    """Log of measured over predicted."""
    spread: float
    """Standard deviation of the log error of predictions."""

    def step_s(self, question: Question) -> float | None:
        """The step of a question; None where it has no plan."""
        present_limits().in_time(lambda: "inputs tried that may explain a measured step")
        try:
            return best_plan(question).step_time_s
        except LimitError:
            raise
        except PerfsimError:
            return None

    def suspect(self, change: str, factor: float | None, step_s: float, prior: float) -> Suspect:
        left = math.log(self.measured_s / step_s)
        explains = 1.0 - left / self.gap if self.gap else 0.0
        deviations = math.hypot(prior, left / self.spread)
        suffices = abs(left) <= BAND_DEVIATIONS * self.spread
        return Suspect(change, factor, step_s, explains, deviations, suffices)

    def rate(self, words: str, changed: Callable[[float], Question], deviation: float) -> Suspect | None:
        """A rate at the factor that comes nearest to the measured step; None where it does nothing."""
        toward = 0.5 if self.gap > 0 else 2.0
        moved = self.step_s(changed(toward))
        if moved is None or abs(moved / self.predicted_s - 1.0) < CLOSE / 10:
            return None
        slope = (moved - self.predicted_s) / (1.0 / toward - 1.0)
        factor = _within((self.measured_s - self.predicted_s) / slope + 1.0)
        step = self.step_s(changed(factor)) or moved
        if abs(step / self.measured_s - 1.0) > CLOSE and LEAST_FACTOR < factor < MOST_FACTOR:
            slope = (step - self.predicted_s) / (1.0 / factor - 1.0)
            factor = _within((self.measured_s - self.predicted_s) / slope + 1.0)
            step = self.step_s(changed(factor)) or step
        return self.suspect(words, factor, step, abs(math.log(factor)) / deviation)


def _within(inverse: float) -> float:
    """The factor of which this is the inverse, within the range of factors."""
    return min(MOST_FACTOR, max(LEAST_FACTOR, 1.0 / inverse if inverse > 0 else MOST_FACTOR))


def _rates(asked: Question, trial: _Trial) -> Iterator[Suspect]:
    for words, template, deviation in RATES:
        path = template.format(precision=asked.recipe.precision)
        value: Any = asked.system
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
        if not value:
            continue

        def changed(factor: float, path: str = path, value: Any = value) -> Question:
            system = asked.system.with_(name=asked.system.name, **{path: factor * value})
            return replace(asked, system=system)

        suspect = trial.rate(words, changed, deviation)
        if suspect is not None:
            yield suspect
    framework = asked.recipe.runtime.framework
    if framework is not None and not framework.cuda_graph:

        def slower_host(factor: float) -> Question:
            host = ("host_s_per_kernel", "expert_pass_s")
            update = {name: getattr(framework, name) / factor for name in host}
            recipe = asked.recipe.ran_with(framework=framework.model_copy(update=update))
            return replace(asked, recipe=recipe)

        words = (
            "the host, which waits for counts of experts" if asked.model.experts else "launches of the host"
        )
        suspect = trial.rate(words, slower_host, HOST_DEVIATION)
        if suspect is not None:
            yield suspect


def _settings(asked: Question, trial: _Trial) -> Iterator[Suspect]:
    """Settings of recipe and layout, each as it may have been instead."""
    for words, question in _changes(asked):
        step = trial.step_s(question)
        if step is not None and abs(step / trial.predicted_s - 1.0) >= CLOSE / 10:
            yield trial.suspect(words, None, step, SETTING_DEVIATIONS)


def _changes(asked: Question) -> Iterator[tuple[str, Question]]:
    recipe = asked.recipe
    layout = asked.layout

    def with_recipe(**update: Any) -> Question:
        return replace(asked, recipe=recipe.model_copy(update=update))

    def ran_with(**settings: Any) -> Question:
        return replace(asked, recipe=recipe.ran_with(**settings))

    other = "flash" if recipe.runtime.attention == "standard" else "standard"
    yield f"attention {other}", ran_with(attention=other)
    for field in ("overlap_grad_reduce", "overlap_param_gather", "fused_cross_entropy"):
        value = not getattr(recipe.runtime, field)
        yield f"{field} {str(value).lower()}", ran_with(**{field: value})
    yield f"dropout {str(not recipe.dropout).lower()}", with_recipe(dropout=not recipe.dropout)
    if recipe.runtime.framework is not None:
        graph = not recipe.runtime.framework.cuda_graph
        framework = recipe.runtime.framework.model_copy(update={"cuda_graph": graph})
        yield f"cuda_graph {str(graph).lower()}", ran_with(framework=framework)
    if asked.model.experts is not None:
        for name in get_args(Dispatcher):
            if name != recipe.expert_dispatcher:
                yield f"dispatcher {name}", ran_with(dispatcher=name)
        routing = "balanced" if recipe.routing == "drawn" else "drawn"
        yield f"routing {routing}", with_recipe(routing=routing)
        grouped = not recipe.runtime.grouped_products
        yield f"grouped_products {str(grouped).lower()}", ran_with(grouped_products=grouped)
    if layout is None or isinstance(layout, str):
        return
    for mode in ("none", "selective", "full"):
        if mode != layout.recompute and hasattr(layout, "recompute_every"):
            changed = replace(layout, recompute=mode, recompute_every=1)
            yield f"recompute {mode}", replace(asked, layout=changed)
    size = layout.micro_batch_size
    for new in (2 * size, size // 2):
        if new:
            changed = replace(layout, micro_batch_size=new)
            yield f"micro-batches of {new}", replace(asked, layout=changed)
