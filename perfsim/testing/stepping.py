"""Executes the moves of a collective algorithm: in time on an idle network, and on arrays.

These are independent checks of the closed forms: the time of the moves step by step, and their result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from numpy.typing import NDArray

from perfsim.collectives.move import Move

Link = Callable[[int, int], tuple[float, float]]
"""(src, dst) to (latency in seconds, bytes per second)."""


def uniform_link(latency_s: float, bytes_per_s: float) -> Link:
    """The same latency and bandwidth between any two ranks."""
    return lambda _src, _dst: (latency_s, bytes_per_s)


def lockstep_s(moves: Iterable[Move], link: Link) -> float:
    """Seconds if a step starts after all moves of the previous step have arrived."""
    total_s = 0.0
    for _, step in groupby(moves, key=attrgetter("step")):
        load_bytes: defaultdict[tuple[int, int], float] = defaultdict(float)
        for move in step:
            load_bytes[move.src, move.dst] += move.n_bytes
        total_s += max(_link_s(link(*ends), n_bytes) for ends, n_bytes in load_bytes.items())
    return total_s


def pipelined_s(moves: Iterable[Move], link: Link) -> float:
    """Seconds if a chunk is sent as soon as its sender has it and the link is free."""
    ready_s: defaultdict[tuple[int, int], float] = defaultdict(float)
    free_s: defaultdict[tuple[int, int], float] = defaultdict(float)
    for move in moves:
        latency_s, bytes_per_s = link(move.src, move.dst)
        ends = (move.src, move.dst)
        sent_s = max(ready_s[move.src, move.chunk], free_s[ends]) + move.n_bytes / bytes_per_s
        free_s[ends] = sent_s
        received = (move.dst, move.chunk)
        ready_s[received] = max(ready_s[received], sent_s + latency_s)
    return max(ready_s.values(), default=0.0)


def replay(moves: Iterable[Move], buffers: Sequence[NDArray[Any]]) -> None:
    """Execute the moves in place; `buffers[rank][chunk]` is the data of a rank.

    All moves of a step read the state before the step.
    """
    for _, step in groupby(moves, key=attrgetter("step")):
        sent = [(move, buffers[move.src][move.chunk].copy()) for move in step]
        for move, data in sent:
            if move.reduces:
                buffers[move.dst][move.chunk] += data
            else:
                buffers[move.dst][move.chunk] = data


def _link_s(link: tuple[float, float], n_bytes: float) -> float:
    latency_s, bytes_per_s = link
    return latency_s + n_bytes / bytes_per_s
