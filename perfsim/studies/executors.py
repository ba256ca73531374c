"""Where the items of a study or a sweep are computed: in this process, in several, or on a Dask cluster."""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing import active_children, get_context
from typing import Any, Generic, Protocol, TypeVar

from perfsim.base.errors import InputError, LimitError, PerfsimError
from perfsim.engine.limits import Limits, limited, present_limits
from perfsim.prediction.prediction import model_version

# The interface of all executors, and the collection of answers from workers that may die.
#
# A worker that dies loses its items, which are computed again. Which of them killed it is not known, so they
# run alone, one after the other; one whose worker dies even then is `Failed` and stops no other.

Key = TypeVar("Key")
Item = TypeVar("Item")
Result = TypeVar("Result")
Tell = Callable[[str], None]

POLL_S = 1.0
"""How often limits and workers are looked at while nothing is finished."""


def nobody(_message: str) -> None:
    """Listens to nothing."""


def attempt(answer: Callable[[], Result]) -> Result | PerfsimError:
    """An answer, or why a point, a candidate or a change has none: the one place that decides.

    Every refusal concerns one item alone, except that of a limit, which is raised and ends all.
    """
    try:
        return answer()
    except LimitError:
        raise
    except PerfsimError as error:
        return error


@dataclass(frozen=True)
class Failed:
    """An item without an answer, because every worker that computed it has died."""

    reason: str


class ExecutorLost(PerfsimError):
    """The scheduler went away; what was answered before is kept."""


class Executor(Protocol):
    """Computes items somewhere."""

    @property
    def size(self) -> int:
        """How many items are computed at once."""
        ...

    @property
    def words(self) -> str:
        """`8 processes`."""
        ...

    def answers(
        self, function: Callable[[Item], Result], items: Iterable[tuple[Key, Item]]
    ) -> AbstractContextManager[Iterator[tuple[Key, Result | Failed]]]:
        """`function` of all items, each with its key, in the order in which they are finished.

        Function, items and results can be pickled. Limits hold over all workers together. An error of the
        function, and LimitError, end the iteration; nothing is left running when the context ends.
        """
        ...


class _InProcess:
    """Computes in this process, one item after the other."""

    size = 1
    words = "1 process"

    @contextmanager
    def answers(
        self, function: Callable[[Item], Result], items: Iterable[tuple[Key, Item]]
    ) -> Iterator[Iterator[tuple[Key, Result | Failed]]]:
        yield ((key, function(item)) for key, item in items)


@dataclass(frozen=True)
class Task(Generic[Item, Result]):
    """A function with the limits and the version of the process that asks, to be called by a worker."""

    function: Callable[[Item], Result]
    limits: Limits
    elapsed_s: float
    version: str
    """Of perfsim where it was asked; empty where the worker runs the same files."""

    def __call__(self, item: Item) -> tuple[Result, int]:
        """The function of an item, and the number of events that it simulated."""
        if self.version and self.version != model_version():
            raise another_version("a worker", model_version(), self.version)
        asked = self.limits
        own = Limits(asked.max_events, asked.max_seconds, engine=asked.engine, events=asked.events)
        own.started_s = time.monotonic() - self.elapsed_s
        with limited(own):
            result = self.function(item)
            if own.reached is not None:
                raise own.reached
        return result, own.events - asked.events


def another_version(worker: str, version: str, own: str) -> InputError:
    """The refusal of a worker that would compute other numbers."""
    return InputError(f"{worker} has perfsim {version}, and this machine {own}: install one on all")


class Pool(Protocol):
    """What `concurrent.futures` and Dask's client have in common."""

    def submit(self, function: Callable[[Any], Any], item: Any, /) -> Future[Any]:
        """Hand over an item."""
        ...


class Pooled(ABC):
    """An executor whose workers may die; a subclass says how they are started and ended."""

    died: tuple[type[BaseException], ...]
    """What the future of an item raises if its worker died."""
    die_together: bool
    """Whether the death of one worker ends all."""
    tries_alone: int
    """How often an item that may have killed its worker is handed over once more."""
    version: str = ""
    """Of perfsim, where workers may have another one."""

    @abstractmethod
    def window(self) -> int:
        """How many items are handed over at once; raises ExecutorLost where nobody takes them."""

    @abstractmethod
    def started(self) -> Pool:
        """Workers, alive."""

    @abstractmethod
    def ended(self, pool: Any, *, at_once: bool) -> None:
        """End what `started` has started; `at_once` without waiting for items."""

    @property
    @abstractmethod
    def last_words(self) -> str:
        """Why an item failed, whose workers died."""

    @contextmanager
    def answers(
        self, function: Callable[[Item], Result], items: Iterable[tuple[Key, Item]]
    ) -> Iterator[Iterator[tuple[Key, Result | Failed]]]:
        collection = _Collection(self, function, items)
        try:
            yield collection.answers()
        except BaseException:
            collection.end(at_once=True)
            raise
        collection.end(at_once=False)


class _Collection(Generic[Key, Item, Result]):
    """The answers of one call, in the order in which they are finished."""

    def __init__(
        self, executor: Pooled, function: Callable[[Item], Result], items: Iterable[tuple[Key, Item]]
    ) -> None:
        self._executor, self._function, self._items = executor, function, iter(items)
        self._limits = present_limits()
        self._pool: Pool | None = None
        self._running: dict[Future[tuple[Result, int]], tuple[Key, Item]] = {}
        self._suspects: list[tuple[Key, Item]] = []

    def answers(self) -> Iterator[tuple[Key, Result | Failed]]:
        """All answers."""
        while True:
            if not self._suspects:
                room = self._executor.window() - len(self._running)
                for key, item in islice(self._items, max(room, 0)):
                    self._submit(key, item)
            if self._running:
                yield from self._finished()
            elif self._suspects:
                suspects = self._suspects
                self._suspects = []
                for key, item in suspects:
                    yield key, self._alone(key, item)
            else:
                return

    def _submit(self, key: Key, item: Item) -> None:
        elapsed_s = time.monotonic() - self._limits.started_s
        own = self._limits
        asked = Limits(own.max_events, own.max_seconds, engine=own.engine, events=own.events)
        task = Task(self._function, asked, elapsed_s, self._executor.version)
        if self._pool is None:
            self._pool = self._executor.started()
        try:
            self._running[self._pool.submit(task, item)] = key, item
        except self._executor.died:
            self._suspects.append((key, item))

    def _finished(self) -> Iterator[tuple[Key, Result]]:
        """The answers that are there now; items whose workers died become suspects."""
        done, _ = wait(self._running, timeout=POLL_S, return_when=FIRST_COMPLETED)
        self._executor.window()
        self._limits.in_time(lambda: f"{len(self._running)} items were being computed")
        for future in done:
            key, item = self._running.pop(future)
            try:
                result, events = future.result()
            except self._executor.died:
                self._suspects.append((key, item))
                continue
            except CancelledError:
                raise ExecutorLost("the scheduler went away") from None
            self._limits.add(events)
            yield key, result
        if self._suspects and not self._running and self._executor.die_together:
            self.end(at_once=True)

    def _alone(self, key: Key, item: Item) -> Result | Failed:
        """The answer of an item while nothing else is computed."""
        for _ in range(self._executor.tries_alone):
            self._submit(key, item)
            while self._running:
                for _, result in self._finished():
                    return result
            self._suspects.clear()
        return Failed(self._executor.last_words)

    def end(self, *, at_once: bool) -> None:
        """End the workers; they are started anew where more items come."""
        pool = self._pool
        self._pool = None
        self._running.clear()
        if pool is not None:
            self._executor.ended(pool, at_once=at_once)


# Several processes of this machine.

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
        return f"{self.size} processes"

    def window(self) -> int:
        return WAITING * self.size + 1

    def started(self) -> _Spawned:
        return _Spawned(self.size)

    def ended(self, pool: _Spawned, *, at_once: bool) -> None:
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


IN_PROCESS = _InProcess()


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
        from perfsim.studies.dask_cluster import DaskCluster

        return DaskCluster(scheduler, tell)
    size = jobs or available_processes()
    size = max(1, size if most is None else min(size, most))
    if size == 1:
        return IN_PROCESS

    return Processes(size)
