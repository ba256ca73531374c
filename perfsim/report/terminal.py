"""How answers are written on a terminal: paragraphs, tables, and what each verb prints."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from perfsim.report.table import Cell, Column, Table
from perfsim.report.text import (
    NONE,
    RATIO,
    SHARE,
    TIME,
    TIMES,
    WHOLE_SHARE,
    Unit,
    counted,
    duration,
    human,
    integer,
    layout_long,
    memory_unit,
    number,
    percent,
    simulated,
    split_caveats,
    time_unit,
)

if TYPE_CHECKING:
    from perfsim.prediction.prediction import Prediction
    from perfsim.prediction.run import Perturbed
    from perfsim.prediction.verification import SamplingSummary
    from perfsim.prediction.why import GapExplained
    from perfsim.studies.trials import Difference, Explained, Tried
    from perfsim.studies.trust import SharedCaveat


# The layout of text and of tables: plain text without box characters, so that pipes and terminals without
# UTF-8 show it alike; colours are added where it is printed.

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
"""Before a marked cell of a column."""


def terminal_width() -> int:
    """Columns of the terminal, at least 40; 100 where the output is no terminal."""
    return max(LEAST_WIDTH, shutil.get_terminal_size((PIPE_WIDTH, 24)).columns)


def paragraph(prose: str, width: int = 0, indent: str = "") -> list[str]:
    """The text in lines no wider than `width` (0: the terminal), indented, no number apart from its unit."""
    joined = _MEASURE.sub("\u00a0", prose)
    most = min(width or terminal_width(), MAX_PROSE)
    lines = textwrap.wrap(joined, most, initial_indent=indent, subsequent_indent=indent)
    return [line.replace("\u00a0", " ") for line in lines]


def paragraphs(prose: Iterable[str]) -> list[str]:
    """The lines of several paragraphs."""
    return [line for words in prose for line in paragraph(words)]


def caveat_lines(caveats: Sequence[SharedCaveat], verdict: str) -> list[str]:
    """The worst caveats, serious ones in full, and how many more the report has."""
    shown, rest = split_caveats(caveats, verdict)
    lines = []
    for caveat in shown:
        said = caveat.text if caveat.severity == "serious" else caveat.headline
        lines += paragraph(f"{caveat.severity}: {'; '.join(caveat.machines)}: {said}")
    return [*lines, *([f"... {counted(len(rest), 'more caveat')} in the report"] if rest else [])]


def table_lines(table: Table, width: int = 0, *, whole_names: bool = False) -> list[str]:
    """A table: names with units below them, rule, rows, caption; no heading without any name.

    Where it is wider than `width` (0: the terminal), the gaps close to one space and columns of words wrap;
    figures do not, nor does the first column with `whole_names`. Where that is not enough either, each row
    becomes a few lines of names and values. A row with nothing but its first cell is a heading.
    """
    width = width or terminal_width()
    rows = _cells(table)
    ruled = [row for row in rows if not _is_heading(row)] or rows
    head = _head(table, ruled)
    widths = [max(map(len, column)) for column in zip(*head, *ruled, strict=True)]
    flush = [column.unit is not None for column in table.columns]
    fixed = frozenset(place for place, right in enumerate(flush) if right or (whole_names and place == 0))
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= width else 1
    _squeeze(widths, [*head, *ruled], fixed, width - gap * (len(widths) - 1))
    if head and sum(widths) + gap * (len(widths) - 1) > width:
        return [*_records(table, rows, width), *paragraph(table.caption, width)]
    lines = [_line(row, widths, flush, gap) for row in head]
    if lines:
        lines.append("-" * min(sum(widths) + gap * (len(widths) - 1), width))
    for row in rows:
        if _is_heading(row):
            lines += paragraph(row[0], width)
        else:
            parts = zip_longest(*map(_cell_lines, row, widths), fillvalue="")
            lines += [_line(part, widths, flush, gap) for part in parts]
    return lines + paragraph(table.caption, width)


def _cells(table: Table) -> list[list[str]]:
    """Cells as text; in a column with marks all have room for one."""
    marked = [any(cell.mark for cell in cells) for cells in zip(*table.rows, strict=True)]
    return [
        [
            (MARK if cell.mark else " ") * has_marks + _bare(table, cell, column)
            for cell, column, has_marks in zip(row, table.columns, marked, strict=True)
        ]
        for row in table.rows
    ]


def _bare(table: Table, cell: Cell, column: Column) -> str:
    """A cell without its unit, a band as narrow as it can be: `1450 (1430-1520)`."""
    words = table.text(cell, column, "-", bare=True)
    return words.replace(",", "") if cell.band else words


def _is_heading(row: Sequence[str]) -> bool:
    return len(row) > 2 and not any(cell.strip() for cell in row[1:])


def _head(table: Table, rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The heading line by line: names of figures wrap above their units; words stand on the last lines."""
    if not any(column.name.strip() for column in table.columns):
        return []
    marked = [any(cell.mark for cell in cells) for cells in zip(*table.rows, strict=True)]
    names = []
    for place, column in enumerate(table.columns):
        banded = any(row[place].band for row in table.rows)
        unit = " ".join(filter(None, [column.unit.name if column.unit else "", "(band)" * banded]))
        room = max([len(unit), *(len(row[place]) for row in rows), *map(len, column.name.split())])
        lines = [column.name] if column.unit is None else textwrap.wrap(column.name, room)
        lines += [unit] if unit else []
        names.append([" " * (bool(marked) and marked[place]) + line for line in lines])
    return [list(line) for line in zip_longest(*(lines[::-1] for lines in names), fillvalue="")][::-1]


def _records(table: Table, rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Each row as its name, and below it every other cell behind the name of its column."""
    lines: list[str] = []
    for name, *cells in rows:
        values = [
            " ".join(filter(None, [column.name, cell.strip(), column.unit.name if column.unit else ""]))
            for column, cell in zip(table.columns[1:], cells, strict=True)
            if cell.strip()
        ]
        lines += [*paragraph(name.strip(), width), *paragraph("; ".join(values), width, "  ")]
    return lines


def _squeeze(widths: list[int], rows: Sequence[Sequence[str]], fixed: frozenset[int], room: int) -> None:
    """Narrow columns of words, the widest first, until all fit or none can give way."""
    least = [
        size if place in fixed else max(map(_longest_word, column))
        for place, (size, column) in enumerate(zip(widths, zip(*rows, strict=True), strict=True))
    ]
    while sum(widths) > room and any(map(int.__lt__, least, widths)):
        widest = max((size, place) for place, size in enumerate(widths) if size > least[place])
        widths[widest[1]] -= 1


def _longest_word(cell: str) -> int:
    """Length of the longest part that cannot wrap; very long words, such as addresses, are broken."""
    indent = len(cell) - len(cell.lstrip(f"{MARK} "))
    return min(MAX_WORD, indent + max(map(len, re.split(_BREAK, cell[indent:]))))


def _cell_lines(cell: str, size: int) -> list[str]:
    """The cell in lines, further ones under the first one's text."""
    if len(cell) <= size:
        return [cell]
    indent = len(cell) - len(cell.lstrip(f"{MARK} "))
    return textwrap.wrap(cell, size, subsequent_indent=" " * indent)


def _line(cells: Sequence[str], widths: Sequence[int], flush: Sequence[bool], gap: int) -> str:
    parts = (
        cell.rjust(size) if right else cell.ljust(size)
        for cell, size, right in zip(cells, widths, flush, strict=True)
    )
    return (" " * gap).join(parts).rstrip()


# What the verbs `show`, `diff`, `why` and `run` print.


def row_lines(rows: Sequence[Mapping[str, str]], title: str) -> list[str]:
    """Rows of the catalogue."""
    if not rows:
        return [f"{title}: nothing"]
    return table_lines(Table.of(list(rows[0]), (row.values() for row in rows)), whole_names=True)


def difference_lines(difference: Difference) -> list[str]:
    """How the time of each candidate moves, and what each changed input does alone."""
    heading = f"{difference.first} and {difference.second}: {len(difference.changes)} inputs differ"
    moved = Table.each(
        difference.candidates,
        {
            "candidate": (
                None,
                lambda own: own.before if own.before == own.after else f"{own.before} \u2192 {own.after}",
            ),
            "before": (TIME, lambda own: own.time_before_s),
            "after": (TIME, lambda own: own.time_after_s),
            "times": (RATIO, lambda own: own.ratio),
            "together": (RATIO, lambda own: own.remainder),
        },
    )
    lines = [*paragraph(heading), "", *table_lines(moved), *paragraphs(difference.missing)]
    if not difference.changes:
        return lines
    tried = any(own.ratios or own.reason for own in difference.changes)
    count = len(difference.candidates) if tried else 0
    alone = {f"alone, {place}": RATIO for place in range(1, count + 1)}
    rows = []
    for own in difference.changes:
        ratios = ["n/a" if ratio is None else ratio for ratio in own.ratios[:count]]
        if own.reason and count:
            ratios = [own.reason]
        rows.append([own.path, own.before, own.after, *ratios, *[None] * (count - len(ratios))])
    lines += ["", *table_lines(Table.of({"input": None, "before": None, "after": None, **alone}, rows))]
    note = (
        "Times: time to the target after over before. Alone: the first with this input of the second, by "
        "candidate. Together: what is left of the ratio when the single ones are divided out."
    )
    return lines + (paragraph(note) if tried else [])


def why_lines(explained: Sequence[Explained]) -> list[str]:
    """For each candidate the path of its step in words, and a table of the changes that were tried."""
    from perfsim.studies.trials import NOTABLE  # a run needs no studies

    lines: list[str] = []
    for own in explained:
        parts = [f"{name} {duration(seconds)}" for name, seconds in own.parts_s.items() if seconds]
        words = (
            f"{own.label}: {duration(own.time_s)} to the target, a step of {duration(own.step_time_s)}. "
            f"{own.sentence} The path of the step: {', '.join(parts)}."
        )
        idle = [tried for tried in own.tried if tried.ratio is not None and abs(1 - tried.ratio) < NOTABLE]
        columns = {"change, tried": None, "step": TIME, "time to target": TIME, "effect": None}
        rows = ((tried.change, *_effect(tried)) for tried in own.tried if tried not in idle)
        lines += [*paragraph(words), "", *table_lines(Table.of(columns, rows))]
        if idle:
            lines += paragraph(f"Tried without effect: {', '.join(tried.change for tried in idle)}.")
        lines.append("")
    return lines[:-1]


def _effect(tried: Tried) -> tuple[float | None, float | None, str]:
    if tried.ratio is None:
        return None, None, f"not possible: {tried.reason}"
    gain = 1.0 - tried.ratio
    return tried.step_time_s, tried.time_s, f"{percent(abs(gain))} {'sooner' if gain > 0 else 'later'}"


LEAST_SHOWN = 0.05
"""Share of a gap below which a suspect is only named."""


def gap_lines(gap: GapExplained) -> list[str]:
    """The gap in words, a table of what would explain it, the likeliest first, and what suffices."""
    unit = time_unit(gap.band_s)
    band = f"{unit.number(gap.band_s[0])}{NONE}{unit.text(gap.band_s[1])}"
    words = (
        f"Measured {duration(gap.measured_s)}, predicted {duration(gap.predicted_s)}: "
        f"{number(gap.measured_s / gap.predicted_s)} {TIMES} as long, "
        f"{'inside' if gap.inside else 'outside'} the 90 % band of {band}. The gap is "
        f"{gap.deviations:.1f} standard deviations of the errors on published runs. "
        f"Layout {gap.layout}; recipe {gap.trained}."
    )
    shown = [suspect for suspect in gap.suspects if suspect.explains >= LEAST_SHOWN]
    rest = [suspect.change for suspect in gap.suspects if suspect not in shown]
    table = Table.each(
        shown,
        {
            "would explain it": (None, lambda own: own.change),
            "if its rate is multiplied by": (Unit(digits="{:.2f}".format), lambda own: own.factor),
            "step": (TIME, lambda own: own.step_time_s),
            "share of the gap": (WHOLE_SHARE, lambda own: own.explains),
            "deviations": (Unit(digits="{:.1f}".format), lambda own: own.deviations),
        },
        "Deviations: how unlikely a row is as the only cause, in standard deviations (1 is usual, 3 rare): "
        "how far such an input is usually off, and the rest of the gap over the errors on published runs.",
    )
    notes = [f"Without effect, or the other way: {', '.join(rest)}."] if rest else []
    drawn = table_lines(table) if shown else []
    return [*paragraph(words), "", *drawn, *paragraphs([*notes, *_sufficient(gap)])]


def _sufficient(gap: GapExplained) -> Iterator[str]:
    """What the table does not say: that the step is impossible, or that no row alone is enough."""
    if gap.mfu > 1.0:
        yield (
            f"warning: the measured step means an MFU of {percent(gap.mfu, 0)}: it is faster than the "
            "devices' peak. Check its unit, the batch and the number of devices."
        )
    elif gap.inside:
        yield "The prediction's own error explains the gap: no input has to differ."
    elif not any(suspect.suffices for suspect in gap.suspects):
        most = max(gap.suspects, key=lambda suspect: suspect.explains, default=None)
        closes = f": {most.change} closes {percent(most.explains, 0)} of it" if most else ""
        yield (
            f"warning: no row alone explains the gap{closes}. Several inputs differ, or one that is not "
            "listed does: layout, batch, sequence length, number of devices, or time outside the step."
        )


def run_lines(prediction: Prediction, sampled: SamplingSummary | None = None) -> list[str]:
    """The metrics of a step, its conditions, and what its time is spent on."""
    streams = prediction.why.streaming_roof is not None
    peak = memory_unit(prediction.memory_capacity_bytes).text(prediction.peak_memory_bytes)
    step = duration(prediction.step_time_s)
    if prediction.band_s is not None:
        step += f" (90 % band: {' to '.join(map(duration, prediction.band_s))})"
    rows = [
        ("batch", f"{integer(prediction.global_batch_size)} sequences"),
        ("layout", layout_long(prediction.layout)),
        *([("recipe", prediction.training.words)] if prediction.training else []),
        ("step", step),
        ("tokens/s", integer(prediction.tokens_per_s)),
        ("MFU / HFU", f"{percent(prediction.mfu)} / {percent(prediction.hfu)} of peak"),
        ("idle" if streams else "bubble", f"{percent(prediction.bubble_fraction)} of the step"),
        ("exposed comm", f"{percent(prediction.exposed_communication_fraction)} of the step"),
        ("peak memory", f"{peak} per device"),
        *((caveat.severity, caveat.text) for caveat in prediction.caveats),
        *_conditions(prediction, sampled),
        ("why", prediction.why.sentence),
    ]
    parts = sorted(((s, name) for name, s in prediction.breakdown_s.items() if s > 0), reverse=True)
    unit = time_unit([parts[0][0]] if parts else [])
    spent = Table.of(
        {"where the step goes": None, unit.name: Unit(scale=unit.scale), "share": SHARE},
        ((human(name), seconds, seconds / prediction.step_time_s) for seconds, name in parts),
        "Waits count as what they end with; 'why' counts the wait between two steps as the update."
        if streams
        else "",
    )
    width = min(terminal_width(), MAX_PROSE)
    metrics = table_lines(Table.of(("", " "), rows), width, whole_names=True)
    return [f"{prediction.model} on {prediction.label}", *metrics, "", *table_lines(spent, width)]


def _conditions(prediction: Prediction, sampled: SamplingSummary | None) -> Iterator[tuple[str, str]]:
    """Perturbations, verification and notes, where there are any."""
    if prediction.simulated is not None:
        yield "simulated", simulated(prediction.simulated)
    if prediction.perturbed is not None:
        yield from _perturbed(prediction.perturbed, prediction.step_time_s)
    if sampled is not None:
        verified = (
            f"{integer(sampled.tasks_total)} matrix products of all ranks compared with the model's shapes, "
            f"divisions, {'sums' if not sampled.not_summed else 'most sums'} and FLOPs; "
            f"{sampled.tasks_sampled} kinds, {percent(sampled.flop_share)} of the FLOPs, executed on samples "
            f"of their real shapes: {'right' if sampled.passed else 'WRONG'}; largest error "
            f"{sampled.worst_relative_error:.1e} (bound {sampled.bound:.1e}), {sampled.worst}"
        )
        yield "verified", verified
    for note in prediction.notes:
        yield "note", note


def _perturbed(perturbed: Perturbed, step_s: float) -> Iterator[tuple[str, str]]:
    """What perturbs the step, what it costs, and what failures leave of the time."""
    before_s = perturbed.unperturbed_step_time_s
    draws_s = perturbed.draws_s
    yield "perturbed", perturbed.text
    yield "", f"{step_s / before_s:.3f} times the unperturbed step of {duration(before_s)}"
    if len(draws_s) > 1:
        yield "", f"{len(draws_s)} draws, {duration(draws_s[0])} to {duration(draws_s[-1])}"
    if perturbed.note:
        yield "", perturbed.note
    if run := perturbed.run:
        lost = f"{run.failures} failures, {duration(run.lost_s)} of lost work"
        yield "goodput", f"{percent(run.goodput)} of {duration(run.wall_s)}: {lost}"
