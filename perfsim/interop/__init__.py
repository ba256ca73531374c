"""Files of other tools: descriptions that are read, plans and traces that are written.

Each tool is one module with a `TOOL`: the table of its settings, both ways. The modules load when their tool
is asked for.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from perfsim.base.errors import InputError, UnknownNameError
from perfsim.base.text import GAP
from perfsim.specs.trainers import TRAINERS, ToolName

if TYPE_CHECKING:
    from perfsim.catalog import Catalog
    from perfsim.interop.tool import Chosen, Tool
    from perfsim.specs.model import TransformerConfig

READ = ("huggingface", "megatron", "modelzoo", "nemo", "neox", "deepspeed", "torchtitan", "mllog")
"""Tools whose text files are read."""
WRITTEN: tuple[ToolName, ...] = ("megatron", "deepspeed", "torchtitan", "modelzoo")
"""Tools whose files are written."""
CHAKRA = "chakra"
"""The format of files that are no text: traces, of which a summary is the document."""
FORMATS = (*READ, CHAKRA)


def tool_named(name: str) -> Tool:
    """The tool of a name; UnknownNameError for a format that is not read."""
    if name not in READ:
        raise UnknownNameError("format", name, FORMATS)
    table: Tool = import_module(f"perfsim.interop.{name}").TOOL
    return table


def emit(name: str, chosen: Chosen) -> str:
    """The text that runs a plan with a tool; InputError for an unknown tool, and as of `Tool.emit`."""
    if name in TRAINERS and name not in WRITTEN:
        title = TRAINERS[cast(ToolName, name)].title
        raise InputError(f"no files of {title} are written yet; written are {', '.join(WRITTEN)}")
    if name not in WRITTEN:
        raise UnknownNameError("tool", name, WRITTEN)
    return tool_named(name).emit(chosen, name)


def model_named(name_or_path: str, catalog: Catalog) -> TransformerConfig:
    """The model of a name of the catalogue, of a YAML or of a foreign file; InputError for what is wrong."""
    path = Path(name_or_path)
    if (path.suffix != "" or len(path.parts) > 1) and path.is_file():
        from perfsim.interop.formats import format_of, read_model

        if path.suffix not in (".yaml", ".yml") or format_of(path):
            return read_model(path)
    return catalog.model(name_or_path)


def gaps_of(model: TransformerConfig) -> tuple[str, ...]:
    """What the file of an imported model says and perfsim cannot express; empty for any other model."""
    return tuple(reason for key, reason in model.assumed.items() if key.startswith(GAP))
