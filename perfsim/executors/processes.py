"""Several processes of this machine."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Any

from perfsim.executors.executor import Pooled

WAITING = 2
"""Items for each process that are handed over before it asks for them."""


class Processes(Pooled):
    """So many processes, which import the caller's main module anew."""

    died = (BrokenProcessPool,)
    die_together = True
    tries_alone = 2
    last_words = "its process died each time, perhaps out of memory: try fewer --jobs"

    def __init__(self, size: int) -> None:
        self.size = size

    @property
    def words(self) -> str:
        """As `Executor.words`."""
        return f"{self.size} processes"

    def window(self) -> int:
        """As `Pooled.window`."""
        return WAITING * self.size + 1

    def started(self) -> _Spawned:
        """As `Pooled.started`."""
        return _Spawned(self.size)

    def ended(self, pool: _Spawned, *, at_once: bool) -> None:
        """As `Pooled.ended`."""
        pool.end(at_once=at_once)


class _Spawned:
    """A pool of processes that leave Ctrl-C, which a terminal sends to all, to their parent."""

    def __init__(self, size: int) -> None:
        self._earlier = set(active_children())
        self._pool = ProcessPoolExecutor(size, mp_context=get_context("spawn"))

    def submit(self, function: Callable[[Any], Any], item: Any, /) -> Future[Any]:
        with _interrupts_later():  # a process is started when there is an item for it
            return self._pool.submit(function, item)

    def end(self, *, at_once: bool) -> None:
        if at_once:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - self._earlier:
                process.terminate()
        self._pool.shutdown()


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Holds Ctrl-C back; processes that are started meanwhile never get it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
