"""How quantities and names are written: sensible digits, a unit, and text that is safe to show."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from perfsim.base.units import DAY_S
from perfsim.specs.layout import AXES

if TYPE_CHECKING:
    from perfsim.engine.trace import Simulated
    from perfsim.prediction.prediction import Prediction
    from perfsim.studies.answers import CandidateResult, StudyResult


Item = TypeVar("Item")

MISSING = "n/a"
NONE = "\u2013"
"""An empty cell; also the dash of a range."""
TIMES = "\u00d7"
YEAR_S = 365.25 * DAY_S

_TIME_UNITS: tuple[tuple[str, float, float], ...] = (
    ("years", YEAR_S, 2 * YEAR_S),
    ("days", DAY_S, 2 * DAY_S),
    ("h", 3600.0, 2 * 3600.0),
    ("min", 60.0, 600.0),
    ("s", 1.0, 1.0),
    ("ms", 1e-3, 1e-3),
    ("µs", 1e-6, 0.0),
)
"""Unit, its seconds, and the smallest value that is written in it."""

_LARGE: tuple[tuple[float, str], ...] = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))

_ASCII = str.maketrans(
    {
        "\u00d7": "x", "\u2013": "-", "\u2014": "-", "\u2212": "-", "\u00b5": "u", "\u03bc": "u",
        "\u2264": "<=", "\u2265": ">=", "\u2248": "~", "\u2026": "...", "\u2018": "'", "\u2019": "'",
        "\u201c": '"', "\u201d": '"', "\u00a0": " ", "\u00b1": "+/-", "\u00b7": "*", "\u2192": "->",
    }
)  # fmt: skip


def thinned(items: Sequence[Item], count: int) -> list[Item]:
    """At most so many items, evenly spread, with the first and the last."""
    if len(items) <= count:
        return list(items)
    last = len(items) - 1
    return [items[round(place * last / max(count - 1, 1))] for place in range(count)]


def number(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, thousands separated, never with an exponent."""
    if not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))  # of 1.00, not of 0.9996
    return f"{rounded:,.{min(max(decimals, 0), 12)}f}"


def integer(value: float) -> str:
    """A count, thousands separated."""
    return f"{value:,.0f}" if math.isfinite(value) else MISSING


def large(value: float) -> str:
    """A count in words: `400 billion`."""
    for scale, word in _LARGE:
        if math.isfinite(value) and abs(value) >= scale:
            return f"{trim(number(value / scale))} {word}"
    return integer(value)


def trim(text: str) -> str:
    """The same number without zeros after the point."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(fraction: float, digits: int = 1) -> str:
    """A fraction as per cent."""
    return f"{100.0 * fraction:.{digits}f} %" if math.isfinite(fraction) else MISSING


def time_unit(values_s: Iterable[float]) -> tuple[str, float]:
    """The unit (name, seconds) that suits these durations together: that of their geometric mean."""
    logs = [math.log(value) for value in values_s if math.isfinite(value) and value > 0]
    middle = math.exp(sum(logs) / len(logs)) if logs else 1.0
    for name, seconds, least in _TIME_UNITS:
        if middle >= least:
            return name, seconds
    return _TIME_UNITS[-1][:2]


def simulated(counts: Simulated) -> str:
    """What a simulation consisted of, such as `1,200 events; 80 flows on 4 links, contended for 12 ms`."""
    events = f"{integer(counts.events)} events"
    if counts.microbatches is not None:
        events += f" of {integer(counts.microbatches)} micro-batches, which the others repeat"
    if not counts.flows:
        return f"{events}; no link is short of bandwidth"
    shared = f"{counted(counts.flows, 'flow')} on {counted(counts.links, 'link')}"
    return f"{events}; {shared}, contended for {duration(counts.contended_s)}"


def counted(number: float, name: str, several: str = "") -> str:
    """`1 link`, `2 links`; `several` is the plural of a name that does not end in s there."""
    return f"{integer(number)} {name if number == 1 else several or f'{name}s'}"


def in_one_unit(values_s: Iterable[float]) -> tuple[str, list[str]]:
    """Durations of one column: the unit that suits the longest, and each as a number of it."""
    values = list(values_s)
    longest = max((value for value in values if math.isfinite(value)), default=1.0)
    name, scale = time_unit([longest])
    return name, [number(value / scale) for value in values]


def duration(seconds: float, digits: int = 3) -> str:
    """A duration in the unit a person would choose."""
    if not math.isfinite(seconds):
        return MISSING
    if seconds <= 0:
        return f"{seconds:.0f} s"
    name, scale = time_unit([seconds])
    return f"{number(seconds / scale, digits)} {name}"


def duration_band(band_s: tuple[float, float]) -> str:
    """`22.1-31.4 days`: a band in one unit."""
    name, scale = time_unit(band_s)
    return f"{number(band_s[0] / scale)}{NONE}{number(band_s[1] / scale)} {name}"


def memory_unit(*capacities_bytes: float) -> tuple[str, float]:
    """The unit (name, bytes) in which capacities are stated: GiB if one is a whole number of it, else GB."""
    gib = [capacity / 2**30 for capacity in capacities_bytes]
    if any(math.isfinite(size) and size >= 1 and abs(size - round(size)) < 1e-6 for size in gib):
        return "GiB", float(2**30)
    return "GB", 1e9


def memory(size_bytes: float, *capacities_bytes: float) -> str:
    """A size in the unit of the memories that are shown together."""
    name, scale = memory_unit(*capacities_bytes)
    return f"{number(size_bytes / scale)} {name}"


def peak_memory(prediction: Prediction) -> str:
    """Peak memory in the unit in which the device's memory is stated."""
    return memory(prediction.peak_memory_bytes, prediction.memory_capacity_bytes)


_SHORT = {
    name: AXES[name].short for name in ("tensor", "pipeline", "virtual_pipeline", "data", "micro_batch_size")
}


_LONG = {"num_microbatches": "micro-batches"}


def layout_short(layout: Mapping[str, Any]) -> str:
    """`tp8 dp16 mbs4`, with a schedule that is not 1F1B and a ZeRO stage above 1: `pp4 dp8 mbs1 zb1p`."""
    words = [_degrees_text(layout)]
    if layout.get("schedule") not in (None, "1f1b"):
        words.append(str(layout["schedule"]))
    if (layout.get("zero_stage") or 0) > 1:
        words.append(f"zero{layout['zero_stage']}")
    return " ".join(words)


def _degrees_text(layout: Mapping[str, Any]) -> str:
    """`tp8 dp16 mbs4`: degrees of tensor and pipeline are left out where they are 1."""
    degrees = {name: layout[name] for name in _SHORT if layout.get(name) is not None}
    always = ("data", "micro_batch_size")
    return " ".join(
        f"{_SHORT[name]}{value}" for name, value in degrees.items() if name in always or value != 1
    )


def layout_long(layout: Mapping[str, Any]) -> str:
    """The degrees and every other setting that is switched on, by its name."""
    words = [_degrees_text(layout)]
    for name, value in layout.items():
        usual = value in (None, False, 0, "", "none") or (name, value) == ("recompute_every", 1)
        if name not in _SHORT and not usual:
            words.append(f"{_LONG.get(name) or human(name)} {_plain_value(value)}".removesuffix(" yes"))
    return ", ".join(word for word in words if word)


def layout_settings(settings: Mapping[str, Any]) -> str:
    """Each setting with its value, whether it is switched on or off: `tp4, schedule 1f1b, zero stage 0`."""
    return ", ".join(
        f"{_SHORT[name]}{value}" if name in _SHORT else f"{human(name)} {_setting(value)}"
        for name, value in settings.items()
    )


def _setting(value: Any) -> str:
    words = {None: "even", False: "no"}
    return words[value] if value is None or value is False else _plain_value(value)


def _plain_value(value: Any) -> str:
    if value is True:
        return "yes"
    if isinstance(value, (list, tuple)):
        return "-".join(str(item) for item in value)
    return str(value)


def human(name: str) -> str:
    """`tensor_communication` -> `tensor communication`; a unit suffix is dropped."""
    return name.removesuffix("_s").removesuffix("_bytes").replace("_", " ")


MOST_INFERRED = 2


def evidence(case: Mapping[str, Any]) -> str:
    """The evidence class of a published run; of one that is not scored, also why: `C, batch inferred`."""
    inferred = case.get("inferred") or []
    if not inferred:
        return str(case["evidence"])
    names = " and ".join(inferred) if len(inferred) <= MOST_INFERRED else f"{len(inferred)} fields"
    return f"{case['evidence']}, {names} inferred"


def labels(candidates: Iterable[CandidateResult]) -> list[str]:
    """One label per candidate, numbered where two would be the same."""
    seen: dict[str, int] = {}
    out = []
    for candidate in candidates:
        label = candidate.label
        seen[label] = seen.get(label, 0) + 1
        out.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return out


def names(candidates: Sequence[CandidateResult]) -> list[str]:
    """The machine of each candidate where no other has the same, else its label."""
    machines = [candidate.machine for candidate in candidates]
    return [
        machine if machines.count(machine) == 1 else label
        for machine, label in zip(machines, labels(candidates), strict=True)
    ]


def perturbed_line(result: StudyResult) -> str:
    """What perturbs the steps and how much longer they are; empty where nothing does."""
    ratios = sorted(
        candidate.step_time_s / candidate.perturbed.unperturbed_step_time_s
        for candidate in result.candidates
        if candidate.perturbed
    )
    if not result.perturbed or not ratios:
        return ""
    low = f"{ratios[0]:.2f}"
    high = f"{ratios[-1]:.2f}"
    spread = high if low == high else f"{low} to {high}"
    return f"perturbed steps, {spread} times as long: {result.perturbed}"


def encodable(text: str, encoding: str) -> str:
    """The text as a terminal of that encoding can show it; control characters are removed."""
    text = "".join(char for char in text if char == "\n" or unicodedata.category(char)[0] != "C")
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        folded = unicodedata.normalize("NFKD", text.translate(_ASCII))
        kept = "".join(char for char in folded if not unicodedata.combining(char))
        return kept.encode("ascii", "replace").decode("ascii")
    return text
