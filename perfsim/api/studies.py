"""`perfsim.study`: which machine trains a model first, and why."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from perfsim.api.frames import Row, Rows, frame, html_table
from perfsim.api.naming import Named, names_of, writing
from perfsim.catalog import Catalog, default_catalog
from perfsim.convergence.time_to_accuracy import RatioBand
from perfsim.errors import InputError, Problem, within_floats
from perfsim.executors import executor_for
from perfsim.prediction.result import Accuracy, SharedCaveat
from perfsim.prediction.verification import must_be_right
from perfsim.prediction.verification_spec import Verify
from perfsim.report.text import layout_short
from perfsim.studies.decided import Decision
from perfsim.studies.loading import load_study, study_from
from perfsim.studies.result import Assumption, CandidateResult, Infeasible, StudyResult
from perfsim.studies.runner import Progress, StudyRun, run_study
from perfsim.studies.spec import StudySpec, with_verify
from perfsim.studies.verdict import Answer, ratio_of
from perfsim.suggest import did_you_mean
from perfsim.units import DAY_S

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Study = StudySpec
"""A study as an object, as `Study.with_` changes it."""


@within_floats
def study(
    study: Named | Mapping[str, Any] | Study,
    compare: Iterable[str] = (),
    *,
    verify: Verify | None = None,
    progress: Progress = lambda _: None,
    jobs: int | None = 1,
    scheduler: str | None = None,
    catalog: Catalog | None = None,
) -> StudyAnswer:
    """Answer a study: a name of the catalogue, the path of a YAML file, its fields, or a `Study`.

    `compare` keeps the candidates of these strategies, in this order. `verify` executes matrix products of
    the step in NumPy: "off", "sample" or "full" (the study's own choice if absent). `progress` is told what
    is computed next. `jobs` and `scheduler` are as of `sweep`, and candidates are computed beside each other.
    Raises InputError for what is wrong in a study, PlanError where no candidate has a plan,
    LimitError where a limit ends it, and VerificationError where a product differs.
    """
    catalog = catalog or default_catalog()
    if isinstance(study, Study):
        spec = study
    elif isinstance(study, Mapping):
        spec = study_from(study, catalog)
    else:
        spec = load_study(str(study), catalog)
    if verify is not None and verify not in get_args(Verify):
        raise InputError(f"verify: {verify!r} is none of {', '.join(get_args(Verify))}")
    asked = with_verify(spec, verify)
    executor = executor_for(
        jobs, scheduler, most=sum(len(candidate.devices) for candidate in asked.candidates)
    )
    names = names_of(compare, "compare")
    run = run_study(asked, names, progress, executor)
    if isinstance(study, (Study, Mapping)):
        return StudyAnswer(run)
    words = ["perfsim", "study", str(study), *(["--compare", ",".join(names)] if names else [])]
    return StudyAnswer(replace(run, result=replace(run.result, command=shlex.join(words))))


@dataclass(frozen=True, repr=False)
class StudyAnswer:
    """The candidates of a study, each at its own best batch, and the sentence that compares them."""

    run: StudyRun

    @property
    def result(self) -> StudyResult:
        """All values of the answer, as reports draw them."""
        return self.run.result

    @property
    def verdict(self) -> str:
        """Who reaches the target first, by how much, with the 90 % range, and why."""
        return self.result.verdict

    @property
    def candidates(self) -> tuple[CandidateResult, ...]:
        """Every candidate that has a plan, in the order of the study."""
        return self.result.candidates

    @property
    def infeasible(self) -> tuple[Infeasible, ...]:
        """Candidates without a plan, with the reasons."""
        return self.result.infeasible

    @property
    def best(self) -> CandidateResult:
        """The candidate that reaches the target first."""
        return min(self.candidates, key=lambda candidate: candidate.time_to_accuracy_s)

    @property
    def caveats(self) -> tuple[SharedCaveat, ...]:
        """Reasons to trust the answer less, worst first, each once with the candidates that it is about."""
        return self.result.caveats

    @property
    def decision(self) -> Decision | None:
        """When, how much and how sure, with what would change it."""
        return self.result.decision

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Every input of the answer, with its source."""
        return self.result.assumptions

    @property
    def accuracy(self) -> tuple[Accuracy, ...]:
        """How well predictions of this kind met published runs."""
        return self.result.accuracy

    @property
    def stopped(self) -> bool:
        """Whether a limit ended the study before all candidates were answered."""
        return self.run.stopped is not None

    def ratio(self, candidate: str, over: str = "") -> RatioBand:
        """The time of one candidate over that of another (the best if absent), with its 90 % band.

        Candidates are named as `16 CS-2`, `128 A100-80GB`, `16 x cs-2` or by their whole label. Raises
        InputError with the labels for a name that fits none or several of them.
        """
        return ratio_of(self._answer(candidate), self._answer(over or self.best.label))

    def _answer(self, name: str) -> Answer:
        fitting = [place for place, known in enumerate(self.candidates) if _fits(name, known)]
        if len(fitting) != 1:
            labels = [known.label for known in self.candidates]
            wrong = "no candidate is called" if not fitting else "several candidates are called"
            raise InputError([Problem(f"{wrong} {name!r}", help=did_you_mean(name, labels))])
        (place,) = fitting
        return Answer(self.candidates[place], self.run.answered[place].choice.answer)

    @cached_property
    def batch_curve(self) -> Rows:
        """Time to the target at every global batch that was tried, one row a candidate and batch."""
        return Rows(
            tuple(
                {
                    "candidate": candidate.label,
                    "global_batch_size": point.global_batch_size,
                    "batch_tokens": point.batch_tokens,
                    "step_time_s": point.step_time_s,
                    "steps": point.steps,
                    "time_to_accuracy_s": point.time_to_accuracy_s,
                    "low_s": point.time_to_accuracy_band_s[0],
                    "high_s": point.time_to_accuracy_band_s[1],
                }
                for candidate in self.candidates
                for point in candidate.batch_curve
            )
        )

    @property
    def figures(self) -> StudyFigures:
        """The figures of the report."""
        return StudyFigures(self.result)

    def rows(self) -> list[Row]:
        """One row a candidate: what it is, its step, and its time to the target; SI units."""
        return [
            {
                "candidate": candidate.label,
                "strategy": candidate.strategy,
                "system": candidate.system,
                "num_devices": candidate.num_devices,
                "layout": layout_short(candidate.layout),
                "global_batch_size": candidate.global_batch_size,
                "step_time_s": candidate.step_time_s,
                "mfu": candidate.mfu,
                "peak_memory_bytes": candidate.peak_memory_bytes,
                "steps": candidate.steps,
                "time_to_accuracy_s": candidate.time_to_accuracy_s,
                "low_s": candidate.time_to_accuracy_band_s[0],
                "high_s": candidate.time_to_accuracy_band_s[1],
                "production_time_s": candidate.production_time_s,
            }
            for candidate in self.candidates
        ]

    def to_pandas(self) -> pd.DataFrame:
        """`rows` as a frame. Raises PerfsimError where pandas is not installed."""
        return frame(self.rows())

    def save(self, folder: str | Path) -> Path:
        """Write the report, `summary.json` and a trace of each candidate; returns the page."""
        from perfsim.report.study.write import write_study

        with writing(folder) as path:
            return write_study(self.run, path)

    def document(self, report: str = "") -> dict[str, Any]:
        """The answer as `perfsim study --json` prints it; `report` is where the page stands."""
        from perfsim.report.study.document import study_document

        return study_document(self.result, report=report)

    def check(self) -> StudyAnswer:
        """The answer itself; raises what ended the study early, or what its sampled products got wrong."""
        must_be_right(self.result.sampling.values())
        if self.run.stopped is not None:
            raise self.run.stopped
        return self

    def __repr__(self) -> str:
        return f"<study {self.result.study}: {self.verdict}>"

    def _repr_html_(self) -> str:
        shown = [
            {
                "candidate": candidate.label,
                "layout": layout_short(candidate.layout),
                "batch": candidate.global_batch_size,
                "step (s)": candidate.step_time_s,
                "MFU": f"{100 * candidate.mfu:.1f} %",
                "days": candidate.time_to_accuracy_s / DAY_S,
                "90 % band": _days(candidate.time_to_accuracy_band_s),
            }
            for candidate in self.candidates
        ]
        return f"<p><strong>{escape(self.verdict)}</strong></p>{html_table(shown)}"


@dataclass(frozen=True)
class StudyFigures:
    """The figures of a study's report, as Plotly figures."""

    result: StudyResult

    def time_to_accuracy(self) -> go.Figure:
        """Time to the target against the global batch."""
        from perfsim.report.figures.time_to_accuracy import time_to_accuracy

        return time_to_accuracy(self.result)

    def step_time(self) -> go.Figure:
        """Where the seconds of a step go."""
        from perfsim.report.figures.step_time import step_breakdown

        return step_breakdown(self.result)

    def network(self) -> go.Figure:
        """Use of the network by kind of link."""
        from perfsim.report.figures.network import network_use

        return network_use(self.result)

    def memory(self) -> go.Figure:
        """Memory of each pipeline stage or wafer under its capacity."""
        from perfsim.report.figures.memory import memory

        return memory(self.result)

    def roofline(self, candidate: int = 0) -> go.Figure:
        """The kernels of a candidate under the ceilings of its device.

        Raises InputError for a machine whose kernels have no price of their own.
        """
        from perfsim.report.figures.roofline import roofline

        chosen = self._candidate(candidate)
        if chosen.roofline is None or not chosen.roofline.kernels:
            raise InputError(f"candidate {candidate}: {chosen.label} has no roofline")
        return roofline(chosen.roofline)

    def timeline(self, candidate: int = 0) -> go.Figure:
        """One step of a candidate, task by task."""
        from perfsim.report.figures.timeline import cut_timelines, timeline

        chosen = self._candidate(candidate)
        return timeline(chosen, cut_timelines([chosen])[0].bars)

    def _candidate(self, number: int) -> CandidateResult:
        count = len(self.result.candidates)
        if not 0 <= number < count:
            raise InputError(f"candidate {number}: the candidates are 0 to {count - 1}")
        return self.result.candidates[number]


def _days(band_s: tuple[float, float]) -> str:
    return " to ".join(f"{bound_s / DAY_S:.3g}" for bound_s in band_s)


def _fits(name: str, candidate: CandidateResult) -> bool:
    """Whether a person could mean this candidate by a name."""
    wanted = _plain(name)
    machines = (
        f"{candidate.num_devices} {candidate.system}",
        f"{candidate.num_devices} {candidate.devices_noun}",
        candidate.machine,
    )
    names = [candidate.label, *machines, *(f"{machine} {candidate.strategy}" for machine in machines)]
    return wanted in map(_plain, names)


def _plain(name: str) -> str:
    """A name without case, signs and the `x` between number and system."""
    if not isinstance(name, str):
        raise InputError(f"a candidate is named by text such as '16 cs-2', not {name!r}")
    return " ".join(re.sub(r"[^a-z0-9]+", " ", re.sub(r"\bx\b", " ", name.casefold())).split())
