"""The framework of a published run: the one that it names, or the one that its fields suggest.

Family, id, sweep and source decide nothing: a run's stack follows from its strategy and device, and from the
settings that only some stacks have.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from perfsim.calibration import FrameworkCalibration
from perfsim.catalog import Catalog
from perfsim.workload import PRECISION_BYTES

if TYPE_CHECKING:
    from perfsim.published.cases import StepCase

_ERA_OF_2021 = ("v100", "a100")
"""Devices whose public runs were made before fused attention and Transformer Engine."""
_AMD = "mi"
UNFUSED_ATTENTION = "NVTE_FUSED_ATTN=0"
"""The setting of Transformer Engine with which attention is FlashAttention 2 instead of cuDNN's."""
_CONTAINER = re.compile(r"container (\d\d\.\d\d)")
_GRAPHED = "26.06"
"""The container from which on the recipes of Megatron-Bridge in mxfp8 replay whole steps from a CUDA graph
(`cuda_graph_impl="full_iteration"` in its scripts/performance/configs), where all devices are in one NVLink
domain: the recipe of GPT-OSS on eight nodes of B300 has these two lines commented out."""


def framework_of(case: StepCase, catalog: Catalog) -> FrameworkCalibration:
    """The framework of a run, with the settings that the run gives.

    A run without `cuda_graph` or `attention_kernel` has them by the container or the setting that its `notes`
    name, which a public row has as its source's own words.

    Raises CatalogError for an unknown name.
    """
    chosen = catalog.framework(case.framework or suggested(case)[0])
    training = case.training
    changes: dict[str, object] = {}
    if training.cuda_graph is not None:
        changes["cuda_graph"] = training.cuda_graph
    elif training.precision == "mxfp8" and (container := _CONTAINER.search(case.notes)):
        changes["cuda_graph"] = container[1] >= _GRAPHED and _one_domain(case)
    if training.attention_kernel is not None:
        changes["attention"] = training.attention_kernel
    elif UNFUSED_ATTENTION in case.notes:
        changes["attention"] = "synchronous"
    if training.compiled is False:
        changes["fused"] = ()
    return chosen.model_copy(update=changes) if changes else chosen


def _one_domain(case: StepCase) -> bool:
    """Whether all devices are in one NVLink domain; true where the run does not say."""
    system = case.system
    domain = system.nvlink_domain or system.devices_per_node
    return domain is None or system.num_devices <= domain


def suggested(case: StepCase) -> tuple[str, str]:
    """Name of the framework that a run without one is given, and why."""
    training, fused = case.training, case.training.attention == "flash"
    narrow = PRECISION_BYTES[training.precision] < PRECISION_BYTES["bf16"]
    if case.system.device.startswith(_AMD):
        return "primus-te", f"device {case.system.device}"
    if case.strategy == "zero3":
        if training.compiled is not None or training.async_tp is not None:
            return "torchtitan", "compiled or async_tp is given"
        if training.cuda_graph is not None or case.parallel.shard_group is not None:
            return "maxtext-xla", "FSDP with cuda_graph or shard_group"
        if narrow:
            return "torchtitan", f"FSDP in {training.precision}"
        return (
            ("fsdp-2023", "FSDP with fused attention") if fused else ("megatron-2021", "standard attention")
        )
    if narrow or training.tp_comm_overlap is not None or training.cuda_graph is not None:
        return "megatron-core-te", "8 bits or fewer, tp_comm_overlap or cuda_graph"
    if fused and not case.system.device.startswith(_ERA_OF_2021):
        return "megatron-core-te", f"fused attention on {case.system.device}"
    return "megatron-2021", f"{training.attention} attention on {case.system.device}"
