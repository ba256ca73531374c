"""One move of bytes between two ranks of a collective."""

from __future__ import annotations

from typing import NamedTuple


class Move(NamedTuple):
    """One chunk sent from one rank to another in one step of an algorithm."""

    src: int
    dst: int
    n_bytes: float
    step: int
    chunk: int
    """Which part of the buffer moves."""
    reduces: bool
    """The receiver adds the chunk to its own; otherwise it overwrites its own."""
