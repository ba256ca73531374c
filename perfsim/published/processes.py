"""One function over many items, on all cores."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")

FEWEST = 20
"""Items from which on several processes are started."""


def mapped(function: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
    """`function` of each item, in their order; function, items and what is found must pickle."""
    if len(items) < FEWEST or (os.cpu_count() or 1) == 1:
        return [function(item) for item in items]
    with ProcessPoolExecutor(initializer=_ignore_interrupts) as pool:
        return list(pool.map(function, items))


def _ignore_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal; only the first one answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
