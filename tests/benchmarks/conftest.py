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
Times of simulations are processor time of one thread, the least of several runs; the machine had other
work as well. Ratios are taken within one run, so they depend less on it. No test asserts any of this.

| figure | measured | aim |
|---|---|---|
"""


class Figures:
    """Where benchmarks put what they found."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def add(self, what: str, found: str, aim: str = "") -> None:
        self.rows.append((what, found, aim))


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Collects figures for the table at the end."""
    return Figures(request.config.stash.setdefault(ROWS, []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table, and the file if one was asked for."""
    rows = [*config.stash.get(ROWS, []), *_timed(config)]
    for what, found, aim in rows:
        terminalreporter.write_line(f"{what}: {found}" + (f" (aim: {aim})" if aim else ""))
    target = os.environ.get("PERFSIM_BENCHMARKS")
    if target and rows:
        head = HEAD.format(test="`pytest -m benchmark tests/benchmarks`", machine=_machine())
        lines = [f"| {what} | {found} | {aim} |" for what, found, aim in rows]
        Path(target).write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


def _timed(config: pytest.Config) -> Iterator[Row]:
    """What pytest-benchmark timed, with the rates that its tests note."""
    session = getattr(config, "_benchmarksession", None)
    for each in session.benchmarks if session is not None else ():
        notes = ", ".join(f"{name.replace('_', ' ')} {value:,.0f}" for name, value in each.extra_info.items())
        name = each.name.removeprefix("test_").replace("_", " ")
        yield name, f"{1e3 * each.stats.min:,.0f} ms" + (f"; {notes}" if notes else ""), ""


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
