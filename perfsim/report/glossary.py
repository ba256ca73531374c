"""The terms of the glossary, `docs/glossary.md`, with their meanings."""

from __future__ import annotations

import re
from functools import cache

from perfsim.base.errors import UnknownNameError
from perfsim.catalog import data_root

_ENTRY = re.compile(r"^- \*\*(.+?)\*\*:?\s*(.*?)(?=^- \*\*|^#|\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_MODULE = re.compile(r"\s*\(`[a-z_.`, ]+`\)")
"""Where a term is defined, which is for readers of the code."""


@cache
def _glossary() -> dict[str, str]:
    text = (data_root() / "docs" / "glossary.md").read_text("utf-8")
    entries = {}
    for name, body in _ENTRY.findall(text):
        words = _MODULE.sub("", _LINK.sub(r"\1", " ".join(body.split()))).replace("**", "").replace("`", "")
        entries[name] = words.strip()
    return entries


def terms() -> list[str]:
    """Every term, in the order of the glossary."""
    return list(_glossary())


def explained(term: str) -> list[tuple[str, str]]:
    """The entries whose name has the term, else those that mention it; UnknownNameError where none does."""
    wanted = term.casefold().replace("_", " ")
    entries = [(name, meaning) for name, meaning in _glossary().items() if meaning]
    pattern = re.compile(rf"\b{re.escape(wanted)}s?\b")
    named = [entry for entry in entries if pattern.search(entry[0].casefold())]
    known = named or [entry for entry in entries if pattern.search(entry[1].casefold())]
    if not known:
        raise UnknownNameError("term", term, [name for name, _ in entries])
    return known
