"""A sweep that is killed goes on where it was, and says what it would have said."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perfsim.studies.loading import load_sweep
from perfsim.studies.runner import run_sweep

pytestmark = pytest.mark.slow

GRID = "  devices: [1, 2, 4, 8]\n  recipe.global_batch_size: [8, 16, 24, 32, 40, 48, 56, 64]"
ROUNDS = 4
Write = Callable[[str], Path]


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_ended_sweep_resumes_to_its_rows(write_sweep: Write, tmp_path: Path, sent: signal.Signals) -> None:
    path = write_sweep(GRID)
    whole = run_sweep(load_sweep(str(path)), tmp_path / "whole.sqlite", jobs=1)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "perfsim", "sweep", str(path), "--out", str(out), "--jobs", "2"]
    for number in range(ROUNDS):
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as running:
            time.sleep(0.4 + 0.5 * number)
            os.killpg(running.pid, sent)
            said = running.communicate()[1]
        assert "Traceback" not in said or sent is not signal.SIGINT
    assert run_sweep(load_sweep(str(path)), out / "points.sqlite", jobs=1) == whole
