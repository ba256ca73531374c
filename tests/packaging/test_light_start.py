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
def test_the_package_and_a_verb_load_only_the_libraries_that_they_need(
    must_run: Callable, repository: Path, arguments: tuple[str, ...], needed: set[str], spared: set[str]
) -> None:
    probe = (
        "import sys\nfrom perfsim.cli import main\n"
        f"sys.argv = ['perfsim', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print('exit code', end.code or 0)\n"
        "print('loaded', *sys.modules)\n"
    )
    *_, code, modules = must_run(sys.executable, "-c", probe, cwd=repository).stdout.splitlines()
    assert code == "exit code 0"
    loaded = set(modules.split())
    assert {"perfsim", "perfsim.cli", *needed} <= loaded
    assert not {name for name in loaded if name.startswith(tuple(f"{room}." for room in spared))}
    assert not spared & loaded, "import these inside the verb that needs them"
