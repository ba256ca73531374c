"""Answering a study: every candidate at its own best batch, and the sentence that compares them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from perfsim.base.errors import CatalogError, InputError, LimitError, PerfsimError, PlanError, Problem
from perfsim.convergence.critical_batch import CriticalBatch
from perfsim.convergence.time_to_accuracy import RampedRun
from perfsim.engine.limits import present_limits
from perfsim.prediction.bands import Accuracy, accuracy_of
from perfsim.prediction.caveats import default_settings, shared_caveats, worst_first
from perfsim.prediction.disturbed import Resilience, resilience, text_of
from perfsim.prediction.question import PriceTables, Question
from perfsim.prediction.run import Evaluation
from perfsim.prediction.verification import SamplingSummary, sample_step
from perfsim.strategies import strategy
from perfsim.strategies.plan import runs_on
from perfsim.studies.assumptions import assumptions_of
from perfsim.studies.batches import (
    BatchChoice,
    Target,
    batch_curve,
    batch_grid,
    best_of,
    choice_of_run,
    ramp_of,
    run_at,
    suggested_batches,
    target_for,
    whole_run_of,
)
from perfsim.studies.candidate import candidate_result, perturbed_candidate
from perfsim.studies.decision import decide, laws_side_by_side, option_of
from perfsim.studies.executors import IN_PROCESS, Executor, Failed
from perfsim.studies.result import (
    COVERED_ONCE,
    CandidateResult,
    Decision,
    Infeasible,
    Production,
    StudyResult,
    production_of,
)
from perfsim.studies.spec import CandidateSpec, StudySpec, digest_of
from perfsim.studies.verdict import Answer, ratio_bands, verdict
from perfsim.work.counts import parameters

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Answered:
    """A candidate with everything that was learned about it."""

    candidate: CandidateSpec
    question: Question
    evaluation: Evaluation
    choice: BatchChoice
    curve: tuple[BatchChoice, ...]
    sampling: SamplingSummary | None
    tried: tuple[int, ...] = ()
    """The global batches that were tried, with and without a plan."""
    remarks: tuple[str, ...] = ()
    """The batches that a given layout cannot run."""
    production: Production | None = None
    resilience: Resilience | None = None
    ramp: RampedRun | None = None


@dataclass(frozen=True)
class StudyRun:
    """The result of a study beside the runs that led to it, for traces and further questions."""

    result: StudyResult
    answered: tuple[Answered, ...]
    stopped: LimitError | None = None
    """What ended it before all candidates were answered."""


def run_study(
    spec: StudySpec,
    compare: Sequence[str] = (),
    progress: Progress = lambda _: None,
    executor: Executor = IN_PROCESS,
) -> StudyRun:
    """Answer a study; `compare` keeps the candidates of these strategies, in this order.

    Bad input is refused before any candidate takes its time. A candidate that cannot be answered is listed
    with its reason and loses no other. Raises PlanError (or InputError, where only the input is at fault)
    where no candidate is answered, and LimitError where none was answered before a limit; one that is
    reached later leaves the answers that are there.
    """
    spec = spec.model_copy(update={"candidates": tuple(_chosen(spec, compare))})
    target = target_of(spec)
    asked = [(candidate, devices) for candidate in spec.candidates for devices in candidate.devices]
    for candidate, devices in asked:
        check_question(question_of_candidate(spec, candidate, devices))
    outcomes, stopped = _outcomes(spec, asked, target, progress, executor)
    answered: list[Answered] = []
    results: list[CandidateResult] = []
    failed: list[tuple[str, PerfsimError]] = []
    for (candidate, devices), outcome in zip(asked, outcomes, strict=True):
        if isinstance(outcome, PerfsimError):
            failed.append((candidate.label(devices), outcome))
        else:
            answered.append(outcome)
            results.append(_result_of(outcome, candidate))
    if not answered:
        raise stopped or _all_failed([error for _, error in failed])
    refused = [Infeasible(label, _reason(error)) for label, error in failed]
    pairs = list(zip(_told_apart(results), answered, strict=True))
    result = _result(spec, target, pairs, refused, stopped)
    return StudyRun(_decided(result, _decision(spec, pairs)), tuple(answered), stopped)


def _decided(result: StudyResult, decision: Decision) -> StudyResult:
    """The result with its decision, whose draws give every band of the time in production."""
    candidates = tuple(
        replace(own, production_band_s=(outcome.wall_s.low, outcome.wall_s.high))
        if own.production is not None and not own.whole_run
        else own
        for own, outcome in zip(result.candidates, decision.outcomes, strict=True)
    )
    return replace(result, candidates=candidates, decision=decision)


def _decision(spec: StudySpec, pairs: Sequence[tuple[CandidateResult, Answered]]) -> Decision:
    plans: dict[object, str] = {}
    options = []
    for result, answer in pairs:
        fields = ("system", "num_devices", "global_batch_size", "layout", "step_time_s")
        key = str([getattr(result, name) for name in fields])
        plan = plans.setdefault(key, result.label)
        asked = (answer.candidate, answer.question, answer.choice)
        options.append(option_of(spec, *asked, result, plan))
    return decide(options, spec.currency, spec.uncertainty.seed, spec.uncertainty.draws)


Asked = tuple[CandidateSpec, int]
"""A candidate and one of its numbers of devices."""


def _outcomes(
    spec: StudySpec, asked: Sequence[Asked], target: Target, progress: Progress, executor: Executor
) -> tuple[list[Answered | PerfsimError], LimitError | None]:
    """The answer of every candidate, or why it has none; and the limit that ended the study, if one did."""

    def items() -> Iterator[tuple[int, tuple[str, StudySpec, CandidateSpec, int, Target]]]:
        for place, (candidate, devices) in enumerate(asked):
            words = f"{candidate.strategy} on {candidate.system.machine(devices)}"
            progress(f"{place} of {len(asked)} candidates: {words}")
            reached = f"{place} of {len(asked)} candidates answered"
            yield place, (reached, spec, candidate, devices, target)

    outcomes: dict[int, Answered | PerfsimError] = {}
    stopped: LimitError | None = None
    try:
        with executor.answers(_asked, items()) as finished:
            for place, outcome in finished:
                outcomes[place] = PerfsimError(outcome.reason) if isinstance(outcome, Failed) else outcome
    except LimitError as limit:
        stopped = limit
    missing = stopped or PerfsimError("was not answered")
    return [outcomes.get(place, missing) for place in range(len(asked))], stopped


def _asked(item: tuple[str, StudySpec, CandidateSpec, int, Target]) -> Answered | PerfsimError:
    """The answer of a candidate, or why it has none; the entry point of a worker."""
    reached, spec, candidate, devices, target = item
    present_limits().in_time(lambda: reached)
    try:
        return _answer(spec, candidate, devices, target)
    except LimitError:
        raise
    except PerfsimError as error:
        return error


def check_question(question: Question) -> None:
    """Refuse bad input. Missing prices concern one candidate, so they are reported when it is answered."""
    try:
        question.check()
    except CatalogError:
        return


def _reason(error: PerfsimError) -> str:
    """Why a candidate has no answer, in one line."""
    reasons = "; ".join(problem.message for problem in error.problems)
    return f"not answered: {reasons}" if isinstance(error, LimitError) else reasons


def _all_failed(errors: Sequence[PerfsimError]) -> PerfsimError:
    """What ends a study without any answer: a lack of plans, else bad input, else the first failure."""
    if any(isinstance(error, PlanError) for error in errors):
        return PlanError([_reason(error) for error in errors])
    if all(isinstance(error, InputError) for error in errors):
        return InputError([problem for error in errors for problem in error.problems])
    return errors[0]


def _chosen(spec: StudySpec, compare: Sequence[str]) -> Iterator[CandidateSpec]:
    """The study's candidates of the wanted strategies; another strategy borrows a system that suits it."""
    if not compare:
        yield from spec.candidates
        return
    for name in dict.fromkeys(compare):
        wanted = strategy(name)
        own = [candidate for candidate in spec.candidates if candidate.strategy == wanted.name]
        like = [candidate for candidate in spec.candidates if runs_on(wanted, candidate.system)]
        if not own and not like:
            raise InputError(
                [
                    Problem(
                        f"study {spec.name} has no system for strategy {name}",
                        help=f"it compares {', '.join(candidate.strategy for candidate in spec.candidates)}",
                    )
                ]
            )
        yield from own or [like[0].model_copy(update={"strategy": wanted.name, "layout": None})]


def target_of(spec: StudySpec) -> Target:
    """What ends the study's run. Raises InputError where the recipe says nothing of it."""
    return target_for(spec.model, spec.recipe, spec.convergence, f"study {spec.name}: ")


def question_of_candidate(spec: StudySpec, candidate: CandidateSpec, devices: int) -> Question:
    """What a study asks of a candidate with so many devices; the batch is open."""
    return Question(
        model=spec.model,
        recipe=spec.recipe,
        system=candidate.system,
        devices=devices,
        strategy=candidate.strategy,
        layout=candidate.layout,
        memory_limit=spec.memory_limit,
        cluster=candidate.cluster_calibration,
        wall_clock=candidate.wall_clock,
    )


def answer_candidate(
    spec: StudySpec,
    candidate: CandidateSpec,
    devices: int,
    target: Target,
    tables: PriceTables | None = None,
) -> Answered:
    """A candidate at its best batch, without sampling; what studies and sweeps are made of.

    `tables` keep the prices of one call for the next.

    Raises PlanError where no batch has a feasible plan, LayoutError for a fixed layout that is illegal.
    """
    question = question_of_candidate(spec, candidate, devices)
    if tables is not None:
        tables.lend(question)
    return _disturbed(spec, _undisturbed(spec, candidate, question, target), target)


def _undisturbed(spec: StudySpec, candidate: CandidateSpec, question: Question, target: Target) -> Answered:
    batches = _batches(spec, target, question)
    best = batches[0]
    curve = list[BatchChoice]()
    dropped = dict[int, PerfsimError]()
    if len(batches) > 1:
        extend = spec.batch_sizes == "auto" and spec.recipe.batch_over(question.devices) is None
        curve, dropped = batch_curve(question, target, batches, extend=extend)
        best = best_of(curve)
        batches = sorted({*(point.plan.job.global_batch_size for point in curve), *dropped})
    evaluation, choice = run_at(question, target, best)
    own_tokens = choice.answer.batch_tokens
    curve = [choice if point.answer.batch_tokens == own_tokens else point for point in curve] or [choice]
    return Answered(
        candidate,
        question,
        evaluation,
        choice,
        tuple(curve),
        sampling=None,
        tried=tuple(batches) if len(batches) > 1 else (),
        remarks=() if question.layout is None else _left_out(dropped),
        production=production_of(spec, candidate),
    )


def _left_out(dropped: Mapping[int, PerfsimError]) -> tuple[str, ...]:
    """The batches that a given layout cannot run."""
    if not dropped:
        return ()
    batches = ", ".join(f"{batch:,}" for batch in dropped)
    reason = _reason(next(iter(dropped.values())))
    return (f"batches that the layout cannot run are left out: {batches} sequences ({reason})",)


def _batches(spec: StudySpec, target: Target, question: Question) -> list[int]:
    """The global batches to try: the recipe's own, else the study's."""
    own = spec.recipe.batch_over(question.devices)
    if own is not None:
        return [own]
    if spec.batch_sizes == "auto":
        if target.critical.given_length:
            raise InputError(
                f"study {spec.name}: law {target.critical.law} gives no batch to look around; write "
                "recipe.global_batch_size or batch_sizes"
            )
        layout = question.given_layout
        unit = question.devices if layout is None else layout.data * layout.micro_batch_size
        return batch_grid(target, spec.recipe.seq_length, unit)
    return list(spec.batch_sizes)


def _answer(spec: StudySpec, candidate: CandidateSpec, devices: int, target: Target) -> Answered:
    answered = _undisturbed(spec, candidate, question_of_candidate(spec, candidate, devices), target)
    slowdowns = None
    if spec.resilience is not None:
        slowdowns = resilience(answered.evaluation, candidate.label(devices), spec.resilience)
    ramp, remark = ramp_of(answered.question, target, answered.choice, spec.convergence.ramp)
    answered = replace(
        answered,
        sampling=sample_step(answered.evaluation, spec.sampling),
        resilience=slowdowns,
        ramp=ramp,
        remarks=(*answered.remarks, *filter(None, [remark])),
    )
    return _disturbed(spec, answered, target)


def _disturbed(spec: StudySpec, answered: Answered, target: Target) -> Answered:
    """The same batch and layout under the study's perturbations; the curve of batches stays without."""
    if spec.perturbations is None:
        return answered
    label = f"{answered.question.label}, {answered.evaluation.plan.strategy}"
    evaluation = perturbed_candidate(answered.evaluation, spec.perturbations, label)
    choice = choice_of_run(evaluation, target)
    return replace(answered, evaluation=evaluation, choice=choice)


def _result(
    spec: StudySpec,
    target: Target,
    pairs: Sequence[tuple[CandidateResult, Answered]],
    refused: Sequence[Infeasible],
    stopped: LimitError | None,
) -> StudyResult:
    candidates = tuple(candidate for candidate, _ in pairs)
    answered = [answer for _, answer in pairs]
    critical: CriticalBatch = target.critical
    answers = [Answer(candidate, answer.choice.answer) for candidate, answer in pairs]
    sentence = verdict(answers)
    if refused:
        verb = "Not possible" if stopped is None else "Not possible, or not reached"
        sentence += f" {verb}: {'; '.join(infeasible.label for infeasible in refused)}."
    return StudyResult(
        study=spec.name,
        title=spec.title,
        question=spec.question,
        model=spec.model.name,
        num_parameters=float(parameters(spec.model).total),
        seq_length=spec.recipe.seq_length,
        target_tokens=target.d_min_tokens,
        law=f"{critical.law}: {critical.source}",
        critical_batch_tokens=critical.shown_tokens,
        critical_batch_band_tokens=critical.shown_band_tokens,
        candidates=candidates,
        verdict=sentence,
        caveats=shared_caveats(candidates),
        infeasible=tuple(refused),
        ratio_bands=ratio_bands(answers),
        laws=laws_side_by_side(spec, target, candidates),
        suggested_batch_tokens=suggested_batches(spec, target.d_min_tokens),
        assumptions=assumptions_of(spec, target),
        sampling={
            candidate.label: answer.sampling for candidate, answer in pairs if answer.sampling is not None
        },
        accuracy=_accuracy(answered),
        resilience=tuple(answer.resilience for answer in answered if answer.resilience is not None),
        perturbed=text_of(spec.perturbations) if spec.perturbations is not None else "",
        inputs_digest=digest_of(spec),
    )


def _accuracy(answered: Sequence[Answered]) -> tuple[Accuracy, ...]:
    """For each strategy and family of published runs, the accuracy of its least similar candidate."""
    by_family: dict[tuple[str, str], Accuracy] = {}
    for run in (answer.evaluation for answer in answered):
        accuracy = accuracy_of(run.plan, run.hidden_communication_fraction)
        accuracy = replace(accuracy, strategy=run.plan.strategy)
        key = (accuracy.strategy, accuracy.family)
        by_family[key] = max(by_family.get(key, accuracy), accuracy, key=lambda known: known.unlikeness)
    return tuple(by_family.values())


def _result_of(answer: Answered, candidate: CandidateSpec) -> CandidateResult:
    limit = answer.question.memory_limit
    result = candidate_result(answer.evaluation, answer.choice, answer.curve, answer.tried, limit)
    production = answer.production
    time = answer.choice.answer
    named = answer.question.named_settings
    left = [] if named is None else default_settings(named, answer.evaluation.plan)
    whole_run = whole_run_of(answer.question, answer.choice)
    return replace(
        result,
        caveats=worst_first([*result.caveats, *left]),
        notes=(*result.notes, *answer.remarks, *([COVERED_ONCE] if whole_run and production else [])),
        whole_run=whole_run,
        production=production,
        production_time_s=None if production is None else production.time_s(time.time_s),
        production_band_s=None if production is None else production.band_s(time.time_s, time.band_s),
        ramp=answer.ramp,
        apart=candidate.layout_words,
    )


def _told_apart(candidates: Sequence[CandidateResult]) -> list[CandidateResult]:
    """The candidates with a number behind a label that an earlier one has."""
    seen = Counter[str]()
    apart = []
    for candidate in candidates:
        seen[candidate.label] += 1
        repeat = seen[candidate.label]
        words = [candidate.apart, f"candidate {repeat} of this name"] if repeat > 1 else [candidate.apart]
        apart.append(replace(candidate, apart=", ".join(filter(None, words))))
    return apart
