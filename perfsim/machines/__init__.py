"""Kinds of machines: everything that differs between them, each kind in a room of its own."""

from __future__ import annotations

import difflib
from importlib.metadata import entry_points

from perfsim.errors import InputError, Problem
from perfsim.hardware import SystemSpec
from perfsim.machines.gpu_cluster import GpuCluster
from perfsim.machines.machine import Machine
from perfsim.machines.wafer_cluster import WaferCluster
from perfsim.strategies import Strategy, strategy
from perfsim.strategies.plan import check_runs_on

__all__ = ["MACHINES", "Machine", "machine", "machine_kinds", "machine_of", "strategy_for"]

MACHINES: dict[str, Machine] = {known.kind: known for known in (GpuCluster(), WaferCluster())}
ENTRY_POINTS = "perfsim.machines"


def machine_kinds() -> list[str]:
    """Every kind of machine, those of installed plug-ins included."""
    return sorted({*MACHINES, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def machine(kind: str) -> Machine:
    """The machine of a kind; InputError names the nearest."""
    if kind in MACHINES:
        return MACHINES[kind]
    for point in entry_points(group=ENTRY_POINTS, name=kind):
        installed: Machine = point.load()()
        return installed
    nearest = difflib.get_close_matches(kind, machine_kinds(), 1)
    help_text = f"did you mean {nearest[0]!r}?" if nearest else ""
    message = f"unknown kind of system {kind!r}; known: {', '.join(machine_kinds())}"
    raise InputError([Problem(message, help=help_text)])


def machine_of(system: SystemSpec) -> Machine:
    """The machine that a system is one of."""
    return machine(system.kind)


def strategy_for(name: str, system: SystemSpec) -> Strategy:
    """The strategy of that name, the machine's own where it is empty.

    InputError where it runs on another kind of machine.
    """
    chosen = strategy(name or machine_of(system).default_strategy)
    check_runs_on(chosen, system)
    return chosen
