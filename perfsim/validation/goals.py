"""What the step-time model is held to on the public GPU runs, and what it misses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

REGRET = 0.05
FAMILY_BIAS = 0.08
FAMILY_SIZE = 8
"""Runs from which on a family's bias is held to a goal."""
FAR = 0.13
"""An error of a scored run that is listed as a miss."""


@dataclass(frozen=True)
class Goal:
    """The most that a figure may be, and what it is."""

    what: str
    most: float
    value: float

    @property
    def met(self) -> bool:
        return abs(self.value) <= self.most


def goals_of(result: Mapping[str, Any]) -> list[Goal]:
    """Goals of the GPU runs beside what was reached; those without runs in the file are left out."""
    summary, by_family = result["summary"], result["families"]
    named = [
        ("median error", 0.05, summary["median_ape"]),
        ("90th percentile", 0.13, summary["p90_ape"]),
        ("mean error", 0.065, summary["mape"]),
        *(
            (f"mean error of {family}", most, by_family[family]["mape"])
            for family, most in _FAMILIES.items()
            if by_family.get(family, {}).get("n")
        ),
        *((f"bias of {family}", FAMILY_BIAS, bias) for family, bias in _biases(by_family)),
        *((f"regret in {each['sweep']}", REGRET, each["regret"]) for each in result["sweeps"]),
    ]
    return [Goal(what, most, value) for what, most, value in named if value is not None]


_FAMILIES = {"vtrain_multi": 0.075, "vtrain_single": 0.075, "llm_foundry_h100_80gb": 0.10}


def _biases(by_family: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    for family, figures in by_family.items():
        if figures["n"] >= FAMILY_SIZE and figures["bias"] is not None:
            yield family, figures["bias"]


@dataclass(frozen=True)
class Miss:
    """Something that the model gets wrong, with the likely cause."""

    what: str
    figure: str
    cause: str


def known_misses(result: Mapping[str, Any], causes: Mapping[str, str]) -> list[Miss]:
    """Runs without a prediction, layouts chosen wrongly, families off as a whole, runs far off."""
    cases = {case["id"]: case for case in result["cases"]}
    misses = [Miss(each["id"], "no prediction", each["error"]) for each in result["failed"]]
    for each in result["sweeps"]:
        if each["regret"] > REGRET:
            figure = f"{100 * each['regret']:.1f} % slower than {each['best']}"
            off = f"{100 * cases[each['chosen']]['error']:+.1f} %"
            cause = f"predicted {off}: {causes.get(each['chosen'], '')}"
            misses.append(Miss(f"{each['chosen']} chosen in {each['sweep']}", figure, cause))
    for family, bias in _biases(result["families"]):
        if abs(bias) > FAMILY_BIAS:
            misses.append(
                Miss(
                    f"all of {family}", f"{100 * bias:+.1f} % on average", _commonest(family, result, causes)
                )
            )
    far = [case for case in cases.values() if case["evidence"] != "C" and abs(case["error"] or 0.0) > FAR]
    for case in sorted(far, key=lambda case: -abs(case["error"])):
        misses.append(Miss(case["id"], f"{100 * case['error']:+.1f} %", causes.get(case["id"], "")))
    return misses


def _commonest(family: str, result: Mapping[str, Any], causes: Mapping[str, str]) -> str:
    """The cause of the family's worst run that is not that its family shares it."""
    mine = [case for case in result["cases"] if case["family"] == family and case["id"] in causes]
    worst = max(mine, key=lambda case: abs(case["error"] or 0.0), default=None)
    if worst is None:
        return ""
    parts = [part for part in causes[worst["id"]].split("; ") if not part.startswith("shared by")]
    return "; ".join(parts)
