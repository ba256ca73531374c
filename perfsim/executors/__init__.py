"""Where the items of a study or a sweep are computed: in this process, in several, or on a Dask cluster."""

from __future__ import annotations

import os
from typing import Any

from perfsim.errors import InputError
from perfsim.executors.executor import Executor, Failed, InProcess, Tell, nobody

__all__ = ["IN_PROCESS", "Executor", "Failed", "available_processes", "executor_for"]

IN_PROCESS = InProcess()


def available_processes() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def executor_for(
    jobs: int | None, scheduler: str | None = None, *, most: int | None = None, tell: Tell = nobody
) -> Executor:
    """A Dask cluster where an address is given, else so many processes (None: one for each core).

    `most` is the number of items, above which no process is started. Raises InputError for other
    numbers of processes and for workers with another perfsim, PerfsimError where no scheduler answers.
    """
    asked: Any = jobs
    if asked is not None and not (isinstance(asked, int) and asked >= 1):
        raise InputError(f"jobs: {jobs!r} is not a whole number of processes, 1 or more")
    if scheduler:
        from perfsim.executors.dask_cluster import DaskCluster

        return DaskCluster(scheduler, tell)
    size = jobs or available_processes()
    size = max(1, size if most is None else min(size, most))
    if size == 1:
        return IN_PROCESS
    from perfsim.executors.processes import Processes

    return Processes(size)
