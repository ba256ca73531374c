"""A class of work: what a task does, in FLOPs and bytes, never in seconds.

Tasks hold only the id of their class (there are dozens of classes and hundreds of thousands of
tasks), so pricing a graph means pricing its classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from perfsim.transformer import Kernel

WHOLE_DEVICE, EMBEDDING, HEAD, EMBEDDING_AND_HEAD = -1, -2, -3, -4
"""Markers of `TaskGraph.block` where a task does not belong to a single layer.

All weights of the device that no other task covers; the embedding; the LM head; whichever of these two
the pipeline stage holds.
"""


_MARKERS = {
    WHOLE_DEVICE: "the device's weights",
    EMBEDDING: "embedding",
    HEAD: "LM head",
    EMBEDDING_AND_HEAD: "embedding and LM head",
}


def block_name(block: int) -> str:
    """The block as messages print it."""
    return _MARKERS.get(block, f"layer {block}")


class Kind(IntEnum):
    """Node kinds of a Chakra execution trace."""

    COMP = 0
    MEM_LOAD = 1
    MEM_STORE = 2
    COMM_SEND = 3
    COMM_RECV = 4
    COMM_COLL = 5

    @property
    def is_communication(self) -> bool:
        return self >= Kind.COMM_SEND


class RankGroup(NamedTuple):
    """The ranks `start, start + stride, ...` that take part in a communication."""

    start: int
    stride: int
    size: int

    @property
    def ranks(self) -> range:
        return range(self.start, self.start + self.stride * self.size, self.stride)


class TensorClass(NamedTuple):
    """What a task writes: a name and its bytes on the device that holds it."""

    name: str
    n_bytes: float


@dataclass(frozen=True, slots=True)
class Work:
    """What every task of one class does.

    `op` is the key into the numeric kernels (or the collective's name); `category` says to which
    part of the step its seconds belong.
    """

    name: str
    kind: Kind
    op: str
    category: str
    kernels: tuple[Kernel, ...] = ()
    comm_bytes: float = 0.0
    group: RankGroup | None = None
    writes: tuple[TensorClass, ...] = ()
    share: float = 1.0
    """The part of its kernels that one task does, where a passage is cut in chunks."""
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        values = (
            self.name,
            self.category,
            self.kernels,
            self.comm_bytes,
            self.group,
            self.writes,
            self.share,
        )
        object.__setattr__(self, "_hash", hash(values))

    def __hash__(self) -> int:
        """Taken once: every task looks its class up."""
        return self._hash

    @property
    def flop(self) -> float:
        return self.share * sum(kernel.flop for kernel in self.kernels)

    @property
    def bytes_accessed(self) -> float:
        return self.share * sum(kernel.bytes_accessed for kernel in self.kernels)

    @property
    def launches(self) -> int:
        return sum(kernel.launches for kernel in self.kernels)
