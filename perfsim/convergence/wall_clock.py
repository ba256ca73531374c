"""Wall-clock time of a whole run: its steps and everything else it waits for, as ranges.

    wall = queue + compile + load + weights + steps x stragglers x (1 + evaluation) + checkpoints + failures
           + repairs + teardown

A checkpoint stops training for its bytes over the write rate. Failures cost what `failing_time_s`
says, and repairs what `stopped_share` says. Low and high of a part are its ends with all inputs at
their ends: an envelope that is wider than a 90 % band and separate from the band of the steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfsim.base.units import DAY_S
from perfsim.convergence.uncertain import Z_90, FloatArray, Place, Uncertain, require_positive
from perfsim.specs.wall_clock import NumberRange, RateRange, SecondsRange, WallClockSpec

# Wall time of a run that fails: checkpoints, lost work, restarts, and repairs where spares run out.

MOST_MTTFS = 60.0
"""Times between failures that one stretch of work may take: a cap of e^60, far beyond any run."""


def young_interval_s(write_s: float, mttf_s: float) -> float:
    """Checkpoint interval of least loss, to first order: sqrt(2 delta M) (Young 1974)."""
    require_positive(write_s=write_s, mttf_s=mttf_s)
    return math.sqrt(2 * write_s * mttf_s)


def failing_time_s(
    work_s: FloatArray | float,
    interval_s: FloatArray | float,
    write_s: FloatArray | float,
    restart_s: FloatArray | float,
    failures_per_s: FloatArray | float,
) -> FloatArray:
    """Expected seconds of a run of `work_s` that fails at random, exact for exponential failures.

    With M = 1 / `failures_per_s` the time between failures, which may also interrupt a restart or a write:

        T = work (M e^(R / M) (e^((tau + delta) / M) - 1)) / tau

    Work is lost back to the last checkpoint, and a restart of R seconds comes before it is done again. One
    stretch of work tau with its write delta takes M e^(R / M) (e^((tau + delta) / M) - 1) seconds on average
    (Daly 2006's form). Every value may be an array.
    """
    work = np.asarray(work_s, dtype=np.float64)
    interval = np.asarray(interval_s, dtype=np.float64)
    rate = np.asarray(failures_per_s)
    write = np.asarray(write_s)
    restart = np.asarray(restart_s)
    stretch_s = interval + write
    exponent = np.minimum(stretch_s * rate, MOST_MTTFS)
    # expm1(x) / x tends to 1 without failures.
    with np.errstate(invalid="ignore", divide="ignore"):
        growth = np.where(exponent > 0, np.expm1(exponent) / exponent, 1.0)
        stretches = np.where(work > 0, work / interval, 0.0)
    failing: FloatArray = stretches * stretch_s * growth * np.exp(np.minimum(restart * rate, MOST_MTTFS))
    return failing


def stopped_share(spares: int, repairing: FloatArray | float) -> FloatArray:
    """Share of the time in which a run stands still because no spare unit is left.

    `repairing` is failures a second times the seconds of a repair: the mean number of units in repair. A run
    with s spares stands still while s + 1 units are in repair, and does not fail meanwhile: Erlang's loss
    formula B(s + 1, `repairing`), whatever the distribution of repair times (Erlang 1917).
    """
    load = np.asarray(repairing, dtype=np.float64)
    blocked = np.ones_like(load)
    for units in range(1, spares + 2):
        blocked = load * blocked / (units + load * blocked)
    return blocked


LEAST_PROGRESS = 0.05
"""Share of the wall clock that is progress, below which a run is warned of."""


@dataclass(frozen=True, slots=True)
class RunPart:
    """One part of the wall clock."""

    name: str
    low_s: float
    typical_s: float
    high_s: float
    how: str = ""
    """What it was computed from, in words."""


@dataclass(frozen=True, slots=True)
class HealthyRun:
    """The steps of a run, and what its checkpoints and failures depend on."""

    steps: float
    step_time_s: float
    num_parameters: float
    num_nodes: int
    """GPU nodes or wafer-scale systems: the units that fail independently."""

    @property
    def time_s(self) -> float:
        """Time of all steps."""
        return self.steps * self.step_time_s

    def parts(self, spec: WallClockSpec) -> tuple[RunPart, ...]:
        """The parts of a wall clock that take time: steps first, their sum last."""
        upwards = np.array([-Z_90, 0.0, Z_90])
        rates = {_named(spec, name).name for name, value in spec if isinstance(value, RateRange)}
        # Each input goes from the end where the run is shortest to the one where it is longest.
        clock = _Clock(
            spec, self, np.full(3, self.time_s), lambda name: upwards[::-1] if name in rates else upwards
        )
        how = clock.words()
        parts = []
        for name, seconds in clock.parts():
            low_s, typical_s, high_s = np.sort(np.broadcast_to(seconds, 3)).tolist()
            if high_s > 0:
                parts.append(RunPart(name, low_s, typical_s, high_s, how.get(name, "")))
        sums = [sum(getattr(part, end) for part in parts) for end in ("low_s", "typical_s", "high_s")]
        return (*parts, RunPart("whole run", *sums))

    def wall_s(self, spec: WallClockSpec, time_s: FloatArray, place: Place) -> FloatArray:
        """Seconds of the whole run for each time of all steps, with the inputs at their places."""
        parts = _Clock(spec, self, time_s, place).parts()
        return sum((seconds for _, seconds in parts), start=np.zeros(()))


def inputs_of(spec: WallClockSpec) -> list[Uncertain]:
    """The uncertain inputs of a wall clock."""
    return [
        _named(spec, name)
        for name, value in spec
        if isinstance(value, (SecondsRange, RateRange, NumberRange)) and value.low < value.high
    ]


def _named(spec: WallClockSpec, name: str) -> Uncertain:
    spread = getattr(spec, name)
    units = {SecondsRange: "s", RateRange: "B/s"}
    words = f"{name.replace('_', ' ')} of {spec.name}"
    return Uncertain(words, spread.low, spread.typical, spread.high, units.get(type(spread), ""))


@dataclass(frozen=True)
class _Clock:
    """A wall clock with values for all its inputs, and the time of all steps."""

    spec: WallClockSpec
    run: HealthyRun
    time_s: FloatArray
    place: Place

    def of(self, name: str, *, without: float = 0.0) -> FloatArray:
        """The values of a field; `without` where the wall clock has none."""
        if getattr(self.spec, name) is None:
            return np.asarray(without)
        entry = _named(self.spec, name)
        return entry.at(self.place(entry.name))

    def moved_s(self, bytes_a_parameter: float, rate: str) -> FloatArray:
        """Seconds to move so many bytes a parameter; none where the wall clock has no rate."""
        return self.run.num_parameters * bytes_a_parameter / self.of(rate, without=np.inf)

    @property
    def slowed_s(self) -> FloatArray:
        """The steps with their stragglers."""
        return self.time_s * self.of("stragglers", without=1.0)

    @property
    def failures_per_s(self) -> FloatArray:
        """Of the whole machine."""
        return self.of("failures_per_node_day") * self.run.num_nodes / DAY_S

    @property
    def interval_s(self) -> FloatArray:
        """Seconds of training between two checkpoints; the whole run if none is written."""
        if self.spec.checkpoint_rate is None or not self.run.time_s:
            return self.slowed_s
        if self.spec.checkpoint_every != "young":
            return self.spec.checkpoint_every * self.slowed_s / self.run.steps
        # Chosen once, for the typical rates; the run then meets others.
        failures = self.spec.failures_per_node_day.typical if self.spec.failures_per_node_day else 0.0
        bytes_written = self.run.num_parameters * self.spec.checkpoint_bytes
        mttf_s = DAY_S / (failures * self.run.num_nodes)
        best_s = young_interval_s(bytes_written / self.spec.checkpoint_rate.typical, mttf_s)
        return np.minimum(best_s, self.slowed_s)

    def parts(self) -> Iterator[tuple[str, FloatArray]]:
        """Name and seconds of each part."""
        spec = self.spec
        slowed_s = self.slowed_s
        interval_s = self.interval_s
        weights_s = self.moved_s(spec.weight_bytes, "weight_rate")
        write_s = self.moved_s(spec.checkpoint_bytes, "checkpoint_rate")
        writing_s = slowed_s * write_s / interval_s if self.run.time_s else np.zeros(())
        yield "steps", self.time_s
        yield "stragglers", slowed_s - self.time_s
        yield "evaluation", slowed_s * self.of("evaluation")
        for name, field in (("queue", "queue"), ("compilation", "compile"), ("loading", "load")):
            yield name, self.of(field)
        yield "first weights", weights_s
        yield "checkpoints", writing_s
        restart_s = self.of("restart") + self.of("load") + weights_s
        failing_s = failing_time_s(slowed_s, interval_s, write_s, restart_s, self.failures_per_s)
        if spec.failures_per_node_day is not None:
            yield "failures", failing_s - slowed_s - writing_s
        if spec.spares is not None:
            stopped = stopped_share(spec.spares, self.failures_per_s * self.of("repair"))
            yield "waiting for repairs", failing_s * stopped / (1.0 - stopped)
        yield "teardown", self.of("teardown")

    def words(self) -> dict[str, str]:
        """What parts were computed from; the values are the three ends."""

        def typical(values: FloatArray) -> float:
            return float(np.broadcast_to(values, 3)[1])

        spec = self.spec
        run = self.run
        failures_per_s = typical(self.failures_per_s)
        gigabytes = run.num_parameters / 1e9
        written = gigabytes * spec.checkpoint_bytes
        words = {
            "steps": f"{run.steps:,.0f} steps, without their band",
            "stragglers": f"{typical(self.of('stragglers', without=1.0)):g} times the step",
            "evaluation": f"{100 * typical(self.of('evaluation')):.2g} % of the steps",
            "first weights": f"{gigabytes * spec.weight_bytes:,.0f} GB",
            "checkpoints": f"{written:,.0f} GB every {typical(self.interval_s) / 3600:.2g} h",
        }
        if failures_per_s:
            words["failures"] = f"one every {1 / failures_per_s / DAY_S:.2g} days"
            total = sum((seconds for _, seconds in self.parts()), start=np.zeros(3))
            if np.any(self.time_s < LEAST_PROGRESS * total):
                words["failures"] += (
                    "; at an end of the range the run hardly advances: it fails more often than it can "
                    "write checkpoints and restart"
                )
        if spec.spares is not None:
            words["waiting for repairs"] = f"{spec.spares} spare"
        return words
