"""`extends`: a description written as its differences from another.

Nested keys of the child override those of the parent. Provenance follows the value: the child's
`sources` and `assumed` cover what it sets, the parent's cover what it inherits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfsim.catalog.nodes import Mark, Node
from perfsim.catalog.scalars import Scalar

PROVENANCE = ("sources", "assumed")
NOT_INHERITED = ("name", "description", "noun")
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
    """Merge `child` over `parent`; values and their provenance keep their marks."""
    merged = _overlay(values(child), values(parent))
    for name in NOT_INHERITED:
        if name in child.mapping:
            _put(merged, name, child)
    own_paths = {path for path, _ in values(child).leaves()}
    inner = {prefix for path in own_paths for prefix in _prefixes(path)}
    inherited_paths = [
        path
        for path, _ in values(parent).leaves()
        if path not in inner and not any(prefix in own_paths for prefix in _prefixes(path))
    ]
    for name in PROVENANCE:
        table = _inherited(parent.mapping.get(name), inherited_paths)
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
    """The longest key of a provenance table that covers a dotted path; "" if none does."""
    return next((prefix for prefix in _prefixes(path) if prefix in table.mapping), "") if table else ""


def _prefixes(path: str) -> Iterator[str]:
    """A dotted path and the paths that lead to it, the longest first."""
    while path:
        yield path
        path = path.rpartition(".")[0]


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


def _inherited(table: Node | None, paths: list[str]) -> Node:
    """The parent's provenance for these paths, one entry each."""
    if table is None:
        return Node(Mark(""), {})
    entries: dict[Scalar, Node] = {}
    keys: dict[Scalar, Mark] = {}
    for path in paths:
        if key := covering(path, table):
            entries[path], keys[path] = table.mapping[key], table.keys[key]
    return Node(table.mark, entries, keys=keys)
