"""One predicted step on a terminal."""

from __future__ import annotations

import math
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from perfsim.report import text
from perfsim.report.caveats import MOST_AT_HEAD, about, split
from perfsim.report.table import Table
from perfsim.report.text import (
    NONE,
    counted,
    duration,
    human,
    in_one_unit,
    integer,
    layout_long,
    peak_memory,
    percent,
    simulated,
)

if TYPE_CHECKING:
    from perfsim.prediction.caveats import SharedCaveat
    from perfsim.prediction.disturbed import Perturbed
    from perfsim.prediction.prediction import Prediction
    from perfsim.prediction.verification import SamplingSummary
    from perfsim.prediction.why import GapExplained, Suspect
    from perfsim.studies.comparisons import Comparison
    from perfsim.studies.differences import Change, Difference, Moved
    from perfsim.studies.trials import Explained, Tried


# How text is laid out on a terminal: the one function that draws tables, and paragraphs.
#
# Plain text without box characters, so that pipes and terminals without UTF-8 show it alike; colours are
# put on
# where it is printed.

LEAST_WIDTH = 40
PIPE_WIDTH = 100
MAX_PROSE = 100
"""Longer lines of prose are hard to read."""
MAX_WORD = 30
"""Longer words may be broken where a column is narrow."""
_BREAK = re.compile(r"\s|(?<=[^\W\d]-)(?=[^\W\d])")
"""Where `textwrap` breaks lines: at spaces, and after a hyphen between letters."""
UNITS = ("years", "days", "h", "min", "s", "ms", "\u00b5s", "%", "GB", "GiB", "billion")
_MEASURE = re.compile(rf"(?<=\d) (?=(?:{'|'.join(map(re.escape, UNITS))})(?!\w))")
"""The space between a number and its unit, at which no line is broken."""
MARK = "*"
"""Before the best cell of a column."""


def terminal_width() -> int:
    """Columns of the terminal, at least 40; 100 where the output is no terminal."""
    return max(LEAST_WIDTH, shutil.get_terminal_size((PIPE_WIDTH, 24)).columns)


def paragraph(prose: str, width: int, indent: str = "") -> list[str]:
    """The text in lines no wider than `width`; all have the indent, and no number is parted from its unit."""
    joined = _MEASURE.sub("\u00a0", prose)
    lines = textwrap.wrap(joined, min(width, MAX_PROSE), initial_indent=indent, subsequent_indent=indent)
    return [line.replace("\u00a0", " ") for line in lines]


def caveat_lines(
    caveats: Sequence[SharedCaveat], verdict: str, width: int, most: int = MOST_AT_HEAD
) -> list[str]:
    """The worst caveats, serious ones in full, and how many the report has besides."""
    shown, rest = split(caveats, verdict, most)
    lines = []
    for caveat in shown:
        said = caveat.text if caveat.severity == "serious" else caveat.headline
        lines += paragraph(f"{caveat.severity}: {about(caveat)}: {said}", width)
    if rest:
        lines.append(f"... {counted(len(rest), 'more caveat')} in the report")
    return lines


def table_lines(table: Table, width: int) -> list[str]:
    """A table: heading (names may have line feeds), rule, rows, caption; no heading without any name.

    Where it is wider than `width`, the gaps close to one space and columns of names wrap; figures do not.
    Where that is not enough either, each row becomes a few lines of names and values. A row with nothing but
    its first cell is a heading of those below it.
    """
    head = _head(table)
    rows = [_marked(table, index) for index in range(len(table.rows))]
    ruled = [row for row in rows if not _is_heading(row)] or rows
    widths = [max(map(len, column)) for column in zip(*head, *ruled, strict=True)]
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= width else 1
    _squeeze(widths, [*head, *ruled], table.numeric | table.whole, width - gap * (len(widths) - 1))
    if head and sum(widths) + gap * (len(widths) - 1) > width:
        return [*_records(table, rows, width), *paragraph(table.caption, width)]
    lines = [_line(row, widths, table.numeric, gap) for row in head]
    if lines:
        lines.append("-" * min(sum(widths) + gap * (len(widths) - 1), width))
    for row in rows:
        if _is_heading(row):
            lines += paragraph(row[0], width)
            continue
        lines += [_line(part, widths, table.numeric, gap) for part in _wrapped(row, widths)]
    return lines + paragraph(table.caption, width)


def _is_heading(row: Sequence[str]) -> bool:
    """Whether a row has nothing but its first cell."""
    return len(row) > 2 and not any(cell.strip() for cell in row[1:])


def _records(table: Table, rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Each row as its name, and below it every other cell behind the name of its column."""
    lines: list[str] = []
    for name, *cells in rows:
        values = [
            _said(of, cell.strip()) for of, cell in zip(table.columns[1:], cells, strict=True) if cell.strip()
        ]
        lines += [*paragraph(name.strip(), width), *paragraph("; ".join(values), width, "  ")]
    return lines


def _said(column: str, cell: str) -> str:
    """`step 4.59 s` for a cell below `step` and `s`, else the cell behind the words of its column."""
    name, _, unit = column.partition("\n")
    return f"{name} {cell} {unit}" if unit in UNITS else " ".join([*column.split(), cell])


def _head(table: Table) -> list[list[str]]:
    """The heading line by line, names set on its last lines."""
    if not any(table.columns):
        return []
    names = [column.split("\n") for column in table.columns]
    depth = max(map(len, names))
    marked = {column for _, column in table.best}
    padded = [[""] * (depth - len(lines)) + lines for lines in names]
    return [
        [(" " if index in marked else "") + lines[row] for index, lines in enumerate(padded)]
        for row in range(depth)
    ]


def _marked(table: Table, row: int) -> list[str]:
    """The cells of a row; in a column with marks all have room for one."""
    marked = {column for _, column in table.best}
    return [
        (MARK if (row, column) in table.best else " ") + cell if column in marked else cell
        for column, cell in enumerate(table.rows[row])
    ]


def _squeeze(widths: list[int], rows: Sequence[Sequence[str]], numeric: frozenset[int], room: int) -> None:
    """Narrow columns of names until all fit or none can give way, so that few cells have to wrap."""
    least = [
        size if index in numeric else max(map(_longest_word, column))
        for index, (size, column) in enumerate(zip(widths, zip(*rows, strict=True), strict=False))
    ]
    while sum(widths) > room:
        names = [index for index, size in enumerate(least) if widths[index] > size]
        if not names:
            return
        widths[min(names, key=lambda index: (_lines(rows, widths, index), -widths[index], -index))] -= 1


def _longest_word(cell: str) -> int:
    """Length of the longest part that cannot wrap; very long words, such as addresses, are broken."""
    indent = len(cell) - len(cell.lstrip(f"{MARK} "))
    return min(MAX_WORD, indent + max(map(len, re.split(_BREAK, cell[indent:]))))


def _lines(rows: Sequence[Sequence[str]], widths: Sequence[int], narrowed: int) -> int:
    """About how many lines the rows take with one column narrower by one."""
    sizes = [max(width - (index == narrowed), 1) for index, width in enumerate(widths)]
    return sum(
        max(math.ceil(len(cell) / size) for cell, size in zip(row, sizes, strict=True)) for row in rows
    )


def _wrapped(row: Sequence[str], widths: Sequence[int]) -> list[tuple[str, ...]]:
    """The row line by line: further lines hold what is left of the cells that wrap."""
    cells = [_cell(cell, size) for cell, size in zip(row, widths, strict=True)]
    return list(zip_longest(*cells, fillvalue=""))


def _cell(cell: str, size: int) -> list[str]:
    """The cell in lines, further ones under the first one's text."""
    if len(cell) <= size:
        return [cell]
    indent = len(cell) - len(cell.lstrip(f"{MARK} "))
    return textwrap.wrap(cell, size, subsequent_indent=" " * indent)


def _line(cells: Sequence[str], widths: Sequence[int], numeric: frozenset[int], gap: int) -> str:
    parts = (
        cell.rjust(size) if column in numeric else cell.ljust(size)
        for column, (cell, size) in enumerate(zip(cells, widths, strict=True))
    )
    return (" " * gap).join(parts).rstrip()


# Rows of the catalogue on a terminal.


def row_lines(rows: Sequence[Mapping[str, str]], title: str) -> list[str]:
    """A table of the rows."""
    if not rows:
        return [f"{title}: nothing"]
    columns = list(rows[0])
    table = Table(columns, [[row[name] for name in columns] for row in rows], whole=frozenset({0}))
    return table_lines(table, terminal_width())


# A comparison on a terminal.


def comparison_lines(result: Comparison) -> list[str]:
    """The title, the table, the answer in words, and what the columns are."""
    from perfsim.report.comparison import comparison_table  # it draws a page

    width = terminal_width()
    lines = [*paragraph(result.title, width), "", *table_lines(comparison_table(result), width), ""]
    return [*lines, *paragraph(result.verdict, width)]


# Two studies or two answers side by side on a terminal.


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


# Why candidates take their time or a step takes longer than predicted, on a terminal.


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
        lines += [*paragraph(words, width), "", *table_lines(_why_table(own), width)]
        lines += [line for note in rest for line in paragraph(note, width)] + [""]
    return lines[:-1]


def _does_nothing(tried: Tried) -> bool:
    from perfsim.studies.trials import NOTABLE  # a run needs no studies

    return tried.ratio is not None and abs(1.0 - tried.ratio) < NOTABLE


def _why_table(own: Explained) -> Table:
    rows = [[tried.change, *_cells(tried)] for tried in own.tried if not _does_nothing(tried)]
    return Table(("change, tried", "step", "time to\ntarget", "effect"), rows, "", frozenset({1, 2}))


def _cells(tried: Tried) -> list[str]:
    if tried.ratio is None or tried.step_time_s is None or tried.time_s is None:
        return [text.NONE, text.NONE, f"not possible: {tried.reason}"]
    gain = 1.0 - tried.ratio
    effect = f"{abs(gain):.1%} {'sooner' if gain > 0 else 'later'}".replace("%", " %")
    return [text.duration(tried.step_time_s), text.duration(tried.time_s), effect]


LEAST_SHOWN = 0.05
"""Share of a gap below which a suspect is only named."""


_DEVIATIONS = (
    "Deviations: how unlikely a row is as the only cause, in standard deviations (1 is usual, 3 rare): how "
    "far such an input is usually off, and what is left of the gap over the errors on published runs."
)


def gap_lines(gap: GapExplained) -> list[str]:
    """The gap in words, a table of what would explain it, the likeliest first, and what suffices."""
    width = terminal_width()
    shown = [suspect for suspect in gap.suspects if suspect.explains >= LEAST_SHOWN]
    rest = [suspect.change for suspect in gap.suspects if suspect not in shown]
    rows = [_suspect_cells(suspect) for suspect in shown]
    header = ("would explain it", "if its rate is\nmultiplied by", "step", "share of\nthe gap", "deviations")
    table = Table(header, rows, _DEVIATIONS, frozenset({1, 2, 3, 4}))
    notes = [f"Without effect, or the other way: {', '.join(rest)}."] if rest else []
    return [
        *paragraph(_gap_words(gap), width),
        "",
        *(table_lines(table, width) if rows else []),
        *[line for words in (*notes, *_sufficient(gap)) for line in paragraph(words, width)],
    ]


def _gap_words(gap: GapExplained) -> str:
    where = "inside" if gap.inside else "outside"
    return (
        f"Measured {text.duration(gap.measured_s)}, predicted {text.duration(gap.predicted_s)}: "
        f"{text.number(gap.measured_s / gap.predicted_s)} {text.TIMES} as long, {where} the 90 % band of "
        f"{text.duration_band(gap.band_s)}. The gap is {gap.deviations:.1f} standard deviations of the "
        f"errors on published runs. Layout {gap.layout}; recipe {gap.trained}."
    )


def _sufficient(gap: GapExplained) -> Iterator[str]:
    """What the table does not say: that the step is impossible, or that no row alone is enough."""
    if gap.mfu > 1.0:
        yield (
            f"warning: the measured step means an MFU of {text.percent(gap.mfu, 0)}: it is faster than the "
            "devices' peak. Check its unit, the batch and the number of devices."
        )
    elif gap.inside:
        yield "The prediction's own error explains the gap: no input has to differ."
    elif not any(suspect.suffices for suspect in gap.suspects):
        most = max(gap.suspects, key=lambda suspect: suspect.explains, default=None)
        closes = f": {most.change} closes {text.percent(most.explains, 0)} of it" if most else ""
        yield (
            f"warning: no row alone explains the gap{closes}. Several inputs differ, or one that is not "
            "listed does: layout, batch, sequence length, number of devices, or time outside the step."
        )


def _suspect_cells(suspect: Suspect) -> list[str]:
    factor = text.NONE if suspect.factor is None else f"{suspect.factor:.2f}"
    return [
        suspect.change,
        factor,
        text.duration(suspect.step_time_s),
        text.percent(suspect.explains, 0),
        f"{suspect.deviations:.1f}",
    ]


# What `perfsim prove` found, on a terminal.


def proof_lines(answer: Mapping[str, Any]) -> list[str]:
    """A row for each layout, the faults of those that are wrong, and the conclusion."""
    width = terminal_width()
    proofs = [
        (strategy, layout)
        for strategy, proven in answer["strategies"].items()
        for layout in proven["layouts"]
    ]
    lines = table_lines(_table(proofs), width)
    for strategy, layout in proofs:
        for fault in layout["faults"]:
            lines += paragraph(f"* {strategy}, {layout['layout']}: {fault}", width)
    lines += ["", *paragraph(_sentence(answer, [layout for _, layout in proofs]), width)]
    left_out = dict.fromkeys(part for _, layout in proofs for part in layout["not_executed"])
    if left_out:
        lines += paragraph(f"Not executed: {', '.join(left_out)}.", width)
    return lines


def _table(proofs: list[tuple[str, Mapping[str, Any]]]) -> Table:
    rows = [
        [
            strategy,
            layout["layout"],
            str(layout["ranks"]),
            integer(layout["tasks"]),
            str(layout["orders"]),
            _error(layout["max_relative_error"]) if layout["passed"] else "WRONG",
        ]
        for strategy, layout in proofs
    ]
    columns = ("strategy", "layout", "ranks", "tasks", "orders", "error")
    return Table(columns, rows, numeric=frozenset({2, 3, 4, 5}))


def _sentence(answer: Mapping[str, Any], layouts: list[Mapping[str, Any]]) -> str:
    wrong = sum(not layout["passed"] for layout in layouts)
    compared = sum(layout["compared"] for layout in layouts)
    done = f"{integer(answer['tasks'])} tasks on all ranks, {answer['steps']} optimizer steps"
    many = "layout" if len(layouts) == 1 else "layouts"
    random = f"{answer['orders']} random order" + ("" if answer["orders"] == 1 else "s")
    if wrong:
        return f"{answer['target']}: {wrong} of {len(layouts)} {many} WRONG ({done})."
    return (
        f"{answer['target']}: {len(layouts)} {many} proven ({done}): no dependency is missing, and "
        f"{integer(compared)} arrays (loss, gradients, weights) equal those of serial training in {random} "
        f"and in the simulated one; largest relative error {_error(answer['max_relative_error'])}."
    )


def _error(error: float | None) -> str:
    """A relative error; a dash where nothing was compared."""
    return NONE if error is None else f"{error:.1e}"


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
    seconds = duration(prediction.step_time_s)
    band = prediction.band_s
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
    before_s = perturbed.unperturbed_step_time_s
    draws_s = perturbed.draws_s
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
