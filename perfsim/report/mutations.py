"""Which faults a proof finds, as a Markdown page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perfsim.report.text import integer


def mutations_page(found: Mapping[str, Any]) -> str:
    """The page of `perfsim prove --mutations`."""
    return "\n".join(_lines(found)) + "\n"


def mutations_sentence(found: Mapping[str, Any]) -> str:
    """What came of all faults, in a sentence."""
    left = sum(each["count"] for each in found["survivors"])
    return (
        f"{integer(found['injected'])} faults put into {len(found['layouts'])} right schedules: "
        f"{integer(found['caught'])} caught ({found['share']:.1%}), each with task and tensor; "
        f"{integer(left)} that change nothing (explained); {integer(len(found['unexplained']))} missed."
    )


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    sample = "every fault" if found["every"] == 1 else f"one fault in {found['every']}"
    yield "# What a proof would find"
    yield ""
    command = f"perfsim prove {found['target']} --mutations FILE --every {found['every']}"
    yield f"Made by `make mutations`: `{command}`."
    yield f"Each fault is one change to a schedule that is right; {sample} was tried."
    yield ""
    yield f"**{mutations_sentence(found)}**"
    yield ""
    yield from _table(("fault", "put in", "caught"), _kinds(found))
    yield ""
    yield "## Survivors"
    yield ""
    if not found["survivors"] and not found["unexplained"]:
        yield "None."
    for each in found["survivors"]:
        yield f"- {each['count']} x {each['why']} For example: {each['example']}."
    yield from (f"- **missed**: {each}" for each in found["unexplained"])
    yield ""
    yield "## By layout"
    yield ""
    rows = [(each["strategy"], each["layout"], each["injected"], each["caught"]) for each in found["layouts"]]
    yield from _table(("strategy", "layout", "put in", "caught"), rows)


def _kinds(found: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [(name, of["injected"], of["caught"]) for name, of in sorted(found["kinds"].items())]


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Iterator[str]:
    """A table; numbers to the right."""
    numbers = [isinstance(value, int) for value in rows[0]] if rows else [False] * len(head)
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join('--:' if number else '---' for number in numbers)}|"
    for row in rows:
        cells = [integer(each) if isinstance(each, int) else str(each) for each in row]
        yield f"| {' | '.join(cells)} |"
