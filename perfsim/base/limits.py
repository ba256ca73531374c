"""Limits on the amount of simulation, and its progress.

One command runs many simulations inside studies and sweeps. Their common limits and progress callback are
set once, around all of them: `with limited(Limits(max_seconds=60)): ...`.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from perfsim.base.errors import LimitError

Engine = Literal["simpy", "fast"]
Tell = Callable[[int, int], None]
"""Progress callback: tasks of the present simulation that have ended, and their total."""


@dataclass
class Limits:
    """Limits over all simulations, and their use so far. An event is the end of a task."""

    max_events: int | None = None
    max_seconds: float | None = None
    tell: Tell | None = None
    say: Callable[[str], None] | None = None
    """Progress of a question about many items, in words: `3 of 26 runs`."""
    engine: Engine | None = None
    """The engine that follows all tasks; None: what is reported and the size of a graph choose."""
    events: int = 0
    started_s: float = field(default_factory=time.monotonic)
    reached: LimitError | None = None
    """The error of the limit that was reached, also where a caller went on without what it stopped."""

    def begin(self, total: int) -> None:
        """Raise LimitError before a simulation of `total` tasks if it would exceed the events."""
        if self.max_events is not None and self.events + total > self.max_events:
            self._stop(
                f"stopped after {self.events:,} events: the next simulation has {total:,} tasks, and "
                f"{self.max_events:,} events are allowed (--max-events)"
            )
        self.in_time(lambda: f"0 of {total:,} tasks of the present simulation had ended")

    def in_time(self, done: Callable[[], str]) -> None:
        """Raise LimitError if the time is used up; `done` describes the progress until then."""
        if self.max_seconds is not None and time.monotonic() - self.started_s > self.max_seconds:
            self._stop(
                f"stopped after {self.max_seconds:g} s (--max-seconds): {done()}; "
                f"{self.events:,} tasks simulated in all"
            )

    def check(self, ended: int, before: int, total: int) -> None:
        """`ended` of `total` tasks ended (`before`: at the last call); LimitError beyond a limit."""
        where = f"{ended:,} of {total:,} tasks of the present simulation had ended"
        if self.tell is not None:
            self.tell(ended, total)
        self.add(ended - before, where)
        self.in_time(lambda: where)

    def _stop(self, message: str) -> NoReturn:
        self.reached = LimitError(message)
        raise self.reached

    def add(self, ended: int, done: str = "that many are allowed") -> None:
        """Add events, such as those of a worker. Raises LimitError where all together exceed the limit."""
        self.events += ended
        if self.max_events is not None and self.events > self.max_events:
            self._stop(f"stopped after {self.max_events:,} events (--max-events): {done}")


_PRESENT: ContextVar[Limits] = ContextVar("limits")


def present_limits() -> Limits:
    """The limits in force; unlimited if none are set."""
    return _PRESENT.get(None) or Limits()


@contextmanager
def limited(limits: Limits) -> Iterator[Limits]:
    """Apply these limits inside the `with` block."""
    token = _PRESENT.set(limits)
    try:
        yield limits
    finally:
        _PRESENT.reset(token)


def start_worker() -> None:
    """What a process of a pool does first: leave Ctrl-C to its parent, and end when the parent is killed."""
    from multiprocessing import parent_process

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is None:
        return

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
