"""The layout of weight streaming."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from perfsim.specs.model import Recompute


@dataclass(frozen=True, slots=True)
class StreamingLayout:
    """A layout of weight streaming: every system computes whole layers on its share of the batch."""

    data: int = 1
    """Systems."""
    micro_batch_size: int = 1
    recompute: Recompute = "none"
    recompute_layers: int = 0
    """Layers that are recomputed together; 0: none, all activations are kept."""
    spill: bool = False
    """Whether activations are stored on activation servers instead of the device."""
    stream_chunks: int = 1
    """Pieces in which a layer is streamed; 1: as a whole."""
    tensor: ClassVar[int] = 1
    pipeline: ClassVar[int] = 1
    zero_stage: ClassVar[int] = 0
    """0, because the systems hold no state to shard."""

    @property
    def num_devices(self) -> int:
        return self.data

    def as_dict(self, num_microbatches: int) -> dict[str, Any]:
        """Its fields under the names of the JSON interface."""
        values = asdict(self)
        if self.stream_chunks == 1:
            del values["stream_chunks"]
        return {"num_microbatches": num_microbatches, **values}
