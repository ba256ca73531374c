"""`perfsim.solve`: a study asked backwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfsim.api.questions import Named, Rows, Tabular, names_of, writing
from perfsim.base.errors import within_floats
from perfsim.catalog import Catalog, default_catalog
from perfsim.studies.answers import values_of
from perfsim.studies.axes import changed_study, priced
from perfsim.studies.executors import Tell, executor_for
from perfsim.studies.loading import load_study
from perfsim.studies.solve import Solved, solve_study, study_of
from perfsim.studies.spec import StudySpec


@within_floats
def solve(
    study: Named | StudySpec | None = None,
    *,
    find: str,
    such_that: str | Sequence[str] = (),
    minimise: str = "",
    compare: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    prices: Mapping[str, float] | None = None,
    jobs: int | None = 1,
    progress: Tell = lambda _: None,
    catalog: Catalog | None = None,
    **given: Any,
) -> SolveAnswer:
    """The value of one input at which answers meet conditions: of each candidate of a study.

    `find` is a path of `--set`, `devices`, `batch`, `layout`, or `model.num_parameters`, which grows the
    model in its family. A condition is `"days <= 14"`, or `"days(3d) == days(16 CS-2)"` between candidates,
    named by label, machine or strategy. `minimise` is the quantity that the value makes least. Without a
    study, `given` is as of `predict` (`system="dgx-h100", devices=512`); with one, these are changes like
    `changes`. `prices`, `jobs` and `progress` are as of `study`.
    Raises InputError for what cannot be asked. A candidate without a solution has a reason and its nearest.
    """
    catalog = catalog or default_catalog()
    asked = {**given, **(changes or {})}
    if study is None:
        spec = study_of(asked, catalog)
    else:
        spec = study if isinstance(study, StudySpec) else load_study(str(study), catalog)
        spec = changed_study(spec, asked, catalog).compared(names_of(compare, "compare"))
    spec = priced(spec, prices or {})
    executor = executor_for(jobs, most=len(spec.candidates))
    conditions = names_of(such_that, "such_that")
    solved = solve_study(spec, find, conditions, minimise, catalog, executor, progress)
    return SolveAnswer(**values_of(solved))


@dataclass(frozen=True, repr=False)
class SolveAnswer(Solved, Tabular):
    """The values at which candidates meet conditions, with everything that was tried."""

    def rows(self) -> Rows:
        """One row a value that was tried; quantities in the units of their names, money in `currency`."""
        names = dict.fromkeys(name for rows in self.tried.values() for row in rows for name in row.quantities)
        return Rows(
            {
                "candidate": label,
                self.find: row.value,
                "share": row.share,
                **{name: row.quantities.get(name) for name in names},
                "currency": self.currency,
                "reason": row.reason,
            }
            for label, rows in self.tried.items()
            for row in rows
        )

    def document(self, report: str = "") -> dict[str, Any]:
        """The answer as `perfsim solve --json` prints it; `report` is where the page stands."""
        from perfsim.report.solve import solve_document

        return solve_document(self, report=report)

    def save(self, folder: str | Path) -> Path:
        """Write a page with the curve of what was tried, and `summary.json`; returns the page."""
        from perfsim.report.solve import write_solve

        with writing(folder) as path:
            return write_solve(self, path)

    def __repr__(self) -> str:
        found = (
            f"{row.candidate}: {row.text if row.value is not None else 'none'}" for row in self.solutions
        )
        return f"<solve {self.find}: {'; '.join(found)}>"
