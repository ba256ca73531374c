"""A candidate's run with the batch ramp of its study."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from perfsim.base.errors import InputError, LayoutError, PerfsimError, PlanError
from perfsim.convergence.critical_batch import (
    Z_90,
    CriticalBatch,
    HyperbolaFit,
    LawInputs,
    NotIdentifiableError,
    critical_batch,
    deepseek_tokens,
    minicpm_tokens,
)
from perfsim.convergence.laws import LossLaw, LossTarget, loss_law, tokens_for
from perfsim.convergence.time_to_accuracy import (
    LEAST_EXAMPLES_ERROR,
    RampedRun,
    Segment,
    TimeToAccuracy,
    ramped,
    time_to_accuracy,
)
from perfsim.convergence.wall_clock import Training
from perfsim.engine.limits import present_limits
from perfsim.prediction.bands import accuracy_of
from perfsim.prediction.planner import best_plan, estimated
from perfsim.prediction.question import Question
from perfsim.prediction.run import Evaluation, evaluated
from perfsim.specs.model import TransformerConfig
from perfsim.specs.recipe import Recipe
from perfsim.strategies import Plan
from perfsim.studies.spec import ConvergenceSpec, RampSpec, StudySpec
from perfsim.work.counts import parameters

# Which global batches to try for a candidate, and the time to the target and the whole run at each.

SMALLEST_SHARE = 1 / 256
LARGEST_SHARE = 2.0
"""The grid of batches, as shares of the critical batch."""
MOST_TRIED = 60
"""Batches of one curve, with those past its ends."""


@dataclass(frozen=True)
class Target:
    """What ends a run."""

    d_min_tokens: float
    critical: CriticalBatch
    loss: LossTarget | None = None
    """The loss that the tokens reach, where the recipe names one."""
    measured: HyperbolaFit | None = None
    """The user's own runs that the critical batch was fitted to."""

    @property
    def d_min_error(self) -> float:
        """Half-width e of the 90 % band of the tokens, [D / (1 + e), D (1 + e)]; 0 where they are given."""
        return 0.0 if self.loss is None else self.loss.d_min_error

    def time_of(
        self, batch_tokens: float, step_time_s: float, step_time_error: float, unshared_error: float
    ) -> TimeToAccuracy:
        """The time of steps to this end; NotIdentifiableError far beyond the measured batches."""
        return time_to_accuracy(
            batch_tokens,
            step_time_s,
            self.d_min_tokens,
            self.critical,
            step_time_error,
            d_min_error=self.d_min_error,
            unshared_error=unshared_error,
            examples_error=LEAST_EXAMPLES_ERROR
            if self.measured is None
            else self.measured.relative_error(batch_tokens),
        )


def target_for(model: TransformerConfig, recipe: Recipe, law: ConvergenceSpec, asked_by: str = "") -> Target:
    """What ends a run of a model under a recipe.

    Raises InputError where the recipe says nothing of it or a loss is outside its law's runs, and PlanError
    where the model is too small for the loss.
    """
    tokens = recipe.tokens
    loss = None
    by_law = loss_law(law.loss_law) if isinstance(law.loss_law, str) else law.loss_law.law
    if recipe.tokens_per_parameter is not None:
        tokens = recipe.tokens_per_parameter * parameters(model).total
    if tokens is None and recipe.target_loss is not None:
        loss = tokens_for(by_law, recipe.target_loss, counted(model, by_law), law.loss_scale)
        tokens = loss.tokens
    fit = None
    if law.fit is not None:
        one_error = math.pow(law.fit.band_factor, 1 / Z_90)
        fit = HyperbolaFit(
            e_min=law.fit.e_min_tokens or math.nan,
            b_crit=law.fit.b_crit_tokens,
            rms_log=law.fit.residual,
            b_crit_interval=(law.fit.b_crit_tokens / one_error, law.fit.b_crit_tokens * one_error),
            batches=law.fit.batches_tokens,
            run_kind=law.fit.run_kind,
            notes=law.fit.notes,
        )
        tokens = law.fit.e_min_tokens if tokens is None else tokens
    if tokens is None:
        raise InputError(
            f"{asked_by}recipe {recipe.name} has neither tokens nor target_loss nor tokens_per_parameter"
        )
    inputs = LawInputs(
        d_min_tokens=tokens,
        loss=recipe.target_loss,
        loss_scale=law.loss_scale or ("" if loss is None else by_law.corpus),
        tokens=law.critical_batch_tokens,
        band_factor=law.band_factor,
        source="" if law.fit is None else f"{law.fit.name}: {law.fit.description}",
        fit=fit,
    )
    measured = fit if law.law == "fitted" and fit is not None and fit.batches else None
    return Target(tokens, critical_batch(law.law, inputs), loss, measured)


def target_of(spec: StudySpec) -> Target:
    """What ends the study's run. Raises InputError where the recipe says nothing of it."""
    return target_for(spec.model, spec.recipe, spec.convergence, f"study {spec.name}: ")


def counted(model: TransformerConfig, law: LossLaw) -> float:
    """The parameters of a model as a loss law counts them, of experts those that compute a token.

    The laws are fitted to dense models; that of a model with experts is lower than a dense one's of its
    active parameters [2202.01169], so this is its upper bound.
    """
    counts = parameters(model)
    return float(counts.active if law.counts_embeddings else counts.active_body_matrices)


@dataclass(frozen=True)
class BatchChoice:
    """One global batch: the plan that runs it fastest, and its time to the target."""

    plan: Plan
    answer: TimeToAccuracy
    loss: LossTarget | None = None
    """The loss that ends the run, where the recipe names one."""


def batch_grid(target: Target, seq_length: int, num_devices: int) -> list[int]:
    """Global batches in sequences, 2^k and 3 x 2^k, up to twice the critical batch.

    They are multiples of a device count that is no power of two, so that replicas share evenly.
    """
    smallest = SMALLEST_SHARE * target.critical.tokens / seq_length
    largest = LARGEST_SHARE * target.critical.tokens / seq_length
    grid = sorted({factor * 2**power for factor in (2, 3) for power in range(24)})
    unit = num_devices if num_devices & (num_devices - 1) else 1
    return [unit * batch for batch in grid if smallest <= unit * batch <= largest] or [
        unit * max(1, num_devices)
    ]


def batches_of(spec: StudySpec, target: Target, question: Question) -> list[int]:
    """The global batches to try: the recipe's own, else the study's.

    Raises InputError for a grid around the critical batch where a law gives none.
    """
    given = spec.recipe.batch_over(question.devices)
    if given is not None:
        return [given]
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


def _time_at(question: Question, target: Target, global_batch_size: int) -> BatchChoice:
    """The plan of best estimate at one batch, simulated. Raises PlanError where no plan fits."""
    asked = question.at(global_batch_size)
    best = estimated(asked)
    return choice_of_run(evaluated(asked, best.plan), target, of_curve=True)


def batch_curve(
    question: Question, target: Target, batches: list[int], *, extend: bool = False
) -> tuple[list[BatchChoice], dict[int, PerfsimError]]:
    """Time to the target at every batch that has a plan, ascending, and why the other batches have none.

    With `extend` batches are halved or doubled past an end until the best one is inside. Raises PlanError, or
    LayoutError for a given layout, where no batch has a plan.
    """
    curve: list[BatchChoice] = []
    refused: dict[int, PerfsimError] = {}
    wanted = deque(batches)
    while wanted:
        batch = wanted.popleft()
        present_limits().in_time(
            lambda: f"{len(curve) + len(refused)} of {len(batches)} batches tried on {question.label}"
        )
        try:
            curve.append(_time_at(question, target, batch))
        except (LayoutError, PlanError, NotIdentifiableError) as error:
            refused[batch] = error
        if extend and curve and not wanted:
            tried = {*(point.plan.job.global_batch_size for point in curve), *refused}
            wanted.extend(_past_the_end(best_of(curve), tried))
    if not curve:
        raise next(iter(refused.values()), PlanError(f"{question.label}: no batch to try"))
    return sorted(curve, key=lambda point: point.answer.batch_tokens), refused


def _past_the_end(best: int, tried: set[int]) -> list[int]:
    """The batch to try next where the best one is the smallest or the largest of those tried."""
    if len(tried) >= MOST_TRIED:
        return []
    if best == max(tried):
        return [2 * best]
    return [best // 2] if best == min(tried) and best % 2 == 0 else []


def best_of(curve: list[BatchChoice]) -> int:
    """The global batch of least time to the target; of ties the smallest."""
    chosen = min(curve, key=lambda choice: (choice.answer.time_s, choice.answer.batch_tokens))
    return chosen.plan.job.global_batch_size


def run_at(question: Question, target: Target, global_batch_size: int) -> tuple[Evaluation, BatchChoice]:
    """One batch with its best or given layout, simulated in full. Raises PlanError where none fits."""
    evaluation = best_plan(question.at(global_batch_size))
    return evaluation, choice_of_run(evaluation, target)


def choice_of_run(evaluation: Evaluation, target: Target, *, of_curve: bool = False) -> BatchChoice:
    """A simulated plan, and what its step time makes of the time to the target.

    Points of a curve leave the share of the step that hides communication out of their band.
    """
    plan = evaluation.plan
    accuracy = accuracy_of(plan, 0.0 if of_curve else evaluation.hidden_communication_fraction)
    answer = target.time_of(
        plan.job.tokens_per_step, evaluation.step_time_s, accuracy.step_time_error, accuracy.unshared_error
    )
    return BatchChoice(plan, answer, target.loss)


MINICPM_SCALE = "C4"
"""The corpus on which MiniCPM's law measures its loss; the law holds for no other."""


def suggested_batches(spec: StudySpec, d_min_tokens: float) -> dict[str, float]:
    """The suggested global batch in tokens by law.

    DeepSeek's law needs the run's FLOPs without embeddings, 6 N D; MiniCPM's needs a target loss on C4.
    """
    counts = parameters(spec.model)
    compute_flop = 6.0 * counts.active_body_matrices * d_min_tokens
    suggested = {"DeepSeek LLM (arXiv 2401.02954)": deepseek_tokens(compute_flop)}
    loss = spec.recipe.target_loss
    if loss is not None and spec.convergence.loss_scale.casefold() == MINICPM_SCALE.casefold():
        suggested["MiniCPM (arXiv 2404.06395)"] = minicpm_tokens(loss)
    return suggested


def training_of(question: Question, time: TimeToAccuracy) -> Training:
    """The steps of a candidate and the units that run them."""
    return Training(
        steps=time.steps,
        step_time_s=time.step_time_s,
        num_parameters=float(parameters(question.model).total),
        num_nodes=-(-question.devices // question.topology.devices_per_node),
    )


def ramp_of(
    question: Question, target: Target, choice: BatchChoice, ramp: Sequence[RampSpec]
) -> tuple[RampedRun | None, str]:
    """The run that begins with a ramp and ends at the chosen batch, and a remark on it; None without one.

    Each segment runs the layout that is best at its own batch. Where a batch has no plan the remark says so.
    """
    if not ramp:
        return None, ""
    full = choice.plan.job.global_batch_size
    critical = target.critical.tokens
    segments = []
    try:
        for part in ramp:
            batch = max(1, round(part.batch * full))
            point = choice if batch == full else _time_at(question, target, batch)
            known = point.answer
            segments.append(
                Segment(part.share, known.batch_tokens, known.step_time_s, critical * part.critical_batch)
            )
    except PerfsimError as error:
        return None, f"no run with the batch ramp: {error.problems[0].message}"
    rest = 1.0 - sum(segment.share for segment in segments)
    fixed = choice.answer
    last = Segment(rest, fixed.batch_tokens, fixed.step_time_s, critical)
    run = ramped([*segments, last], target.d_min_tokens)
    remark = (
        f"with the batch ramp the steps take {run.time_s / fixed.time_s:.3f} times as long: "
        f"{run.steps / fixed.steps:.3f} times the steps, "
        f"{run.examples_tokens / fixed.examples_tokens:.3f} times the tokens"
    )
    return run, remark
