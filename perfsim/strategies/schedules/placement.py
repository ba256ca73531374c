"""Which virtual stage stands on which rank: the one place that knows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """Virtual stages, in the order of the data, on the ranks of a pipeline.

    Chunks go round the ranks: chunk c of rank r is virtual stage c p + r. In a V every other chunk
    comes back: chunk 1 of rank r is virtual stage 2 p - 1 - r, so the last stands beside the first.
    """

    pipeline: int
    virtual: int = 1
    v_shaped: bool = False

    @property
    def num_stages(self) -> int:
        return self.pipeline * self.virtual

    @property
    def last_rank(self) -> int:
        """The rank of the last virtual stage: head and loss."""
        return self.rank(self.num_stages - 1)

    def virtual_stage(self, rank: int, chunk: int) -> int:
        """The virtual stage that a chunk of a rank is."""
        return chunk * self.pipeline + self._turned(rank, chunk)

    def rank(self, number: int) -> int:
        """The rank of a virtual stage."""
        chunk, offset = divmod(number, self.pipeline)
        return self._turned(offset, chunk)

    def of_rank(self, rank: int) -> list[int]:
        """The virtual stages of a rank, chunk by chunk."""
        return [self.virtual_stage(rank, chunk) for chunk in range(self.virtual)]

    def _turned(self, rank: int, chunk: int) -> int:
        return self.pipeline - 1 - rank if self.v_shaped and chunk % 2 else rank
