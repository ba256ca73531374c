"""A sweep on a real scheduler on loopback: workers die and leave, the client dies, and no row changes."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import perfsim as ps
from perfsim.base.errors import InputError, PerfsimError
from perfsim.studies.executors import executor_for
from perfsim.studies.loading import load_sweep
from perfsim.studies.runner import run_sweep

pytest.importorskip("distributed")
pytestmark = pytest.mark.slow

LAYOUT = """\
  candidates:
    - {strategy: weight-streaming, system: cs-2, devices: [1], layout: "mbs=4"}
"""
RATES = ", ".join(f"{number} Gb/s" for number in range(10, 135))
GRID = (
    f"{LAYOUT}  devices: [1, 2]\n  model.num_layers: [1, 2]\n  recipe.global_batch_size: [8, 16, 24, 32]\n"
    f"  system.swarmx.bandwidth: [{RATES}]"
)
Write = Callable[[str], Path]
DASK = ("-m", "distributed.cli.dask_scheduler"), ("-m", "distributed.cli.dask_worker")


class Cluster:
    """A scheduler with workers, each a process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.workers = folder, list[subprocess.Popen[bytes]]()
        file = folder / "scheduler.json"
        options = ("--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file), "--no-dashboard")
        self.scheduler = self.start(*DASK[0], *options)
        wait_until(lambda: file.exists() and "tcp://" in file.read_text())
        self.address = next(part for part in file.read_text().split('"') if part.startswith("tcp://"))

    def start(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            given = {"stdout": log, "stderr": log, "cwd": self.folder, "env": {**os.environ, **environment}}
            return subprocess.Popen([sys.executable, *command], **given)

    def add_worker(self, **environment: str) -> None:
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(self.folder))
        self.workers.append(self.start(*DASK[1], self.address, *options, **environment))

    def end(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


def wait_until(holds: Callable[[], bool], most_s: float = 180.0) -> None:
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < most_s
        time.sleep(0.05)


def stored(path: Path) -> int:
    """Number of rows of a store that others write."""
    with closing(sqlite3.connect(path, timeout=30.0)) as connection, suppress(sqlite3.OperationalError):
        return int(connection.execute("SELECT COUNT(*) FROM points").fetchone()[0])
    return 0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    cluster = Cluster(folder)
    yield cluster
    cluster.end()


def test_2000_points_are_the_same_rows_though_a_worker_is_killed_another_leaves_and_the_client_dies(
    write_sweep: Write, tmp_path: Path, cluster: Cluster
) -> None:
    for _ in range(3):
        cluster.add_worker()
    path = write_sweep(GRID)
    out = tmp_path / "out"
    store = tmp_path / "out/points.sqlite"
    sweep = load_sweep(str(path))
    assert len(sweep.points) == 2000

    command = ("-m", "perfsim", "sweep", str(path), "--out", str(out), "--scheduler", cluster.address)
    client = cluster.start(*command)
    wait_until(lambda: store.exists() and stored(store) > 100)
    cluster.workers[0].send_signal(signal.SIGKILL)
    wait_until(lambda: stored(store) > 400)
    client.send_signal(signal.SIGKILL)
    client.wait()
    kept = stored(store)
    assert 400 < kept < 2000
    told: list[str] = []
    leaving = Thread(
        target=lambda: (wait_until(lambda: stored(store) > 1600), cluster.workers[1].terminate())
    )
    leaving.start()
    on_dask = run_sweep(sweep, store, scheduler=cluster.address, tell=told.append)
    leaving.join()
    assert told[0] == f"2000 points, {kept} of them stored"
    assert on_dask == run_sweep(sweep, tmp_path / "processes.sqlite", jobs=None)
    assert len(on_dask.feasible) == 2000


def test_a_point_that_kills_every_worker_fails_and_loses_no_other(cluster: Cluster) -> None:
    for _ in range(10):
        cluster.add_worker()
    items = [(number, f"{number} + 1") for number in range(5)]
    executor = executor_for(None, cluster.address)
    with executor.answers(eval, [*items, (99, "__import__('os')._exit(1)")]) as finished:
        answers = dict(finished)
    failed = answers.pop(99)
    assert isinstance(failed, PerfsimError)
    assert "died, perhaps out of memory" in str(failed)
    assert answers == {number: number + 1 for number in range(5)}


def test_a_store_is_resumed_after_its_scheduler(write_sweep: Write, tmp_path: Path, cluster: Cluster) -> None:
    cluster.add_worker()
    store = tmp_path / "points.sqlite"
    sweep = load_sweep(str(write_sweep(GRID.replace("[8, 16, 24, 32]", "[8]").replace("[1, 2]", "[1]"))))

    def end_it() -> None:
        wait_until(lambda: store.exists() and stored(store) > 10)
        cluster.scheduler.kill()

    ending = Thread(target=end_it)
    ending.start()
    with pytest.raises(PerfsimError, match=r"went away: \d+ of 125 points are finished and kept; the same"):
        run_sweep(sweep, store, scheduler=cluster.address)
    ending.join()
    assert 10 < stored(store) < 125
    assert len(run_sweep(sweep, store, jobs=None).feasible) == 125


def test_workers_of_another_perfsim_are_refused(write_sweep: Write, tmp_path: Path, cluster: Cluster) -> None:
    """The other perfsim has one file more."""
    other = tmp_path / "other"
    shutil.copytree(Path(ps.__file__).parent, other / "perfsim", ignore=shutil.ignore_patterns("__pycache__"))
    (other / "perfsim/costs/more.py").write_text("")
    cluster.add_worker(PYTHONPATH=str(other))
    wait_until(lambda: "Register worker" in (cluster.folder / "log").read_text())
    sweep = load_sweep(str(write_sweep(GRID)))
    with pytest.raises(InputError, match=r"worker tcp://\S+ has perfsim 0\.\S+, and this machine 0\."):
        run_sweep(sweep, tmp_path / "points.sqlite", scheduler=cluster.address)


def test_workers_answer_studies_and_plans_as_here(write_sweep: Write, cluster: Cluster) -> None:
    cluster.add_worker()
    study = write_sweep("  devices: [1]").with_name("study.yaml")
    here, there = (ps.study(str(study), scheduler=address) for address in (None, cluster.address))
    assert there.document() == here.document()
    question: dict[str, Any] = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 8, "batch": 64}
    here, there = (ps.plan(**question, scheduler=address) for address in (None, cluster.address))
    assert there.document() == here.document(), "which no clock of a planner moves"
    assert there.emit("megatron") == here.emit("megatron")
