"""A plan as the flags or the file of a tool that runs it."""

from __future__ import annotations

from perfsim.base.errors import UnknownNameError
from perfsim.interop.deepspeed import DEEPSPEED
from perfsim.interop.megatron import MEGATRON
from perfsim.interop.modelzoo import MODELZOO
from perfsim.interop.tool import Chosen
from perfsim.interop.torchtitan import TORCHTITAN

TOOLS = {tool.name: tool for tool in (MEGATRON, DEEPSPEED, TORCHTITAN, MODELZOO)}


def emit(tool: str, chosen: Chosen, remark: str = "") -> str:
    """The text that runs a plan, with a remark among its comments.

    Raises InputError for an unknown tool or a plan that it cannot run; this is a LayoutError where the tool
    runs such machines, so that another layout may do.
    """
    if tool not in TOOLS:
        raise UnknownNameError("tool", tool, TOOLS)
    return TOOLS[tool].emit(chosen, remark)
