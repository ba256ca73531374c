from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import perfsim as ps

USER_FILE = """
import perfsim as ps
from perfsim import Catalog, PerfsimError, Study


def main() -> float:
    answer = ps.study("gpt3_20b", compare=["3d"])
    fields = ps.study({"extends": "gpt3_20b", "batch_sizes": [64]})
    step = ps.predict(model=Catalog().models["gpt3_20b"].with_(num_layers=48), system="cs-2", devices=4)
    try:
        points = ps.sweep("capacity_20b").points
    except PerfsimError as error:
        raise SystemExit([problem.message for problem in error.problems]) from None
    shares: float = sum(step.breakdown_s.values()) + points[0].target_time.time_s + fields.best.mfu
    median: float = ps.validate("cases.yaml").summary["median_ape"]
    study: Study | None = None
    assert study is None
    return shares + answer.ratio("16 CS-2").high + answer.candidates[0].step_time_s + median
"""


def test_every_public_name_is_found_and_documented_and_no_other() -> None:
    for name in dir(ps):
        value = getattr(ps, name)
        assert name == "__version__" or value.__doc__
    with pytest.raises(AttributeError, match="'perfsim' has no attribute 'studdy'"):
        _ = ps.studdy  # type: ignore[attr-defined]


@pytest.mark.parametrize("before", ["", "import perfsim.studies.runner, perfsim.studies.axes"])
def test_study_and_sweep_are_functions_whatever_was_imported_before(
    must_run: Callable, repository: Path, before: str
) -> None:
    probe = f"{before}\nimport perfsim as ps\nassert callable(ps.study) and callable(ps.sweep)"
    must_run(sys.executable, "-c", probe, cwd=repository)


@pytest.mark.slow
def test_a_users_file_passes_mypy_strict(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "user.py").write_text(textwrap.dedent(USER_FILE), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "user.py"]
    # mypy does not follow the import hook of an editable install, so the checkout is put on the path.
    env = {**os.environ, "PYTHONPATH": str(repository)}
    checked = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
