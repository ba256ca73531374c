"""Why each candidate takes its time, and what changes would do, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.report import text
from perfsim.report.table import Table
from perfsim.report.terminal.layout import paragraph, table_lines, terminal_width
from perfsim.studies.trials import NOTABLE, Explained, Tried


def why_lines(explained: Sequence[Explained]) -> list[str]:
    """For each candidate the path of its step in words, and a table of the changes that were tried."""
    width = terminal_width()
    lines: list[str] = []
    for own in explained:
        parts = [f"{name} {text.duration(seconds)}" for name, seconds in own.parts_s.items() if seconds]
        words = (
            f"{own.label}: {text.duration(own.time_s)} to the target, a step of "
            f"{text.duration(own.step_time_s)}. {own.sentence} The path of the step: {', '.join(parts)}."
        )
        idle = [tried.change for tried in own.tried if _does_nothing(tried)]
        rest = [f"Tried without effect: {', '.join(idle)}."] if idle else []
        lines += [*paragraph(words, width), "", *table_lines(_table(own), width)]
        lines += [line for note in rest for line in paragraph(note, width)] + [""]
    return lines[:-1]


def _does_nothing(tried: Tried) -> bool:
    return tried.ratio is not None and abs(1.0 - tried.ratio) < NOTABLE


def _table(own: Explained) -> Table:
    rows = [[tried.change, *_cells(tried)] for tried in own.tried if not _does_nothing(tried)]
    return Table(("change, tried", "step", "time to\ntarget", "effect"), rows, "", frozenset({1, 2}))


def _cells(tried: Tried) -> list[str]:
    if tried.ratio is None or tried.step_time_s is None or tried.time_s is None:
        return [text.NONE, text.NONE, f"not possible: {tried.reason}"]
    gain = 1.0 - tried.ratio
    effect = f"{abs(gain):.1%} {'sooner' if gain > 0 else 'later'}".replace("%", " %")
    return [text.duration(tried.step_time_s), text.duration(tried.time_s), effect]
