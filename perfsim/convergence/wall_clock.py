"""Wall-clock time of a whole run: its steps and everything else it waits for, as ranges.

    wall = queue + compile + load + weights + steps x stragglers x (1 + evaluation) + checkpoints + failures
           + repairs + teardown

A checkpoint stops training for its bytes over the write rate, or over the rate of its copy to host memory
where it is written in the background. Failures cost what `FailingRun.expected_s` says, and repairs what
`stopped_share` says. Low and high of a part are its ends with all inputs at their ends: an envelope that is
wider than a 90 % band and separate from the band of the steps.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.base.spec import UNNAMED
from perfsim.base.text import number
from perfsim.base.units import DAY_S, TIME_UNITS
from perfsim.convergence.uncertain import Z_90, Place, Uncertain, Values, typical
from perfsim.specs.wall_clock import (
    CheckpointTier,
    FailureDomain,
    Range,
    RateRange,
    SecondsRange,
    WallClockSpec,
)

TINY = 1e-300
MOST_MTTFS = 60.0
"""Times between failures that one stretch of work may take: a cap of e^60, far beyond any run."""


def young_interval_s(write_s: float, mttf_s: float) -> float:
    """Checkpoint interval of least loss, to first order: sqrt(2 delta M) (Young 1974)."""
    return math.sqrt(2 * write_s * mttf_s)


def failing_time_s(
    work_s: Values, interval_s: Values, write_s: Values, restart_s: Values, failures_per_s: Values
) -> Floats:
    """Expected seconds of a run of `work_s` that fails at random, exact for exponential failures.

    With M = 1 / `failures_per_s` the time between failures, which may also interrupt a restart or a write:

        T = work (M e^(R / M) (e^((tau + delta) / M) - 1)) / tau

    Work is lost back to the last checkpoint, and a restart of R seconds comes before it is done again, with
    its write delta (Daly 2006's form). Every value may be an array.
    """
    work = np.asarray(work_s, dtype=np.float64)
    stretch_s = np.asarray(interval_s, dtype=np.float64) + write_s
    exponent = np.minimum(stretch_s * failures_per_s, MOST_MTTFS)
    # expm1(x) / x tends to 1 without failures.
    with np.errstate(invalid="ignore", divide="ignore"):
        growth = np.where(exponent > 0, np.expm1(exponent) / exponent, 1.0)
        stretches = np.where(work > 0, work / interval_s, 0.0)
    again = np.exp(np.minimum(np.asarray(restart_s) * failures_per_s, MOST_MTTFS))
    return np.asarray(stretches * stretch_s * growth * again)


def _sum(values: Iterable[Values]) -> Floats:
    return sum((np.asarray(value, dtype=np.float64) for value in values), np.zeros(()))


@dataclass(frozen=True, slots=True)
class Failing:
    """Units of one domain, and what each of their failures costs."""

    failures_per_s: Values
    """Of all units."""
    restart_s: Values = 0.0
    """From a failure until training resumes, with loading and reading."""
    repair_s: Values = 0.0
    """Until what failed is ready again; 0 where no node is lost."""
    nodes: int = 1
    """That a failure takes, each of which a spare replaces."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Copies of the training state, and the failures after which a run begins again from them."""

    interval_s: Values
    """Training between two copies."""
    write_s: Values = 0.0
    """Of one copy, in which training stops."""
    domains: tuple[Failing, ...] = ()
    background_s: Values = 0.0
    """From then until the copy is complete, at most an interval, in which training goes on."""

    @property
    def failures_per_s(self) -> Floats:
        return _sum(domain.failures_per_s for domain in self.domains)

    @property
    def restart_s(self) -> Floats:
        """The mean restart."""
        restarts = (domain.failures_per_s * domain.restart_s for domain in self.domains)
        return _sum(restarts) / np.maximum(self.failures_per_s, TINY)


@dataclass(frozen=True, slots=True)
class FailingRun:
    """Work that fails and begins again from copies, nearest tier first; values may be arrays of runs."""

    work_s: Values
    tiers: tuple[Tier, ...]
    spares: int | None = None
    """Nodes that stand in for those in repair; None: there is always one."""

    @property
    def writing_s(self) -> Floats:
        """Seconds of all copies of a run without failures."""
        return _sum(self.work_s * tier.write_s / np.maximum(tier.interval_s, TINY) for tier in self.tiers)

    @property
    def expected_s(self) -> Floats:
        """Expected seconds with failures, without repairs: `failing_time_s` tier by tier, nearest first."""
        # What lengthens the work between two copies lengthens what the next tier repeats. A copy that is not
        # complete is lost with the work done meanwhile: a longer restart. Exact for one tier, equal restarts.
        total = np.asarray(self.work_s, dtype=np.float64)
        for tier in self.tiers:
            interval_s = tier.interval_s * total / np.maximum(self.work_s, TINY)
            again_s = tier.restart_s + tier.background_s
            total = failing_time_s(total, interval_s, tier.write_s, again_s, tier.failures_per_s)
        return total

    @property
    def stopped_s(self) -> Floats:
        """Seconds of waiting for repairs."""
        if self.spares is None:
            return np.zeros(())
        domains = [domain for tier in self.tiers for domain in tier.domains]
        loads = [(domain.nodes, domain.failures_per_s * domain.repair_s) for domain in domains]
        stopped = stopped_share(self.spares, loads)
        return self.expected_s * stopped / (1.0 - stopped)


def stopped_share(spares: int, repairing: Sequence[tuple[int, Values]]) -> Floats:
    """Share of the time in which a run stands still because spare nodes lack.

    `repairing` has for each domain the nodes that a failure takes, and failures a second times the seconds
    of a repair. A run with s spares stands still while more than s nodes are in repair, and does not fail
    meanwhile. Kaufman's recursion (1981) over the nodes in repair; of domains of equal size it is Erlang's
    loss formula, exact whatever the distribution of repair times (1917), of others within a tenth.
    """
    with np.errstate(divide="ignore"):
        known = [(taken, np.log(np.multiply(load, taken, dtype=np.float64))) for taken, load in repairing]
    most = max((taken for taken, _ in known), default=1)
    none = np.asarray(-math.inf)
    # Logarithms of the weights of the states; the state without a node in repair comes first.
    running = np.zeros(())
    stopped = none
    recent = deque([running], most)
    for nodes in range(1, spares + most + 1):
        ways = [load + recent[-taken] for taken, load in known if 0 <= nodes - taken <= spares]
        recent.append(reduce(np.logaddexp, ways, none) - math.log(nodes))
        if nodes <= spares:
            running = np.logaddexp(running, recent[-1])
        else:
            stopped = np.logaddexp(stopped, recent[-1])
    return np.asarray(np.exp(stopped - np.logaddexp(running, stopped)))


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
    num_devices: int = 0
    """GPUs or wafers."""

    @property
    def time_s(self) -> float:
        return self.steps * self.step_time_s

    def parts(self, spec: WallClockSpec) -> tuple[RunPart, ...]:
        """The parts of a wall clock that take time: steps first, their sum last."""
        upwards = np.array([-Z_90, 0.0, Z_90])
        rates = {entry.name for entry in _ranges(spec).values() if entry.unit == "B/s"}
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
        failing = self.failing(spec)
        goodput = self.time_s / float(failing.expected_s + failing.stopped_s) if self.time_s else 1.0
        return (*parts, replace(RunPart("whole run", *sums), how=f"goodput {100 * goodput:.1f} %"))

    def wall_s(self, spec: WallClockSpec, time_s: Floats, place: Place) -> Floats:
        """Seconds of the whole run for each time of all steps, with the inputs at their places."""
        return _sum(seconds for _, seconds in _Clock(spec, self, time_s, place).parts())

    def failing(self, spec: WallClockSpec) -> FailingRun:
        """The steps with their stragglers and what interrupts them, with all inputs typical."""
        return _Clock(spec, self, np.asarray(self.time_s), typical).failing


_UNITS = {SecondsRange: "s", RateRange: "B/s"}


def inputs_of(spec: WallClockSpec) -> list[Uncertain]:
    """The uncertain inputs of a wall clock."""
    return [entry for entry in _ranges(spec).values() if entry.low < entry.high]


def _ranges(spec: WallClockSpec) -> dict[int, Uncertain]:
    """The ranges of a wall clock by their ids, named by field, domain or tier, and clock."""
    named: list[Any] = [part for tier in spec.copies for part in (*tier.survives, tier)]
    clock = "the study's own wall clock" if spec.name == UNNAMED else spec.name
    parts = [(f"{part.name} of {clock}", part) for part in named]
    return {
        id(value): Uncertain(
            f"{name.replace('_', ' ')} of {of}",
            *(value.low, value.typical, value.high),
            _UNITS.get(type(value), ""),
        )
        for of, part in (*parts, (clock, spec))
        for name, value in part
        if isinstance(value, Range)
    }


@dataclass(frozen=True)
class _Clock:
    """A wall clock with values for all its inputs, and the time of all steps."""

    spec: WallClockSpec
    run: HealthyRun
    time_s: Floats
    place: Place

    @cached_property
    def ranges(self) -> Mapping[int, Uncertain]:
        return _ranges(self.spec)

    def of(self, given: Range[Any] | None, *, without: float = 0.0) -> Floats:
        """The values of a range; `without` where the wall clock has none."""
        if given is None:
            return np.asarray(without)
        entry = self.ranges[id(given)]
        return entry.at(self.place(entry.name))

    def moved_s(self, bytes_a_parameter: float, rate: RateRange | None, streams: int = 1) -> Floats:
        """Seconds to move so many bytes a parameter; none where the wall clock has no rate."""
        return self.run.num_parameters * bytes_a_parameter / (streams * self.of(rate, without=np.inf))

    @cached_property
    def slowed_s(self) -> Floats:
        return self.time_s * self.of(self.spec.stragglers, without=1.0)

    def failures_a_day(self, domain: FailureDomain) -> Floats:
        """Of all units of a domain."""
        devices = domain.devices
        units = self.run.num_nodes if devices is None else -(-self.run.num_devices // devices)
        return self.of(domain.failures_per_day) * units

    def nodes(self, domain: FailureDomain) -> int:
        """Nodes of a unit, whole ones."""
        run = self.run
        return max(1, -(-(domain.devices or 1) * run.num_nodes // max(run.num_devices, run.num_nodes)))

    def copy_s(self, tier: CheckpointTier) -> tuple[Floats, Floats]:
        """Seconds of one copy in which training stops, and in which it goes on."""
        size = self.spec.checkpoint_bytes
        # Checkpoints, which have no name, share one rate.
        whole_s = self.moved_s(size, tier.node_rate, self.run.num_nodes if tier.name else 1)
        if tier.copy_rate is None:
            return whole_s, np.zeros(())
        return self.moved_s(size, tier.copy_rate, self.run.num_nodes), whole_s

    @cached_property
    def failing(self) -> FailingRun:
        """The steps with their stragglers, what fails, and from which copies it begins again."""
        return FailingRun(self.slowed_s, tuple(map(self.tier, self.spec.copies)), self.spec.spares)

    def tier(self, tier: CheckpointTier) -> Tier:
        """Copies with what they survive."""
        spec = self.spec
        write_s, background_s = self.copy_s(tier)
        whole_s = write_s if tier.copy_rate is None else background_s
        read_s = whole_s if tier.name else self.moved_s(spec.weight_bytes, spec.weight_rate)
        ready_s = self.of(spec.load) + read_s
        domains = [
            Failing(
                self.failures_a_day(domain) / DAY_S,
                self.of(domain.restart) + ready_s,
                self.of(domain.repair),
                self.nodes(domain),
            )
            for domain in tier.survives
        ]
        return Tier(self.interval_s(tier, background_s), write_s, tuple(domains), background_s)

    def interval_s(self, tier: CheckpointTier, background_s: Floats) -> Floats:
        """Seconds of training between two copies, one written at a time; the whole run if none is needed."""
        if not (self.run.time_s and (tier.name or tier.node_rate)):
            return self.slowed_s
        if tier.every != "young":
            return np.maximum(tier.every * self.slowed_s / self.run.steps, background_s)
        # Chosen once, for the typical rates; the run then meets others.
        usual = replace(self, place=typical)
        failures_a_day = float(_sum(map(usual.failures_a_day, tier.survives)))
        best_s = young_interval_s(float(usual.copy_s(tier)[0]), DAY_S / max(failures_a_day, TINY))
        return np.minimum(np.maximum(best_s, background_s), self.slowed_s)

    def parts(self) -> Iterator[tuple[str, Floats]]:
        spec = self.spec
        failing = self.failing
        yield "steps", self.time_s
        yield "stragglers", self.slowed_s - self.time_s
        yield "evaluation", self.slowed_s * self.of(spec.evaluation)
        for name, given in (("queue", spec.queue), ("compilation", spec.compile), ("loading", spec.load)):
            yield name, self.of(given)
        yield "first weights", self.moved_s(spec.weight_bytes, spec.weight_rate)
        yield "checkpoints", failing.writing_s
        if any(tier.survives for tier in spec.copies):
            yield "failures", failing.expected_s - self.slowed_s - failing.writing_s
        if spec.spares is not None:
            yield "waiting for repairs", failing.stopped_s
        yield "teardown", self.of(spec.teardown)

    def words(self) -> dict[str, str]:
        """What parts were computed from; the values are the three ends."""

        def middle(values: Values) -> float:
            return float(np.broadcast_to(values, 3)[1])

        def lasting(seconds: float) -> str:
            name, size = next((name, size) for name, _, size, least in TIME_UNITS if seconds >= least)
            return f"{number(seconds / size, 2)} {name}"

        spec = self.spec
        run = self.run
        failures_per_s = middle(_sum(tier.failures_per_s for tier in self.failing.tiers))
        gigabytes = run.num_parameters / 1e9
        copies = [
            f"{gigabytes * spec.checkpoint_bytes:,.0f} GB every {lasting(middle(made.interval_s))}"
            + (f" to {tier.name}" if tier.name else "")
            + (f", written in the background in {middle(made.background_s):.3g} s" if tier.copy_rate else "")
            for tier, made in zip(spec.copies, self.failing.tiers, strict=True)
        ]
        words = {
            "steps": f"{run.steps:,.0f} steps, without their band",
            "stragglers": f"{middle(self.of(spec.stragglers, without=1.0)):g} times the step",
            "evaluation": f"{100 * middle(self.of(spec.evaluation)):.2g} % of the steps",
            "first weights": f"{gigabytes * spec.weight_bytes:,.0f} GB",
            "checkpoints": ", ".join(copies),
        }
        if failures_per_s:
            words["failures"] = f"one every {lasting(1 / failures_per_s)}"
            total = _sum(seconds for _, seconds in self.parts())
            if np.any(self.time_s < LEAST_PROGRESS * total):
                words["failures"] += "; at an end of the range the run hardly advances between failures"
        if spec.spares is not None:
            words["waiting for repairs"] = f"{spec.spares} spare"
        return words
