"""The verdict in figures: candidates against each other, and how many times as long each takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfsim.report import text
from perfsim.report.table import Table
from perfsim.studies.result import CandidateResult, StudyResult


@dataclass(frozen=True, slots=True)
class Ratio:
    """One candidate's time to the target, and its ratio to the fastest candidate's."""

    name: str
    time_s: float
    band_s: tuple[float, float]
    ratio: float
    band: tuple[float, float]
    is_first: bool


def ratios_to_first(result: StudyResult) -> list[Ratio]:
    """All candidates, fastest first; a ratio without a band in the result is its own band."""
    pairs = list(zip(text.labels(result.candidates), result.candidates, strict=True))
    ranked = sorted(pairs, key=lambda pair: (math.isnan(_time(pair[1])), _time(pair[1])))
    return [_ratio(name, candidate, ranked[0][1], result) for name, candidate in ranked]


def _time(candidate: CandidateResult) -> float:
    return candidate.time_to_accuracy_s


def _ratio(name: str, candidate: CandidateResult, first: CandidateResult, result: StudyResult) -> Ratio:
    middle = _time(candidate) / _time(first)
    band = result.ratio_bands.get(candidate.label, (middle, middle))
    return Ratio(name, _time(candidate), candidate.time_to_accuracy_band_s, middle, band, candidate is first)


@dataclass(frozen=True, slots=True)
class _Metric:
    """A row of the verdict table; `value` is what `best` chooses by, None where nothing is best."""

    name: str
    cell: Callable[[CandidateResult], str]
    value: Callable[[CandidateResult], float] | None = None
    best: Callable[[Sequence[float]], float] = max


def _metrics(candidates: Sequence[CandidateResult]) -> list[_Metric]:
    """The rows; times to the target share one unit, so that a row compares at a glance."""
    unit, scale = text.time_unit(_time(candidate) for candidate in candidates)

    def band(band_s: tuple[float, float] | None) -> str:
        low, high = (text.number(end / scale) for end in band_s or (math.nan, math.nan))
        return f"{low}{text.NONE}{high} {unit}" if band_s else text.NONE

    def produced(c: CandidateResult) -> str:
        time_s = c.production_time_s
        return f"{text.number(time_s / scale)} {unit}" if time_s is not None else text.NONE

    def peak(c: CandidateResult) -> str:
        share = text.percent(c.peak_memory_bytes / c.memory_capacity_bytes, 0)
        return f"{text.memory(c.peak_memory_bytes, *capacities)} ({share})"

    capacities = [candidate.memory_capacity_bytes for candidate in candidates]
    step_unit, steps = text.in_one_unit(candidate.step_time_s for candidate in candidates)
    of_step = dict(zip(map(id, candidates), steps, strict=True))
    production = [
        _Metric("time in production", produced),
        _Metric("its 90 % band", lambda c: band(c.production_band_s)),
    ]
    return [
        _Metric("time to the target", lambda c: f"{text.number(_time(c) / scale)} {unit}", _time, min),
        _Metric("90 % band", lambda c: band(c.time_to_accuracy_band_s)),
        *(production if any(candidate.production for candidate in candidates) else []),
        _Metric("steps", lambda c: text.integer(c.steps)),
        _Metric("global batch, sequences", lambda c: text.integer(c.global_batch_size)),
        _Metric("step", lambda c: f"{of_step[id(c)]} {step_unit}"),
        _Metric("tokens/s", lambda c: text.integer(c.tokens_per_s), lambda c: c.tokens_per_s),
        _Metric("tokens/s per device", lambda c: text.integer(c.tokens_per_s / max(c.num_devices, 1))),
        _Metric("MFU", lambda c: text.percent(c.mfu), lambda c: c.mfu),
        _Metric("HFU", lambda c: text.percent(c.hfu)),
        _Metric("bubble", lambda c: text.percent(c.bubble_fraction)),
        _Metric("exposed communication", lambda c: text.percent(c.exposed_communication_fraction)),
        _Metric("peak memory", peak),
        _Metric("strategy", lambda c: c.strategy),
        _Metric("layout", lambda c: text.layout_long(c.layout)),
    ]


def verdict_table(result: StudyResult) -> Table:
    """One column per candidate in the order asked, one row per metric; best time, rate, MFU marked."""
    candidates = result.candidates
    metrics = _metrics(candidates)
    rows = [[metric.name, *(metric.cell(candidate) for candidate in candidates)] for metric in metrics]
    caption = (
        "MFU counts the FLOPs of the model, HFU also those of recomputation. Memory is per device, with its "
        "share of the capacity. A star marks the best."
    )
    columns = ["", *text.names(candidates)]
    return Table(columns, rows, caption, frozenset(range(1, len(columns))), _best(metrics, candidates))


def remarks_table(result: StudyResult) -> Table:
    """Remarks on each plan, one in a row, the plan's name beside its first."""
    rows = [
        [name if number == 0 else "", remark]
        for name, candidate in zip(text.names(result.candidates), result.candidates, strict=True)
        for number, remark in enumerate(candidate.notes)
    ]
    return Table(("plan", "remark"), rows)


def _best(metrics: Sequence[_Metric], candidates: Sequence[CandidateResult]) -> frozenset[tuple[int, int]]:
    marked = set()
    for row, metric in enumerate(metrics):
        if metric.value is None or len(candidates) < 2:
            continue
        values = [metric.value(candidate) for candidate in candidates]
        finite = [value for value in values if math.isfinite(value)]
        best = metric.best(finite) if finite else math.nan
        marked |= {(row, column) for column, value in enumerate(values, start=1) if value == best}
    return frozenset(marked)
