"""Benchmarks keep their figures; with PERFSIM_BENCHMARKS=FILE they are written there as Markdown."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

Row = tuple[str, str, str]
"""What was measured, what came out, what is aimed at."""

ROWS: pytest.StashKey[list[Row]] = pytest.StashKey()
HEAD = """# Speed

Measured by `make benchmarks` ({test}) on {machine}.
Times are processor time, the least of several runs; the machine had other work as well. An aim is the
most that a figure may be, unless it says `at least`. Ratios are taken within one run, so they depend less
on other work. No test asserts any of this.

| figure | measured | aim |
|---|---|---|
"""


class Figures:
    """Where benchmarks put what they found."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def add(self, what: str, found: str, aim: str) -> None:
        self.rows.append((what, found, aim))


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Collects figures for the table at the end."""
    return Figures(request.config.stash.setdefault(ROWS, []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table, and the file if one was asked for."""
    rows = [*config.stash.get(ROWS, []), *_timed(config)]
    for what, found, aim in rows:
        terminalreporter.write_line(f"{what}: {found}" + f" (aim: {aim}{missed(found, aim)})")
    target = os.environ.get("PERFSIM_BENCHMARKS")
    if target and rows:
        head = HEAD.format(test="`pytest -m benchmark tests/benchmarks`", machine=_machine())
        lines = [f"| {what} | {found} | {aim}{missed(found, aim)} |" for what, found, aim in rows]
        Path(target).write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


def missed(found: str, aim: str) -> str:
    """` MISSED` where the first number of what was found is on the wrong side of the aim, in one unit."""
    value, wanted = (
        float(text.split()[0].replace(",", "")) for text in (found, aim.removeprefix("at least "))
    )
    return " **MISSED**" if (value < wanted if aim.startswith("at least") else value > wanted) else ""


def _timed(config: pytest.Config) -> Iterator[Row]:
    """What pytest-benchmark timed: its processor time, or the rate that its test notes; beside it its aim."""
    session = getattr(config, "_benchmarksession", None)
    for each in session.benchmarks if session is not None else ():
        notes = dict(each.extra_info)
        aim = str(notes.pop("aim"))
        found = [f"{each.stats.min:,.2f} s", *(f"{name} {value:,.0f}" for name, value in notes.items())]
        if "flows/s" in notes:
            found = [f"{notes.pop('flows/s'):,.0f} flows/s", *found[:-1]]
        yield each.name.removeprefix("test_").replace("_", " "), "; ".join(found), aim


def _machine() -> str:
    """The machine, as far as its figures depend on it."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    python = ".".join(str(part) for part in sys.version_info[:3])
    return f"{os.cpu_count()} cores of {model}, Python {python}, NumPy {np.__version__}"
