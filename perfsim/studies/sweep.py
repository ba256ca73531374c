"""Runs a sweep on several processes; every finished point is stored and never computed twice."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfsim.base.errors import CatalogError, InputError, LimitError, PerfsimError, within_floats
from perfsim.catalog import Catalog, default_catalog, load_mapping, parse_file
from perfsim.prediction.prediction import Document, prediction_of
from perfsim.prediction.question import PriceTables
from perfsim.studies.assumptions import assumptions_of
from perfsim.studies.axes import StudyCatalog, SweepSpec
from perfsim.studies.batches import whole_run_of
from perfsim.studies.executors import Executor, ExecutorLost, Failed, available_processes, executor_for
from perfsim.studies.grid import SweepPoint, expand
from perfsim.studies.points import Answer, PointResult, StoredAnswers
from perfsim.studies.result import Assumption
from perfsim.studies.runner import answer_candidate, target_of
from perfsim.studies.spec import Digests, StudySpec
from perfsim.studies.store import Store, Stored, StoreError
from perfsim.studies.variants import SweepResult

Tell = Callable[[str], None]

STORE = "points.sqlite"
"""The file of finished points in a sweep's folder."""
TABLES = PriceTables()
"""What the points that this process answers share."""
POINT_S = 0.6
"""Estimated seconds of a point when none is stored yet: the mean over the grid of `capacity_20b`."""
START_S = 2.0
"""Seconds for a process to start and import perfsim."""
PROGRESS_S = 2.0
"""Least time between two lines of progress."""


class SweepInterrupted(PerfsimError):
    """Ctrl-C; finished points are kept."""

    exit_code = 130


@dataclass(frozen=True)
class Sweep:
    """A sweep that was read and checked, with its points."""

    spec: SweepSpec
    points: tuple[SweepPoint, ...]
    asked: str = ""
    """The name or path by which it was read."""

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True)
class SweepPlan:
    """The work of a run: how many points, how many of them stored, and an estimate of its time."""

    name: str
    points: int
    stored: int
    jobs: int
    estimated_s: float

    def as_dict(self) -> dict[str, Any]:
        """The plan under the names of the JSON interface."""
        return {
            "sweep": self.name,
            "points": self.points,
            "stored": self.stored,
            "jobs": self.jobs,
            "estimated_s": round(self.estimated_s, 1),
        }

    @property
    def line(self) -> str:
        """The plan as one line of text."""
        if self.stored == self.points:
            return f"{self.name}: {self.points:,} points, all of them stored"
        return (
            f"{self.name}: {self.points:,} points, {self.stored:,} of them stored; the others take about "
            f"{self.estimated_s:.0f} s on {self.jobs} process{'es' if self.jobs > 1 else ''}"
        )


def load_sweep(name_or_path: str, catalog: Catalog | None = None) -> Sweep:
    """A sweep by its name in studies/ or from a file, with every point resolved.

    Raises CatalogError with every problem of the file.
    """
    catalog = StudyCatalog((catalog or default_catalog()).roots)
    path = catalog.study_path(name_or_path)
    mapping = load_mapping(path, catalog)
    if "study" not in mapping.data and "candidates" in mapping.data:
        raise CatalogError(
            [mapping.problem((), "this is a study without a grid", f"perfsim study {name_or_path}")]
        )
    spec = parse_file(path, SweepSpec, catalog)
    return Sweep(spec, expand(spec, mapping, catalog), name_or_path)


def is_sweep(name_or_path: str, catalog: Catalog | None = None) -> bool:
    """Whether a file in studies/ is a sweep rather than a study."""
    catalog = catalog or default_catalog()
    return "study" in load_mapping(catalog.study_path(name_or_path), catalog).data


def only_strategies(sweep: Sweep, names: Sequence[str]) -> Sweep:
    """The points of these strategies, or all without names; InputError for a strategy without points."""
    known = list(dict.fromkeys(point.candidate.strategy for point in sweep.points))
    for name in names:
        if name not in known:
            raise InputError(f"{sweep.name} has no point of strategy {name}; it has {', '.join(known)}")
    kept = tuple(point for point in sweep.points if not names or point.candidate.strategy in names)
    return replace(sweep, points=kept)


def plan_sweep(sweep: Sweep, store_path: Path, jobs: int | None = None) -> SweepPlan:
    """How many points a sweep has, how many are stored, and an estimate of the time for the others."""
    digests = dict(zip(_digests(sweep), sweep.points, strict=True))
    stored: dict[str, Stored] = {}
    if store_path.exists():
        with Store(store_path) as store:
            stored = store.find(digests)
    pending = [point for digest, point in digests.items() if digest not in stored]
    jobs = max(1, min(jobs or available_processes(), len(pending)))
    expected_s = _expected_s(digests, stored)
    seconds = sum(expected_s.get(point.candidate.strategy, POINT_S) for point in pending)
    return SweepPlan(
        name=sweep.name,
        points=len(digests),
        stored=len(digests) - len(pending),
        jobs=jobs,
        estimated_s=seconds / jobs + START_S if pending else 0.0,
    )


def _digests(sweep: Sweep) -> list[str]:
    """The digest of each point."""
    digests = Digests()
    return [digests.of(point.study) for point in sweep.points]


def _expected_s(digests: Mapping[str, SweepPoint], stored: Mapping[str, Stored]) -> dict[str, float]:
    """By strategy, the mean time of its stored points."""
    times_s: dict[str, list[float]] = {}
    for digest, answer in stored.items():
        times_s.setdefault(digests[digest].candidate.strategy, []).append(answer.seconds)
    return {strategy: sum(alike) / len(alike) for strategy, alike in times_s.items()}


def run_sweep(
    sweep: Sweep,
    store_path: Path,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    tell: Tell = lambda _: None,
) -> SweepResult:
    """Answer every point that is not stored yet, storing each answer as soon as it is finished.

    `jobs` processes compute them (None: one for each core), or the workers of a Dask `scheduler`. A point
    that cannot be answered keeps its reasons and loses no other; one whose workers die is not stored. Raises
    SweepInterrupted at Ctrl-C, LimitError at a limit and PerfsimError where the scheduler goes away; all
    finished points are kept.
    """
    digests = _digests(sweep)
    by_digest = dict(zip(digests, sweep.points, strict=True))
    read = StoredAnswers().result
    executor = None
    if not store_path.exists():  # a scheduler that does not answer leaves no file
        executor = executor_for(jobs, scheduler, most=len(by_digest), tell=tell)
    with Store(store_path) as store:
        results = {digest: read(by_digest[digest], stored.text) for digest, stored in store.intact(by_digest)}
        pending = {digest: point for digest, point in by_digest.items() if digest not in results}
        _say_what_is_wrong(store, len(pending), tell)
        progress = _Progress(len(by_digest), len(results), tell)
        try:
            if pending:
                executor = executor or executor_for(jobs, scheduler, most=len(pending), tell=tell)
                with closing(_computed(executor, pending, store, progress)) as computed:
                    for digest, answer in computed:
                        results[digest] = _read(read, pending[digest], answer)
        except LimitError as limit:
            raise LimitError(_kept(str(limit), progress)) from None
        except KeyboardInterrupt:
            raise SweepInterrupted(_kept("interrupted", progress)) from None
        except ExecutorLost as lost:
            raise PerfsimError(_kept(str(lost), progress)) from None
    pairs = zip(digests, sweep.points, strict=True)
    points = tuple(replace(results[digest], point=point) for digest, point in pairs)
    spec = sweep.spec
    assumptions = _assumptions(sweep.points)
    return SweepResult(
        spec.name, spec.title, spec.question, spec.study.name, points, assumptions, sweep.asked
    )


def _read(
    read: Callable[[SweepPoint, str], PointResult], point: SweepPoint, answer: Stored | Failed
) -> PointResult:
    if isinstance(answer, Failed):
        return PointResult(point, None, (answer.reason,))
    return read(point, answer.text)


def _computed(
    executor: Executor, pending: Mapping[str, SweepPoint], store: Store, progress: _Progress
) -> Generator[tuple[str, Stored | Failed], None, None]:
    """The answers of points as they arrive; they are stored before they are given."""
    items = ((digest, point.study) for digest, point in pending.items())
    with executor.answers(answer_text, items) as finished:
        for digest, answer in finished:
            if isinstance(answer, Stored):
                store.put(digest, answer)
            progress.count_finished()
            yield digest, answer


def _say_what_is_wrong(store: Store, pending: int, tell: Tell) -> None:
    """Tell of damaged points; StoreError where points are to be computed and cannot be kept."""
    if store.damaged:
        tell(f"{store.path}: {len(store.damaged)} stored points are damaged and are computed again")
    if store.readonly and pending:
        raise StoreError(
            f"{store.path} cannot be written to, and {pending} points are not in it: give another --out"
        )


def _assumptions(points: Sequence[SweepPoint]) -> tuple[Assumption, ...]:
    """The assumptions of all points, each once."""
    studies = {
        (point.study.model.name, point.study.recipe.name, _machine_name(point)): point.study
        for point in points
    }
    assumptions = (
        assumption for study in studies.values() for assumption in assumptions_of(study, target_of(study))
    )
    return tuple(dict.fromkeys(assumptions))


def _machine_name(point: SweepPoint) -> tuple[str, ...]:
    cluster = point.candidate.cluster_calibration
    return (point.candidate.system.name, *([cluster.name] if cluster else []))


def _kept(reason: str, progress: _Progress) -> str:
    return (
        f"{reason}: {progress.done} of {progress.total} points are finished and kept; "
        "the same command continues from there"
    )


def answer_text(study: StudySpec) -> Stored:
    """The answer to a study of one candidate as JSON text; the entry point of a worker."""
    started = time.perf_counter()
    text = json.dumps(_answer(study), sort_keys=True, allow_nan=False)
    return Stored(text, time.perf_counter() - started)


def _answer(study: StudySpec) -> Document:
    try:
        return _answered(study).document()
    except LimitError:
        raise
    except PerfsimError as error:  # concerns this point alone
        return {"reasons": [problem.message for problem in error.problems]}


@within_floats
def _answered(study: StudySpec) -> Answer:
    candidate = study.candidates[0]
    answered = answer_candidate(study, candidate, candidate.devices[0], target_of(study), TABLES)
    prediction = prediction_of(answered.evaluation, study.memory_limit)
    return Answer(prediction, answered.choice.answer, whole_run_of(answered.question, answered.choice))


class _Progress:
    """Counts finished points and reports progress at most every `PROGRESS_S`."""

    def __init__(self, total: int, stored: int, tell: Tell) -> None:
        self.total = total
        self.stored = stored
        self.done = stored
        self.started = self.reported = time.monotonic()
        self.tell = tell
        if stored < total:
            tell(f"{total} points, {stored} of them stored")

    def count_finished(self) -> None:
        """Count a finished point."""
        self.done += 1
        now = time.monotonic()
        if now - self.reported < PROGRESS_S and self.done < self.total:
            return
        self.reported = now
        left_s = (now - self.started) / (self.done - self.stored) * (self.total - self.done)
        left = f", about {left_s:.0f} s left" if self.done < self.total else ""
        self.tell(f"{self.done} of {self.total} points{left}")
