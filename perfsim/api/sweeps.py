"""`perfsim.sweep`: a study's question at every point of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from perfsim.api.frames import Row, frame, html_table, save_table
from perfsim.api.naming import Named, names_of, writing
from perfsim.catalog import Catalog
from perfsim.errors import within_floats
from perfsim.prediction.result import SharedCaveat
from perfsim.report.text import layout_short
from perfsim.sweeps.points import PointResult
from perfsim.sweeps.result import SweepResult
from perfsim.sweeps.runner import STORE, Sweep, Tell, load_sweep, only_strategies, run_sweep

if TYPE_CHECKING:
    import pandas as pd


ANSWER = (
    "layout",
    "global_batch_size",
    "step_time_s",
    "mfu",
    "steps",
    "time_to_accuracy_s",
    "low_s",
    "high_s",
    "production_time_s",
)
"""The columns of a point's answer."""


@within_floats
def sweep(
    sweep: Named | Sweep,
    *,
    folder: str | Path | None = None,
    compare: Sequence[str] = (),
    jobs: int | None = 1,
    scheduler: str | None = None,
    progress: Tell = lambda _: None,
    catalog: Catalog | None = None,
) -> SweepAnswer:
    """Answer a sweep: a name of the catalogue, the path of a YAML file, or one that was loaded.

    Finished points are kept in `folder`, and a second call computes only the others; without it nothing is
    kept. `compare` keeps the points of these strategies. `jobs` is the number of processes (None: all
    cores); they import the caller's main module anew, so that a script needs `if __name__ == "__main__":`.
    With `scheduler`, the address of a Dask scheduler, its workers compute instead.
    Raises InputError for what is wrong in the file and PerfsimError where points fail.
    """
    asked = sweep if isinstance(sweep, Sweep) else load_sweep(str(sweep), catalog)
    asked = only_strategies(asked, names_of(compare, "compare"))
    if folder is not None:
        return SweepAnswer(
            run_sweep(asked, Path(folder) / STORE, jobs=jobs, scheduler=scheduler, tell=progress)
        )
    with TemporaryDirectory() as nowhere:
        return SweepAnswer(
            run_sweep(asked, Path(nowhere) / STORE, jobs=jobs, scheduler=scheduler, tell=progress)
        )


@dataclass(frozen=True, repr=False)
class SweepAnswer:
    """Every point of a grid with its answer, and what they say together."""

    result: SweepResult

    @property
    def verdict(self) -> str:
        """The sentences that answer the sweep's question."""
        return self.result.verdict

    @property
    def caveats(self) -> tuple[SharedCaveat, ...]:
        """Reasons to trust the answer less, worst first, each once with the machines that it is about."""
        return self.result.caveats

    @property
    def points(self) -> tuple[PointResult, ...]:
        """Every point, in the order of the grid."""
        return self.result.points

    @property
    def feasible(self) -> tuple[PointResult, ...]:
        """The points that have a plan."""
        return self.result.feasible

    def rows(self) -> list[Row]:
        """One row a point: machine, settings, step and time to the target; SI units, None without a plan."""
        settings = dict.fromkeys(path for point in self.points for path in point.settings)
        return [
            {
                "strategy": point.strategy,
                "system": point.system,
                "num_devices": point.num_devices,
                **{path: point.settings.get(path) for path in settings},
                **_answer(point),
            }
            for point in self.points
        ]

    def to_pandas(self) -> pd.DataFrame:
        """`rows` as a frame. Raises PerfsimError where pandas is not installed."""
        return frame(self.rows())

    def save_table(self, path: str | Path) -> Path:
        """Write `rows` as a .csv file, or as a .parquet file with the extra `[parquet]`."""
        return save_table(self.rows(), path)

    def save(self, folder: str | Path) -> Path:
        """Write the report; returns the page."""
        from perfsim.report.sweep.page import write_sweep

        with writing(folder) as path:
            return write_sweep(self.result, path)

    def document(self, report: str = "") -> dict[str, Any]:
        """The answer as `perfsim sweep --json` prints it; `report` is where the page stands."""
        from perfsim.report.sweep.document import sweep_document

        return sweep_document(self.result, report=report)

    def __repr__(self) -> str:
        return f"<sweep {self.result.name}, {len(self.points)} points: {self.verdict}>"

    def _repr_html_(self) -> str:
        return f"<p><strong>{escape(self.verdict)}</strong></p>{html_table(self.rows())}"


def _answer(point: PointResult) -> Row:
    """The columns of an answer; all None for a point without a plan."""
    if not point.feasible:
        return dict.fromkeys(ANSWER)
    step, time = point.prediction, point.target_time
    values = (
        layout_short(step.layout),
        step.global_batch_size,
        step.step_time_s,
        step.mfu,
        time.steps,
        time.time_s,
        *time.band_s,
        None if point.production is None else point.production.time_s(time.time_s),
    )
    return dict(zip(ANSWER, values, strict=True))
