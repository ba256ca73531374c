"""Optimizers: one row each, from which memory, kernels, MemoryX, other tools and proofs read.

No reader has a default: an optimizer that is not in the table is refused with the recipe. Rows are written
as their differences from Adam.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

SCALE_BLOCK = 2048
"""Numbers of 8-bit moments with one scale in fp32 [2110.02861]."""


@dataclass(frozen=True, kw_only=True)
class _Optimizer:
    """What the package knows about one optimizer."""

    moments: int
    """Moments of a parameter."""
    matrix_moments: int
    """Moments of a parameter in a matrix of a layer."""
    moment_bytes: float | None
    """Bytes of a moment; None: as many as the recipe's precision of moments has."""
    orthogonalisations: int
    """Newton-Schulz iterations on the momentum of every matrix of a layer: three products each."""
    update_flop: float
    """Multiplications, additions, roots and divisions for one parameter, without products of matrices."""
    memoryx_moments: bool
    """Whether MemoryX keeps its moments."""
    executed: bool
    """Whether proofs execute it in NumPy."""
    megatron: str | None
    """Its name in Megatron-LM; None: the tool has no such optimizer. The same for the tools below."""
    deepspeed: str | None
    neox: str | None
    torchtitan: str | None
    modelzoo: str | None


_NO_TOOL: dict[str, Any] = dict.fromkeys(("megatron", "deepspeed", "neox", "torchtitan", "modelzoo"))
_ADAM = _Optimizer(  # 1412.6980
    moments=2,
    matrix_moments=2,
    moment_bytes=None,
    orthogonalisations=0,
    update_flop=15.0,
    memoryx_moments=True,
    executed=True,
    megatron="adam",
    deepspeed="Adam",
    neox="adam",
    torchtitan="Adam",
    modelzoo="Adam",
)
OPTIMIZERS: Mapping[str, _Optimizer] = {
    "adam": _ADAM,
    "adamw": replace(
        _ADAM,
        update_flop=17.0,
        executed=False,
        deepspeed="AdamW",  # Megatron's adam decouples weight decay
        neox="adamw",
        torchtitan="AdamW",
        modelzoo="AdamW",
    ),
    "adam8bit": replace(  # 2110.02861
        _ADAM,
        moment_bytes=1.0 + 4.0 / SCALE_BLOCK,
        update_flop=23.0,  # assumed: scaling, rounding and looking up a moment take two each way
        executed=False,
        **_NO_TOOL,
    ),
    "muon": replace(  # 2502.16982; Adam updates what is no matrix of a layer
        _ADAM,
        matrix_moments=1,
        orthogonalisations=5,
        update_flop=15.0,  # assumed: momentum and step take no more than Adam's
        executed=False,
        **(_NO_TOOL | {"megatron": "muon"}),
    ),
    "sgd": replace(
        _ADAM,
        moments=1,
        matrix_moments=1,
        update_flop=2.0,
        memoryx_moments=False,  # without momentum there
        executed=False,
        megatron="sgd",
        deepspeed="SGD",
        neox="sgd",
        torchtitan=None,
        modelzoo="SGD",
    ),
}

# The names of the table are all values that a recipe may have. mypy cannot read them from the table.
if TYPE_CHECKING:
    OptimizerName = str
else:
    OptimizerName = Literal[tuple(OPTIMIZERS)]
