"""`perfsim.study`, `sweep` and `solve`: questions with several answers, and these."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, get_args

from perfsim.api.questions import Named, Reported, Rows, names_of, values_of
from perfsim.base.errors import InputError, within_floats
from perfsim.catalog import Catalog, default_catalog
from perfsim.convergence.uncertain import Spread
from perfsim.prediction.question import Verify
from perfsim.prediction.verification import must_be_right
from perfsim.report.text import layout_short
from perfsim.studies.answers import Answer, StudyResult, called, quantities
from perfsim.studies.decision import ratio_of
from perfsim.studies.executors import Tell, executor_for
from perfsim.studies.loading import Sweep, changed_study, load_study, load_sweep, priced, study_from
from perfsim.studies.runner import STORE, run_study, run_sweep
from perfsim.studies.solve import Solved, solve_study, study_of
from perfsim.studies.spec import StudySpec
from perfsim.studies.variants import SweepResult

if TYPE_CHECKING:
    from perfsim.report.study_figures import StudyFigures

# `perfsim.study`: which machine trains a model first, and why.

Study = StudySpec
"""A study as an object, as `Study.with_` changes it."""


@within_floats
def study(
    study: Named | Mapping[str, Any] | Study,
    compare: Iterable[str] = (),
    *,
    verify: Verify | None = None,
    changes: Mapping[str, Any] | None = None,
    prices: Mapping[str, float] | None = None,
    progress: Tell = lambda _: None,
    jobs: int | None = 1,
    scheduler: str | None = None,
    catalog: Catalog | None = None,
) -> StudyAnswer:
    """Answer a study: a name of the catalogue, the path of a YAML file, its fields, or a `Study`.

    `compare` keeps the candidates of these strategies, in this order. `verify` executes matrix products of
    the step in NumPy: "off", "sample" or "full" (the study's own choice if absent). `changes` are values by
    their path in a question (`{"recipe.precision": "fp8"}`), for all candidates that have it; `prices` are
    of a device-hour, by system (`{"dgx-h100": 2.5}`), in the study's currency. `progress` is told what is
    computed next. `jobs` and `scheduler` are as of `sweep`; candidates are computed in parallel.
    Raises InputError for what is wrong in a study, PlanError where no candidate has a plan,
    LimitError where a limit ends it, and VerificationError where a product differs.
    """
    catalog = catalog or default_catalog()
    spec = _described(study, catalog)
    if verify is not None and verify not in get_args(Verify):
        raise InputError(f"verify: {verify!r} is none of {', '.join(get_args(Verify))}")
    spec = priced(changed_study(spec, changes or {}, catalog).with_verify(verify), prices or {})
    points = sum(len(candidate.devices) for candidate in spec.candidates)
    executor = executor_for(jobs, scheduler, most=points)
    names = names_of(compare, "compare")
    result = run_study(spec, names, progress, executor)
    words = ["perfsim", "study", str(study), *(["--compare", ",".join(names)] if names else [])]
    for path, value in (changes or {}).items():
        words += ["--set", f"{path}={value}"]
    for system, price in (prices or {}).items():
        words += ["--price", f"{system}={price}"]
    command = "" if isinstance(study, (Study, Mapping)) else shlex.join(words)
    return StudyAnswer(**values_of(result) | {"command": command})


_EQUAL = ("equal_power_s", "equal_price_s", "equal_time_devices")
_OF_A_BATCH = ("global_batch_size", "batch_tokens", "step_time_s", "steps", "time_to_accuracy_s")


def _described(study: Named | Mapping[str, Any] | Study, catalog: Catalog) -> Study:
    if isinstance(study, Mapping):
        return study_from(study, catalog)
    return study if isinstance(study, Study) else load_study(str(study), catalog)


@dataclass(frozen=True, repr=False)
class StudyAnswer(StudyResult, Reported):
    """The candidates of a study, each at its own best batch, and the sentence that compares them."""

    _kind = "study"

    @property
    def best(self) -> Answer:
        """The candidate that is first on the wall."""
        return called(self.decision.first, self.candidates)

    def ratio(self, candidate: str, over: str = "") -> Spread:
        """The time of one candidate over the time of another, with its 90 % band.

        Without `over` it is over the first, on the wall and from the draws of the decision; else of healthy
        steps. Candidates are named as `16 CS-2`, `16 x cs-2` or by their whole label. Raises InputError with
        the labels for a name that fits none or several of them.
        """
        first = called(over, self.candidates) if over else self.best
        row = called(candidate, self.candidates)
        if first is self.best:
            return self.decision.of(row.label).ratio
        return ratio_of(row, first)

    @property
    def batch_curve(self) -> Rows:
        """Time to the target at every global batch that was tried, one row a candidate and batch."""
        return Rows(
            {
                "candidate": candidate.label,
                **{name: getattr(point, name) for name in _OF_A_BATCH},
                "low_s": point.time_to_accuracy_band_s[0],
                "high_s": point.time_to_accuracy_band_s[1],
            }
            for candidate in self.candidates
            for point in candidate.batch_curve
        )

    @property
    def figures(self) -> StudyFigures:
        """The figures of the report."""
        from perfsim.report.study_figures import StudyFigures

        return StudyFigures(self)

    def rows(self) -> Rows:
        """One row a candidate: what it is, its step, and its time to the target; SI units."""
        return Rows(
            {
                "candidate": candidate.label,
                "strategy": candidate.strategy,
                "system": candidate.system,
                "num_devices": candidate.num_devices,
                "layout": layout_short(candidate.layout),
                **quantities(candidate, candidate.outcome),
                **{name: getattr(candidate.outcome, name) for name in _EQUAL},
                "currency": self.decision.currency,
            }
            for candidate in self.candidates
        )

    def save(self, folder: str | Path) -> Path:
        """Write the page, `summary.json`, a trace of each candidate, and `rows` as `candidates.csv`."""
        page = super().save(folder)
        self.rows().save(page.with_name("candidates.csv"))
        return page

    def check(self) -> StudyAnswer:
        """The answer itself; raises what ended the study early, or what its sampled products got wrong."""
        must_be_right(self.sampling.values())
        if self.stopped is not None:
            raise self.stopped
        return self

    def __repr__(self) -> str:
        return f"<study {self.study}: {self.verdict}>"


# `perfsim.sweep`: a study's question at every point of a grid.


@within_floats
def sweep(
    sweep: Named | Sweep,
    *,
    folder: str | Path | None = None,
    compare: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    prices: Mapping[str, float] | None = None,
    jobs: int | None = 1,
    scheduler: str | None = None,
    progress: Tell = lambda _: None,
    catalog: Catalog | None = None,
) -> SweepAnswer:
    """Answer a sweep: a name of the catalogue, the path of a YAML file, or one that was loaded.

    Finished points are kept in `folder`, and a second call computes only the others; without it nothing is
    kept. `compare` keeps the points of these strategies; `changes` (for a sweep by name) and `prices` are
    as of `study`. `jobs` is the number of processes (None: all cores); they import the caller's main module
    anew, so that a script needs `if __name__ == "__main__":`.
    With `scheduler`, the address of a Dask scheduler, its workers compute instead.
    Raises InputError for what is wrong in the file and PerfsimError where points fail.
    """
    if isinstance(sweep, Mapping):
        raise InputError("a sweep is a name, the path of a file or a `Sweep`", "write the mapping to a file")
    chosen = sweep if isinstance(sweep, Sweep) else load_sweep(str(sweep), catalog, changes)
    chosen = chosen.priced(prices or {}).only(names_of(compare, "compare"))
    with ExitStack() as stack:
        kept = Path(stack.enter_context(TemporaryDirectory()) if folder is None else folder)
        result = run_sweep(chosen, kept / STORE, jobs=jobs, scheduler=scheduler, tell=progress)
    return SweepAnswer(**values_of(result))


@dataclass(frozen=True, repr=False)
class SweepAnswer(SweepResult, Reported):
    """Every point of a grid with its answer, and what they say together."""

    _kind = "sweep"

    def rows(self) -> Rows:
        """One row a point: machine, settings, step and time to the target; SI units, None without a plan."""
        settings = dict.fromkeys(path for point in self.points for path in point.settings)
        return Rows(
            {
                "strategy": point.strategy,
                "system": point.system,
                "num_devices": point.num_devices,
                **{path: point.settings.get(path) for path in settings},
                "layout": layout_short(point.answer.layout) if point.answer else None,
                **quantities(point.answer, point.outcome if point.answer else None),
                "currency": point.study.prices.currency,
            }
            for point in self.points
        )

    def __repr__(self) -> str:
        return f"<sweep {self.sweep.name}, {len(self.points)} points: {self.verdict}>"


# `perfsim.solve`: a study asked backwards.


@within_floats
def solve(
    study: Named | Mapping[str, Any] | Study | None = None,
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
        of_money = {path: asked.pop(path) for path in list(asked) if path.partition(".")[0] == "prices"}
        spec = changed_study(study_of(asked, catalog, find), of_money, catalog)
    else:
        spec = changed_study(_described(study, catalog), asked, catalog)
        spec = spec.compared(names_of(compare, "compare"))
    spec = priced(spec, prices or {})
    executor = executor_for(jobs, most=len(spec.candidates))
    conditions = names_of(such_that, "such_that")
    solved = solve_study(spec, find, conditions, minimise, catalog, executor, progress)
    return SolveAnswer(**values_of(solved))


@dataclass(frozen=True, repr=False)
class SolveAnswer(Solved, Reported):
    """The values at which candidates meet conditions, with everything that was tried."""

    _kind = "solve"

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

    def __repr__(self) -> str:
        told = (f"{row.candidate}: {row.text if row.value is not None else 'none'}" for row in self.solutions)
        return f"<solve {self.find}: {'; '.join(told)}>"
