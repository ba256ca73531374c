"""Arguments of Megatron-LM: a shell script, a line of flags, or the dump at the head of a log.

Names: NVIDIA/Megatron-LM, `megatron/training/arguments.py`, `core/transformer/transformer_config.py` and
`core/model_parallel_config.py`, with the older spellings of version 2.5. NeMo and Megatron-Bridge use the
same names in YAML, so their readers use these functions.
"""

from __future__ import annotations

import re
from typing import Any

from perfsim.interop.foreign.imported import Reading
from perfsim.interop.foreign.megatron_layout import divided, read_layout, world_size
from perfsim.interop.foreign.megatron_log import DUMPED, iteration_steps
from perfsim.interop.foreign.megatron_shape import read_shape
from perfsim.interop.foreign.settings import Settings
from perfsim.interop.foreign.shape import Gap, Shape
from perfsim.interop.foreign.shell import UNKNOWN, flags_of
from perfsim.interop.foreign.source import Source
from perfsim.sizes import MOST_POSITIONS

OPTIMIZERS = {"sgd": "sgd", "adamw": "adamw", "adam": "adam"}
"""By a part of the name: `distributed_fused_adam` of NeMo is Adam."""
DROPOUT = 0.1
"""Megatron's default rate of both dropouts."""


def recognise_text(text: Any) -> bool:
    """Whether a text is a script, a line of flags or a log of Megatron-LM."""
    if not isinstance(text, str):
        return False
    dump = bool(DUMPED.search(text)) and re.search(r"\bnum_layers \.{2,}", text) is not None
    flags = "--num-layers" in text and "--hidden-size" in text
    return dump or flags or iteration_steps(text) != ()


def read_text(source: Source, _text: Any) -> Reading:
    """Model, recipe, layout and measured steps of a script or log."""
    dumped = {match[1]: _value(match[2]) for match in DUMPED.finditer(source.text)}
    steps = iteration_steps(source.text)
    if not dumped and steps and "--num-layers" not in source.text:
        source.refuse(
            "a log of iterations without the arguments of the run",
            "keep the lines from `arguments` to `end of arguments`, which Megatron prints at the start",
        )
    if dumped:
        settings = Settings(source, dumped, textual=True)
        variables: dict[str, str] = {}
    else:
        flags, variables = flags_of(source.text, "--num-layers")
        settings = Settings(source, flags, textual=True)
    _refuse_unknown(settings)
    return read_settings(settings, world_size(settings, variables, source.text), steps=steps)


def _value(text: str) -> str | None:
    return None if text.strip() in ("None", "") else text.strip()


def _refuse_unknown(settings: Settings) -> None:
    """Values that only running the script would tell count as absent, and are named where they are needed."""
    unknown = {name for name, value in settings.values.items() if isinstance(value, str) and UNKNOWN in value}
    settings.values = {name: value for name, value in settings.values.items() if name not in unknown}
    settings.unknown |= unknown


def read_settings(settings: Settings, world: int | None, *, steps: tuple[Any, ...] = ()) -> Reading:
    """Model, recipe and layout of Megatron's arguments by name; also of YAML that has these names."""
    gaps: list[Gap] = []
    layout, devices = read_layout(settings, world, gaps)
    shape = read_shape(settings, gaps)
    layout = divided(settings, layout, shape.layers)
    optimizer = settings.text("optimizer", "optim.name", default="adam").casefold()
    if not any(name in optimizer for name in OPTIMIZERS):
        gaps.append(Gap(f"the optimizer {optimizer[:40]}; described as adam"))
    return Reading(
        settings,
        shape=shape,
        recipe=_recipe(settings, layout.data if devices else None, shape),
        layout=layout,
        devices=devices,
        steps=steps,
        gaps=tuple(gaps),
    )


def _recipe(settings: Settings, data: int | None, shape: Shape) -> dict[str, Any]:
    micro = settings.integer("micro_batch_size", "batch_size")
    batch = settings.integer("global_batch_size")
    if batch is None and micro is not None and data is not None:
        batch = micro * data
    precision = _precision(settings)
    optimizer = settings.text("optimizer", "optim.name", default="adam").casefold()
    rates = [settings.number(f"{part}_dropout", default=DROPOUT) for part in ("attention", "hidden")]
    wire = _reduced(settings, precision)
    elements = settings.integer("ddp_bucket_size", "bucket_size")
    overlap = settings.flag("overlap_grad_reduce", "overlap_grad_sync")
    return {
        "seq_length": settings.integer(
            "seq_length", "encoder_seq_length", default=shape.positions, most=MOST_POSITIONS
        ),
        "precision": precision,
        "optimizer": next((ours for name, ours in OPTIMIZERS.items() if name in optimizer), "adam"),
        "global_batch_size": batch,
        "attention": _attention(settings),
        "dropout": any(rate != 0 for rate in rates),
        "overlap_grad_reduce": overlap,
        **({"overlap_param_gather": True} if settings.flag("overlap_param_gather") else {}),
        "grad_bucket": None if elements is None else f"{elements * (4 if wire == 'fp32' else 2)} B",
        "reduce_precision": None if wire == "fp32" else wire,
    }


def _precision(settings: Settings) -> str:
    eight = settings.text("fp8", "fp8_format").casefold() not in ("", "none", "false")
    if eight or settings.flag("fp8_hybrid") or settings.flag("fp8_e4m3"):
        settings.ignore("bf16", "fp16")
        return "fp8"
    if settings.flag("bf16"):
        settings.ignore("fp16")
        return "bf16"
    if settings.flag("fp16"):
        return "fp16"
    named = settings.text("precision", "mixed_precision").casefold()
    return "fp32" if not named else "bf16" if "bf16" in named else "fp16" if "16" in named else "fp32"


def _reduced(settings: Settings, precision: str) -> str:
    """Precision in which gradients are reduced: fp32, but in fp16 training only if a flag says so."""
    if settings.flag("grad_reduce_in_bf16") or not settings.flag("grad_reduce_in_fp32", default=True):
        return "bf16"
    wide = settings.flag("accumulate_allreduce_grads_in_fp32")
    return "fp16" if precision == "fp16" and not wide else "fp32"


def _attention(settings: Settings) -> str | None:
    backend = settings.text("attention_backend").casefold().removeprefix("attnbackend.")
    if (
        backend in ("flash", "fused", "auto")
        or settings.flag("use_flash_attn")
        or settings.flag("use_flash_attention")
    ):
        return "flash"
    if backend in ("unfused", "local"):
        return "standard"
    return "flash" if settings.text("transformer_impl") == "transformer_engine" else None
