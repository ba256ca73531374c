"""The answer to a sweep as a page with sliders, which compares machines at equal time and at equal money."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfsim.base.files import write_file
from perfsim.report import text
from perfsim.report.page import template
from perfsim.report.table import plain
from perfsim.studies.loading import BATCH_PATHS
from perfsim.studies.variants import SweepResult
from perfsim.version import __version__

_READ = (
    *("machine", "num_devices", "reasons", "bill", "step_time_s", "step_time_error", "steps", "tokens_per_s"),
    *("mfu", "peak_memory_bytes", "global_batch_size", "caveats"),
)
"""What the page's script reads of the document of a point."""


def write_explorer(result: SweepResult, folder: Path) -> Path:
    """Write `index.html`, which needs no network and no other file; returns it.

    It has every point of the sweep with its 90 % ranges. The reader chooses the settings, the machine, its
    devices, the batch and prices; the page interpolates between the numbers of devices that were tried.
    """
    page = template("explorer.html.j2").render(
        points=list(_points(result)),
        spec=result.sweep.spec,
        currency=result.points[0].study.prices.currency,
        version=__version__,
        digest=result.inputs_digest,
        command=f"perfsim explorer {result.sweep.asked}",
    )
    return write_file(folder / "index.html", page)


def _points(result: SweepResult) -> Iterator[dict[str, Any]]:
    """What the script reads: of each point the kind of its machine, its settings, and its figures."""
    for point, document in zip(result.points, result.documents(), strict=True):
        row = {name: document[name] for name in _READ if name in document}
        row["kind"] = f"{point.devices_noun}, {point.strategy}"
        row["settings"] = {text.human(path.rpartition(".")[2]): value for path, value in point.circumstances}
        row["asked"] = next((point.settings[path] for path in BATCH_PATHS if path in point.settings), None)
        if point.answer is not None:
            row["layout"] = text.layout_short(point.answer.layout)
            row["limited"] = f"{point.answer.why.cause}; nearest remedy: {point.answer.why.remedy}"
        yield plain(row)
