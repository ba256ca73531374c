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
        """Whether it is a send, a receive or a collective."""
        return self >= Kind.COMM_SEND


class RankGroup(NamedTuple):
    """The ranks `start, start + stride, ...` that take part in a communication."""

    start: int
    stride: int
    size: int

    @property
    def ranks(self) -> range:
        """The members."""
        return range(self.start, self.start + self.stride * self.size, self.stride)


class TensorClass(NamedTuple):
    """An output of a task: its name, and its bytes on the device that holds it."""

    name: str
    n_bytes: float


WAIT_OF_HOST = "pipeline.pass"
"""Name of the work that begins a pass of a pipeline rank, which only a framework's host prices."""
WAIT_OF_EXPERTS = "experts.host"
"""Name of the work of the host in a layer with experts, which only a framework prices."""


@dataclass(frozen=True, slots=True)
class Work:
    """What every task of one class does.

    `op` is the key into the numeric kernels (or the collective's name); its time counts for the part of
    the step that `category` names.
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
    """Fraction of the kernels that one task runs, if a pass is split into chunks."""
    fan_out: int = 1
    """Members of the group, chosen at random, to which an item of an all-to-all goes; `comm_bytes` counts it
    as often. Of several on one rank or node one copy travels."""
    beside: Kernel | None = None
    """The product beside which a collective is exchanged in chunks, one for each rank of its group: it
    gathers the product's first operand, or sums its result. The product is part of another task."""
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
            self.fan_out,
            self.beside,
        )
        object.__setattr__(self, "_hash", hash(values))

    def __hash__(self) -> int:
        """Computed once, because every added task looks up its class."""
        return self._hash

    @property
    def flop(self) -> float:
        """FLOPs of one task."""
        return self.share * sum(kernel.flop for kernel in self.kernels)

    @property
    def bytes_accessed(self) -> float:
        """Bytes that the kernels of one task move in device memory."""
        return self.share * sum(kernel.bytes_accessed for kernel in self.kernels)

    @property
    def launches(self) -> int:
        """Kernels that the host launches for one task."""
        return sum(kernel.launches for kernel in self.kernels)
