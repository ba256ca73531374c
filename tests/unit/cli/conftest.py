"""The command line in this process, in an empty folder with a small study and a small sweep."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from perfsim.cli import main


@pytest.fixture
def perfsim() -> Callable[..., Result]:
    """Runs it: `perfsim("show", "models")`."""
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder."""
    for name in ("study.yaml", "sweep.yaml"):
        (tmp_path / name).write_text(Path(__file__).with_name(name).read_text("utf-8"), "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path
