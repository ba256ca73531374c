"""Checks before a published run is predicted: no contradiction, and no field without a model that matters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perfsim.errors import InputError, Problem
from perfsim.hardware import SystemSpec
from perfsim.machines import machine_of
from perfsim.published.cases import BY_OPERATOR, KEEPS_QKV, CaseTraining, StepCase, recomputes_little

_LAYOUT = ("shard_group",)
"""Fields of a case's layout that matter as soon as the layout of its machine has them."""


def not_modelled(case: StepCase, system: SystemSpec) -> list[str]:
    """What would change the work of a run and has no model yet: `context_parallel 2`."""
    named = [*_of_layout(case, system), *_of_training(case.training)]
    return [f"{name} {_text(value)}" for name, value in named]


def ignored(case: StepCase) -> list[str]:
    """Settings of the software stack that a prediction leaves out."""
    detail = case.training.recompute_detail
    known = detail is None or KEEPS_QKV in detail or BY_OPERATOR in detail
    little = ["recompute_modules"] if recomputes_little(case.training) else []
    return [*(() if known else ("recompute_detail",)), *little]


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


_DEGREES = ("tensor", "pipeline", "context_parallel", "expert_parallel")


def refuse_contradictions(case: StepCase, system: SystemSpec) -> None:
    """Raise InputError with all contradictions of a case, and with all that has no model yet.

    `system` is that of `case_system`.
    """
    missing = not_modelled(case, system)
    messages = [
        f"not modelled yet: {'; '.join(missing)}" if missing else "",
        _of_degrees(case, system),
        _of_network(case, system),
        _of_head(case),
        _of_precision(case, system),
    ]
    if any(messages):
        raise InputError([Problem(f"case {case.id}: {text}") for text in messages if text])


def _of_network(case: StepCase, system: SystemSpec) -> str:
    """Several nodes without a network, unless the case names a system, which has one."""
    node = machine_of(system).devices_per_node(system)
    if node is None or case.system.inter_node is not None:
        return ""
    is_system = case.system.is_file or case.system.device == system.name != system.device.name
    if is_system or case.system.num_devices <= node:
        return ""
    return (
        f"{case.system.num_devices} devices in nodes of {node} without inter_node, which "
        "means one node; write what all NICs of a node carry one way, e.g. inter_node: 1.6 Tb/s"
    )


def _of_degrees(case: StepCase, system: SystemSpec) -> str:
    """Degrees of a layout on a machine whose layouts only divide the batch."""
    if "tensor" in getattr(machine_of(system).layout_type, "__dataclass_fields__", {}):
        return ""
    given = {name: getattr(case.parallel, name) for name in _DEGREES}
    wrong = [f"{name} {degree}" for name, degree in given.items() if degree > 1]
    return f"{system.name} divides the batch and nothing else, not {', '.join(wrong)}" if wrong else ""


def _of_head(case: StepCase) -> str:
    positions, length = case.training.lm_head_positions, case.model.seq_length
    if positions is None or positions <= length:
        return ""
    return (
        f"lm_head_positions {positions} is more than seq_length {length}; leave it out where the output "
        "layer reads every position"
    )


def _of_precision(case: StepCase, system: SystemSpec) -> str:
    device, precision = system.device, case.training.precision
    if device.computes(precision):
        return ""
    return f"{device.name} computes no {precision}; it has {', '.join(device.peak)}"
