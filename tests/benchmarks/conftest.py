"""Benchmarks keep their figures; with PERFSIM_BENCHMARKS=FILE they are written there as Markdown."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import numpy as np
import pytest

Row = tuple[str, str, str, str]
"""What was measured, what came out, what is aimed at, and why the aim is missed where it is."""

ROWS: pytest.StashKey[list[Row]] = pytest.StashKey()
HEAD = """# Speed

Measured by `make benchmarks` ({test}) on {machine}.
Times are processor time, the least of several runs; the machine had other work as well. An aim is the
most that a figure may be, unless it says `at least`. Ratios are taken within one run, so they depend less
on other work. No test asserts any of this.

| figure | measured | aim |
|---|---|---|
"""
CAUSES = """
## Causes of misses

"""


class Figures:
    """Where benchmarks put their figures."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def add(self, name: str, measured: str, aim: str, cause: str = "") -> None:
        """Note a figure; `cause` tells why it misses its aim where it does."""
        self.rows.append((name, measured, aim, cause))


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Collects figures for the table at the end."""
    return Figures(request.config.stash.setdefault(ROWS, []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table, and the file if one was asked for."""
    rows = config.stash.get(ROWS, [])
    for name, measured, aim, _ in rows:
        terminalreporter.write_line(f"{name}: {measured}" + f" (aim: {aim}{missed(measured, aim)})")
    target = os.environ.get("PERFSIM_BENCHMARKS")
    if target and rows:
        text = HEAD.format(test="`pytest -m benchmark tests/benchmarks`", machine=_machine())
        text += "".join(
            f"| {name} | {measured} | {aim}{missed(measured, aim)} |\n" for name, measured, aim, _ in rows
        )
        causes = [
            f"- {name}: {cause or 'unknown'}\n"
            for name, measured, aim, cause in rows
            if missed(measured, aim)
        ]
        Path(target).write_text(text + (CAUSES + "".join(causes) if causes else ""), encoding="utf-8")


def missed(measured: str, aim: str) -> str:
    """` MISSED` where the first number measured is on the wrong side of the aim, in one unit."""
    value, wanted = (
        float(text.split()[0].replace(",", "")) for text in (measured, aim.removeprefix("at least "))
    )
    return " **MISSED**" if (value < wanted if aim.startswith("at least") else value > wanted) else ""


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
