"""YAML dumps of NeMo and Megatron-Bridge: Megatron's names in sections.

Names: NVIDIA/NeMo, `examples/nlp/language_modeling/conf`; NVIDIA-NeMo/Megatron-Bridge,
`ConfigContainer.to_yaml`.
"""

from __future__ import annotations

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
    *("ddp.", "data.", "dataset.", "optimizer.", "optim.config.", "comm_overlap.", "trainer."),
    *("model.tokenizer.", "tokenizer.", ""),
)
"""Sections in which a name of Megatron's is looked for, in this order."""
INTERPOLATION = re.compile(r"\$\{([^{}]*)\}")
MANDATORY = "???"
DEEPEST = 20
"""Interpolations that refer to one another."""
SIGNS = {"tensor_model_parallel_size", "_target_", "encoder_seq_length", "kv_channels", "num_attention_heads"}


def _recognise(document: Any) -> bool:
    """Whether this is a dump of NeMo or Megatron-Bridge."""
    names = names_in(document, "model.config", "model")
    return "num_layers" in names and not names.isdisjoint(SIGNS)


def _read(source: Source, document: Mapping[str, Any]) -> Reading:
    """Model, recipe and layout."""
    plain = Settings.of(source, document)
    values = {
        name: value
        for name, value in plain.values.items()
        if name.rsplit(".", 1)[-1] not in ("_target_", "_call_", "_partial_", "_name_", "_args_")
    }
    settings = Settings(source, values, sections={"": ROOTS})
    _interpolate(settings)
    nodes = settings.integer("num_nodes", default=1, most=MOST_DEVICES)
    ranks = settings.integer("devices", "gpus_per_node", least=-1, most=MOST_DEVICES)
    world = settings.integer("world_size", most=MOST_DEVICES)
    if world is None and ranks is not None and ranks > 0:
        world = ranks * nodes
    reading = read_settings(settings, world)
    name = str(values.get("name") or values.get("run.name") or "")
    return replace(reading, name=name if "$" not in name else "")


def _interpolate(settings: Settings) -> None:
    """Write out `${path}`, `${.sibling}` and `${multiply: a, b}`; other values count as not told."""
    values = dict(settings.values)
    for name, value in values.items():
        if not isinstance(value, str) or ("${" not in value and value != MANDATORY):
            continue
        resolved = None if value == MANDATORY else _resolved(values, name, value, 0)
        if resolved is None:
            settings.unknown |= {name, name.rsplit(".", 1)[-1]}
        settings.values = {**settings.values, name: resolved}


def _resolved(values: Mapping[str, Any], name: str, text: str, depth: int) -> Any:
    """The value of an interpolation; None where it cannot be told."""
    match = INTERPOLATION.fullmatch(text.strip())
    if depth > DEEPEST:
        return None
    if match is None:
        inner = INTERPOLATION.search(text)
        if inner is None:
            return text
        part = _resolved(values, name, inner[0], depth + 1)
        if part is None:
            return None
        return _resolved(values, name, text[: inner.start()] + str(part) + text[inner.end() :], depth + 1)
    content = match[1].strip()
    function, colon, arguments = content.partition(":")
    if colon:
        return _product(function, arguments)
    if content.startswith("."):
        parents = name.split(".")[: -(len(content) - len(content.lstrip(".")))]
        content = ".".join([*parents, content.lstrip(".")])
    value = values.get(content)
    return _resolved(values, content, value, depth + 1) if isinstance(value, str) and "${" in value else value


def _product(function: str, arguments: str) -> int | None:
    numbers = [part.strip() for part in arguments.split(",")]
    if function.strip() not in ("multiply", "eval") or not all(
        re.fullmatch(r"\d{1,9}", part) for part in numbers
    ):
        return None
    return math.prod(map(int, numbers))


TOOL = Tool(
    name="nemo",
    title="NeMo or Megatron-Bridge",
    sign="`model` with `num_layers` and Megatron's names",
    syntaxes=("yaml",),
    recognise=_recognise,
    read=_read,
    rows=ROWS,
)
