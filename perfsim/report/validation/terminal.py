"""The error table of `perfsim validate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfsim.report.text import evidence

HEAD = f"{'':26s} {'n':>4s} {'median':>8s} {'p90':>8s} {'mean':>8s} {'bias':>8s} {'tau':>6s} {'regret':>8s}"


def validation_lines(result: Mapping[str, Any], worst: int) -> list[str]:
    """One file's score: all, by family, the baseline, what failed, and the worst cases."""
    failed = result["failed"]
    lines = [
        f"{result['file']}: {result['count']} cases, {len(failed)} failed",
        HEAD,
        _row("all (a failure counts 1)", result["summary"]),
    ]
    if "summary_predicted" in result and failed:
        lines.append(_row("all that were predicted", result["summary_predicted"]))
    lines.append(_row("baseline", result["baseline"]))
    if "larger_batch" in result:
        lines.append(_row("larger batch", result["larger_batch"]))
    lines += [_row(f"  {name}", figures) for name, figures in result["families"].items()]
    for release, figures in result.get("without_release", {}).items():
        lines.append(_row(f"all without {release}", figures))
    if result.get("left_out"):
        row = _row("each release left out", result["left_out"]["summary"])
        lines.append(f"{row}  (p90: half-width of a 90 % band)")
    lines += _failures(failed)
    return [*lines, *_worst(result["cases"], worst)]


def _row(name: str, figures: Mapping[str, Any]) -> str:
    keys = ("median_ape", "p90_ape", "mape", "bias")
    cells = " ".join(_percent(figures.get(key), signed=key == "bias") for key in keys)
    tau = figures.get("kendall_tau")
    rank = f"{tau:6.2f}" if tau is not None else f"{'':6s}"
    regret = _percent(figures["regret"]) if figures.get("regret") is not None else ""
    return f"{name:26.26s} {figures.get('n', ''):>4} {cells} {rank} {regret}".rstrip()


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return f"{'-':>8s}"
    return f"{100 * value:+7.1f}%" if signed else f"{100 * value:7.1f}%"


def _failures(failed: list[Mapping[str, str]]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for case in failed:
        reasons.setdefault(case["error"].splitlines()[0], []).append(case["id"])
    return [f"failed: {len(ids)} x {reason} (first: {ids[0]})" for reason, ids in reasons.items()]


def _worst(cases: list[Mapping[str, Any]], worst: int) -> list[str]:
    known = [case for case in cases if case.get("error") is not None and case.get("predicted_s") is not None]
    known.sort(key=lambda case: -abs(case["error"]))
    if not worst or not known:
        return []
    shown = known[:worst]
    width = min(58, max(len(case["id"]) for case in shown))
    rows = [
        f"  {case['id']:{width}.{width}s} {case['measured_s']:10.4g} s {case['predicted_s']:10.4g} s"
        f" {100 * case['error']:+7.1f}%  {evidence(case)}"
        for case in shown
    ]
    return [f"worst {len(rows)}: measured, predicted, error, evidence (C is not scored)", *rows]
