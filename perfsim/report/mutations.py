"""Which inserted faults a proof detects, as a Markdown page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfsim.report.page import table_lines
from perfsim.report.table import Table
from perfsim.report.text import integer


def mutations_page(answer: Mapping[str, Any]) -> str:
    """The page of `perfsim prove --mutations`."""
    sample = "every fault" if answer["every"] == 1 else f"one fault in {answer['every']}"
    command = f"perfsim prove {answer['target']} --mutations FILE --every {answer['every']}"
    blocks = [
        "# Which faults a proof detects",
        f"Made by `make mutations`: `{command}`.",
        f"Each fault is one change to a correct schedule; {sample} was tried.",
        f"**{mutations_sentence(answer)}**",
        table_lines(_kinds(answer)),
        "## Faults that are not detected",
        _survivors(answer),
        "## By layout",
        table_lines(_layouts(answer)),
    ]
    return "\n\n".join(blocks) + "\n"


def mutations_sentence(answer: Mapping[str, Any]) -> str:
    """The outcome of all faults, in a sentence."""
    explained = sum(group["count"] for group in answer["survivors"])
    return (
        f"{integer(answer['injected'])} faults inserted into {len(answer['layouts'])} correct schedules: "
        f"{integer(answer['caught'])} detected ({answer['share']:.1%}), each with its task and tensor; "
        f"{integer(explained)} that change no result (explained); "
        f"{integer(len(answer['unexplained']))} missed."
    )


def _kinds(answer: Mapping[str, Any]) -> Table:
    rows = [
        [name, integer(counts["injected"]), integer(counts["caught"])]
        for name, counts in sorted(answer["kinds"].items())
    ]
    return Table(("fault", "inserted", "detected"), rows, numeric=frozenset({1, 2}))


def _survivors(answer: Mapping[str, Any]) -> str:
    explained = [
        f"- {group['count']} × {group['why']} For example: {group['example']}."
        for group in answer["survivors"]
    ]
    return "\n".join([*explained, *(f"- **missed**: {fault}" for fault in answer["unexplained"])]) or "None."


def _layouts(answer: Mapping[str, Any]) -> Table:
    rows = [
        [layout["strategy"], layout["layout"], integer(layout["injected"]), integer(layout["caught"])]
        for layout in answer["layouts"]
    ]
    return Table(("strategy", "layout", "inserted", "detected"), rows, numeric=frozenset({2, 3}))
