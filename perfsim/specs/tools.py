"""Names of the tools that train; `perfsim.specs.trainers` has what each runs."""

from typing import Literal

Tool = Literal[
    "megatron", "zero-bubble", "deepspeed", "neox", "torchtitan", "llm-foundry", "maxtext", "modelzoo"
]
"""Tools that run plans; `perfsim.interop.WRITTEN` has those whose files are written."""
RunsOn = Literal[Tool, "any"]
ANY = "any"
"""Stands for no tool: layouts of the research question, which no released framework needs to run."""
