"""Where each value of a description comes from: a source, or an assumption with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from perfsim.catalog.compose import covering, values
from perfsim.catalog.nodes import Node


@dataclass(frozen=True, slots=True)
class Source:
    """A publication that was read; `url` is empty where none is known."""

    id: str
    title: str
    url: str = ""
    note: str = ""

    def __str__(self) -> str:
        return f"{self.title} <{self.url}>" if self.url else self.title


@dataclass(frozen=True, slots=True)
class Row:
    """One value of a description, as written, with its source or assumption.

    `source_or_assumption` is the source's title and address, or "assumed: " and the reason; it is
    empty for structure and for a value that has neither. `source_id` is empty for assumptions.
    """

    path: str
    value_text: str
    source_or_assumption: str = ""
    source_id: str = ""
    assumed: bool = False


def rows(node: Node) -> list[Row]:
    """Every value of a description with the id of its source or its assumption."""
    return [_row(path, leaf, node) for path, leaf in values(node).leaves() if path]


def _row(path: str, leaf: Node, root: Node) -> Row:
    text = leaf.text if not isinstance(leaf.value, list) else ", ".join(str(v) for v in leaf.plain())
    sources, assumed = root.mapping.get("sources"), root.mapping.get("assumed")
    source_key, assumed_key = covering(path, sources), covering(path, assumed)
    # The longer key is the more specific one; at equal length the assumption is the safer claim.
    if assumed and assumed_key and len(assumed_key) >= len(source_key):
        return Row(path, text, f"assumed: {assumed.mapping[assumed_key].text}", assumed=True)
    if sources and source_key:
        source_id = sources.mapping[source_key].text
        return Row(path, text, source_id, source_id)
    return Row(path, text)
