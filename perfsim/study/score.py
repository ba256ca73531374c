"""How predictions are scored against measured runs; definitions as in the README of the cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

FEWEST_LAYOUTS = 4
"""Layouts that a sweep needs for a rank correlation."""


@dataclass(frozen=True)
class Scored:
    """One case with its prediction; `predicted_s` is None where it failed."""

    id: str
    family: str
    evidence: str
    sweep: str | None
    layout: str
    measured_s: float
    predicted_s: float | None

    @property
    def error(self) -> float | None:
        """Relative error: predicted over measured, less 1."""
        return None if self.predicted_s is None else self.predicted_s / self.measured_s - 1.0

    @property
    def counts(self) -> bool:
        """Evidence C is predicted and shown, not scored."""
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


def families(cases: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    """The summary of each family, with how well it ranks layouts."""
    result = {}
    for family in dict.fromkeys(case.family for case in cases):
        mine = [case for case in cases if case.family == family]
        ranked = [ranking for ranking in map(_ranking, _sweeps(mine)) if ranking is not None]
        result[family] = {
            **summary(mine),
            "kendall_tau": float(np.mean([tau for tau, _ in ranked])) if ranked else None,
            "regret": max(regret for _, regret in ranked) if ranked else None,
        }
    return result


def _sweeps(cases: Sequence[Scored]) -> list[list[tuple[float, float]]]:
    """(measured, predicted) of each layout of each sweep, repeats of one layout averaged."""
    sweeps: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for case in cases:
        if case.counts and case.sweep is not None and case.predicted_s is not None:
            layouts = sweeps.setdefault(case.sweep, {})
            layouts.setdefault(case.layout, []).append((case.measured_s, case.predicted_s))
    return [
        [tuple(np.mean(runs, axis=0).tolist()) for runs in layouts.values()] for layouts in sweeps.values()
    ]


def _ranking(points: list[tuple[float, float]]) -> tuple[float, float] | None:
    """Kendall's tau-a of a sweep, and its regret; None below four layouts."""
    if len(points) < FEWEST_LAYOUTS:
        return None
    pairs = list(combinations(points, 2))
    agreement = sum(float(np.sign(a[0] - b[0]) * np.sign(a[1] - b[1])) for a, b in pairs)
    chosen = min(points, key=lambda point: point[1])
    best = min(measured for measured, _ in points)
    return agreement / len(pairs), chosen[0] / best - 1.0


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
