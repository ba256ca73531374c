"""Maps a function over many items on all cores."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

FEWEST = 20
"""Least number of items for which several processes are started."""


def mapped(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`function` of each item, in order; function, items and results must be picklable."""
    if len(items) < FEWEST or (os.cpu_count() or 1) == 1:
        return [function(item) for item in items]
    with ProcessPoolExecutor(initializer=_ignore_interrupts) as pool:
        return list(pool.map(function, items))


def _ignore_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal; only the parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
