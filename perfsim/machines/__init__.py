"""Kinds of machines: everything that differs between them, one package per kind."""

from functools import lru_cache

from perfsim.base.errors import InputError, UnknownNameError, check_own, made_by, plug_ins
from perfsim.costs.price import Costs
from perfsim.machines.gpu_cluster import GpuCluster
from perfsim.machines.machine import Machine as Machine
from perfsim.machines.machine import Network
from perfsim.machines.machine import Unknown as Unknown
from perfsim.machines.wafer_cluster import WaferCluster
from perfsim.network import Topology
from perfsim.specs.hardware import SYSTEM_CLASSES, SystemSpec
from perfsim.specs.layout import Layout
from perfsim.specs.recipe import Recipe
from perfsim.strategies import Strategy, strategy

LAYOUT_MEMBERS = tuple(name for name in vars(Layout) if not name.startswith("_"))
"""What every layout answers."""
MACHINES: dict[str, Machine] = {kind.kind: kind for kind in (GpuCluster(), WaferCluster())}
OWN = tuple(MACHINES)
"""The kinds that are built in."""


def machine(kind: str) -> Machine:
    """The machine of a kind; InputError suggests the nearest name."""
    if kind in MACHINES:
        if kind in OWN:
            check_own("machines", kind)
        return MACHINES[kind]
    installed = {point.name: point for point in plug_ins("machines")}
    if kind in installed:
        return made_by(installed[kind], lambda load: _checked(load()))
    raise UnknownNameError("kind of system", kind, sorted({*MACHINES, *installed}))


def register(machine: Machine) -> None:
    """Add a kind of machine for questions and YAML, for the process; InputError for one that is built in."""
    if machine.kind in OWN:
        built_in = f"perfsim.machines has {machine.kind!r} built in"
        raise InputError(f"{type(machine).__name__} and {built_in}", "give it another `kind`")
    MACHINES[machine.kind] = _checked(machine)
    SYSTEM_CLASSES[machine.kind] = machine.system_type


def _checked(machine: Machine) -> Machine:
    """The machine; InputError where its layouts lack what every layout answers."""
    layout = machine.layout_type()
    if lacking := [name for name in LAYOUT_MEMBERS if not hasattr(layout, name)]:
        message = f"kind of system {machine.kind!r}: {type(layout).__name__} has no {', '.join(lacking)}"
        raise InputError(message, "perfsim.workload.Layout lists what a layout answers")
    return machine


def machine_of(system: SystemSpec) -> Machine:
    """The kind of machine that a system is."""
    return machine(system.kind)


def build_topology(system: SystemSpec, num_devices: int) -> Topology:
    """The network of the first devices of a system; InputError for a number that it cannot have."""
    return machine_of(system).topology(system, num_devices)


def costs_for(topology: Topology, recipe: Recipe) -> Costs:
    """The cost model of a system under a recipe."""
    return machine_of(topology.system).costs(topology, recipe)


@lru_cache(maxsize=4)
def network_of(topology: Topology) -> Network:
    """The network as communication uses it."""
    return machine_of(topology.system).network(topology)


def strategy_for(named: str | Strategy, system: SystemSpec) -> Strategy:
    """The strategy by name or itself, by default the machine's; InputError if unknown or of another kind."""
    chosen = strategy(named or machine_of(system).default_strategy) if isinstance(named, str) else named
    if chosen.system_kind != system.kind:
        raise InputError(
            f"strategy {chosen.name} runs on a {chosen.system_kind}; {system.name} is a {system.kind}"
        )
    return chosen
