"""One predicted step on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfsim.report.table import Table
from perfsim.report.terminal.layout import MAX_PROSE, table_lines, terminal_width
from perfsim.report.text import duration, human, integer, layout_long, memory, percent

_STREAMED = "Waits count as what they end with; 'why' counts the wait between two steps as the update."


def run_lines(answer: Mapping[str, Any]) -> list[str]:
    """The metrics of a step and what its time is spent on."""
    width = min(terminal_width(), MAX_PROSE)
    rows = [*_metrics(answer), *_conditions(answer), ("why", answer["why"]["sentence"])]
    return [
        f"{answer['model']} on {answer['num_devices']} x {answer['system']}, {answer['strategy']}",
        *table_lines(Table(("", ""), rows), width),
        "",
        *table_lines(_breakdown(answer), width),
    ]


def _metrics(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    idle = "idle" if _streams(answer) else "bubble"
    return [
        ("batch", f"{integer(answer['global_batch_size'])} sequences"),
        ("layout", layout_long(answer["layout"])),
        ("step", duration(answer["step_time_s"])),
        ("tokens/s", integer(answer["tokens_per_s"])),
        ("MFU / HFU", f"{percent(answer['mfu'])} / {percent(answer['hfu'])} of peak"),
        (idle, f"{percent(answer['bubble_fraction'])} of the step"),
        ("exposed comm", f"{percent(answer['exposed_communication_fraction'])} of the step"),
        ("peak memory", f"{memory(answer['peak_memory_bytes'], answer['memory_capacity_bytes'])} per device"),
    ]


def _conditions(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Scale, perturbations, verification and notes, where there are any."""
    rows = []
    if answer.get("cluster_calibration"):
        rows.append(("scaled", answer["cluster_calibration"]["note"]))
    if answer.get("perturbed"):
        rows += _perturbed(answer["perturbed"], answer["step_time_s"])
    if answer.get("sampling"):
        rows.append(("verified", _sampling(answer["sampling"])))
    return [*rows, *(("note", note) for note in answer.get("notes", ()))]


def _perturbed(perturbed: Mapping[str, Any], step_s: float) -> list[tuple[str, str]]:
    """What perturbs the step, what it costs, and what failures leave of the time."""
    before_s, draws = perturbed["unperturbed_step_time_s"], perturbed["draws_s"]
    rows = [
        ("perturbed", perturbed["text"]),
        ("", f"{step_s / before_s:.3f} times the unperturbed step of {duration(before_s)}"),
    ]
    if len(draws) > 1:
        rows.append(("", f"{len(draws)} draws, {duration(draws[0])} to {duration(draws[-1])}"))
    if perturbed["note"]:
        rows.append(("", perturbed["note"]))
    if run := perturbed["run"]:
        lost = f"{run['failures']} failures, {duration(run['lost_s'])} of lost work"
        rows.append(("goodput", f"{percent(run['goodput'])} of {duration(run['wall_s'])}: {lost}"))
    return rows


def _sampling(sampled: Mapping[str, Any]) -> str:
    """What was executed in NumPy, and how exact it was."""
    return (
        f"{sampled['tasks_sampled']} of {integer(sampled['tasks_total'])} matrix products, which represent "
        f"{percent(sampled['flop_share'])} of their FLOPs: {'right' if sampled['passed'] else 'WRONG'}; "
        f"largest error {sampled['worst_relative_error']:.1e} (bound {sampled['bound']:.1e}), "
        f"{sampled['worst']}"
    )


def _breakdown(answer: Mapping[str, Any]) -> Table:
    """The parts of the step, the longest first."""
    step_s = answer["step_time_s"]
    parts = sorted(answer["step_breakdown_s"].items(), key=lambda item: -item[1])
    rows = [
        (human(name), duration(seconds), percent(seconds / step_s)) for name, seconds in parts if seconds > 0
    ]
    columns = ("where the step goes", "time", "share")
    return Table(columns, rows, _STREAMED if _streams(answer) else "", frozenset({1, 2}))


def _streams(answer: Mapping[str, Any]) -> bool:
    return answer["why"].get("streaming_roof") is not None
