"""`extends`: one description that says only how it differs from another.

Keys of the child override deeply. Provenance follows the value: what the child writes itself is
covered by the child's own `sources` and `assumed`, what it leaves alone by its parent's.
"""

from __future__ import annotations

from dataclasses import replace

from perfsim.catalog.nodes import Mark, Node
from perfsim.catalog.scalars import Scalar

PROVENANCE = ("sources", "assumed")
NOT_INHERITED = ("name", "description")
META = ("extends", *NOT_INHERITED, *PROVENANCE)
"""Keys that describe a description; all others are values and need a source or an assumption."""


def without(node: Node, *names: str) -> Node:
    """The mapping without some of its keys."""
    value = {key: child for key, child in node.mapping.items() if key not in names}
    return replace(node, value=value)


def values(node: Node) -> Node:
    """The mapping without its meta keys."""
    return without(node, *META)


def extend(child: Node, parent: Node) -> Node:
    """Lay `child` over `parent`: the mapping that the child stands for, with its marks."""
    merged = _overlay(values(child), values(parent))
    for name in NOT_INHERITED:
        if name in child.mapping:
            _put(merged, name, child)
    written = [path for path, _ in values(child).leaves()]
    kept = [path for path, _ in values(parent).leaves() if not any(_meet(path, other) for other in written)]
    for name in PROVENANCE:
        table = _inherited(parent.mapping.get(name), kept)
        own = child.mapping.get(name)
        if own is not None and not own.is_mapping:
            _put(merged, name, child)
            continue
        if own is not None:
            table = replace(own, value={**table.mapping, **own.mapping}, keys={**table.keys, **own.keys})
        if table.mapping:
            merged.mapping[name] = table
            merged.keys[name] = child.keys.get(name, table.mark)
    return merged


def covering(path: str, table: Node | None) -> str:
    """The longest key of a provenance table that covers a dotted path; "" where none does."""
    keys = [str(key) for key in table.mapping] if table else []
    return max((key for key in keys if path == key or path.startswith(f"{key}.")), key=len, default="")


def _overlay(child: Node, parent: Node) -> Node:
    if not (child.is_mapping and parent.is_mapping):
        return child
    result: dict[Scalar, Node] = dict(parent.mapping)
    for key, node in child.mapping.items():
        result[key] = _overlay(node, result[key]) if key in result else node
    return Node(child.mark, result, keys={**parent.keys, **child.keys})


def _put(merged: Node, name: str, origin: Node) -> None:
    merged.mapping[name] = origin.mapping[name]
    merged.keys[name] = origin.keys[name]


def _meet(path: str, other: str) -> bool:
    """Whether one path is the other or lies under it: writing either replaces both."""
    return path == other or path.startswith(f"{other}.") or other.startswith(f"{path}.")


def _inherited(table: Node | None, kept: list[str]) -> Node:
    """The parent's provenance, cut down to the leaves that the child did not replace."""
    if table is None:
        return Node(Mark(""), {})
    entries: dict[Scalar, Node] = {}
    keys: dict[Scalar, Mark] = {}
    for path in kept:
        if key := covering(path, table):
            entries[path], keys[path] = table.mapping[key], table.keys[key]
    return Node(table.mark, entries, keys=keys)
