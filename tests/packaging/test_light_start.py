"""The command line starts without the libraries that only some verbs need."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

HEAVY = {"jinja2", "networkx", "numpy", "pandas", "plotly", "pydantic", "scipy", "simpy", "yaml"}


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


def test_help_loads_no_heavy_library(must_run: Callable) -> None:
    probe = (
        "import sys\n"
        "from perfsim.cli import main\n"
        "sys.argv = ['perfsim', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print('exit code', end.code or 0)\n"
        "print('loaded', *sys.modules)\n"
    )
    output = must_run(sys.executable, "-c", probe).stdout
    (loaded,) = (line.split()[1:] for line in output.splitlines() if line.startswith("loaded "))
    assert "exit code 0" in output
    assert "perfsim.cli" in loaded
    assert not HEAVY & set(loaded), "import these inside the verb that needs them"
