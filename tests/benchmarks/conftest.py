"""Benchmarks keep their figures; with PERFSIM_BENCHMARKS=FILE they are written there as Markdown."""

import os
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Row = tuple[str, str, str, str]
"""What was measured, what came out, what is aimed at, and why the aim is missed where it is."""

ROWS: list[Row] = []
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


@pytest.fixture
def figure() -> Callable[..., None]:
    """Notes a figure for the table at the end; `cause` tells why it misses its aim where it does."""

    def note(name: str, measured: str, aim: str, cause: str = "unknown") -> None:
        value, wanted = (
            float(text.split()[0].replace(",", "")) for text in (measured, aim.removeprefix("at least "))
        )
        misses = value < wanted if aim.startswith("at least") else value > wanted
        ROWS.append((name, measured, f"{aim} **MISSED**" if misses else aim, cause if misses else ""))

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table, and the file if one was asked for."""
    for name, measured, aim, _ in ROWS:
        terminalreporter.write_line(f"{name}: {measured} (aim: {aim})")
    target = os.environ.get("PERFSIM_BENCHMARKS")
    if target and ROWS:
        text = HEAD.format(test="`pytest -m benchmark tests/benchmarks`", machine=_machine())
        text += "".join(f"| {name} | {measured} | {aim} |\n" for name, measured, aim, _ in ROWS)
        causes = [f"- {name}: {cause}\n" for name, _, _, cause in ROWS if cause]
        Path(target).write_text(text + "".join([CAUSES, *causes] if causes else []), encoding="utf-8")


def _machine() -> str:
    """The machine, as far as its figures depend on it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    model = [*names, platform.processor() or platform.machine()][0]
    return f"{os.cpu_count()} cores of {model}, Python {platform.python_version()}, NumPy {np.__version__}"
