"""Fields of a published run that no model uses yet, and whether their values matter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perfsim.hardware import SystemSpec
from perfsim.machines import machine_of
from perfsim.published.cases import CaseTraining, StepCase, recomputes_little

_LAYOUT = ("shard_group",)
"""Fields of a case's layout that matter as soon as the layout of its machine has them."""
_STACK = ("recompute_detail",)
"""Settings of the software stack; without a model of them a run is predicted as if they were absent."""


def not_modelled(case: StepCase, system: SystemSpec) -> list[str]:
    """What would change the work of a run and has no model yet: `context_parallel 2`."""
    named = [
        *_of_layout(case, system),
        *_of_training(case.training),
    ]
    return [f"{name} {_text(value)}" for name, value in named]


def ignored(case: StepCase) -> list[str]:
    """Settings of the software stack that a prediction leaves out."""
    little = ["recompute_modules"] if recomputes_little(case.training) else []
    return [*(name for name in _STACK if getattr(case.training, name)), *little]


def _of_layout(case: StepCase, system: SystemSpec) -> Iterator[tuple[str, Any]]:
    known = getattr(machine_of(system).layout_type, "__dataclass_fields__", {})
    without_meaning = {"shard_group": case.parallel.data}
    for name in _LAYOUT:
        value = getattr(case.parallel, name)
        if name not in known and value not in (None, 1, without_meaning.get(name)):
            yield name, value


def _of_training(training: CaseTraining) -> Iterator[tuple[str, Any]]:
    modules = training.recompute_modules
    core_alone = training.recompute == "selective" and modules == ("core_attn",)
    if modules and not core_alone and not recomputes_little(training):
        yield "recompute_modules", modules


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
