"""The way in: an interrupt before, while and after a verb runs ends in one message, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STRIKE = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
SAID = "error: interrupted before the end\n"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m perfsim` that finds the modules of `folder` first."""
    path = os.pathsep.join([str(folder), *sys.path])
    command = [sys.executable, "-m", "perfsim", *arguments]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def ended_in_words(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stderr.lstrip()) == (130, SAID)


@pytest.mark.skipif(os.name != "posix", reason="a process sends itself SIGINT")
@pytest.mark.parametrize("module", ["click", "inspect", "yaml"])
def test_an_interrupt_while_modules_are_read_ends_in_words(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(STRIKE)
    ended_in_words(run(tmp_path, "show", "models"))


@pytest.mark.skipif(os.name != "posix", reason="a process sends itself SIGINT")
def test_an_interrupt_after_the_answer_ends_in_words(tmp_path: Path) -> None:
    (tmp_path / "inspect.py").write_text(
        "import atexit, importlib, sys\n"
        "import os, signal\natexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "sys.path.remove(__file__.rpartition('/')[0])\ndel sys.modules['inspect']\n"
        "sys.modules['inspect'] = importlib.import_module('inspect')\n"
    )
    done = run(tmp_path, "--version")
    assert "perfsim" in done.stdout
    ended_in_words(done)


def test_almost_nothing_is_read_before_the_handler_of_interrupts_is_there(repository: Path) -> None:
    """Until then an interrupt ends in Python's own traceback; without site, as little as can be is loaded."""
    probe = (
        "import sys\n"
        f"sys.path.insert(0, {str(repository)!r})\n"
        "import os\nbefore = {*sys.modules}\n"
        "import perfsim.__main__\nprint(*{*sys.modules} - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", probe], capture_output=True, text=True, check=True
    )
    few = {"perfsim", "perfsim.version", "perfsim.__main__", "__future__", "gc"}
    assert {*done.stdout.split()} <= few
