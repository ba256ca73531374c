"""The one rule of which training stack runs where nobody says it: by machine, month, precision and sharding.

| what is asked or was run | stack |
|---|---|
| a device of AMD | Primus |
| ZeRO 2 or 3 with torch.compile, or in 8 bits or fewer | torchtitan |
| ZeRO 2 or 3 in CUDA graphs or in groups | MaxText |
| ZeRO 2 or 3 with fused attention | FSDP of 2023 |
| ZeRO 2 or 3 with standard attention | Megatron-LM of 2021 |
| 8 bits or fewer, CUDA graphs, tensor communication that overlaps | Megatron-Core (Transformer Engine) |
| a month since July 2023, or fused attention on a device newer than the A100 | Megatron-Core |
| anything else, as the public runs on V100 and A100 | Megatron-LM of 2021 |

Family, source and name of a run decide nothing. The month of a question is that of its model, and today where
the model does not say; a question has fused attention in such a month or on a device newer than the A100. A
published run has no month: its device speaks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_AMD = "mi"
_ERA_OF_2021 = ("v100", "a100")
"""Devices whose public runs were made before fused attention and Transformer Engine."""
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
    narrow: bool,
    compiled: bool = False,
    graphed: bool = False,
    overlaps: bool = False,
    recent: bool = False,
) -> Stack:
    """The stack that runs a layout: `sharded` at ZeRO 2 or 3, `graphed` in a CUDA graph or in groups.

    `compiled` and `overlaps` say that torch.compile or overlapped tensor communication is spoken of, `recent`
    that the month is known, and July 2023 or later.
    """
    if device.startswith(_AMD):
        return Stack("primus-te", f"device {device}")
    if sharded and compiled:
        return Stack("torchtitan", "compiled or async_tp is given")
    if sharded and graphed:
        return Stack("maxtext-xla", "FSDP with cuda_graph or shard_group")
    if sharded and narrow:
        return Stack("torchtitan", f"FSDP in {precision}")
    if sharded and fused:
        return Stack("fsdp-2023", "FSDP with fused attention")
    if sharded:
        return Stack("megatron-2021", "standard attention")
    if narrow or overlaps or graphed:
        return Stack("megatron-core-te", "8 bits or fewer, tp_comm_overlap or cuda_graph")
    if recent:
        return Stack("megatron-core-te", "a month since July 2023")
    if fused and not of_2021(device):
        return Stack("megatron-core-te", f"fused attention on {device}")
    return Stack("megatron-2021", f"{'flash' if fused else 'standard'} attention on {device}")
