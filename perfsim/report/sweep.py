"""The answer to a sweep: its tables, its lines on a terminal, its page and its JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfsim.report import text
from perfsim.report.document import document_text, plain
from perfsim.report.page import Page, Section, caveats_section
from perfsim.report.study import inputs_section
from perfsim.report.sweep_figures import MAX_ROWS, answer_cells, change_table, drawn, series_table
from perfsim.report.table import Cell, Table, Value
from perfsim.studies.answers import PointResult, confidence
from perfsim.studies.scaling import Match, Series
from perfsim.studies.variants import SweepResult
from perfsim.version import __version__

_MAX_HEAD_ROWS = 8
MAX_ON_TERMINAL = 40
"""Rows of points or variants on a terminal; the report has all."""
_MAX_DIFFERENCES = 12
"""Values that differ, in a row of many variants."""


def _all_points(result: SweepResult) -> Section:
    """At most `MAX_ROWS` points of the grid, with an answer or the reason why there is none."""
    points = text.thinned(result.points, MAX_ROWS)
    paths = list(dict.fromkeys(path for point in result.points for path, _ in point.circumstances))
    caption = "In the order of the grid; the reason says what would have to change."
    if len(points) < len(result.points):
        caption += (
            f" {len(points):,} of {len(result.points):,} points, evenly spread; summary.json has all, and so "
            "has the file of --table."
        )

    def row(point: PointResult) -> list[Cell | Value]:
        known = answer_cells(point) if point.feasible else {}
        return [
            *(point.system, point.strategy, point.num_devices, point.batch_text or None),
            *map(dict(point.circumstances).get, paths),
            *map(known.get, ("time", "wall", "step", "MFU", "layout")),
            "; ".join(point.reasons),
        ]

    columns = {
        "system": None,
        "strategy": None,
        "devices": text.COUNT,
        "batch": text.COUNT,
        **dict.fromkeys(map(text.human, paths)),
        **dict.fromkeys(("time to the target", "on the wall", "step"), text.TIME),
        "MFU": text.SHARE,
        "layout": None,
        "reason": None,
    }
    without = len(result.points) - len(result.feasible)
    fold = f"{len(points):,} points" + (f", {without:,} without a plan" if without else "")
    table = Table.of(columns, map(row, points), caption)
    lead = "Every point of the grid in its order, with and without a plan."
    return Section("All points", lead, table=table, fold=fold if result.feasible else "", slug="points")


def sweep_lines(result: SweepResult) -> list[str]:
    """Each machine at its best batch by number of devices, or variants by effect; the verdict last."""
    count = f"{len(result.points):,} points"
    if infeasible := len(result.points) - len(result.feasible):
        count += f", {infeasible:,} without a feasible plan"
    if result.changes:
        table = change_table(result.changes)
        most = max(2, MAX_ON_TERMINAL // len(result.changes))
        names = ("in common", "variant", "batch", "step", "MFU", "change", "time", "wall")
        rows = [row for group in table.by("in common").values() for row in group.rows[:most]]
        left_out = "more variants, of less effect, are in the report."
    else:
        table = series_table(result.series)
        names = ("series", "machine", "batch", "step", "MFU", "efficiency", "time", "wall")
        fastest = table.sorted("time").rows[:MAX_ON_TERMINAL]
        rows = [row for row in table.rows if row in fastest][:MAX_ON_TERMINAL]
        left_out = "more points are in the report, all slower."
    more = len(table.rows) - len(rows)
    caption = " ".join([table.caption, *([f"{more} {left_out}"] if more else [])])
    points = replace(table, rows=rows, caption=caption).only(*names).grouped()
    shown, rest = text.split_caveats(result.caveats, result.verdict)
    return [
        *text.paragraphs(f"{result.sweep.spec.title} ({count})"),
        "",
        *(points.lines() if result.feasible else []),
        *text.caveat_lines(shown, len(shown) + len(rest)),
        "",
        *text.paragraphs(" ".join([result.verdict, *_production_notes(result.feasible)])),
    ]


def _production_notes(feasible: Sequence[PointResult]) -> list[str]:
    """A sentence for each production ratio of the points."""
    ratios = dict.fromkeys(point.prediction.production for point in feasible)
    return [
        f"Times are of healthy steps; runs take longer, at {production.of_healthy}."
        for production in filter(None, ratios)
    ]


# The page: one sentence, the best of each machine, everything with a figure, then points and inputs.


def sweep_page(result: SweepResult) -> Page:
    """The report of a sweep; sections without anything to say are left out."""
    sections = []
    if result.feasible:
        sections = [*drawn(result), *_differences(result)]
    at_head, rest = text.split_caveats(result.caveats, result.verdict)
    lead = "Further reasons to trust a figure less, besides those above."
    sections += caveats_section(rest, "Further caveats", lead)
    sections.append(_all_points(result))
    sections.append(inputs_section(result.assumptions))
    scale, note = (None, "") if result.changes and not result.scalings else _scale(result)
    sentences = list(result.sentences)
    compared = result.feasible and not result.variants and len(result.targets) == 1
    headline = sentences.pop(0) if compared else ""
    return Page(
        result.sweep.spec.title,
        sections,
        result.sweep.spec.question,
        headline,
        " ".join(sentences),
        text.capital(confidence(result.caveats)),
        scale if scale is not None and len(scale.rows) > 1 else None,
        note=" ".join(filter(None, [note, *_production_notes(result.feasible)])),
        caveats=at_head,
        command=result.command,
        digest=result.inputs_digest,
    )


def _fastest_s(series: Series) -> float:
    return series.fastest.target_time.time_s


def _scale(result: SweepResult) -> tuple[Table | None, str]:
    """A row for each series in their order, the fastest of each target marked; and what the rows show.

    Where there are more than fit, the fastest are shown if all have one target, else the first.
    """
    series = result.series
    if not series:
        return None, ""
    one_target = len(result.targets) == 1
    winners = [min(group, key=_fastest_s) for group in result.targets if len(group) > 1]
    chosen = (sorted(series, key=_fastest_s) if one_target else list(series))[:_MAX_HEAD_ROWS]
    shown = [member for member in series if member in chosen]
    words = ["Each machine at the number of devices that reaches the target first, at its best batch."]
    if not one_target:
        words = ["Each machine at its best batch. Targets differ, because models or their tokens do."]
    if any(member in winners for member in shown):
        words.append("Marked: the fastest." if one_target else "Marked: the fastest to each target.")
    if len(shown) < len(series):
        which = "the fastest" if one_target else "the first"
        words.append(f"These are {which} {len(shown)} of {len(series)}; the tables have all.")
    table = Table.of(
        {"machine": None, "Time to the target": text.TIME},
        (
            (own.at(own.fastest), Cell(_fastest_s(own), own.fastest.target_time.band_s, mark=own in winners))
            for own in shown
        ),
    )
    return table, " ".join(words)


def _differences(result: SweepResult) -> Iterator[Section]:
    """What each variant writes differently from the first, value by value."""
    first, *others = result.variants or [""]
    rows = []
    for number, name in enumerate(others, start=1):
        own = [
            f"{path}: {values[0] or text.NONE} \u2192 {values[number] or text.NONE}"
            for path, values in result.differences.items()
            if values[number] != values[0]
        ]
        left = len(own) - _MAX_DIFFERENCES
        rows.append((name, "; ".join([*own[:_MAX_DIFFERENCES], *([f"{left} more"] if left > 0 else [])])))
    if result.differences:
        table = Table.of(("variant", f"relative to \u201c{first}\u201d"), rows)
        lead = "All values that differ between the variants, in SI units."
        yield Section("What the variants change", lead, table=table, slug="differences")


def write_sweep(result: SweepResult, folder: Path) -> Path:
    """Write `index.html` and `summary.json`; returns the page. The same result gives the same bytes."""
    return sweep_page(result).write(folder, sweep_text(result))


def sweep_document(result: SweepResult, *, report: str = "index.html") -> dict[str, Any]:
    """The document of `perfsim sweep --json`: all points, which machines match, and the verdict."""
    return dict(plain({**_summary(result, report), "points": list(result.documents())}))


def sweep_text(result: SweepResult, *, report: str = "index.html") -> Iterator[str]:
    """The same document as text in parts, of which none holds more than a point."""
    document = document_text({**_summary(result, report), "points": []})
    before, after = document.split('\n  "points": []', 1)
    yield f'{before}\n  "points": ['
    end = ""
    for number, point in enumerate(result.documents()):
        yield (",\n    " if number else "\n    ") + document_text(point).rstrip().replace("\n", "\n    ")
        end = "\n  "
    yield f"{end}]{after}"


def _summary(result: SweepResult, report: str) -> dict[str, Any]:
    """The document without the points."""

    def as_fast_as(match: Match) -> dict[str, Any]:
        rival = {"system": match.rival.system, "num_devices": match.rival.num_devices}
        return {"as_fast_as": rival, "system": match.series.first.system}

    equals = [
        as_fast_as(match)
        | {
            "num_devices": None if match.fewest is None else match.fewest.num_devices,
            "possibly": match.possibly,
            "surely": match.surely,
        }
        for match in result.matches
    ]
    equal_time = [
        as_fast_as(match) | {"num_devices": match.equal}
        for pair in result.equal_times
        for direction in pair
        for match in direction
    ]
    return {
        **result.head(),
        "equals": equals,
        "equal_time": equal_time,
        "verdict": result.verdict,
        "report": report,
        "version": __version__,
    }
