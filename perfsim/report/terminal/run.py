"""One predicted step on a terminal."""

from __future__ import annotations

from perfsim.prediction.prediction import Prediction
from perfsim.prediction.result import Perturbed, SamplingSummary
from perfsim.report.table import Table
from perfsim.report.terminal.layout import MAX_PROSE, table_lines, terminal_width
from perfsim.report.text import (
    duration,
    human,
    in_one_unit,
    integer,
    layout_long,
    peak_memory,
    percent,
    simulated,
)

_STREAMED = "Waits count as what they end with; 'why' counts the wait between two steps as the update."


def run_lines(prediction: Prediction, sampled: SamplingSummary | None = None) -> list[str]:
    """The metrics of a step, what products of it were executed, and what its time is spent on."""
    width = min(terminal_width(), MAX_PROSE)
    caveats = [(caveat.severity, caveat.text) for caveat in prediction.caveats]
    conditions = [*caveats, *_conditions(prediction, sampled)]
    rows = [*_metrics(prediction), *conditions, ("why", prediction.why.sentence)]
    return [
        f"{prediction.model} on {prediction.label}",
        *table_lines(Table(("", ""), rows, whole=frozenset({0})), width),
        "",
        *table_lines(_breakdown(prediction), width),
    ]


def _metrics(prediction: Prediction) -> list[tuple[str, str]]:
    idle = "bubble" if prediction.why.streaming_roof is None else "idle"
    return [
        ("batch", f"{integer(prediction.global_batch_size)} sequences"),
        ("layout", layout_long(prediction.layout)),
        *([("recipe", prediction.training.words)] if prediction.training else []),
        ("step", _step(prediction)),
        ("tokens/s", integer(prediction.tokens_per_s)),
        ("MFU / HFU", f"{percent(prediction.mfu)} / {percent(prediction.hfu)} of peak"),
        (idle, f"{percent(prediction.bubble_fraction)} of the step"),
        ("exposed comm", f"{percent(prediction.exposed_communication_fraction)} of the step"),
        ("peak memory", f"{peak_memory(prediction)} per device"),
    ]


def _step(prediction: Prediction) -> str:
    """The step time with its band."""
    seconds, band = duration(prediction.step_time_s), prediction.band_s
    return seconds if band is None else f"{seconds} (90 % band: {duration(band[0])} to {duration(band[1])})"


def _conditions(prediction: Prediction, sampled: SamplingSummary | None) -> list[tuple[str, str]]:
    """Perturbations, verification and notes, where there are any."""
    rows = []
    if prediction.simulated is not None:
        rows.append(("simulated", simulated(prediction.simulated)))
    if prediction.perturbed is not None:
        rows += _perturbed(prediction.perturbed, prediction.step_time_s)
    if sampled is not None:
        rows.append(("verified", _sampling(sampled)))
    return [*rows, *(("note", note) for note in prediction.notes)]


def _perturbed(perturbed: Perturbed, step_s: float) -> list[tuple[str, str]]:
    """What perturbs the step, what it costs, and what failures leave of the time."""
    before_s, draws_s = perturbed.unperturbed_step_time_s, perturbed.draws_s
    rows = [
        ("perturbed", perturbed.text),
        ("", f"{step_s / before_s:.3f} times the unperturbed step of {duration(before_s)}"),
    ]
    if len(draws_s) > 1:
        rows.append(("", f"{len(draws_s)} draws, {duration(draws_s[0])} to {duration(draws_s[-1])}"))
    if perturbed.note:
        rows.append(("", perturbed.note))
    if run := perturbed.run:
        lost = f"{run.failures} failures, {duration(run.lost_s)} of lost work"
        rows.append(("goodput", f"{percent(run.goodput)} of {duration(run.wall_s)}: {lost}"))
    return rows


def _sampling(sampled: SamplingSummary) -> str:
    """What was executed in NumPy, and how exact it was."""
    return (
        f"{sampled.tasks_sampled} of {integer(sampled.tasks_total)} matrix products, which represent "
        f"{percent(sampled.flop_share)} of their FLOPs: {'right' if sampled.passed else 'WRONG'}; "
        f"largest error {sampled.worst_relative_error:.1e} (bound {sampled.bound:.1e}), {sampled.worst}"
    )


def _breakdown(prediction: Prediction) -> Table:
    """The parts of the step, the longest first."""
    step_s = prediction.step_time_s
    parts = sorted(prediction.breakdown_s.items(), key=lambda item: -item[1])
    parts = [(name, seconds) for name, seconds in parts if seconds > 0]
    unit, times = in_one_unit(seconds for _, seconds in parts)
    rows = [
        (human(name), time, percent(seconds / step_s))
        for (name, seconds), time in zip(parts, times, strict=True)
    ]
    caption = "" if prediction.why.streaming_roof is None else _STREAMED
    return Table(("where the step goes", unit, "share"), rows, caption, frozenset({1, 2}))
