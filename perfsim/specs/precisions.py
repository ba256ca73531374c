"""Formats of numbers: one row a precision, from which memory, peaks, kernels and evidence read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal


@dataclass(frozen=True, kw_only=True)
class _Precision:
    """What the package knows about one precision."""

    bytes: float
    """Of a number in memory and on the wire, with its share of the scales."""
    bits: int
    """Of the significand, the leading one counted."""
    peak_of: str | None
    """The precision at whose datasheet peak its products run; None: it has a peak of its own."""
    stand_ins: tuple[str, ...]
    """Where a device has no measured products in it: the narrow precisions whose constants it takes, nearest
    first."""
    cast_reads_bytes: float
    """Bytes that a cast from 16 bits reads for each number, to find the scale and to convert."""
    is_gathered: bool = True
    """Whether the ranks of a tensor group gather activations in it; else in 16 bits."""
    is_overlapped: bool = True
    """Whether products hide exchanges of tensor ranks; Megatron-Bridge switches that off in NVFP4."""
    cast_passes: int = 1
    """Casts as a table of products has them that make one cast of training: 2 where rows and columns have
    scales of their own."""

    @property
    def is_narrow(self) -> bool:
        """Whether it has fewer than 16 bits."""
        return self.bytes < 2.0


def _wide(n_bytes: float, bits: int) -> _Precision:
    return _Precision(bytes=n_bytes, bits=bits, peak_of=None, stand_ins=(), cast_reads_bytes=2.0)


PRECISIONS: Mapping[str, _Precision] = {
    "fp32": _wide(4.0, 24),
    "tf32": _wide(4.0, 11),
    "fp16": _wide(2.0, 11),
    "bf16": _wide(2.0, 8),
    # One scale for a tensor, known from earlier steps.
    "fp8": _Precision(bytes=1.0, bits=4, peak_of=None, stand_ins=("fp8_block",), cast_reads_bytes=2.0),
    # One scale for a row. Rows and columns are scaled and written in separate passes, each with a search.
    # Before them torchtitan gathers in 16 bits.
    "fp8_rowwise": _Precision(
        bytes=1.0,
        bits=4,
        peak_of="fp8",
        stand_ins=("fp8", "fp8_block"),
        cast_reads_bytes=8.0,
        is_gathered=False,
        cast_passes=2,
    ),
    # One scale for 128 numbers.
    "fp8_block": _Precision(
        bytes=1.0 + 1 / 32, bits=4, peak_of="fp8", stand_ins=("mxfp8", "fp8"), cast_reads_bytes=2.0
    ),
    # One scale for 32 numbers, which the products apply: devices that can have a peak for it.
    "mxfp8": _Precision(
        bytes=1.0 + 1 / 32, bits=4, peak_of=None, stand_ins=("fp8_block", "fp8"), cast_reads_bytes=2.0
    ),
    # One scale for 16 numbers, found by reading them once more. Exchanges: NVIDIA-NeMo/Megatron-Bridge,
    # `tp_comm_overlap` in scripts/performance/configs/llama/llama3_llm_pretrain.py.
    "nvfp4": _Precision(
        bytes=0.5 + 1 / 16,
        bits=2,
        peak_of=None,
        stand_ins=("mxfp4", "fp8_block"),
        cast_reads_bytes=4.0,
        is_overlapped=False,
    ),
    "mxfp4": _Precision(
        bytes=0.5 + 1 / 32, bits=2, peak_of=None, stand_ins=("nvfp4", "fp8_block"), cast_reads_bytes=2.0
    ),
}

# The names of the table are all values that a description may have. mypy cannot read them from the table.
StatePrecision = Literal["fp32", "bf16", "fp16"]
"""Precisions that the states of an optimizer may have."""
if TYPE_CHECKING:
    Precision = str
else:
    Precision = Literal[tuple(PRECISIONS)]
