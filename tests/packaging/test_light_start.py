"""The command line starts without the libraries that only some verbs need."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HEAVY = {"jinja2", "networkx", "numpy", "pandas", "plotly", "pydantic", "scipy", "simpy", "yaml"}


@pytest.mark.slow
def test_the_promises_of_a_strategy_are_checked_without_a_test_framework(
    must_run: Callable, repository: Path
) -> None:
    probe = (
        "import sys\n"
        "sys.modules.update(pytest=None, hypothesis=None)\n"
        "from perfsim.strategies import strategy\n"
        "from perfsim.testing import check_strategy\n"
        "check_strategy(strategy('data'))\n"
    )
    must_run(sys.executable, "-c", probe, cwd=repository)


def loaded_by(must_run: Callable, repository: Path, *arguments: str) -> set[str]:
    """The modules that a command has loaded when it ends."""
    probe = (
        "import sys\n"
        "from perfsim.cli import main\n"
        f"sys.argv = ['perfsim', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print('exit code', end.code or 0)\n"
        "print('loaded', *sys.modules)\n"
    )
    output = must_run(sys.executable, "-c", probe, cwd=repository).stdout
    (loaded,) = (line.split()[1:] for line in output.splitlines() if line.startswith("loaded "))
    assert "exit code 0" in output
    assert "perfsim.cli" in loaded
    return set(loaded)


RUN = (
    *("run", "--model", "gpt3_xl", "--system", "dgx-a100-80gb", "--devices", "8", "--batch", "64"),
    *("--strategy", "3d", "--layout", "tp=1,pp=1,dp=8,mbs=1"),
)
FORMATS_AND_STUDIES = {"perfsim.interop.formats", "perfsim.studies"}


@pytest.mark.parametrize(
    ("arguments", "needed", "spared"),
    [
        (("--help",), set(), HEAVY),
        (("show", "systems", "dgx-a100-80gb"), set(), HEAVY - {"pydantic", "yaml"}),
        (RUN, {"numpy"}, {"jinja2", "pandas", "plotly", "scipy"} | FORMATS_AND_STUDIES),
    ],
    ids=["help", "show", "run"],
)
def test_a_verb_loads_only_the_libraries_that_it_needs(
    must_run: Callable, repository: Path, arguments: tuple[str, ...], needed: set[str], spared: set[str]
) -> None:
    loaded = loaded_by(must_run, repository, *arguments)
    assert needed <= loaded
    assert not {name for name in loaded if name.startswith(tuple(f"{room}." for room in spared))}
    assert not spared & loaded, "import these inside the verb that needs them"
