"""Scores of predictions against measured runs, as defined in the README of the cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

FEWEST_LAYOUTS = 4
"""Least number of layouts of a sweep for a rank correlation."""


@dataclass(frozen=True)
class Scored:
    """One case with its prediction; `predicted_s` is None if it failed."""

    id: str
    """Name of the run."""
    family: str
    """Runs of one source and kind."""
    evidence: str
    """A or B: scored; C: shown only."""
    sweep: str | None
    layout: str
    measured_s: float
    """Measured step time; NaN for a row that could not be read."""
    predicted_s: float | None
    """Predicted step time; None where it failed."""
    experts: bool = False
    """Whether its model has experts."""

    @property
    def error(self) -> float | None:
        """Relative error: predicted over measured, minus 1."""
        return None if self.predicted_s is None else self.predicted_s / self.measured_s - 1.0

    def as_dict(self) -> dict[str, Any]:
        """The run as JSON lists it."""
        return {
            "id": self.id,
            "measured_s": self.measured_s,
            "predicted_s": self.predicted_s,
            "error": self.error,
        }

    @property
    def counts(self) -> bool:
        """Whether it is scored; evidence C is only predicted and shown."""
        return self.evidence in ("A", "B")


def summary(cases: Iterable[Scored]) -> dict[str, Any]:
    """Median, 90th percentile and mean of |error|, and its mean; a failed case counts as 1."""
    counted = [case for case in cases if case.counts]
    if not counted:
        return {"n": 0, "median_ape": None, "p90_ape": None, "mape": None, "bias": None}
    apes = np.array([1.0 if case.error is None else abs(case.error) for case in counted])
    errors = [case.error for case in counted if case.error is not None]
    return {
        "n": len(counted),
        "median_ape": float(np.median(apes)),
        "p90_ape": float(np.percentile(apes, 90)),
        "mape": float(apes.mean()),
        "bias": float(np.mean(errors)) if errors else None,
    }


def dense_and_experts(cases: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    """The summaries of runs without experts and with them; empty unless some scored run has them."""
    kinds = {
        "dense": summary(case for case in cases if not case.experts),
        "experts": summary(case for case in cases if case.experts),
    }
    return {name: figures for name, figures in kinds.items() if kinds["experts"]["n"] and figures["n"]}


def families(cases: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    """The summary of each family, with its ranking of layouts."""
    result = {}
    for family in dict.fromkeys(case.family for case in cases):
        own = [case for case in cases if case.family == family]
        ranked = rankings(own)
        result[family] = {
            **summary(own),
            "kendall_tau": float(np.mean([sweep["kendall_tau"] for sweep in ranked])) if ranked else None,
            "regret": max(sweep["regret"] for sweep in ranked) if ranked else None,
        }
    return result


def rankings(cases: Sequence[Scored]) -> list[dict[str, Any]]:
    """Rankings of sweeps with at least four scored layouts: Kendall's tau-a, regret and the two choices.

    `chosen` is the case predicted as fastest, `best` the one measured as fastest.
    """
    ranked = []
    for (family, sweep), runs in _sweeps(cases).items():
        points = [_mean(layout) for layout in runs.values()]
        if len(points) < FEWEST_LAYOUTS:
            continue
        pairs = list(combinations(points, 2))
        agreement = sum(float(np.sign(a[0] - b[0]) * np.sign(a[1] - b[1])) for a, b in pairs)
        layouts = list(runs)
        chosen = min(range(len(points)), key=lambda index: points[index][1])
        best = min(range(len(points)), key=lambda index: points[index][0])
        ranked.append(
            {
                "family": family,
                "sweep": sweep,
                "layouts": len(points),
                "kendall_tau": agreement / len(pairs),
                "regret": points[chosen][0] / points[best][0] - 1.0,
                "chosen": runs[layouts[chosen]][0].id,
                "best": runs[layouts[best]][0].id,
            }
        )
    return ranked


def _sweeps(cases: Sequence[Scored]) -> dict[tuple[str, str], dict[str, list[Scored]]]:
    """The runs of each layout of each sweep."""
    sweeps: dict[tuple[str, str], dict[str, list[Scored]]] = {}
    for case in cases:
        if case.counts and case.sweep is not None and case.predicted_s is not None:
            layouts = sweeps.setdefault((case.family, case.sweep), {})
            layouts.setdefault(case.layout, []).append(case)
    return sweeps


def _mean(runs: Sequence[Scored]) -> tuple[float, float]:
    """Measured and predicted seconds of one layout, averaged over repeats."""
    measured = float(np.mean([run.measured_s for run in runs]))
    return measured, float(np.mean([run.predicted_s for run in runs if run.predicted_s is not None]))


def one_constant(ideal_s: Sequence[float], measured_s: Sequence[float]) -> float:
    """The efficiency e that minimises the mean of |ideal / e / measured - 1|.

    In 1/e this is a weighted median: the objective is piecewise linear with kinks at measured / ideal
    and weights ideal / measured.
    """
    ratios = np.array(measured_s) / np.array(ideal_s)
    order = np.argsort(ratios)
    weights = 1.0 / ratios[order]
    half = np.searchsorted(np.cumsum(weights), weights.sum() / 2)
    return float(1.0 / ratios[order][min(int(half), len(ratios) - 1)])
