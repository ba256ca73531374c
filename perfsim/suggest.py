"""The nearest name that exists."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST_DIFFERENT = 20
"""Names whose lengths differ by more are not compared."""


def nearest(word: str, names: Iterable[str]) -> str:
    """The name most like `word`, ignoring case; "" if none is similar."""
    folded = {name.casefold(): name for name in names if abs(len(name) - len(word)) <= _MOST_DIFFERENT}
    near = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else ""


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """A line of help: the nearest name if there is one, and all names."""
    choices = list(names)
    near = nearest(word, choices)
    guess = f"did you mean `{near}`? " if near else ""
    return f"{guess}known: {', '.join(choices)}" if choices else guess.strip()
