"""The one rule of which training stack runs where nobody says it: by machine, month, precision and sharding.

Family, source and name of a run decide nothing. The month of a question is that of its model, and today where
the model does not say; a question has fused attention in such a month or on a device newer than the A100. A
published run has no month: its device speaks for it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from perfsim.specs.precisions import PRECISIONS

_AMD = ("mi1", "mi2", "mi3", "CDNA")
"""Devices of AMD, such as mi300x, and their generations begin with one of these."""
_ERA_OF_2021 = ("v100", "a100", "Ampere")
"""Devices whose public runs were made before fused attention and Transformer Engine, and their generation."""
RUNTIMES: Mapping[str, str] = {
    "primus-te": "primus",
    "torchtitan": "torchtitan",
    "maxtext-xla": "maxtext",
    "fsdp-2023": "fsdp_2023",
    "megatron-core-te": "megatron_core",
    "megatron-2021": "megatron_2021",
}
"""The runtime of the catalogue with the usual settings of each framework."""


class Stack(NamedTuple):
    """A framework, and why it is the likely one."""

    framework: str
    why: str


def of_2021(device: str) -> bool:
    """Whether a device is of the generations before Transformer Engine."""
    return device.startswith(_ERA_OF_2021)


def usual_stack(
    device: str,
    precision: str,
    *,
    sharded: bool,
    fused: bool,
    split: bool,
    compiled: bool = False,
    graphed: bool = False,
    overlaps: bool = False,
    recent: bool = False,
) -> Stack:
    """The stack that runs a layout: `sharded` at ZeRO 2 or 3, `split` by tensors, context or a pipeline too.

    `device` is its name or its generation, which a device of the user has of the one that it extends.
    `compiled`, `overlaps` and `graphed` say that torch.compile, overlapped tensor communication, and CUDA
    graphs or shard groups are spoken of, `recent` that the month is known, and July 2023 or later. The first
    row that holds decides.
    """
    row = PRECISIONS.get(precision)  # another name is refused later
    narrow = row is not None and row.is_narrow
    rows = (
        (device.startswith(_AMD), "primus-te", f"device {device}"),
        (sharded and compiled, "torchtitan", "compiled or async_tp is given"),
        (sharded and graphed, "maxtext-xla", "FSDP with cuda_graph or shard_group"),
        (sharded and narrow, "torchtitan", f"FSDP in {precision}"),
        (sharded and fused and split, "torchtitan", "FSDP with tensor or context parallelism or a pipeline"),
        (sharded and fused, "fsdp-2023", "FSDP with fused attention"),
        (sharded, "megatron-2021", "standard attention"),
        (narrow or overlaps or graphed, "megatron-core-te", "8 bits or fewer, tp_comm_overlap or cuda_graph"),
        (recent, "megatron-core-te", "a month since July 2023"),
        (fused and not of_2021(device), "megatron-core-te", f"fused attention on {device}"),
        (True, "megatron-2021", f"{'flash' if fused else 'standard'} attention on {device}"),
    )
    return next(Stack(framework, why) for holds, framework, why in rows if holds)
