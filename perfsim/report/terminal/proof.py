"""What `perfsim prove` found, on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfsim.report.table import Table
from perfsim.report.terminal.layout import paragraph, table_lines, terminal_width
from perfsim.report.text import NONE, integer


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
