"""YAML dumps of NeMo and Megatron-Bridge: Megatron's names in sections.

Names: NVIDIA/NeMo, `examples/nlp/language_modeling/conf`; NVIDIA-NeMo/Megatron-Bridge,
`ConfigContainer.to_yaml`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from perfsim.base.sizes import MOST_DEVICES
from perfsim.interop.megatron import ROWS, read_settings
from perfsim.interop.source import Settings, Source, names_in
from perfsim.interop.tool import Reading, Tool

ROOTS = (
    *("mixed_precision.", "model.", "model.config.", "trainer.strategy.", "trainer.strategy.ddp.", "train."),
    *("trainer.plugins.", "model.optim.", "ddp.", "data.", "dataset.", "optimizer.", "optim.config."),
    *("comm_overlap.", "trainer.", "model.tokenizer.", "tokenizer.", ""),
)
"""Sections in which a name of Megatron's is looked for, in this order."""
INTERPOLATION = re.compile(r"\$\{([^{}]*)\}")
MANDATORY = "???"
"""In place of a value that the user has to give."""
DEEPEST = 20
"""Interpolations that refer to one another."""
SIGNS = {"tensor_model_parallel_size", "_target_", "encoder_seq_length", "kv_channels", "num_attention_heads"}


def _recognise(document: Any) -> bool:
    names = names_in(document, "model.config", "model")
    return "num_layers" in names and not names.isdisjoint(SIGNS)


def _read(source: Source, document: Mapping[str, Any]) -> Reading:
    values = {
        name: value
        for name, value in Settings.of(source, document).values.items()
        if name.rsplit(".", 1)[-1] not in ("_target_", "_call_", "_partial_", "_name_", "_args_")
    }
    written = {name: _resolved(values, name, value) for name, value in values.items()}
    settings = Settings(source, written, sections={"": ROOTS})
    untold = {name for name, value in values.items() if value is not None and written[name] is None}
    settings.unknown |= untold | {name.rsplit(".", 1)[-1] for name in untold}
    world = settings.integer("world_size", most=MOST_DEVICES)
    nodes = settings.integer("num_nodes", default=1, most=MOST_DEVICES)
    ranks = settings.integer("devices", "gpus_per_node", default=-1, least=-1, most=MOST_DEVICES)
    if world is None and ranks > 0:
        world = ranks * nodes
    reading = read_settings(settings, world)
    name = str(values.get("name") or values.get("run.name") or "")
    return replace(reading, name=name if "$" not in name else "")


def _resolved(values: Mapping[str, Any], name: str, value: Any, depth: int = 0) -> Any:
    """A value with `${path}`, `${.sibling}` and `${multiply: a, b}` written out; None if it is not told."""
    for _ in range(depth, DEEPEST):
        match = INTERPOLATION.search(value) if isinstance(value, str) else None
        if match is None:
            return None if value == MANDATORY else value
        content, colon, arguments = (part.strip() for part in match[1].partition(":"))
        if colon:
            numbers = re.findall(r"\d{1,9}", arguments)
            whole = re.fullmatch(r"\d{1,9}(\s*,\s*\d{1,9})*", arguments)
            part = math.prod(map(int, numbers)) if whole and content in ("multiply", "eval") else None
        else:
            upward = len(content) - len(content.lstrip("."))
            parents = name.split(".")[:-upward] if upward else []
            path = ".".join([*parents, content.lstrip(".")])
            part = _resolved(values, path, values.get(path), depth + 1)
        if part is None:
            return None
        alone = match[0] == value.strip()
        value = part if alone else value[: match.start()] + str(part) + value[match.end() :]
    return None


TOOL = Tool(
    title="NeMo or Megatron-Bridge",
    sign="`model` with `num_layers` and Megatron's names",
    syntaxes=("yaml",),
    recognise=_recognise,
    read=_read,
    rows=ROWS,
)
