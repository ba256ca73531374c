"""Lists the catalogue: the names of a kind, or the values of one entry with their sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfsim.base.errors import InputError, PerfsimError
from perfsim.catalog import default_catalog, load_mapping

SINGULAR = {
    "systems": "system",
    "devices": "device",
    "models": "model",
    "recipes": "recipe",
    "runtimes": "runtime",
    "wall_clocks": "wall_clock",
    "studies": "study",
}
KINDS = (*SINGULAR, "strategies")
Rows = list[dict[str, str]]


def names(kind: str) -> Rows:
    """Every name of a kind with its description."""
    if kind == "strategies":
        from perfsim.strategies import strategy_names

        return [_listed_strategy(name) for name in strategy_names()]
    catalog = default_catalog()
    return [{"name": name, "description": _description(kind, name)} for name in catalog.names(SINGULAR[kind])]


def _strategy(name: str) -> dict[str, str]:
    from perfsim.strategies import strategy  # the other kinds do without NumPy

    chosen = strategy(name)
    return {"name": name, "runs on": chosen.system_kind, "description": chosen.summary}


def _listed_strategy(name: str) -> dict[str, str]:
    """A line of the list; a plug-in that cannot be used does not hide the others."""
    try:
        return _strategy(name)
    except PerfsimError as error:
        return {"name": name, "runs on": "", "description": str(error)}


def _description(kind: str, name: str) -> str:
    catalog = default_catalog()
    data = load_mapping(catalog.find(SINGULAR[kind], name), catalog, SINGULAR[kind]).data
    return str(data.get("description") or data.get("title") or "")


def entry(kind: str, name: str) -> Rows:
    """Every value of one entry with its source; InputError names the nearest for an unknown name."""
    if kind == "strategies":
        return [_strategy(name)]
    if kind not in SINGULAR:
        raise InputError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
    rows = default_catalog().describe(name, SINGULAR[kind], deep=True)
    return [
        {"value of": row.path, "value": row.value_text, "source": row.source_or_assumption} for row in rows
    ]


def write_network(name: str, path: Path, devices: int | None = None) -> dict[str, Any]:
    """Write the network of a system's first devices (of two nodes by default); returns what is in it.

    `perfsim.network.export.write_graph` has the formats. Raises InputError for a number of devices that the
    system cannot have.
    """
    from perfsim.machines import build_topology, machine_of
    from perfsim.network.export import write_graph

    system = default_catalog().system(name)
    topology = build_topology(system, devices or 2 * (machine_of(system).devices_per_node(system) or 1))
    write_graph(topology, path)
    return {
        "file": str(path),
        "system": name,
        "num_devices": topology.num_devices,
        "vertices": len(topology.vertices),
        "edges": len(topology.edges),
    }
