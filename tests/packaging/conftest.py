"""Built artefacts, made once per session, and a way to run programs away from the checkout."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def sources(repository: Path) -> dict[Path, ast.Module]:
    """Every module of the package, parsed, by its path inside the checkout."""
    files = sorted((repository / "perfsim").rglob("*.py"))
    return {path.relative_to(repository): ast.parse(path.read_text("utf-8"), str(path)) for path in files}


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program in an empty folder, with nothing of the checkout in its environment."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PERFSIM"))}

    def run_elsewhere(*command: str | Path, cwd: Path = elsewhere) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env=kept,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run_elsewhere


@pytest.fixture(scope="session")
def must_run(run: Run) -> Run:
    """The same for a program that has to succeed; its whole output explains a failure."""

    def run_or_fail(*command: str | Path, **options: Path) -> subprocess.CompletedProcess[str]:
        done = run(*command, **options)
        if done.returncode:
            pytest.fail(f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    return run_or_fail


@pytest.fixture(scope="session")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory, must_run: Run) -> Path:
    """A wheel built straight from the checkout."""
    out = tmp_path_factory.mktemp("wheel")
    must_run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, repository)
    (built,) = out.glob("*.whl")
    return built
