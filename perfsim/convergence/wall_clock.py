"""Wall-clock time of a whole run: its steps and everything else it waits for, as ranges.

    wall = queue + compile + load + weights + steps x (1 + stragglers) + checkpoints + failures + teardown

A checkpoint stops training for its bytes over the write rate. A failure costs the restart and half an
interval of work, to first order (`goodput.linear_goodput`). Low and high add every part at that end: an
envelope that is wider than a 90 % band and separate from the band of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from perfsim.convergence.goodput import linear_goodput, mean_time_to_failure_s, young_interval_s
from perfsim.units import DAY_S
from perfsim.wall_clock import NumberRange, RateRange, SecondsRange, WallClockSpec

Three = tuple[float, float, float]
"""Low, typical, high."""
NONE: Three = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Training:
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


@dataclass(frozen=True, slots=True)
class RunPart:
    """One part of the wall clock."""

    name: str
    low_s: float
    typical_s: float
    high_s: float
    how: str = ""
    """What it was computed from, in words."""


def whole_run(spec: WallClockSpec, training: Training) -> tuple[RunPart, ...]:
    """The parts of the wall clock that take time: steps first, their sum last."""
    parts = [part for part in _parts(spec, training) if part.high_s > 0]
    sums = [sum(getattr(part, end) for part in parts) for end in ("low_s", "typical_s", "high_s")]
    return (*parts, RunPart("whole run", *sums))


def _parts(spec: WallClockSpec, run: Training) -> Iterator[RunPart]:
    yield RunPart("steps", run.time_s, run.time_s, run.time_s, f"{run.steps:,.0f} steps, without their band")
    slower = _numbers(spec.stragglers, 1.0)
    yield _part("stragglers", lambda end: run.time_s * (slower[end] - 1.0), f"{slower[1]:g} times the step")
    yield _plain("queue", spec.queue)
    yield _plain("compilation", spec.compile)
    yield _plain("loading", spec.load)
    weights_s = _bytes_s(run.num_parameters * spec.weight_bytes, spec.weight_rate)
    gigabytes = run.num_parameters * spec.weight_bytes / 1e9
    yield RunPart("first weights", *weights_s, f"{gigabytes:,.0f} GB")
    writes = _bytes_s(run.num_parameters * spec.checkpoint_bytes, spec.checkpoint_rate)
    intervals = _intervals_s(spec, run, writes, slower)
    checkpoints = _part("checkpoints", lambda end: run.time_s * slower[end] * writes[end] / intervals[end])
    gigabytes = run.num_parameters * spec.checkpoint_bytes / 1e9
    how = f"{gigabytes:,.0f} GB every {intervals[1] / 3600:.2g} h"
    yield RunPart("checkpoints", checkpoints.low_s, checkpoints.typical_s, checkpoints.high_s, how)
    yield _failures(spec, run, intervals, weights_s, slower)
    yield _plain("teardown", spec.teardown)


def _failures(
    spec: WallClockSpec, run: Training, intervals: Three, weights_s: Three, slower: Three
) -> RunPart:
    """Restarts and lost work: (1 / G - 1) of the step time, with G the goodput."""
    if spec.failures_per_node_day is None:
        return RunPart("failures", *NONE)
    rates, restarts = _numbers(spec.failures_per_node_day, 0.0), _seconds(spec.restart)
    loads = _seconds(spec.load)
    warnings: list[str] = []

    def lost_s(end: int) -> float:
        if rates[end] == 0.0:
            return 0.0
        mttf_s = mean_time_to_failure_s(run.num_nodes, rates[end])
        goodput = linear_goodput(mttf_s, restarts[end] + loads[end] + weights_s[end], intervals[end])
        warnings.extend(filter(None, [goodput.warning]))
        return run.time_s * slower[end] * (1.0 / goodput.share - 1.0)

    part = _part("failures", lost_s)
    every_s = mean_time_to_failure_s(run.num_nodes, rates[1]) if rates[1] else float("inf")
    how = "; ".join(dict.fromkeys([f"one every {every_s / DAY_S:.2g} days", *warnings]))
    return RunPart("failures", part.low_s, part.typical_s, part.high_s, how)


def _intervals_s(spec: WallClockSpec, run: Training, writes: Three, slower: Three) -> Three:
    """Seconds of training between two checkpoints; the whole run if none is written."""
    if spec.checkpoint_rate is None or not run.time_s:
        return run.time_s, run.time_s, run.time_s
    if spec.checkpoint_every != "young":
        low, typical, high = (spec.checkpoint_every * run.step_time_s * factor for factor in slower)
        return low, typical, high
    rate = spec.failures_per_node_day.typical if spec.failures_per_node_day else 0.0
    best_s = young_interval_s(writes[1], mean_time_to_failure_s(run.num_nodes, rate))
    return best_s, best_s, best_s


def _part(name: str, seconds: Callable[[int], float], how: str = "") -> RunPart:
    return RunPart(name, seconds(0), seconds(1), seconds(2), how)


def _plain(name: str, spread: SecondsRange | None) -> RunPart:
    return RunPart(name, *_seconds(spread))


def _seconds(spread: SecondsRange | None) -> Three:
    return NONE if spread is None else (spread.low, spread.typical, spread.high)


def _numbers(spread: NumberRange | None, without: float) -> Three:
    return (without,) * 3 if spread is None else (spread.low, spread.typical, spread.high)


def _bytes_s(n_bytes: float, rate: RateRange | None) -> Three:
    """Seconds to move the bytes; the highest rate gives the low end."""
    return NONE if rate is None else (n_bytes / rate.high, n_bytes / rate.typical, n_bytes / rate.low)
