"""Kinds of machines: everything that differs between them, each kind in a room of its own."""

from __future__ import annotations

from importlib.metadata import entry_points

from perfsim.costs.price import Costs
from perfsim.errors import UnknownNameError
from perfsim.hardware import MACHINE_PLUGINS, SYSTEM_CLASSES, SystemSpec
from perfsim.machines.gpu_cluster import GpuCluster
from perfsim.machines.machine import Machine
from perfsim.machines.network import Network
from perfsim.machines.wafer_cluster import WaferCluster
from perfsim.strategies import Strategy, strategy
from perfsim.strategies.plan import check_runs_on
from perfsim.topology import HEALTHY, LinkHealth, Topology
from perfsim.workload import TrainingRecipe

__all__ = [
    "MACHINES",
    "Machine",
    "build_topology",
    "costs_for",
    "machine",
    "machine_kinds",
    "machine_of",
    "network_of",
    "register",
    "strategy_for",
]

MACHINES: dict[str, Machine] = {known.kind: known for known in (GpuCluster(), WaferCluster())}


def machine_kinds() -> list[str]:
    """Every kind of machine, those of installed plug-ins included."""
    return sorted({*MACHINES, *(point.name for point in entry_points(group=MACHINE_PLUGINS))})


def machine(kind: str) -> Machine:
    """The machine of a kind; InputError names the nearest."""
    if kind in MACHINES:
        return MACHINES[kind]
    for point in entry_points(group=MACHINE_PLUGINS, name=kind):
        installed: Machine = point.load()()
        return installed
    raise UnknownNameError("kind of system", kind, machine_kinds())


def register(machine: Machine) -> None:
    """Make a kind of machine known, to questions and to YAML, for the rest of the process."""
    MACHINES[machine.kind] = machine
    SYSTEM_CLASSES[machine.kind] = machine.system_type


def machine_of(system: SystemSpec) -> Machine:
    """The machine that a system is one of."""
    return machine(system.kind)


def build_topology(system: SystemSpec, num_devices: int) -> Topology:
    """The network of the first `num_devices` devices of a system.

    Raises InputError for no device, more systems than the cluster can have, or a last node that
    would stay partly empty (a single node may).
    """
    return machine_of(system).topology(system, num_devices)


def costs_for(topology: Topology, recipe: TrainingRecipe) -> Costs:
    """What prices work on a system."""
    return machine_of(topology.system).costs(topology, recipe)


def network_of(topology: Topology, health: LinkHealth = HEALTHY) -> Network:
    """A topology, whole unless its `health` says otherwise, as communication meets it."""
    return machine_of(topology.system).network(topology, health)


def strategy_for(name: str, system: SystemSpec) -> Strategy:
    """The strategy of that name, the machine's own where it is empty.

    InputError where it runs on another kind of machine.
    """
    chosen = strategy(name or machine_of(system).default_strategy)
    check_runs_on(chosen, system)
    return chosen
