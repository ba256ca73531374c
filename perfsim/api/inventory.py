"""Lists the catalogue: the names of a kind, or the values of one entry with their sources.

The command line reads the kinds from here, so the catalogue is imported where it is read.
"""

from pathlib import Path
from typing import Any

from perfsim.base.errors import InputError, PerfsimError

SINGULAR = {f"{kind}s": kind for kind in ("system", "device", "model", "recipe", "runtime", "wall_clock")}
SINGULAR |= {"prices": "prices", "studies": "study"}
KINDS = (*SINGULAR, "strategies")
Rows = list[dict[str, str]]


def names(kind: str) -> Rows:
    """Every name of a kind with its description; a plug-in that cannot be used does not hide the others."""
    if kind == "strategies":
        from perfsim.strategies import strategy_names

        rows = []
        for name in strategy_names():
            try:
                rows += entry(kind, name)
            except PerfsimError as error:
                rows.append({"name": name, "runs on": "", "description": str(error)})
        return rows
    from perfsim.catalog import LocatedMapping, default_catalog

    catalog = default_catalog()
    singular = SINGULAR[kind]
    rows = []
    for name in catalog.names(singular):
        data = LocatedMapping.read(catalog.find(singular, name), singular, catalog).data
        rows.append({"name": name, "description": str(data.get("description") or data.get("title") or "")})
    return rows


def entry(kind: str, name: str) -> Rows:
    """Every value of one entry with its source; InputError names the nearest for an unknown name."""
    if kind == "strategies":
        from perfsim.strategies import strategy  # the other kinds do without NumPy

        chosen = strategy(name)
        return [{"name": name, "runs on": chosen.system_kind, "description": chosen.summary}]
    if kind not in SINGULAR:
        raise InputError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
    from perfsim.base.units import format_quantity
    from perfsim.catalog import default_catalog

    rows = default_catalog().describe(name, SINGULAR[kind], deep=True)
    totals = []
    for store in default_catalog().system(name).stores if kind == "systems" else ():
        size = format_quantity(store.capacity_bytes, "bytes", 3)
        value = f"{size} at {format_quantity(store.bytes_per_s, 'bytes_per_s', 3)}"
        totals.append({"value of": store.name, "value": value, "source": f"computed: {store.counted}"})
    return totals + [
        {"value of": row.path, "value": row.value_text, "source": row.source_or_assumption} for row in rows
    ]


def write_network(name: str, path: Path, devices: int | None = None) -> dict[str, Any]:
    """Write the network of a system's first devices (of two nodes by default); returns what is in it.

    `perfsim.network.export.write_graph` has the formats. Raises InputError for a number of devices that the
    system cannot have.
    """
    from perfsim.catalog import default_catalog
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
