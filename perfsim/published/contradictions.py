"""Checks that a published run does not contradict itself, before it is predicted."""

from __future__ import annotations

from perfsim.errors import InputError, Problem
from perfsim.hardware import SystemSpec
from perfsim.machines import machine_of
from perfsim.published.cases import StepCase
from perfsim.published.not_modelled import not_modelled

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
