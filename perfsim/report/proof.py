"""What `perfsim prove` found, on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from perfsim.report.text import integer

WIDTH = 100


def proof_lines(answer: Mapping[str, Any]) -> list[str]:
    """One line a layout, what is wrong with it, and what all of them come to."""
    return [*_rows(answer), "", *textwrap.wrap(_sentence(answer), WIDTH)]


def _rows(answer: Mapping[str, Any]) -> Iterator[str]:
    names = [(name, each) for name, of in answer["strategies"].items() for each in of["layouts"]]
    wide = max(len("strategy"), *(len(name) for name, _ in names))
    layout = max(len("layout"), *(len(each["layout"]) for _, each in names))
    yield f"{'strategy':{wide}}  {'layout':{layout}}  ranks  tasks  orders    error"
    yield "-" * (wide + layout + 35)
    for name, each in names:
        error = _error(each["max_relative_error"]) if each["passed"] else "WRONG"
        yield (
            f"{name:{wide}}  {each['layout']:{layout}}  {each['ranks']:5}  {integer(each['tasks']):>5}"
            f"  {each['orders']:6}  {error:>7}"
        )
        for fault in each["faults"]:
            yield from textwrap.wrap(f"* {fault}", WIDTH, initial_indent="    ", subsequent_indent="      ")


def _sentence(answer: Mapping[str, Any]) -> str:
    layouts = [each for of in answer["strategies"].values() for each in of["layouts"]]
    wrong = sum(not each["passed"] for each in layouts)
    compared = sum(each["compared"] for each in layouts)
    done = f"{integer(answer['tasks'])} tasks on all ranks, {answer['steps']} optimizer steps"
    many = "layout" if len(layouts) == 1 else "layouts"
    random = f"{answer['orders']} random order" + ("" if answer["orders"] == 1 else "s")
    if wrong:
        return f"{answer['target']}: {wrong} of {len(layouts)} {many} WRONG ({done})."
    return (
        f"{answer['target']}: {len(layouts)} {many} proven ({done}): no dependency is missing, and "
        f"{integer(compared)} arrays (loss, gradients, weights) are those of serial training in "
        f"{random} and the simulated one; worst relative error "
        f"{_error(answer['max_relative_error'])}."
    )


def _error(error: float | None) -> str:
    """A relative error; a dash where nothing was compared."""
    return "-" if error is None else f"{error:.1e}"
