"""The summary of a sweep as one JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perfsim.report.document import plain, text_with_rows
from perfsim.sweeps.result import SweepResult
from perfsim.version import __version__


def sweep_document(result: SweepResult, *, report: str = "index.html") -> dict[str, Any]:
    """The document of `perfsim sweep --json`: all points, which machines match, and the verdict."""
    document = {**result.as_dict(), **_head(result, report)}
    return {name: plain(value) for name, value in document.items()}


def sweep_text(result: SweepResult, *, report: str = "index.html") -> Iterator[str]:
    """The same document as text in parts, of which none holds more than a point."""
    return text_with_rows(_head(result, report), "points", (point.as_dict() for point in result.points))


def _head(result: SweepResult, report: str) -> dict[str, Any]:
    """All but the points."""
    equals = [
        {
            "as_fast_as": {"system": match.rival.system, "num_devices": match.rival.num_devices},
            "system": match.series.system,
            "num_devices": None if match.fewest is None else match.fewest.num_devices,
            "possibly": match.possibly,
            "surely": match.surely,
        }
        for match in result.analysis.matches
    ]
    equal_time = [
        {
            "as_fast_as": {"system": match.rival.system, "num_devices": match.rival.num_devices},
            "system": match.series.system,
            "num_devices": match.equal,
        }
        for pair in result.analysis.equal_times
        for direction in pair
        for match in direction
    ]
    return {
        **result.head(),
        "equals": equals,
        "equal_time": equal_time,
        "verdict": result.verdict,
        "report": report,
        "version": __version__,
    }
