"""A study asked backwards: its table, its lines on a terminal, its page and its JSON document."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from perfsim.base.groups import listed
from perfsim.base.units import format_quantity, parse_quantity
from perfsim.report import draw, text
from perfsim.report.page import Page, Section
from perfsim.report.table import Cell, Field, Table, document_text, plain
from perfsim.studies.answers import UNITS
from perfsim.studies.solve import Solution, Solved, Tried, Unknown

_UNITS = {
    "power": text.Unit(digits=partial(text.si, unit="W")),
    "mfu": text.SHARE,
    **{name: text.Unit(small) for name, (small, _) in UNITS.items()},
    **dict.fromkeys(("step_time_s", "time_to_accuracy_s"), text.Unit("s")),
}


def _unit(name: str, solved: Solved) -> text.Unit:
    if name == "memory":  # as the condition is written
        return text.MEMORY.of(condition.bound for condition in solved.conditions)
    return text.Unit(solved.currency) if name.startswith("cost") else _UNITS.get(name, text.NUMBER)


def _unit_of_unknown(unknown: Unknown) -> text.Unit:
    """The unit that suits today's value of an input."""
    if unknown.dimension is None:
        return text.NUMBER
    name = format_quantity(unknown.today, unknown.dimension).partition(" ")[2]
    return text.Unit(name, parse_quantity(f"1 {name}", unknown.dimension))


def _solutions(solved: Solved) -> Table:
    """A row for each solution: the value at 50 and 90 %, its range, and the answer there."""

    def written(row: Solution, *values: Any) -> str | None:
        known = (solved.unknowns[row.candidate].text(value) for value in values if value is not None)
        return " to ".join(dict.fromkeys(known)) or None

    def surely(row: Solution) -> str | None:
        """The value that 90 % of the draws allow; of words whether they do."""
        if row.surely is None:
            return None
        return written(row, row.surely) if solved.unknowns[row.candidate].numeric else "yes"

    columns: dict[str, Field[Solution]] = {
        "candidate": (None, "candidate"),
        solved.find: (None, lambda row: f"{written(row, row.value) or 'none'} {row.side}".strip()),
        "at 90 %": (None, surely),
        "90 % range": (None, lambda row: written(row, *(row.range or ()))),
        "nearest": (None, lambda row: written(row, row.nearest)),
    }
    for name in dict.fromkeys(name for row in solved.solutions for name in row.quantity):
        columns[text.human(name)] = _unit(name, solved), f"quantity.{name}"
    return Table.each(solved.solutions, columns).known()


def _asked(solved: Solved) -> str:
    least = [f"least {text.human(solved.minimise)}"] if solved.minimise else []
    day = next((f", as of {point.study.as_of}" for point in solved.sweep.points if point.study.as_of), "")
    return f"{solved.find} such that {' and '.join([*solved.such_that, *least])}{day}"


def _notes(solved: Solved) -> list[str]:
    return [f"{row.candidate}: {text.capital(row.reason)}" for row in solved.solutions if row.reason]


def solve_lines(solved: Solved) -> list[str]:
    """The solutions, and why others are none."""
    heading = f"{solved.sweep.sweep.spec.title}: {_asked(solved)}"
    return [*text.paragraphs(heading), "", *_solutions(solved).lines(), "", *text.paragraphs(*_notes(solved))]


def _curve(solved: Solved) -> Iterator[Section]:
    """The quantity of the first condition over the unknown, with its band, its bound and what was found."""
    numeric = [label for label, unknown in solved.unknowns.items() if unknown.numeric]
    asked = solved.conditions[0].quantity if solved.conditions else solved.minimise
    rows = [(label, row) for label in numeric for row in solved.tried[label] if asked in row.quantities]
    if not rows:
        return
    name = text.human(asked)
    unit = _unit_of_unknown(solved.unknowns[rows[0][0]])
    columns: dict[str, Field[tuple[str, Tried]]] = {
        "candidate": (None, lambda own: own[0]),
        "value": (unit, lambda own: own[1].value),
        solved.find: (None, lambda own: solved.unknowns[own[0]].text(own[1].value)),
        name: (_unit(asked, solved), lambda own: Cell(own[1].quantities[asked], own[1].bands[asked])),
        "draws that meet it": (text.WHOLE_SHARE, lambda own: own[1].share),
    }
    table = Table.each(rows, columns)
    traces = [
        trace
        for own in draw.Series.of(table, "value")
        for trace in own.curve("value", name, own.table.hovers(solved.find, name))
    ]
    found = [row.value / unit.scale for row in solved.solutions if row.value is not None]
    rules = [draw.rule(value, draw.IDEAL) for value in found]
    told = [known for known in solved.conditions if known.quantity == asked and not known.rival]
    bounds = [known.bound / table.unit(name).scale for known in told]
    rules += [draw.rule(bound, draw.IDEAL, across=True) for bound in bounds]
    along = f"{solved.find} ({unit.name})" if unit.name else solved.find
    x = draw.log_axis(along, table.values("value"))
    head = table.heads()[3]
    y = draw.log_axis(head, [*(end for ends in table.bands(name) for end in ends), *bounds])
    figure = draw.figure(f"{text.capital(head)} by {solved.find}", traces, x, y, shapes=rules)
    lead = "Shows what a step of the input is worth. Bands: 90 %. Dotted: the condition, and what meets it."
    yield Section("What was tried", lead, figure, table, (solved.find, name), slug="tried")


def _first_of(values: Sequence[str]) -> str:
    """One or two values; of more the first, and how many others the table has."""
    more = f"{values[0]} and {len(values) - 1} more"
    return " and ".join(values) if len(values) <= 2 else more


def write_solve(solved: Solved, folder: Path) -> Path:
    """Write `index.html` and `summary.json`; returns the page."""
    table = _solutions(solved)
    found = listed(zip(table.texts("candidate"), table.texts(solved.find), strict=True))
    notes = " ".join(f"{note.removesuffix('.')}." for note in _notes(solved))
    sections = [Section("The answer", note=notes, table=table, slug="answer"), *_curve(solved)]
    words = text.capital("; ".join(f"{name}: {_first_of(values)}" for name, values in found.items()))
    page = Page(solved.sweep.sweep.spec.title, sections, _asked(solved), f"{words}.")
    return page.write(folder, document_text(solve_document(solved)))


def solve_document(solved: Solved, *, report: str = "index.html") -> dict[str, Any]:
    """The document of `perfsim solve --json`."""
    names = ("find", "such_that", "minimise", "currency", "solutions")
    told = ("value", "quantities", "bands", "share", "reason")
    tried = {
        label: [{name: getattr(row, name) for name in told} for row in rows]
        for label, rows in solved.tried.items()
    }
    points = list(solved.sweep.documents())
    known = {name: getattr(solved, name) for name in names}
    return dict(plain(known | {"tried": tried, "points": points, "report": report}))
