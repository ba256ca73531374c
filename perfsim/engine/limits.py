"""How much simulating may be done, and how far it has come.

A run of the command line makes many simulations, deep inside studies and sweeps; what limits them all
together and whom to tell is set once, around everything: `with limited(Limits(max_seconds=60)): ...`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from perfsim.errors import LimitError

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext
    from multiprocessing.sharedctypes import Synchronized

Tell = Callable[[int, int], None]
"""Told now and then how many tasks of the present simulation have ended, and of how many."""


@dataclass
class Limits:
    """Limits of all simulations together, and what they have used. An event is the end of a task."""

    max_events: int | None = None
    max_seconds: float | None = None
    tell: Tell | None = None
    events: int = 0
    started_s: float = field(default_factory=time.monotonic)
    shared: Synchronized[int] | None = None
    """Events of all processes that work together, where several do."""

    def begin(self, total: int) -> None:
        """Before a simulation of so many tasks: LimitError where it would be one too many."""
        self._count(0)
        if self.max_events is not None and self.events + total > self.max_events:
            raise LimitError(
                f"stopped after {self.events:,} events: the next simulation has {total:,} tasks, and "
                f"{self.max_events:,} events are allowed (--max-events)"
            )
        self.in_time(lambda: f"0 of {total:,} tasks of the present simulation had ended")

    def in_time(self, done: Callable[[], str]) -> None:
        """Raise LimitError where the time is over, with what was `done` until then."""
        if self.max_seconds is not None and time.monotonic() - self.started_s > self.max_seconds:
            raise LimitError(
                f"stopped after {self.max_seconds:g} s (--max-seconds): {done()}; "
                f"{self.events:,} tasks simulated in all"
            )

    def check(self, ended: int, before: int, total: int) -> None:
        """Note that `ended` of a simulation's `total` tasks have ended, `before` at the last call.

        Raises LimitError where that is more than was allowed.
        """
        self._count(ended - before)
        if self.tell is not None:
            self.tell(ended, total)
        where = f"{ended:,} of {total:,} tasks of the present simulation had ended"
        if self.max_events is not None and self.events > self.max_events:
            raise LimitError(f"stopped after {self.max_events:,} events (--max-events): {where}")
        self.in_time(lambda: where)

    def _count(self, ended: int) -> None:
        """Add events to this process's, or to all processes' together."""
        if self.shared is None:
            self.events += ended
            return
        with self.shared.get_lock():
            self.shared.value += ended
            self.events = self.shared.value

    def in_other_processes(self, context: SpawnContext) -> Limits:
        """The same for processes that have nobody to tell; the events of all of them count together."""
        return replace(self, tell=None, shared=context.Value("q", self.events))


_PRESENT: ContextVar[Limits] = ContextVar("limits")


def present_limits() -> Limits:
    """The limits that hold here; none where nobody has set any."""
    return _PRESENT.get(None) or Limits()


def hold(limits: Limits) -> None:
    """Let these limits hold from here on; for the start of a process."""
    _PRESENT.set(limits)


@contextmanager
def limited(limits: Limits) -> Iterator[Limits]:
    """Let these limits hold inside."""
    token = _PRESENT.set(limits)
    try:
        yield limits
    finally:
        _PRESENT.reset(token)
