"""The nearest name that exists, and numbers as people write them."""

import difflib
import math
import re
from collections.abc import Collection, Iterable

_MOST_DIFFERENT = 20
"""Names whose lengths differ by more are not compared."""
GAP = "imported gap"
"""Begins the keys under `assumed` of an imported model that hold what cannot be expressed."""
OTHER_NAMES = {
    "ddp": "data",
    **dict.fromkeys(("fsdp", "fsdp1", "fsdp2"), "zero3"),
    "gpus": "devices",
    "megatron": "3d",
    "rope": "rotary",
    "wafer": "weight-streaming",
    "zb-h1": "zb1p",
    "zb-h2": "zb2p",
    "zb-v": "zbv",
    "dualpipe": "dualpipev",
}
"""What others call what perfsim has under another name; folded."""
_MOST_ALIKE = 3
"""Names with the word as a part of which so many are suggested."""
_LEAST_PART = 3
"""Letters of a word from which on a name that has it as a part is suggested."""
_LEAST_RATIO = 0.61
"""At 0.6, the usual ratio, names that share only an ending still match: vocab_size and world_size."""
_MOST_LISTED = 40
"""More names are not listed behind a guess."""
MISSING = "n/a"
"""In place of a number that is not finite."""


def nearest(word: str, names: Iterable[str]) -> str:
    """The name most like `word`; "" if none is similar."""
    return next(iter(_alike(word, names)), "")


def _alike(word: str, names: Iterable[str]) -> list[str]:
    """The names most like `word`, of which there are several only where they have it as a part."""
    folded = {_folded(name): name for name in names if abs(len(name) - len(word)) <= _MOST_DIFFERENT}
    wanted = _folded(word)
    # The shortest name that begins with it, else those that have it as a part, else the most alike.
    if len(wanted) >= _LEAST_PART and wanted not in folded:
        holding = sorted((name for name in folded if f"-{wanted}-" in f"-{name}-"), key=len)
        if near := [name for name in holding if name.startswith(wanted)][:1] or holding[:_MOST_ALIKE]:
            return [folded[name] for name in near]
    return [folded[name] for name in difflib.get_close_matches(wanted, folded, n=1, cutoff=_LEAST_RATIO)]


def _folded(name: str) -> str:
    """The name without case, and with one sign between its parts."""
    return re.sub(r"[\W_]+", "-", name.casefold())


def did_you_mean(word: str, names: Iterable[str], listing: str = "") -> str:
    """A line of help: the nearest name, if any, and all names, or their number where a command lists many."""
    choices = list(names)
    near = OTHER_NAMES.get(_folded(word), "")
    guess = f"{word} is called `{near}` here; " if near in choices else ""
    if not guess and (close := [f"`{name}`" for name in _alike(word, choices)]):
        guess = f"did you mean {' or '.join(filter(None, [', '.join(close[:-1]), close[-1]]))}? "
    if len(choices) > _MOST_LISTED and (guess or listing):
        return f"{guess}{len(choices)} names are known{listing}"
    return f"{guess}known: {', '.join(choices)}" if choices else guess.strip()


def covering(path: str, known: Collection[object]) -> str:
    """The longest of some dotted paths that is a path or leads to it; "" if none does."""
    while path and path not in known:
        path = path.rpartition(".")[0]
    return path


def number(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, thousands separated, never with an exponent."""
    if not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))  # of 1.00, not of 0.9996
    return f"{rounded:,.{min(max(decimals, 0), 12)}f}"


def large_word(value: float) -> tuple[float, str]:
    """The scale in which people say a large number, with its word; 1 and no word below a million."""
    scales = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
    return next((known for known in scales if known[0] <= value < math.inf), (1.0, ""))
