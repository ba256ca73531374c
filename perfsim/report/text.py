"""How quantities, names and prose are written: sensible digits, a unit, lines that fit a terminal."""

from __future__ import annotations

import html
import math
import re
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, TypeVar

from perfsim.base.text import MISSING, large_word, number
from perfsim.base.units import GIB, TIME_UNITS
from perfsim.specs.layout import AXES, OFFLOADS, written

if TYPE_CHECKING:
    from perfsim.engine.trace import Simulated
    from perfsim.prediction.risk import Ranked
    from perfsim.prediction.verification import SamplingSummary
    from perfsim.studies.answers import SharedCaveat


Item = TypeVar("Item")

NONE = "\u2013"
"""An empty cell; also the dash of a range."""
TIMES = "\u00d7"
BREAK = "<br>"

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def esc(words: object) -> str:
    """Text for a Plotly label, which reads a subset of HTML."""
    return html.escape(str(words), quote=False)


def thinned(items: Sequence[Item], count: int) -> list[Item]:
    """At most so many items, evenly spread, with the first and the last."""
    if len(items) <= count:
        return list(items)
    last = len(items) - 1
    return [items[round(place * last / max(count - 1, 1))] for place in range(count)]


def integer(value: float) -> str:
    """A count, thousands separated."""
    return f"{value:,.0f}" if math.isfinite(value) else MISSING


def _trim(text: str) -> str:
    """The same number without zeros after the point."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(fraction: float, digits: int = 1) -> str:
    """A fraction as per cent."""
    return f"{100.0 * fraction:.{digits}f} %" if math.isfinite(fraction) else MISSING


@dataclass(frozen=True, slots=True)
class Unit:
    """How values of one kind are written, SI inside; `suits` finds the unit of values shown together."""

    name: str = ""
    """Behind the number; empty where `digits` writes the unit too."""
    scale: float = 1.0
    digits: Callable[[float], str] = number
    suits: Callable[[Iterable[float]], Unit] | None = None

    def of(self, values: Iterable[float]) -> Unit:
        """The unit that suits values which are shown together."""
        return self if self.suits is None else self.suits(values)

    def number(self, value: float) -> str:
        """The value without the name of the unit."""
        return self.digits(value / self.scale) if math.isfinite(value) else MISSING

    def text(self, value: float, band: tuple[float, float] | None = None, to: str = " to ") -> str:
        """`32.0 days`, and with a band `32.0 days (31.2 to 37.1)`."""
        unit = self.of([value])
        words = unit.number(value)
        if unit.name and words != MISSING:
            words += f" {unit.name}"
        return words if band is None or words == MISSING else f"{words} ({to.join(map(unit.number, band))})"


def _time_unit(values_s: Iterable[float]) -> Unit:
    """The unit that suits durations, by their geometric mean."""
    known = [value for value in values_s if math.isfinite(value) and value > 0]
    middle = geometric_mean(known) if known else 1.0
    return next(Unit(name, scale) for name, _, scale, least in TIME_UNITS if middle >= least)


def _memory_unit(capacities_bytes: Iterable[float]) -> Unit:
    """The unit in which capacities are stated: GiB if one is a whole number of MiB (183,359), else GB."""
    mib = [1024 * capacity / GIB for capacity in capacities_bytes]
    if any(math.isfinite(size) and size >= 1024 and abs(size - round(size)) < 1e-3 for size in mib):
        return Unit("GiB", GIB)
    return Unit("GB", 1e9)


def _large_unit(values: Iterable[float], small: Callable[[float], str] = integer) -> Unit:
    """The word that suits large numbers, by the first of them; `small` writes those below a million."""
    scale, word = large_word(abs(next(iter(values), 0.0)))
    return Unit(word, scale, lambda value: _trim(number(value))) if word else Unit(digits=small)


def si(value: float, unit: str) -> str:
    """`1.2 GB`, `312 TFLOP/s`: a quantity with the prefix that suits it; a dash for none."""
    if not value > 0:
        return NONE
    power = min(max(math.floor(math.log10(value) / 3 + 1e-9), 0), len(_PREFIXES) - 1)
    return f"{_trim(number(value / 1000**power))} {_PREFIXES[power]}{unit}"


NUMBER = Unit()
COUNT = Unit(digits=integer)
FEW = Unit(digits=lambda value: number(value) if value < 100 else integer(value))
"""All digits of a large amount, three of a small one."""
LARGE = Unit(suits=_large_unit)
"""`24.3 million`; below a million all digits."""
AMOUNT = Unit(suits=partial(_large_unit, small=FEW.digits))
"""The same of what is no count: `1.32`, with three digits below a hundred."""
large = LARGE.text
TIME = Unit(suits=_time_unit)
"""Each duration in the unit that a person would choose."""
duration = TIME.text
MEMORY = Unit(suits=_memory_unit)
RATIO = Unit(digits="{:.3f}".format)
SHARE = Unit(digits=percent)
PERCENT = Unit("%", 0.01, "{:.1f}".format)
"""The same with the sign of per cent in the heading."""
WHOLE_SHARE = Unit(digits=lambda value: percent(value, 0))
CHANGE = Unit(digits=lambda value: f"{100 * value:+.1f} %".replace("-0.0 %", "+0.0 %"))
FLOP = Unit(digits=lambda value: si(value, "FLOP"))
BYTES = Unit(digits=lambda value: si(value, "B"))


def simulated(counts: Simulated) -> str:
    """What a simulation consisted of, such as `1,200 events (simpy); no link is short of bandwidth`."""
    events = f"{integer(counts.events)} events" + (f" ({counts.engine})" if counts.engine else "")
    if not counts.flows:
        return f"{events}; no link is short of bandwidth"
    shared = f"{counted(counts.flows, 'flow')} on {counted(counts.links, 'link')}"
    return f"{events}; {shared}, contended for {duration(counts.contended_s)}"


def verified(samples: Collection[SamplingSummary]) -> str:
    """How many matrix products were compared, how many kinds were executed, and what was wrong."""
    nearest = max(sample.worst_relative_error / sample.bound for sample in samples)
    count = sum(sample.tasks_sampled for sample in samples)
    failed = [words for sample in samples for words in sample.failed]
    outcome = "right" if all(sample.passed for sample in samples) else f"WRONG ({'; '.join(failed)})"
    compared = sum(sample.tasks_total for sample in samples)
    sums = "most sums" if any(sample.not_summed for sample in samples) else "sums"
    return (
        f"shapes, divisions, {sums} and FLOPs of {integer(compared)} matrix products; {count} kinds executed "
        f"on samples of their real shapes, {outcome}; error {nearest:.1g} of its bound"
    )


def capital(words: str) -> str:
    """The words with a capital first letter."""
    return words[:1].upper() + words[1:]


def counted(number: float, name: str, several: str = "") -> str:
    """`1 link`, `2 links`; `several` is the plural of a name that does not end in s there."""
    return f"{integer(number)} {name if number == 1 else several or f'{name}s'}"


_DEGREES = ("tensor", "context", "pipeline", "virtual_pipeline", "data", "expert", "micro_batch_size")
_SHORT = {name: AXES[name].short for name in _DEGREES}


def layout_short(layout: Mapping[str, Any]) -> str:
    """`tp8 dp16 mbs4`, with a schedule other than 1F1B, ZeRO and offload: `pp4 dp8 mbs1 zb1p zero1`."""
    words = [_degrees_text(layout)]
    words += [str(layout["schedule"])] if layout.get("schedule") not in (None, "1f1b") else []
    words += [f"zero{layout['zero_stage']}"] if layout.get("zero_stage") else []
    words += ["offload"] if any(layout.get(name, "none") != "none" for name in OFFLOADS) else []
    return " ".join(words)


def _degrees_text(layout: Mapping[str, Any]) -> str:
    """`tp8 dp16 mbs4`: other degrees than these of replicas are left out where they are 1."""
    always = ("data", "micro_batch_size")
    given = [(name, layout[name]) for name in _SHORT if layout.get(name) is not None]
    return " ".join(f"{_SHORT[name]}{value}" for name, value in given if name in always or value != 1)


def layout_long(layout: Mapping[str, Any]) -> str:
    """The degrees and every other setting that is switched on, by its name."""
    words = [_degrees_text(layout)]
    for name, value in layout.items():
        usual = value in (None, False, 0, "", "none") or (name, value) == ("recompute_every", 1)
        if name not in _SHORT and not usual:
            words.append(layout_setting(name, value).removesuffix(" yes"))
    return ", ".join(filter(None, words))


def layout_setting(name: str, value: Any) -> str:
    """A setting with its value, whether it is switched on or off: `tp4`, `zero stage 0`."""
    if name in _SHORT:
        return f"{_SHORT[name]}{value}"
    named = value is None or isinstance(value, bool)
    words = {None: "even", False: "no", True: "yes"}[value] if named else written(value)
    return f"{'micro-batches' if name == 'num_microbatches' else human(name)} {words}"


def human(name: str) -> str:
    """`tensor_communication` -> `tensor communication`; a unit suffix is dropped."""
    return re.sub("(?<!_per)_(s|bytes|kwh|kg)$", "", name).replace("_", " ")


def ranks(answers: Sequence[Ranked]) -> list[tuple[str, str]]:
    """The proven layout and the fastest, each with what sets it apart; one row where they are the same."""
    if not answers:
        return []
    proven, fastest = answers
    rank = "proven" if proven.is_proven else "unproven"
    known = "unlike published runs" if proven.is_proven else "nothing like it is published:"
    words = f"{known} {' and '.join(proven.novelty)}" if proven.novelty else "as published runs"
    if fastest.layout == proven.layout:
        return [(rank, f"the fastest of all; {words}")]
    gain = f"{percent(1 - fastest.step_time_s / proven.step_time_s)} less"
    new = f"not published: {' and '.join(fastest.novelty)}"
    return [
        (rank, f"{proven.layout}: {duration(proven.step_time_s)} a step; {words}"),
        ("fastest", f"{fastest.layout}: {duration(fastest.step_time_s)} a step, {gain}; {new}"),
    ]


# Prose, in lines that fit a terminal.

LEAST_WIDTH = 40
PIPE_WIDTH = 100
MAX_PROSE = 100
"""Longer lines of prose are hard to read."""
UNITS = (*(short for short, *_ in TIME_UNITS), "%", "GB", "GiB", "billion")
_MEASURE = re.compile(rf"(?<=\d) (?=(?:{'|'.join(map(re.escape, UNITS))})(?!\w))")
"""The space between a number and its unit."""
_IN_DATE = re.compile(r"(?<=\b\d{4})-(?=\d\d\b)|(?<=\b\d{4}-\d\d)-(?=\d\d\b)")
"""A hyphen of a date."""
_BREAKABLE = {0xA0: " ", 0x2011: "-"}


def unbroken(words: str) -> str:
    """Words whose lines do not break between a number and its unit, nor in a date."""
    return _IN_DATE.sub("\u2011", _MEASURE.sub("\u00a0", words))


def terminal_width() -> int:
    """Columns of the terminal, at least 40; 100 where the output is no terminal."""
    return max(LEAST_WIDTH, shutil.get_terminal_size((PIPE_WIDTH, 24)).columns)


def paragraphs(*prose: str, width: int = 0, indent: str = "") -> list[str]:
    """The texts in indented lines no wider than `width` (0: the terminal).

    They break at spaces, and inside of words that are wider than a line alone.
    """
    most = min(width or terminal_width(), MAX_PROSE)

    def whole(word: re.Match[str]) -> str:
        fits = len(indent) + len(word[0]) <= most
        return word[0].replace("-", "\u2011") if fits else word[0]

    lines: list[str] = []
    for words in prose:
        kept = re.sub(r"\S+", whole, unbroken(words))
        lines += textwrap.wrap(kept, most, initial_indent=indent, subsequent_indent=indent)
    return [line.translate(_BREAKABLE) for line in lines]


MOST_AT_HEAD = 3
"""Caveats at the head of an answer; more only where more are serious, or are of `ALWAYS`."""
ALWAYS = ("cluster-scaled", "memory-above-limit", "model-imported")
"""Codes of caveats without which the figures are misread, whatever they can do to the order."""


def split_caveats(
    caveats: Sequence[SharedCaveat], verdict: str
) -> tuple[list[SharedCaveat], list[SharedCaveat]]:
    """The worst caveats for the head of an answer, all serious ones, and others that no verdict quotes."""
    left = [caveat for caveat in caveats if not (caveat.headline == caveat.text and caveat.text in verdict)]
    serious = sum(caveat.severity == "serious" for caveat in left)
    warned = sum(caveat.severity != "info" for caveat in left)
    count = max(serious, min(warned, MOST_AT_HEAD))
    shown = [*left[:count], *(caveat for caveat in left[count:] if caveat.code in ALWAYS)]
    return shown, [caveat for caveat in left if caveat not in shown]


def caveat_lines(shown: Sequence[SharedCaveat], count: int) -> list[str]:
    """Caveats on a terminal, serious ones in full, and how many more of `count` the report has."""
    said = [
        f"{caveat.severity}: {'; '.join(caveat.machines)}: "
        f"{caveat.text if caveat.severity == 'serious' else caveat.headline}"
        for caveat in shown
    ]
    more = f"... {counted(count - len(shown), 'more caveat')} in the report"
    return [*paragraphs(*said), *([more] if count > len(shown) else [])]
