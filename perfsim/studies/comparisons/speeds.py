"""Speedup of published runs split into statistics, by the law of the batch, and hardware, from their times.

    speedup = device ratio x statistics x hardware,   statistics = E(B of the first) / E(B of the run)

E is the hyperbola through the runs' examples by batch. The hardware half is what is left of the published
times: no machine is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from perfsim.convergence.hyperbola import examples, fit_hyperbola
from perfsim.convergence.time_to_accuracy import split_speedup
from perfsim.errors import InputError
from perfsim.studies.comparisons.spec import Comparison, ComparisonSpec, SpeedsSpec, TimedRun, Value


def compare_speeds(spec: ComparisonSpec, speeds: SpeedsSpec) -> Comparison:
    """One row a run: its speedup over the first, and what statistics and hardware have of it."""
    first = speeds.runs[0]
    law, words = law_of(speeds.runs)
    rows: list[dict[str, Value]] = []
    for run in speeds.runs:
        ratio, speedup = run.devices / first.devices, first.time / run.time
        split = split_speedup(speedup, ratio, law(first.batch), law(run.batch))
        rows.append(
            {
                "name": run.name,
                "devices": run.devices,
                "batch": run.batch,
                "examples": run.examples,
                "law_examples": law(run.batch),
                "time_s": run.time,
                "speedup": speedup,
                "statistical": split.statistical,
                "hardware": split.hardware,
            }
        )
    last = rows[-1]
    times = speeds.runs[-1].devices / first.devices
    verdict = (
        f"{times:g} times the {speeds.device} are {last['speedup']:.1f} times as fast: {times:g} × "
        f"{last['statistical']:.2f} (statistics, by the law) × {last['hardware']:.2f} (hardware, "
        f"read from published times). {words}"
    )
    columns = {
        "name": "run", "devices": speeds.device, "batch": "batch", "examples": "examples",
        "law_examples": "examples\nby law", "time_s": "time", "speedup": "speedup",
        "statistical": "statistics", "hardware": "hardware\n(published)",
    }  # fmt: skip
    note = (
        "Statistics: examples of the first over those of the run, by the law. Hardware: what is left of the "
        f"published speedup over the number of {speeds.device}, of which none is simulated."
    )
    return Comparison(spec.name, spec.title, spec.question, verdict, columns, tuple(rows), (note,))


def law_of(runs: Sequence[TimedRun]) -> tuple[Callable[[float], float], str]:
    """Examples by batch: the hyperbola through two levels, or fitted to more; InputError for one batch."""
    levels: dict[float, list[float]] = {}
    for run in runs:
        levels.setdefault(run.batch, []).append(run.examples)
    if len(levels) < 2:
        raise InputError("runs of one batch tell nothing of statistics: give runs of at least two batches")
    if len(levels) > 2:
        fit = fit_hyperbola([run.batch for run in runs], [run.examples for run in runs])
        e_min, b_crit = fit.e_min, fit.b_crit
    else:
        (small, low), (large, high) = sorted((batch, fmean(own)) for batch, own in levels.items())
        slope = (high - low) / (large - small)
        e_min = low - slope * small
        if slope <= 0 or e_min <= 0:
            raise InputError(
                "the examples of the two batches are on no hyperbola: they must grow with the batch"
            )
        b_crit = e_min / slope
    words = f"The law: E_min {e_min:.3g}, B_crit {b_crit:.3g}"
    words += " (two batches determine it without a check)." if len(levels) == 2 else "."
    return lambda batch: float(examples(batch, e_min, b_crit)), words
