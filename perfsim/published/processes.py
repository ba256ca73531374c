"""Maps a function over many items on all cores."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from perfsim.engine.limits import present_limits

Item = TypeVar("Item")
Result = TypeVar("Result")

FEWEST = 20
"""Least number of items for which several processes are started."""


def mapped(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`function` of each item, in order; function, items and results must be picklable."""
    if len(items) < FEWEST or (os.cpu_count() or 1) == 1:
        return list(_counted(map(function, items), len(items)))
    with ProcessPoolExecutor(initializer=_ignore_interrupts) as pool:
        return list(_counted(pool.map(function, items), len(items)))


def _counted(results: Iterator[Result], total: int) -> Iterator[Result]:
    """The results, each reported as it comes."""
    tell = present_limits().tell_items
    for done, result in enumerate(results, start=1):
        if tell is not None:
            tell(done, total)
        yield result


def _ignore_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal; only the parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
