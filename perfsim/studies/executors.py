"""Where the items of a study or a sweep are computed: in this process, in several, or on a Dask cluster.

A worker that dies loses its items, which are computed again. Which of them killed it is not known, so they
run alone, one after the other; one whose worker dies even then has an error and stops no other.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing import active_children, get_context
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from perfsim.base.errors import InputError, PerfsimError
from perfsim.base.limits import Limits, limited, present_limits, start_worker
from perfsim.prediction.prediction import model_version

if TYPE_CHECKING:
    from distributed import Future as Asked

Key = TypeVar("Key")
Item = TypeVar("Item")
Result = TypeVar("Result")
Tell = Callable[[str], None]

POLL_S = 1.0
"""How often limits and workers are looked at while nothing is finished."""


class ExecutorLost(PerfsimError):
    """The scheduler went away; what was answered before is kept."""


class Executor:
    """Computes items: in this process one after the other; a subclass elsewhere."""

    size = 1
    """How many items are computed at once."""

    @contextmanager
    def answers(
        self, function: Callable[[Item], Result], items: Iterable[tuple[Key, Item]]
    ) -> Iterator[Iterator[tuple[Key, Result | PerfsimError]]]:
        """`function` of all items, each with its key, in the order in which they are finished.

        An item whose workers all died has an error instead. All can be pickled; limits hold over all workers.
        An error of the function, and LimitError, end the iteration; nothing is left running behind it.
        """
        yield ((key, function(item)) for key, item in items)

    def results(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        done: Callable[[int], None] = lambda _: None,
    ) -> list[Result]:
        """`function` of all items in their order; the error of one whose workers died ends all."""
        results: dict[int, Result] = {}
        with self.answers(function, enumerate(items)) as answers:
            for place, result in answers:
                if isinstance(result, PerfsimError):
                    raise result
                results[place] = result
                done(len(results))
        return [results[place] for place in range(len(items))]


IN_PROCESS = Executor()


def in_worker(
    function: Callable[[Item], Result], limits: Limits, elapsed_s: float, version: str, item: Item
) -> tuple[Result, int]:
    """A function under the asker's limits, and its events; `version` is the asker's, or empty."""
    if version and version != model_version():
        raise _another_version("a worker", model_version(), version)
    present = replace(limits, started_s=time.monotonic() - elapsed_s)
    with limited(present):
        result = function(item)
        if present.reached is not None:
            raise present.reached
    return result, present.events - limits.events


def _another_version(worker: str, version: str, here: str) -> InputError:
    """The refusal of a worker that would compute other numbers."""
    return InputError(f"{worker} has perfsim {version}, and this machine {here}: install it on all")


class _Pooled(Executor, ABC):
    """An executor whose workers may die; a subclass says how they are started and ended."""

    died: tuple[type[BaseException], ...]
    """What the future of an item raises if its worker died."""
    lost: tuple[type[BaseException], ...] = ()
    """What it raises if its answer was lost on the way."""
    tries_alone: int
    """How often an item that may have killed its worker is handed over once more."""
    last_words: str
    """Why an item failed, whose workers died."""
    version = ""
    """Of perfsim, where workers may have another one."""

    @abstractmethod
    def window(self) -> int:
        """How many items are handed over at once; raises ExecutorLost where nobody takes them."""

    @abstractmethod
    def submit(self, function: Callable[[Any], Any], item: Any) -> Future[Any]:
        """Hand an item over to a worker, which is started where there is none."""

    @abstractmethod
    def end(self, *, at_once: bool) -> None:
        """End the workers; `at_once` without waiting for items."""

    @contextmanager
    def answers(
        self, function: Callable[[Item], Result], items: Iterable[tuple[Key, Item]]
    ) -> Iterator[Iterator[tuple[Key, Result | PerfsimError]]]:
        finished = False
        try:
            yield self._answers(function, iter(items))
            finished = True
        finally:
            self.end(at_once=not finished)

    def _answers(
        self, function: Callable[[Item], Result], items: Iterator[tuple[Key, Item]]
    ) -> Iterator[tuple[Key, Result | PerfsimError]]:
        limits = present_limits()
        running: dict[Future[tuple[Result, int]], tuple[Key, Item, int]] = {}
        # Items whose workers died, and how often; they run alone.
        suspects = deque[tuple[Key, Item, int]]()

        def submit(key: Key, item: Item, deaths: int) -> None:
            known = replace(limits, tell=None, say=None, reached=None)
            task = partial(in_worker, function, known, time.monotonic() - limits.started_s, self.version)
            running[self.submit(task, item)] = key, item, deaths

        while True:
            if not suspects:
                for key, item in islice(items, max(self.window() - len(running), 0)):
                    submit(key, item, 0)
            elif not running:
                key, item, deaths = suspects.popleft()
                if deaths > self.tries_alone:
                    yield key, PerfsimError(self.last_words)
                    continue
                submit(key, item, deaths)
            if not running and not suspects:
                return
            done, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
            self.window()
            limits.in_time(lambda: f"{len(running)} items were being computed")
            for future in done:
                key, item, deaths = running.pop(future)
                try:
                    result, events = future.result()
                except self.died:
                    suspects.append((key, item, deaths + 1))
                    continue
                except self.lost:
                    self.window()  # raises where nobody is left to be asked again
                    submit(key, item, deaths)
                    continue
                limits.add(events)
                yield key, result


# Several processes of this machine.

WAITING = 2
"""Items for each process that are handed over before it asks for them."""


class Processes(_Pooled):
    """So many processes, which leave Ctrl-C to their parent; spawned, they import its main module anew."""

    died = (BrokenProcessPool,)
    tries_alone = 2
    last_words = "its process died each time, perhaps out of memory: try fewer at once"

    def __init__(self, size: int, start: str | None = "spawn") -> None:
        """They are started by this method of multiprocessing; None: by that of the platform."""
        self.size = size
        self._start = start
        self._earlier = set(active_children())
        self._pool: ProcessPoolExecutor | None = None

    def window(self) -> int:
        return WAITING * self.size + 1

    def submit(self, function: Callable[[Any], Any], item: Any) -> Future[Any]:
        if self._pool is None:
            self._earlier = set(active_children())
            self._pool = ProcessPoolExecutor(
                self.size, mp_context=get_context(self._start), initializer=start_worker
            )
        # A process is started when there is an item for it, and never gets the signals held back here.
        masks = hasattr(signal, "pthread_sigmask")
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masks else None
        try:
            return self._pool.submit(function, item)
        except BrokenProcessPool:  # the death of one process has ended all
            self.end(at_once=True)
            return self.submit(function, item)
        finally:
            if held is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def end(self, *, at_once: bool) -> None:
        pool = self._pool
        self._pool = None
        if pool is None:
            return
        if at_once:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - self._earlier:
                process.terminate()
        pool.shutdown()


# A Dask cluster that runs already: a scheduler at an address, and its workers.

ADDRESS = re.compile(r"(tcp|tls|ucx|inproc)://[^\s/]+(:\d+)?")
CONNECT_S = 10.0
"""How long the scheduler may take to answer."""
COUNT_S = 5.0
"""How often the workers are counted."""
WAITING_ON_DASK = 4
"""Items for each thread of a worker that are handed over before it asks for them."""
LEAST_WAITING = 32


class _DaskCluster(_Pooled):
    """The workers of a scheduler, which come and go: it gives a lost one's items to others, or gives up."""

    tries_alone = 1
    last_words = (
        "each worker that computed it died, perhaps out of memory (the scheduler's log has their names)"
    )

    def __init__(self, address: str, tell: Tell) -> None:
        """Raises InputError for what is no address, PerfsimError where nobody answers."""
        if not ADDRESS.fullmatch(address):
            raise InputError(f"{address!r} is no address of a scheduler", "such as tcp://host:8786")
        import asyncio  # only here: it takes long to read

        try:
            from distributed import Client, KilledWorker
            from distributed.comm.core import CommClosedError
        except ImportError:
            raise PerfsimError("--scheduler needs Dask: pip install 'perfsim[dask]'") from None
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        try:
            # Dask's client tries again until its time is over; this raises at once where nobody listens.
            parts = urlsplit(address)
            if parts.scheme in ("tcp", "tls") and parts.hostname and parts.port:
                socket.create_connection((parts.hostname, parts.port), CONNECT_S).close()
            self._client = Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            first = getattr(error, "strerror", None) or str(error).partition("\n")[0]
            raise PerfsimError(
                f"no Dask scheduler answers at {address}: {first or type(error).__name__}"
            ) from None
        self.address = address
        self.died = (KilledWorker,)
        self.lost = (asyncio.CancelledError, CancelledError, CommClosedError)
        self.size = 0
        self.version = model_version()
        self._tell = tell
        self._counted_s = 0.0
        self._had_workers = True
        try:
            # Those that come later are checked by `in_worker`.
            for worker, version in self._client.run(model_version, on_error="return").items():
                if isinstance(version, BaseException):
                    raise InputError(f"worker {worker} cannot use perfsim ({version}): install it there")
                if version != self.version:
                    raise _another_version(f"worker {worker}", version, self.version)
            self.window()
        except BaseException:
            self.end(at_once=True)
            raise

    def window(self) -> int:
        lost = ExecutorLost(f"the scheduler at {self.address} went away")
        now_s = time.monotonic()
        if self._client.status != "running":
            raise lost
        if now_s - self._counted_s > COUNT_S:
            try:
                self.size = sum(self._client.nthreads().values())
            except OSError:
                raise lost from None
            self._counted_s = now_s
            if self._had_workers and not self.size:
                self._tell(f"{self.address} has no worker; what is left waits for one")
            self._had_workers = self.size > 0
        return max(LEAST_WAITING, WAITING_ON_DASK * self.size)

    def submit(self, function: Callable[[Any], Any], item: Any) -> Future[Any]:
        # Dask's own `ClientExecutor` never finishes the future of an item whose worker leaves while its
        # answer is fetched, or raises ValueError for it.
        answer: Future[Any] = Future()

        def take(done: Asked[Any]) -> None:
            try:
                answer.set_result(done.result())
            except BaseException as error:  # noqa: BLE001 - whatever the worker raised, or a lost answer
                answer.set_exception(error)

        self._client.submit(function, item, pure=False).add_done_callback(take)
        return answer

    def end(self, *, at_once: bool) -> None:
        """The scheduler forgets what this client has asked."""
        del at_once
        self._client.close(CONNECT_S)


def executor_for(
    jobs: int | None, scheduler: str | None = None, *, most: int | None = None, tell: Tell = lambda _: None
) -> Executor:
    """A Dask cluster where an address is given, else so many processes (None: one for each core).

    No more than `most` processes are started. Raises InputError for impossible numbers and for workers with
    another perfsim, PerfsimError where no scheduler answers.
    """
    asked: Any = jobs
    if asked is not None and not (isinstance(asked, int) and asked >= 1):
        raise InputError(f"jobs: {jobs!r} is not a whole number of processes, 1 or more")
    if scheduler:
        return _DaskCluster(scheduler, tell)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    size = jobs or cores
    size = max(1, size if most is None else min(size, most))
    return IN_PROCESS if size == 1 else Processes(size)
