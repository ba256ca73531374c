"""What one slow device does to a step: a sentence and a table."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.prediction.result import Resilience
from perfsim.report import text
from perfsim.report.study.answer import shortened
from perfsim.report.table import Table
from perfsim.studies.result import StudyResult

HIDDEN = 0.98
"""A step that is less than this share of the device's slowdown longer hides a part of the delay."""


def slowdowns(curve: Resilience) -> list[float]:
    """Step time at every severity over the step without a straggler."""
    first = curve.points[0].step_time_s
    return [point.step_time_s / first for point in curve.points]


def resilience_table(result: StudyResult) -> Table:
    """Step time of every candidate at every severity."""
    severities = sorted({point.severity for curve in result.resilience for point in curve.points})
    rows = []
    for curve in result.resilience:
        times = {
            point.severity: f"{text.duration(point.step_time_s)} ({slow:.3f})"
            for point, slow in zip(curve.points, slowdowns(curve), strict=True)
        }
        rows.append(
            [shortened(curve.label, result), *(times.get(severity, text.NONE) for severity in severities)]
        )
    columns = ("candidate", *(f"{severity:g} {text.TIMES}" for severity in severities))
    caption = "Step time, in parentheses relative to the step without a straggler."
    return Table(columns, rows, caption, frozenset(range(1, len(columns))))


def resilience_sentence(result: StudyResult) -> str:
    """What the slowest device that was tried does to each candidate, and who hides a part of it."""
    alike: dict[str, list[str]] = {}
    for curve in result.resilience:
        slow, severity = slowdowns(curve)[-1], curve.points[-1].severity
        hidden = slow - 1 < HIDDEN * (severity - 1)
        remark = " (waits that are there anyway hide the rest)" if hidden else ""
        words = f"takes {slow:.2f} times as long with one device {severity:g} times as slow{remark}"
        alike.setdefault(words, []).append(shortened(curve.label, result))
    said = "; ".join(f"a step of {_any(names)} {words}" for words, names in alike.items())
    return f"{said[0].upper()}{said[1:]}." if said else ""


def _any(names: Sequence[str]) -> str:
    """`a, b or c`."""
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
