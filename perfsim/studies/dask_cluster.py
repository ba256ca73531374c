"""A Dask cluster that runs already: a scheduler at an address, and its workers."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from perfsim.base.errors import InputError, PerfsimError, Problem
from perfsim.prediction.prediction import model_version
from perfsim.studies.executors import ExecutorLost, Pool, Pooled, Tell, another_version

if TYPE_CHECKING:
    from distributed import Client
    from distributed import Future as Asked


ADDRESS = re.compile(r"(tcp|tls|ucx|inproc)://[^\s/]+(:\d+)?")
"""Addresses of schedulers."""
CONNECT_S = 10.0
"""How long the scheduler may take to answer."""
COUNT_S = 5.0
"""How often the workers are counted."""
WAITING = 4
"""Items for each thread of a worker that are handed over before it asks for them."""
LEAST_WAITING = 32
MOST_ASKED = 4
"""How often an item is asked for whose answer the cluster loses."""


class DaskCluster(Pooled):
    """The workers of a scheduler; they may come and go while items are computed.

    The scheduler gives the items of a worker that dies to others, and gives an item up that has lost several.
    """

    die_together = False
    tries_alone = 1

    def __init__(self, address: str, tell: Tell) -> None:
        self.address = address
        self._tell = tell
        self.version = model_version()
        self._client = _connected(address)
        self._counted_s = 0.0
        self._had_workers = True
        self.size = 0
        try:
            from distributed import KilledWorker

            self.died = (KilledWorker,)
            # Those that come later are checked by `Task`.
            for worker, version in self._client.run(model_version, on_error="return").items():
                if isinstance(version, BaseException):
                    raise InputError(f"worker {worker} cannot use perfsim ({version}): install it there")
                if version != self.version:
                    raise another_version(f"worker {worker}", version, self.version)
            self.window()
        except BaseException:
            self._client.close(CONNECT_S)
            raise

    @property
    def words(self) -> str:
        return f"{self.size} worker{'' if self.size == 1 else 's'} of {self.address}"

    @property
    def last_words(self) -> str:
        return (
            "each worker that computed it died, perhaps out of memory (the scheduler's log has their names)"
        )

    def window(self) -> int:
        now_s = time.monotonic()
        if self._client.status != "running":
            raise self._lost()
        if now_s - self._counted_s > COUNT_S:
            try:
                self.size = sum(self._client.nthreads().values())
            except OSError:
                raise self._lost() from None
            self._counted_s = now_s
            if self._had_workers and not self.size:
                self._tell(f"{self.address} has no worker; what is left waits for one")
            self._had_workers = self.size > 0
        return max(LEAST_WAITING, WAITING * self.size)

    def _lost(self) -> ExecutorLost:
        return ExecutorLost(f"the scheduler at {self.address} went away")

    def started(self) -> Pool:
        return Answers(self._client)

    def ended(self, pool: Pool, *, at_once: bool) -> None:
        """As `Pooled.ended`: the scheduler forgets what this client has asked."""
        del pool, at_once
        self._client.close(CONNECT_S)


class Answers:
    """Items that a client hands over, as futures of `concurrent.futures`.

    Dask's own `ClientExecutor` never finishes the future of an item whose worker leaves while its answer is
    fetched, or raises ValueError for it. Here such an item is asked for again.
    """

    def __init__(self, client: Client) -> None:
        from distributed.comm.core import CommClosedError

        self._client = client
        self._lost = (CancelledError, asyncio.CancelledError, CommClosedError)

    def submit(self, function: Callable[[Any], Any], item: Any, /) -> Future[Any]:
        answer: Future[Any] = Future()
        self._ask(answer, function, item, MOST_ASKED)
        return answer

    def _ask(self, answer: Future[Any], function: Callable[[Any], Any], item: Any, times: int) -> None:
        asked = self._client.submit(function, item, pure=False)

        def take(done: Asked[Any]) -> None:
            try:
                answer.set_result(done.result())
            except self._lost:
                if times > 1 and self._client.status == "running":
                    self._ask(answer, function, item, times - 1)
                else:
                    answer.cancel()
                    answer.set_running_or_notify_cancel()
            except Exception as error:  # noqa: BLE001 - whatever the worker raised
                answer.set_exception(error)

        asked.add_done_callback(take)


def _connected(address: str) -> Client:
    """A client. Raises InputError for what is no address, PerfsimError where nobody answers."""
    if not ADDRESS.fullmatch(address):
        raise InputError(
            [Problem(f"{address!r} is no address of a scheduler", help="such as tcp://host:8786")]
        )
    try:
        from distributed import Client
    except ImportError:
        raise PerfsimError("--scheduler needs Dask: pip install 'perfsim[dask]'") from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        # Dask's client tries again until its time is over; this raises at once where nobody listens.
        parts = urlsplit(address)
        if parts.scheme in ("tcp", "tls") and parts.hostname and parts.port:
            socket.create_connection((parts.hostname, parts.port), CONNECT_S).close()
        return Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        first = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise PerfsimError(
            f"no Dask scheduler answers at {address}: {first or type(error).__name__}"
        ) from None
