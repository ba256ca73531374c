"""Answers the candidates of a study and the points of a sweep: each at its own best batch, as one row."""

import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from sys import intern
from typing import Any, TypeVar

from perfsim.base.errors import InputError, LimitError, PerfsimError, PlanError, attempt, within_floats
from perfsim.base.groups import listed
from perfsim.base.limits import present_limits
from perfsim.convergence.wall_clock import RunPart
from perfsim.engine.failures import compared
from perfsim.prediction.bands import Accuracy
from perfsim.prediction.caveats import Caveat, default_settings
from perfsim.prediction.dates import date_caveats
from perfsim.prediction.perturbed import perturbed
from perfsim.prediction.planner import best_plan, refusal_of
from perfsim.prediction.run import Evaluation
from perfsim.prediction.verification import sample_step
from perfsim.specs.perturbations import PerturbationSpec, StragglerSpec
from perfsim.studies import answers
from perfsim.studies.assumptions import BATCHES, assumptions_of
from perfsim.studies.batches import BatchPoint, Target
from perfsim.studies.decision import decision_of, eras_of, laws_side_by_side
from perfsim.studies.executors import IN_PROCESS, Executor, ExecutorLost, Tell, executor_for
from perfsim.studies.loading import Sweep
from perfsim.studies.spec import Point, StudySpec, digests
from perfsim.studies.store import Store, Stored
from perfsim.studies.timeline import timeline
from perfsim.studies.variants import SweepResult
from perfsim.studies.verdict import grounds, pair_of, sentence
from perfsim.work.counts import parameters
from perfsim.work.graph import computes, owners_of

# One candidate at one number of devices.

_COVERED_ONCE = (
    "the production ratio and the wall clock's stragglers describe the same slow steps: the whole run counts "
    "the stragglers and not the ratio, the time in production counts the ratio alone"
)


def answer_point(
    point: Point, *, deep: bool = False, reported: bool = True, near: int | None = None
) -> answers.Answer:
    """A candidate at its best batch, looked for `near` another if given, under the study's perturbations.

    `deep` adds what only a study has: sampled arithmetic and what its page draws; `reported`
    as in `best_plan`. PlanError where no batch has a feasible plan, LayoutError for an illegal layout.
    """
    spec = point.study
    question = point.question
    target = Target.of_study(spec)
    batches = target.batches(spec, question)
    best = batches[0]
    curve = None
    remarks = []
    bounded = spec.batch_sizes == "auto" and target.critical.given_length  # a larger batch loses accuracy
    if len(batches) > 1:
        extend = spec.batch_sizes == "auto" and not bounded
        curve = target.curve(question, batches, extend=extend, near=near)
        best = curve.best
        if curve.refused and question.layout is not None:
            left_out = ", ".join(f"{batch:,}" for batch in curve.refused)
            reason = _reason(next(iter(curve.refused.values())))
            remarks.append(
                f"batches that the layout cannot run are left out: {left_out} sequences ({reason})"
            )
    evaluation = best_plan(question.at(best), ranks=deep, reported=reported)
    time = target.ramped(question.at(best), target.time_of_run(evaluation))
    chosen = BatchPoint.of(evaluation.plan, time)
    shown: dict[str, Any] = {}
    if deep:
        points = [chosen] if curve is None else curve.points
        shown = {
            "batch_curve": tuple(chosen if tried.global_batch_size == best else tried for tried in points),
            "sampling": sample_step(evaluation, spec.sampling),
            "apart": point.candidate.layout_words,
        }
    if spec.perturbations is not None:
        # Batch and layout stay, and so does the curve of batches.
        evaluation = _perturbed(evaluation, spec.perturbations)
        time = replace(target.time_of_run(evaluation), ramp=time.ramp)
    if deep:
        streams = filter(computes, evaluation.trace.graph.streams)
        shown["timeline_devices"] = len({owners_of(name)[0] for name in streams})
        shown["timeline"] = timeline(evaluation)
    caveats = [
        *([] if curve is None or bounded else curve.caveats),
        *(Caveat.of("critical-batch-extrapolated", f"critical batch {note}") for note in time.critical.notes),
        *target.caveats(time.batch_tokens),
        *default_settings(question, evaluation.plan),
        *date_caveats(question),
    ]
    production = answers.Production.of(point)
    parts: tuple[RunPart, ...] = ()
    if question.wall_clock is not None:
        run = point.healthy_run(time)
        parts = run.parts(question.wall_clock)
        failing = run.failing(question.wall_clock)
        if deep and isinstance(said := attempt(lambda: compared(failing)), str):
            parts = (*parts[:-1], replace(parts[-1], how=f"{parts[-1].how}; {said}"))
    for phase, phase_s in zip(spec.recipe.later, time.later_s, strict=True):
        zeros = f"{100 * phase.weight_sparsity:.4g} % of weights zero" if phase.weight_sparsity else "dense"
        share = f"{100 * phase_s / time.time_s:.3g} % of the time, which holds all phases"
        remarks.append(f"a later phase of {phase.tokens:.3g} tokens ({zeros}) takes {share}")
    notes = [
        time.regime_text,
        *filter(None, [time.ramp_text]),
        *remarks,
        *([_COVERED_ONCE] if parts and production else []),
    ]
    more = {"time": time, "whole_run": parts, "production": production, **shown}
    answer = answers.Answer.of(evaluation, question.allowed_share, caveats, notes, **more)
    if curve is not None:
        later = curve.points[-1].global_batch_size > best
    else:  # even if all waits ended with it
        left = answer.why.parts_s["compute"] / answer.step_time_s
        twice = replace(time, batch_tokens=2 * time.batch_tokens, step_time_s=2 * left * time.step_time_s)
        later = twice.time_s > time.time_s
    return replace(answer, why=answer.why.of_later_target) if later else answer


def _perturbed(evaluation: Evaluation, spec: PerturbationSpec) -> Evaluation:
    """A candidate under the perturbations that its system has; InputError if dead links leave no route."""
    plan = evaluation.plan
    topology = plan.topology
    last = topology.num_devices - 1
    stragglers = [straggler for straggler in spec.stragglers if straggler.rank < last]
    at_last = [straggler for straggler in spec.stragglers if straggler.rank == last]
    beyond = [straggler for straggler in spec.stragglers if straggler.rank > last]
    remarks = [f"perturbed: rank {slow.rank} does not exist; rank {last} is slow instead" for slow in beyond]
    if beyond:
        # They become one at the last rank, with the largest of their factors; several at one rank multiply.
        product = math.prod(straggler.factor for straggler in at_last)
        at_last = [StragglerSpec(rank=last, factor=max(product, *(slow.factor for slow in beyond)))]
    addressed = [link for link in spec.links if link.system in (None, topology.system.name)]
    links = tuple(link for link in addressed if topology.links_named(link.link))
    remarks += [f"perturbed: this system has no link {link.link}" for link in addressed if link not in links]
    applicable = spec.model_copy(update={"stragglers": (*stragglers, *at_last), "links": links})
    try:
        changed = perturbed(evaluation, applicable)
    except InputError as error:
        said = f"perturbations of {plan.system.machine(topology.num_devices)}, {plan.strategy}: "
        raise InputError([replace(known, message=said + known.message) for known in error.problems]) from None
    if changed.perturbed is not None and changed.perturbed.note:
        remarks.append(changed.perturbed.note)
    return replace(changed, plan=replace(plan, notes=(*plan.notes, *remarks)))


# A study: every candidate, and the sentences that compare them.


def run_study(
    spec: StudySpec,
    compare: Sequence[str] = (),
    progress: Tell = lambda _: None,
    executor: Executor = IN_PROCESS,
) -> answers.StudyResult:
    """Answer a study; `compare` keeps the candidates of these strategies, in this order.

    Bad input is refused before any candidate takes its time. A candidate that cannot be answered is listed
    with its reason and loses no other. Raises PlanError (or InputError, where only the input is at fault)
    where no candidate is answered, and LimitError where none was answered before a limit; one that is
    reached later leaves the answers that are there.
    """
    spec = spec.compared(compare)
    Target.of_study(spec)  # refuses a study that nothing ends
    points = spec.points
    for point in points:
        point.checked()
    outcomes = dict[int, answers.Answer | PerfsimError]()
    stopped: LimitError | None = None

    def items() -> Iterator[tuple[int, tuple[str, Point]]]:
        for number, point in enumerate(points):
            progress(f"{number} of {len(points)} candidates: {point.candidate.strategy} on {point.machine}")
            yield number, (f"{number} of {len(points)} candidates answered", point)

    try:
        with executor.answers(_answer, items()) as finished:
            outcomes.update(finished)
    except LimitError as limit:
        stopped = limit
    answered: list[answers.PointResult] = []
    refused: list[tuple[Point, PerfsimError]] = []
    for number, point in enumerate(points):
        outcome = outcomes.get(number, stopped or PerfsimError("was not answered"))
        if isinstance(outcome, PerfsimError):
            refused.append((point, outcome))
        else:
            answered.append(answers.PointResult(point.study, answer=replace(outcome, number=number)))
    if stopped and not answered:
        raise stopped
    return _result(spec, answered, _infeasible(points, refused), stopped)


def refusals(spec: StudySpec) -> tuple[answers.Infeasible, ...]:
    """Candidates that a run could not answer, but for memory and time. Raises what the run would raise."""
    target = Target.of_study(spec)
    refused: list[tuple[Point, PerfsimError]] = []
    for point in spec.points:
        question = point.checked()
        errors = [refusal_of(question.at(batch)) for batch in target.batches(spec, question)]
        if errors[0] is not None and all(errors):
            refused.append((point, errors[0]))
    return _infeasible(spec.points, refused)


def _answer(item: tuple[str, Point]) -> answers.Answer | PerfsimError:
    """The answer of a candidate, or why it has none; the entry point of a worker."""
    reached, point = item
    present_limits().in_time(lambda: reached)
    return attempt(lambda: answer_point(point, deep=True))


def _reason(error: PerfsimError) -> str:
    """Why a candidate has no answer, in one line."""
    reasons = "; ".join(problem.message for problem in error.problems)
    return f"not answered: {reasons}" if isinstance(error, LimitError) else reasons


def _infeasible(
    points: Sequence[Point], refused: Sequence[tuple[Point, PerfsimError]]
) -> tuple[answers.Infeasible, ...]:
    """Candidates without an answer, with the reason; where all lack one, raises a lack of plans first."""
    errors = [error for _, error in refused]
    if len(errors) < len(points):
        return tuple(answers.Infeasible(point.label, _reason(error)) for point, error in refused)
    if any(isinstance(error, PlanError) for error in errors):
        raise PlanError([_reason(error) for error in errors])
    if all(isinstance(error, InputError) for error in errors):
        raise InputError([problem for error in errors for problem in error.problems])
    raise errors[0]


def _result(
    spec: StudySpec,
    answered: Sequence[answers.PointResult],
    infeasible: tuple[answers.Infeasible, ...],
    stopped: LimitError | None,
) -> answers.StudyResult:
    target = Target.of_study(spec)
    # A label that several candidates have is followed by the runtime, else by a number.
    alike = Counter(point.prediction.label for point in answered)
    seen = Counter[str]()
    points: dict[str, answers.PointResult] = {}
    for point in answered:
        row = point.prediction
        runtime = point.candidate.runtime
        words = [row.apart, runtime.name if alike[row.label] > 1 and runtime is not None else ""]
        told = replace(row, apart=", ".join(filter(None, words)))
        seen[told.label] += 1
        if (repeat := seen[told.label]) > 1:
            told = replace(told, apart=", ".join(filter(None, [*words, f"candidate {repeat} of this name"])))
        points[told.label] = replace(point, answer=told)
    decision = decision_of(list(points.values()))
    outcomes = ((points[own.label].prediction, own) for own in decision.outcomes)
    candidates = answers.named([replace(row, outcome=own) for row, own in outcomes])
    pair = [points[row.label] for row in pair_of(candidates, decision) if row is not None]
    dated = eras_of(spec, pair, lambda point: answer_point(point, reported=False))
    # For each strategy and family of published runs, the accuracy of its least similar candidate.
    families: dict[tuple[str, str], Accuracy] = {}
    for run in (row.run for row in candidates):
        accuracy = replace(run.accuracy, strategy=run.plan.strategy)
        key = (accuracy.strategy, accuracy.family)
        families[key] = max(families.get(key, accuracy), accuracy, key=lambda known: known.unlikeness)
    critical = target.critical
    return answers.StudyResult(
        study=spec.name,
        title=spec.heading,
        question=spec.question,
        model=spec.model.name,
        num_parameters=float(parameters(spec.model).total),
        seq_length=spec.recipe.seq_length,
        target_tokens=target.d_min_tokens,
        law=f"{critical.law}: {critical.source}",
        critical_batch_tokens=math.nan if critical.given_length else critical.tokens,
        critical_batch_band_tokens=(math.nan, math.nan) if critical.given_length else critical.band_tokens,
        candidates=candidates,
        verdict=sentence(candidates, decision),
        decision=decision,
        grounds=grounds(candidates, decision, dated),
        caveats=answers.weighed(candidates, decision),
        infeasible=infeasible,
        ratio_bands={own.label: own.ratio.band for own in decision.outcomes},
        laws=laws_side_by_side(spec, target, candidates),
        loss_law=f"{spec.convergence.of_loss.name} ({spec.convergence.of_loss.data})",
        losses=target.losses(spec),
        suggested_batch_tokens=target.suggested_batches(spec),
        assumptions=assumptions_of(spec),
        sampling={row.label: row.sampling for row in candidates if row.sampling is not None},
        accuracy=tuple(families.values()),
        perturbed="" if spec.perturbations is None else spec.perturbations.text,
        eras=dated,
        inputs_digest=digests([spec])[0],
        stopped=stopped,
    )


# A sweep: every finished point is stored and never computed twice.

STORE = "points.sqlite"
"""The file of finished points in a sweep's folder."""
POINT_S = {"gpu-cluster": 1.5, "wafer-cluster": 0.2}
"""By kind of machine, seconds of a point when none is stored yet: means over the sweeps in studies/."""
START_S = 2.0
"""Seconds for a process to start and import perfsim."""
PROGRESS_S = 2.0
"""Least time between two lines of progress."""
MOST_INPUTS = 50
"""Machines, models and recipes of a sweep whose inputs are listed; its points tell the grid's values."""
Finished = TypeVar("Finished")


class SweepInterrupted(PerfsimError):
    """Ctrl-C; finished points are kept."""

    exit_code = 130


@dataclass(frozen=True)
class _SweepPlan:
    """The work of a run: how many points, how many of them stored, and an estimate of its time."""

    sweep: str
    points: int
    stored: int
    jobs: int
    estimated_s: float

    @property
    def line(self) -> str:
        if self.stored == self.points:
            return f"{self.sweep}: {self.points:,} points, all of them stored"
        return (
            f"{self.sweep}: {self.points:,} points, {self.stored:,} of them stored; the others take about "
            f"{self.estimated_s:.0f} s on {self.jobs} process{'es' if self.jobs > 1 else ''}"
        )


def plan_sweep(sweep: Sweep, store_path: Path, jobs: int | None = None) -> _SweepPlan:
    """How many points a sweep has, how many are stored, and an estimate of the time for the others."""
    points = dict(zip(digests(point.study for point in sweep.points), sweep.points, strict=True))
    stored: dict[str, Stored] = {}
    if store_path.exists():
        with Store(store_path) as store:
            stored = dict(store.find(points))
    times_s = listed((points[digest].candidate.strategy, answer.seconds) for digest, answer in stored.items())
    pending = [point for digest, point in points.items() if digest not in stored]
    jobs = executor_for(jobs, most=len(pending)).size
    seconds = 0.0
    for point in pending:
        usual_s = POINT_S.get(point.candidate.system.kind, max(POINT_S.values()))
        seconds += fmean(times_s.get(point.candidate.strategy, [usual_s]))
    estimated_s = round(seconds / jobs + START_S, 1) if pending else 0.0
    return _SweepPlan(sweep.name, len(points), len(stored), jobs, estimated_s)


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
    that cannot be answered keeps its reasons; one whose workers die is not stored. Finished points are kept
    at SweepInterrupted (Ctrl-C), LimitError and PerfsimError (the scheduler went away).
    """
    keys = digests(point.study for point in sweep.points)
    points = dict(zip(keys, sweep.points, strict=True))
    executor = None
    if not store_path.exists():  # a scheduler that does not answer leaves no file
        executor = executor_for(jobs, scheduler, most=len(points), tell=tell)
    with Store(store_path) as store:
        results = {key: _read(stored.text) for key, stored in store.find(points)}
        pending = {key: point for key, point in points.items() if key not in results}
        if store.damaged:
            tell(f"{store.path}: {len(store.damaged)} stored points are damaged and are computed again")
        if store.readonly and pending:
            missing = f"{len(pending)} points are not in it"
            raise PerfsimError(f"{store.path} cannot be written to, and {missing}: give another --out")

        def kept(reason: object) -> str:
            count = f"{len(results)} of {len(points)} points are finished and kept"
            return f"{reason}: {count}; the same command continues from there"

        try:
            if pending:
                tell(f"{len(points)} points, {len(results)} of them stored")
                executor = executor or executor_for(jobs, scheduler, most=len(pending), tell=tell)
                with executor.answers(answer_text, pending.items()) as finished:
                    for key, answer in _told(finished, len(points), len(results), tell):
                        if isinstance(answer, PerfsimError):
                            results[key] = None, (answer.problems[0].message,)
                        else:
                            store.put(key, answer)
                            results[key] = _read(answer.text)
        except LimitError as limit:
            raise LimitError(kept(limit)) from None
        except KeyboardInterrupt:
            raise SweepInterrupted(kept("interrupted")) from None
        except ExecutorLost as lost:
            raise PerfsimError(kept(lost)) from None
    studies = {}
    for point in sweep.points:
        candidate = point.candidate.model_copy(update={"devices": (), "layout": None})
        recipe = point.study.recipe.model_copy(update=dict.fromkeys(BATCHES))
        studies[repr((point.study.model, recipe, candidate, point.runtime.name))] = point.study
    given = (row for study in islice(studies.values(), MOST_INPUTS) for row in assumptions_of(study))
    answered = tuple(
        answers.PointResult(point.study, point.settings, *results[key])
        for key, point in zip(keys, sweep.points, strict=True)
    )
    return SweepResult(sweep, answered, tuple(dict.fromkeys(given)))


def answer_text(point: Point) -> Stored:
    """The answer to a point as JSON text; the entry point of a worker."""
    started = time.perf_counter()
    row = attempt(within_floats(lambda: answer_point(point)))
    if isinstance(row, PerfsimError):  # concerns this point alone
        document: dict[str, Any] = {"reasons": [problem.message for problem in row.problems]}
    else:
        document = {**row.document(), "model": row.model, "time": asdict(row.time)}
    return Stored(json.dumps(document, sort_keys=True, allow_nan=False), time.perf_counter() - started)


def _read(text: str) -> tuple[answers.Answer | None, tuple[str, ...]]:
    """The answer that was stored as this text, or the reasons why there is none."""

    def interned(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        return {intern(name): intern(value) if type(value) is str else value for name, value in pairs}

    document = json.loads(text, object_pairs_hook=interned)  # equal texts are in memory once
    if "reasons" in document:
        return None, tuple(document["reasons"])
    return answers.Answer.stored(document), ()


def _told(finished: Iterator[Finished], total: int, stored: int, tell: Tell) -> Iterator[Finished]:
    """Finished points as they come; how many they are is told at most every `PROGRESS_S`."""
    started = reported = time.monotonic()
    for done, item in enumerate(finished, start=stored + 1):
        yield item
        now = time.monotonic()
        if now - reported >= PROGRESS_S or done == total:
            reported = now
            left_s = (now - started) / (done - stored) * (total - done)
            left = f", about {left_s:.0f} s left" if done < total else ""
            tell(f"{done} of {total} points{left}")
