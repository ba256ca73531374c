"""The ranks of a collective, and one move of bytes between two of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from perfsim.errors import InputError


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


@dataclass(frozen=True, slots=True)
class Group:
    """`size` ranks, `ranks_per_node` of them on each of `nodes` nodes (the last may hold fewer).

    Raises InputError if the three are inconsistent.
    """

    size: int
    ranks_per_node: int
    nodes: int

    def __post_init__(self) -> None:
        fits = self.ranks_per_node * (self.nodes - 1) < self.size <= self.ranks_per_node * self.nodes
        if min(self.size, self.ranks_per_node, self.nodes) < 1 or not fits:
            raise InputError(
                f"a group of {self.size} ranks cannot stand on {self.nodes} nodes "
                f"with {self.ranks_per_node} ranks each"
            )

    @classmethod
    def inside_node(cls, size: int) -> Group:
        """A group on one node."""
        return cls(size, size, 1)
