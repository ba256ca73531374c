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


def test_help_loads_no_heavy_library(must_run: Callable, repository: Path) -> None:
    loaded = loaded_by(must_run, repository, "--help")
    assert not HEAVY & loaded, "import these inside the verb that needs them"


def test_show_loads_no_library_that_computes_or_draws(must_run: Callable, repository: Path) -> None:
    loaded = loaded_by(must_run, repository, "show", "systems", "dgx-a100-80gb")
    assert not (HEAVY - {"pydantic", "yaml"}) & loaded


def test_a_run_loads_no_report_and_no_files_of_other_tools(must_run: Callable, repository: Path) -> None:
    asked = ("--model", "gpt3_xl", "--system", "dgx-a100-80gb", "--devices", "8", "--batch", "64")
    loaded = loaded_by(
        must_run, repository, "run", *asked, "--strategy", "3d", "--layout", "tp=1,pp=1,dp=8,mbs=1"
    )
    assert "numpy" in loaded
    assert not {"jinja2", "pandas", "plotly", "scipy"} & loaded
    assert not {name for name in loaded if name.startswith(("perfsim.interop.formats", "perfsim.studies"))}
