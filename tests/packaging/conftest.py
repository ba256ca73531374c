"""Built artefacts, made once per session, and a way to run programs away from the checkout."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


@pytest.fixture(scope="session")
def sources(repository: Path) -> dict[Path, ast.Module]:
    """Every module of the package, parsed, by its path inside the checkout."""
    files = sorted((repository / "perfsim").rglob("*.py"))
    return {path.relative_to(repository): ast.parse(path.read_text("utf-8"), str(path)) for path in files}


@pytest.fixture(scope="session")
def must_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program in an empty folder, with nothing of the checkout in its environment but what is given.

    It has to end with this exit code; its whole output explains a failure.
    """
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PERFSIM"))}

    def run(*command: str | Path, cwd: Path = elsewhere, code: int = 0, **more: str | Path) -> Done:
        words = [str(part) for part in command]
        env = kept | {name: str(value) for name, value in more.items()}
        quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        done = subprocess.run(words, cwd=cwd, env=env, timeout=600, check=False, **quiet)
        if done.returncode != code:
            pytest.fail(f"{words} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    return run


@pytest.fixture(scope="session")
def build(repository: Path, must_run: Run) -> Callable[..., Path]:
    """Builds the checkout into a folder, straight into a wheel or by a source distribution; the wheel."""

    def build(out: Path, *kind: str) -> Path:
        must_run(sys.executable, "-m", "build", *kind, "--no-isolation", "--outdir", out, repository)
        (built,) = out.glob("*.whl")
        return built

    return build


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory, build: Callable[..., Path]) -> Path:
    """A wheel built straight from the checkout."""
    return build(tmp_path_factory.mktemp("wheel"), "--wheel")
