"""The placement of virtual stages on pipeline ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """Virtual stages, numbered in the order of the forward pass, on the ranks of a pipeline.

    Chunk c of rank r is virtual stage c p + r. In a V, every other chunk is in reverse order: chunk 1 of
    rank r is virtual stage 2 p - 1 - r, so the last virtual stage is on the rank of the first.
    """

    pipeline: int
    virtual: int = 1
    v_shaped: bool = False

    @property
    def num_stages(self) -> int:
        """Number of virtual stages."""
        return self.pipeline * self.virtual

    @property
    def last_rank(self) -> int:
        """The rank of the last virtual stage, with LM head and loss."""
        return self.rank(self.num_stages - 1)

    def virtual_stage(self, rank: int, chunk: int) -> int:
        """The virtual stage of a chunk of a rank."""
        return chunk * self.pipeline + self._turned(rank, chunk)

    def rank(self, number: int) -> int:
        """The rank of a virtual stage."""
        chunk, offset = divmod(number, self.pipeline)
        return self._turned(offset, chunk)

    def of_rank(self, rank: int) -> list[int]:
        """The virtual stages of a rank, by chunk."""
        return [self.virtual_stage(rank, chunk) for chunk in range(self.virtual)]

    def _turned(self, rank: int, chunk: int) -> int:
        return self.pipeline - 1 - rank if self.v_shaped and chunk % 2 else rank
