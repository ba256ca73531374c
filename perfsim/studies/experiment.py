"""The cheapest run on the machine that tells two layouts apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from perfsim.errors import PerfsimError
from perfsim.prediction.likeness import SHARDED
from perfsim.prediction.question import Question
from perfsim.strategies import Plan

STEPS = 25
"""assumed: 5 steps to warm up and 20 to measure. Steps of a healthy machine that scatter by 2 % give a mean
within 0.7 %, so that two layouts are compared within 1 %."""
HOUR_S = 3600.0


@dataclass(frozen=True)
class Trial:
    """A layout of the shortlist on the fewest replicas that hold it."""

    entry: int
    """Its number in the shortlist, from 1."""
    plan: Plan
    all_devices: int
    """Number of devices of the whole layout."""
    step_time_s: float
    """Predicted for all replicas, so an upper bound of the trial's."""

    @property
    def devices(self) -> int:
        """Number of devices that the trial takes."""
        return self.plan.layout.num_devices

    @property
    def device_hours(self) -> float:
        """Devices times hours of all steps."""
        return self.devices * STEPS * self.step_time_s / HOUR_S


@dataclass(frozen=True)
class Experiment:
    """Two layouts to run beside one another."""

    trials: tuple[Trial, Trial]
    ratio: float
    """Predicted step time of the second over the first."""
    ratio_error: float
    """The model's own error in this ratio, as the half-width of a 90 % band."""
    steps: int = STEPS
    """Steps of each run."""

    @property
    def fewer_replicas(self) -> bool:
        """Whether a trial leaves out replicas, and the communication between them."""
        return any(trial.devices < trial.all_devices for trial in self.trials)

    @property
    def device_hours(self) -> float:
        """Of both runs together."""
        return sum(trial.device_hours for trial in self.trials)


def rival(plans: Sequence[Plan]) -> int | None:
    """The place of the plan to run beside the first: the fastest that is unlike it where predictions err.

    Whether parameters are sharded weighs most in the likeness to published runs, then the degrees. Layouts of
    equal degrees run nearly the same kernels and messages, so that errors of the model cancel between them.
    """
    for traits in (_is_sharded, _degrees):
        of_first = traits(plans[0])
        for place, plan in enumerate(plans):
            if traits(plan) != of_first:
                return place
    return 1 if len(plans) > 1 else None


def _is_sharded(plan: Plan) -> tuple[int, ...]:
    return (int(plan.layout.zero_stage == SHARDED),)


def _degrees(plan: Plan) -> tuple[int, ...]:
    return plan.layout.tensor, plan.layout.pipeline, plan.layout.data


def fewest_replicas(question: Question, plan: Plan) -> Plan:
    """The plan with as few replicas as fit in memory, each with the same work as before.

    One replica shows everything but the communication between replicas. State that ZeRO shards may need more,
    and under ZeRO 3 all replicas take part in every layer.
    """
    layout = plan.layout
    if layout.zero_stage == SHARDED or "data" not in {field.name for field in fields(layout)}:
        return plan
    for replicas in _divisors(layout.data):
        smaller = replace(layout, data=replicas)
        batch = plan.job.global_batch_size * replicas // layout.data
        asked = replace(question, devices=smaller.num_devices, batch=batch, layout=None)
        try:
            return asked.chosen.plan(asked.job, asked.topology, smaller)
        except PerfsimError:
            continue
    return plan


def _divisors(count: int) -> Iterator[int]:
    return (number for number in range(1, count) if count % number == 0)
