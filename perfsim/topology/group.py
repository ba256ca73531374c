"""The ranks of a collective, as they lie over nodes."""

from __future__ import annotations

from dataclasses import dataclass

from perfsim.errors import InputError


@dataclass(frozen=True, slots=True)
class Group:
    """`size` ranks on `nodes` nodes: `most_per_node` on the fullest, `fewest_per_node` on the emptiest.

    Raises InputError if the four contradict one another.
    """

    size: int
    most_per_node: int
    nodes: int
    fewest_per_node: int

    def __post_init__(self) -> None:
        others = self.nodes - 1
        least = self.most_per_node + self.fewest_per_node * others
        most = self.most_per_node * others + self.fewest_per_node
        positive = self.nodes > 0 and 0 < self.fewest_per_node <= self.most_per_node
        if not positive or not least <= self.size <= most:
            raise InputError(
                f"a group of {self.size} ranks cannot stand on {self.nodes} nodes "
                f"with {self.fewest_per_node} to {self.most_per_node} ranks each"
            )

    @classmethod
    def even(cls, ranks_per_node: int, nodes: int) -> Group:
        """A group with as many ranks on each node."""
        return cls(ranks_per_node * nodes, ranks_per_node, nodes, ranks_per_node)

    @classmethod
    def inside_node(cls, size: int) -> Group:
        """A group on one node."""
        return cls.even(size, 1)

    @property
    def is_even(self) -> bool:
        """Whether all nodes hold as many ranks."""
        return self.most_per_node == self.fewest_per_node
