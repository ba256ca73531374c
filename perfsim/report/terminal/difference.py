"""Two studies or two answers side by side on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.report import text
from perfsim.report.table import Table
from perfsim.report.terminal.layout import paragraph, table_lines, terminal_width
from perfsim.studies.differences import Change, Difference, Moved


def difference_lines(difference: Difference) -> list[str]:
    """How the time of each candidate moves, and what each changed input does alone."""
    width = terminal_width()
    heading = f"{difference.first} and {difference.second}: {len(difference.changes)} inputs differ"
    moved = Table(
        ("candidate", "before", "after", "times", "together"),
        [_row(own) for own in difference.candidates],
        "",
        frozenset({1, 2, 3, 4}),
    )
    lines = [*paragraph(heading, width), "", *table_lines(moved, width)]
    lines += [line for own in difference.missing for line in paragraph(own, width)]
    if difference.changes:
        tried = any(own.ratios or own.reason for own in difference.changes)
        names = [str(number) for number, _ in enumerate(difference.candidates, start=1) if tried]
        columns = ("input", "before", "after", *(f"alone,\n{name}" for name in names))
        rows = [[own.path, own.before, own.after, *_ratios(own, len(names))] for own in difference.changes]
        lines += ["", *table_lines(Table(columns, rows, "", frozenset(range(3, len(columns)))), width)]
        note = (
            "Times: time to the target after over before. Alone: the first with this input of the second, by "
            "candidate. Together: what is left of the ratio when the single ones are divided out."
        )
        lines += paragraph(note, width) if tried else []
    return lines


def _row(own: Moved) -> list[str]:
    name = own.before if own.before == own.after else f"{own.before} \u2192 {own.after}"
    times = (text.duration(own.time_before_s), text.duration(own.time_after_s))
    together = text.NONE if own.remainder is None else f"{own.remainder:.3f}"
    return [name, *times, f"{own.ratio:.3f}", together]


def _ratios(change: Change, count: int) -> Sequence[str]:
    if change.reason and count:
        return [change.reason, *[text.NONE] * (count - 1)]
    return ["n/a" if ratio is None else f"{ratio:.3f}" for ratio in change.ratios[:count]]
