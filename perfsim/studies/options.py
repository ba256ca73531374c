"""A candidate as far as its time and its bill depend on what is not known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfsim.convergence.bill import Rates
from perfsim.convergence.time_to_accuracy import TimeToAccuracy, examples_shift
from perfsim.convergence.uncertain import FloatArray, Place, Uncertain
from perfsim.convergence.wall_clock import Training, inputs_of, wall_s
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.question import Question
from perfsim.studies.batches import BatchChoice, training_of
from perfsim.studies.price_spec import rates_of
from perfsim.studies.production import Production, production_of
from perfsim.studies.spec import CandidateSpec, StudySpec
from perfsim.wall_clock import WallClockSpec

SEEDS = "seeds of "
"""Begins the name of the input that is a run's own luck."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A candidate, as far as time and money depend on what is not known."""

    label: str
    system: str
    plan: str
    """Label of the first option with its machine, layout and batch: options of one plan share its error."""
    time: TimeToAccuracy
    training: Training
    rates: Rates
    wall_clock: WallClockSpec | None = None
    production: Production | None = None

    @property
    def basis(self) -> str:
        """What the time on the wall holds besides healthy steps."""
        if self.wall_clock is not None:
            return "the whole run"
        if self.production is not None:
            return "steps at the rate of production"
        return "healthy steps alone"

    @cached_property
    def inputs(self) -> tuple[Uncertain, ...]:
        """Everything that its times and its bill depend on."""
        time, critical = self.time, self.time.critical
        total, own = math.log1p(time.step_time_error), math.log1p(time.unshared_error)
        shared = math.exp(math.sqrt(max(total**2 - own**2, 0.0)))
        inputs = [
            _factor(f"step time of {self.system}, shared", shared),
            _factor(f"step time of {self.plan}", math.exp(min(own, total))),
            _factor("tokens to the target", 1.0 + time.d_min_error, time.d_min_tokens, "tokens"),
            Uncertain(SEEDS + self.label, math.exp(-self._luck(1)), 1.0, math.exp(self._luck(0)), "times"),
        ]
        if not critical.given_length:
            inputs.append(_factor("critical batch", critical.band_factor, critical.tokens, "tokens"))
        if self.wall_clock is not None:
            inputs += inputs_of(self.wall_clock)
        elif self.production is not None:
            inputs.append(_of_production(self.production))
        return (*inputs, *self.rates.inputs)

    def _luck(self, end: int) -> float:
        """What the least error of the examples adds to the end of the critical batch's band, in the log."""
        if self.time.critical.given_length:
            return 0.0
        shift = abs(examples_shift(self.time, self.time.critical.band_tokens[end]))
        return math.sqrt(max(math.log1p(self.time.examples_error) ** 2 - shift**2, 0.0))

    def steps_s(self, place: Place) -> FloatArray:
        """Time of the steps with the inputs at their places."""
        time, known = self.time, {entry.name: entry for entry in self.inputs}

        def at(name: str) -> FloatArray:
            return known[name].at(place(name))

        factors = at(f"step time of {self.system}, shared") * at(f"step time of {self.plan}")
        seconds = at("tokens to the target") / time.batch_tokens * time.step_time_s * factors
        if not time.critical.given_length:
            seconds = seconds * (1.0 + time.batch_tokens / at("critical batch"))
        return np.asarray(seconds * at(SEEDS + self.label))

    def wall_s(self, place: Place) -> FloatArray:
        """Time on the wall with the inputs at their places."""
        steps_s = self.steps_s(place)
        if self.wall_clock is not None:
            return wall_s(self.wall_clock, self.training, steps_s, place)
        if self.production is not None:
            ratio = _of_production(self.production)
            return steps_s / ratio.at(place(ratio.name))
        return steps_s


def option_of(
    spec: StudySpec,
    candidate: CandidateSpec,
    question: Question,
    choice: BatchChoice,
    step: Prediction,
    plan: str,
) -> Option:
    """A candidate of a study at its best batch; `plan` is the label of the first that has the same plan."""
    waiting = step.bubble_fraction + step.exposed_communication_fraction
    training = training_of(question, choice)
    return Option(
        label=step.label,
        system=question.system.name,
        plan=plan,
        time=choice.answer,
        training=training,
        rates=rates_of(
            question.system,
            question.devices,
            training.num_nodes,
            candidate.price,
            spec.energy,
            busy=max(0.0, 1.0 - waiting),
        ),
        wall_clock=candidate.wall_clock,
        production=production_of(spec, candidate),
    )


def _of_production(production: Production) -> Uncertain:
    name = f"rate of production over healthy steps, {production.text}"
    return Uncertain(name, production.range[0], production.ratio, production.range[1], "times")


def _factor(name: str, factor: float, middle: float = 1.0, unit: str = "times") -> Uncertain:
    return Uncertain(name, middle / factor, middle, middle * factor, unit)
