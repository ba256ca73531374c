"""A plan as the flags or the file of a tool that runs it."""

from __future__ import annotations

from perfsim.errors import UnknownNameError
from perfsim.interop.deepspeed import DEEPSPEED
from perfsim.interop.megatron import MEGATRON
from perfsim.interop.modelzoo import MODELZOO
from perfsim.interop.tool import Chosen
from perfsim.interop.torchtitan import TORCHTITAN

TOOLS = {tool.name: tool for tool in (MEGATRON, DEEPSPEED, TORCHTITAN, MODELZOO)}


def emit(tool: str, chosen: Chosen) -> str:
    """The text that runs a plan. Raises InputError for an unknown tool, or a plan that it cannot run."""
    if tool not in TOOLS:
        raise UnknownNameError("tool", tool, TOOLS)
    return TOOLS[tool].emit(chosen)
