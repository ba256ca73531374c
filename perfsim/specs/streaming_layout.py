"""The layout of weight streaming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfsim.specs.model import Recompute


@dataclass(frozen=True, slots=True)
class StreamingLayout:
    """A layout of weight streaming: every system computes whole layers on its share of the batch.

    `data` counts systems. `recompute_layers` is the recompute interval in layers (0: all activations are
    kept), `spill` stores activations on activation servers instead of the device, and `stream_chunks` is the
    number of pieces in which a layer is streamed (1: as a whole).
    """

    data: int = 1
    micro_batch_size: int = 1
    recompute: Recompute = "none"
    recompute_layers: int = 0
    """Layers that are recomputed together; 0: none."""
    spill: bool = False
    """Whether activations are stored on activation servers."""
    stream_chunks: int = 1

    @property
    def tensor(self) -> int:
        return 1

    @property
    def pipeline(self) -> int:
        return 1

    @property
    def zero_stage(self) -> int:
        """0, because the systems hold no state to shard."""
        return 0

    @property
    def num_devices(self) -> int:
        return self.data

    def as_dict(self, num_microbatches: int) -> dict[str, Any]:
        """Its fields under the names of the JSON interface."""
        chunks = {"stream_chunks": self.stream_chunks} if self.stream_chunks > 1 else {}
        return {
            "data": self.data,
            "micro_batch_size": self.micro_batch_size,
            "num_microbatches": num_microbatches,
            "recompute": self.recompute,
            "recompute_layers": self.recompute_layers,
            "spill": self.spill,
            **chunks,
        }
