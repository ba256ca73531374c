"""A study asked backwards: its table, its lines on a terminal, its page and its JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from perfsim.report import draw, text
from perfsim.report.document import document_text, plain
from perfsim.report.page import Page, Section
from perfsim.report.table import Cell, Field, Table, Value
from perfsim.studies.solve import Solution, Solved, Tried, bound_of

_UNITS = {
    "memory": text.BYTES,
    "power": text.Unit(digits=partial(text.si, unit="W")),
    "mfu": text.SHARE,
    **dict.fromkeys(("steps", "global_batch_size"), text.COUNT),
}


def _unit(name: str, solved: Solved) -> text.Unit:
    return text.Unit(solved.currency) if name.startswith("cost") else _UNITS.get(name, text.NUMBER)


def _solutions(solved: Solved) -> Table:
    """A row for each solution: the value at 50 and 90 %, its range, and the answer there."""

    def written(row: Solution, value: Any) -> str | None:
        return None if value is None else solved.unknowns[row.candidate].text(value)

    def found(row: Solution) -> str:
        return " ".join([row.text, row.side]).strip() if row.value is not None else "none"

    def ends(row: Solution) -> str | None:
        return None if row.range is None else " to ".join(str(written(row, float(end))) for end in row.range)

    columns: dict[str, Field[Solution]] = {
        "candidate": (None, "candidate"),
        solved.find: (None, found),
        "at 90 %": (None, lambda row: written(row, row.surely)),
        "90 % range": (None, ends),
        "nearest": (None, lambda row: written(row, row.nearest)),
    }
    empty = {
        "at 90 %": all(row.surely in (None, row.value) for row in solved.solutions),
        "90 % range": all(row.range is None for row in solved.solutions),
        "nearest": all(row.nearest is None for row in solved.solutions),
    }
    columns = {name: column for name, column in columns.items() if not empty.get(name)}
    for name in dict.fromkeys(name for row in solved.solutions for name in row.quantity):
        columns[text.human(name)] = _unit(name, solved), partial(_of, name)
    return Table.each(solved.solutions, columns)


def _of(name: str, row: Solution) -> Value:
    return row.quantity.get(name)


def _asked(solved: Solved) -> str:
    least = f"least {text.human(solved.minimise)}" if solved.minimise else ""
    return f"{solved.find} such that {' and '.join(filter(None, [*solved.such_that, least]))}"


def _notes(solved: Solved) -> Iterator[str]:
    for row in solved.solutions:
        if row.reason:
            yield f"{row.candidate}: {text.capital(row.reason)}"


def solve_lines(solved: Solved) -> list[str]:
    """The solutions, and why others are none."""
    return [
        *text.paragraphs(f"{solved.sweep.sweep.spec.title}: {_asked(solved)}"),
        "",
        *_solutions(solved).lines(),
        "",
        *text.paragraphs(*_notes(solved)),
    ]


def _tried(solved: Solved) -> Table:
    """Every value that was tried, with the first quantity and its band."""
    name = next((name for rows in solved.tried.values() for row in rows for name in row.quantities), "")
    columns: dict[str, Field[tuple[str, Tried]]] = {
        "candidate": (None, lambda own: own[0]),
        "value": (text.NUMBER, lambda own: own[1].value if isinstance(own[1].value, (int, float)) else None),
        solved.find: (None, lambda own: solved.unknowns[own[0]].text(own[1].value)),
        text.human(name): (
            _unit(name, solved),
            lambda own: Cell(own[1].quantities[name], own[1].bands[name]) if own[1].quantities else None,
        ),
        "draws that meet it": (text.WHOLE_SHARE, lambda own: own[1].share),
        "reason": (None, lambda own: own[1].reason or None),
    }
    return Table.each(((label, row) for label, rows in solved.tried.items() for row in rows), columns)


def _curve(solved: Solved) -> Iterator[Section]:
    """The first quantity over the unknown, with its band, the condition and what was found."""
    table = _tried(solved)
    name = table.columns[3].name
    shown = Table(table.columns, [row for row in table.rows if None not in (row[1].value, row[3].value)])
    if not shown.rows:
        return
    traces = [
        trace
        for series in draw.Series.of(shown, "value")
        for trace in series.curve("value", name, series.table.hovers(solved.find, name))
    ]
    values, amounts = shown.values("value"), [end for ends in shown.bands(name) for end in ends]
    rules = [draw.rule(row.value, draw.IDEAL) for row in solved.solutions if row.value is not None]
    bound = bound_of(solved)
    rules += [draw.rule(bound, draw.IDEAL, across=True)] if bound is not None else []
    x, y = draw.log_axis(solved.find, values), draw.log_axis(name, [*amounts, *filter(None, [bound])])
    figure = draw.figure(f"{text.capital(name)} by {solved.find}", traces, x, y, shapes=rules)
    lead = "Shows what a step of the input is worth. Bands: 90 %. Dotted: the condition, and what meets it."
    yield Section("What was tried", lead, figure, shown, (solved.find, name), slug="tried")


def write_solve(solved: Solved, folder: Path) -> Path:
    """Write `index.html` and `summary.json`; returns the page."""
    table = _solutions(solved)
    words = "; ".join(
        f"{name}: {value}"
        for name, value in zip(table.texts("candidate"), table.texts(solved.find), strict=True)
    )
    notes = Table.of(("note",), ((note,) for note in _notes(solved)))
    sections = [Section("The answer", table=table, slug="answer"), *_curve(solved)]
    sections += [Section("What to know", table=notes, slug="notes")] if notes.rows else []
    page = Page(solved.sweep.sweep.spec.title, sections, _asked(solved), f"{text.capital(words)}.")
    return page.write(folder, document_text(solve_document(solved)))


def solve_document(solved: Solved, *, report: str = "index.html") -> dict[str, Any]:
    """The document of `perfsim solve --json`."""
    names = ("find", "such_that", "minimise", "currency", "solutions")
    tried = {
        label: [{name: value for name, value in vars(row).items() if name not in _HELD} for row in rows]
        for label, rows in solved.tried.items()
    }
    known = {name: getattr(solved, name) for name in names}
    return dict(plain({**known, "tried": tried, "points": list(solved.sweep.documents()), "report": report}))


_HELD = ("points", "misses")
