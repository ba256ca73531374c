"""Which global batches a candidate tries, and the time to the target at each."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from perfsim.base.errors import InputError, LayoutError, PerfsimError, PlanError
from perfsim.base.limits import present_limits
from perfsim.convergence.critical_batch import (
    CriticalBatch,
    LawInputs,
    NotIdentifiableError,
    critical_batch,
    deepseek_tokens,
    minicpm_tokens,
    relative_error,
)
from perfsim.convergence.laws import KAPLAN, LossLaw, LossTarget
from perfsim.convergence.time_to_accuracy import LEAST_EXAMPLES_ERROR, RampPart, TimeToAccuracy
from perfsim.machines import costs_for
from perfsim.prediction.bands import Accuracy
from perfsim.prediction.caveats import Caveat
from perfsim.prediction.planner import best_estimate
from perfsim.prediction.question import Question
from perfsim.prediction.run import Evaluation, evaluate, evaluation_of
from perfsim.specs.model import TransformerConfig
from perfsim.specs.recipe import Recipe
from perfsim.strategies import Plan
from perfsim.studies.spec import ConvergenceSpec, RampSpec, StudySpec
from perfsim.work.counts import parameters

SMALLEST_SHARE = 1 / 256
LARGEST_SHARE = 2.0
"""The grid of batches, as shares of the critical batch."""
AROUND = 2
"""Batches on each side of the best one that are tried near the batch of a similar question; else one more."""
HALVINGS = 7
"""Points of a curve of the loss before its end, each at half the tokens of the next."""
MINICPM_SCALE = "C4"
"""The corpus on which MiniCPM's law measures its loss; the law holds for no other."""


def _later_phases_s(run: Evaluation) -> tuple[float, ...]:
    """Seconds of each later phase in the layout of a run, slowed as it is; PlanError if one does not fit."""
    plan = run.plan
    slower = 1.0 if run.perturbed is None else run.step_time_s / run.perturbed.unperturbed_step_time_s
    seconds = []
    for phase in plan.job.recipe.later:
        recipe = plan.job.recipe.model_copy(update={"later": (), "weight_sparsity": phase.weight_sparsity})
        job = replace(plan.job, recipe=recipe)
        alike = plan.chosen.plan(job, plan.topology, plan.layout)
        step_s = evaluate(alike, costs_for(plan.topology, recipe), cluster=run.cluster).step_time_s
        seconds.append(slower * step_s * phase.tokens / job.tokens_per_step)
    return tuple(seconds)


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """Time to the target at one global batch, with the layout that runs it fastest."""

    global_batch_size: int
    """Sequences of a step."""
    batch_tokens: float
    """Tokens of a step."""
    step_time_s: float
    """Time of a step."""
    steps: float
    """Steps to the target."""
    time_to_accuracy_s: float
    """Time to the target."""
    time_to_accuracy_band_s: tuple[float, float]
    """90 % band of the time to the target."""
    layout: Mapping[str, Any] = field(default_factory=dict)
    ramp: tuple[RampPart, ...] = ()
    """The parts of a batch ramp, each in its own best layout."""

    @classmethod
    def of(cls, plan: Plan, time: TimeToAccuracy) -> Self:
        figures = (time.batch_tokens, time.step_time_s, time.steps, time.time_s, time.band_s)
        layout = plan.layout.as_dict(plan.num_microbatches)
        return cls(plan.job.global_batch_size, *figures, layout, time.ramp)


@dataclass(frozen=True)
class BatchCurve:
    """The batches that were tried on one machine: at least one with a plan."""

    points: Sequence[BatchPoint]
    """Those with a plan, ascending."""
    refused: Mapping[int, PerfsimError]
    """Why the other batches have none."""

    @property
    def tried(self) -> tuple[int, ...]:
        """The global batches that were tried, with and without a plan, ascending."""
        return tuple(sorted({*(point.global_batch_size for point in self.points), *self.refused}))

    @property
    def best(self) -> int:
        """The global batch of least time to the target; of ties the smallest."""
        fastest = min(self.points, key=lambda point: (point.time_to_accuracy_s, point.batch_tokens))
        return fastest.global_batch_size

    @property
    def caveats(self) -> list[Caveat]:
        """A caveat where the best batch is the smallest or the largest that was tried."""
        tried = self.tried
        if len(tried) < 2 or tried[0] < self.best < tried[-1]:
            return []
        side, direction = ("smallest", "smaller") if self.best == tried[0] else ("largest", "larger")
        words = (
            f"best batch {self.best} is the {side} of {len(tried)} tried ({tried[0]} to {tried[-1]} "
            f"sequences); a {direction} batch may be better: widen batch_sizes"
        )
        return [Caveat.of("batch-at-edge", words)]


@dataclass(frozen=True)
class Target:
    """What ends a run."""

    d_min_tokens: float
    critical: CriticalBatch
    loss: LossTarget | None = None
    """The loss that the tokens reach, where the recipe names one."""
    measured: tuple[float, ...] | None = None
    """Batches in tokens of the user's own runs, where the critical batch was fitted to them."""
    optimal_tokens: float = math.nan
    """The batch in tokens that DeepSeek's law suggests; it needs 6 N D FLOP without embeddings."""
    ramp: tuple[RampSpec, ...] = ()
    """The parts of the run before the full batch."""

    @classmethod
    def of(cls, model: TransformerConfig, recipe: Recipe, law: ConvergenceSpec) -> Self:
        """What ends a run; InputError for nothing or a loss beyond its law, PlanError for a small model."""
        tokens = recipe.tokens
        loss = None
        by_law = law.of_loss
        if recipe.tokens_per_parameter is not None:
            tokens = recipe.tokens_per_parameter * parameters(model).total
        if tokens is None and recipe.target_loss is not None:
            loss = by_law.target(recipe.target_loss, counted(model, by_law), law.loss_scale)
            tokens = loss.tokens
        fit = law.fit
        if fit is not None and tokens is None:
            tokens = fit.e_min_tokens
        if tokens is None:
            lack = f"recipe {recipe.name} has neither tokens nor target_loss nor tokens_per_parameter"
            raise InputError(lack, "give one of them, such as --set recipe.tokens=400e9")
        inputs = LawInputs(
            d_min_tokens=tokens,
            loss=recipe.target_loss,
            params=counted(model, KAPLAN),
            loss_scale=law.loss_scale or ("" if loss is None else by_law.corpus),
            tokens=law.critical_batch_tokens,
            band_factor=law.band_factor,
            fit=fit,
        )
        measured = fit.batches_tokens or None if law.law == "fitted" and fit is not None else None
        optimal = deepseek_tokens(6.0 * parameters(model).active_body_matrices * tokens)
        return cls(tokens, critical_batch(law.law, inputs), loss, measured, optimal, law.ramp)

    @classmethod
    def of_study(cls, spec: StudySpec) -> Self:
        """What ends the study's run. Raises InputError where the recipe says nothing of it."""
        return cls.of(spec.model, spec.recipe, spec.convergence)

    def caveats(self, batch_tokens: float) -> Iterator[Caveat]:
        """A batch at which no run was seen to reach it, and how much its tokens depend on a loss."""
        if self.measured is not None and batch_tokens > (most := max(self.measured)):
            words = f"no run was observed at a batch of {batch_tokens:.3g} tokens: the largest has {most:.3g}"
            yield Caveat.of("batch-never-observed", words)
        loss = self.loss
        if loss is None:
            return
        words = (
            f"{loss.tokens:.3g} tokens to a loss of {loss.loss:g} by law '{loss.law.name}' "
            f"({loss.law.corpus}); {loss.text}: the band of the time includes "
            f"{100 * loss.d_min_error:.0f} % of the tokens"
        )
        yield Caveat.of("target-loss", words)

    def suggested_batches(self, spec: StudySpec) -> dict[str, float]:
        """The suggested global batch in tokens by law."""
        suggested = {"DeepSeek LLM (arXiv 2401.02954)": self.optimal_tokens}
        loss = spec.recipe.target_loss
        if loss is not None and spec.convergence.loss_scale.casefold() == MINICPM_SCALE.casefold():
            suggested["MiniCPM (arXiv 2404.06395)"] = minicpm_tokens(loss)
        return suggested

    def losses(self, spec: StudySpec) -> tuple[tuple[float, float], ...]:
        """Shares of the run, and the loss of one that ends there; none for a target beyond the law's runs."""
        law = spec.convergence.of_loss
        params = counted(spec.model, law)
        shares = [0.5**halvings for halvings in range(HALVINGS, -1, -1)]
        if law.outside(params, self.d_min_tokens):
            return ()
        ends = [(share, share * self.d_min_tokens) for share in shares]
        return tuple((of, law.loss(params, tokens)) for of, tokens in ends if not law.outside(params, tokens))

    def time_of_run(self, run: Evaluation, accuracy: Accuracy | None = None) -> TimeToAccuracy:
        """Time of a simulated plan's steps to this end; NotIdentifiableError far beyond measured batches."""
        accuracy = accuracy or run.accuracy
        tokens = run.plan.job.tokens_per_step
        known = self.measured
        return TimeToAccuracy(
            batch_tokens=tokens,
            step_time_s=run.step_time_s,
            d_min_tokens=self.d_min_tokens,
            critical=self.critical,
            step_time_error=accuracy.step_time_error,
            unshared_error=accuracy.unshared_error,
            d_min_error=0.0 if self.loss is None else self.loss.d_min_error,
            examples_error=LEAST_EXAMPLES_ERROR if known is None else relative_error(tokens, known),
            later_s=_later_phases_s(run),
        )

    def grid(self, seq_length: int, num_devices: int, least: int = 0) -> list[int]:
        """Global batches in sequences, 2^k and 3 x 2^k times a unit, up to twice the critical batch.

        `least` is the smallest batch of a given layout. Where none is so small, it is the only one.
        """
        # A run of a given length has no critical batch; beyond DeepSeek's the same tokens reach a worse loss.
        most = self.optimal_tokens if self.critical.given_length else LARGEST_SHARE * self.critical.tokens
        largest = most / seq_length
        smallest = largest * SMALLEST_SHARE / LARGEST_SHARE
        # Replicas share a batch: it is a multiple of the odd part of the devices, or of a layout's least one.
        odd = num_devices // (num_devices & -num_devices)
        unit = (least if least & (least - 1) else 1) if least else odd
        grid = sorted({unit * factor * 2**power for factor in (2, 3) for power in range(24)})
        return [batch for batch in grid if smallest <= batch <= largest] or [least or num_devices]

    def batches(self, spec: StudySpec, question: Question) -> Sequence[int]:
        """The global batches to try: the recipe's own, else the study's."""
        given = spec.recipe.batch_over(question.devices)
        if given is not None:
            return [given]
        if spec.batch_sizes != "auto":
            return spec.batch_sizes
        layout = question.given_layout
        least = 0 if layout is None else layout.data * layout.micro_batch_size
        return self.grid(spec.recipe.seq_length, question.devices, least)

    def at(self, question: Question, global_batch_size: int, *, advised: bool = True) -> BatchPoint:
        """The plan of best estimate at one batch, simulated; its band leaves out what hides communication."""
        asked = question.at(global_batch_size)
        run = _best(asked, advised=advised)
        return BatchPoint.of(run.plan, self.ramped(asked, self.time_of_run(run, Accuracy.of(run.plan))))

    def curve(
        self, question: Question, batches: Sequence[int], *, extend: bool = False, near: int | None = None
    ) -> BatchCurve:
        """Time to the target at every batch that is tried; PlanError or LayoutError where none has a plan."""
        points: list[BatchPoint] = []
        refused: dict[int, PerfsimError] = {}
        grid = sorted(batches)
        # With `near` (0: the middle) those outward of it to the best one are tried; with `extend` batches are
        # halved or doubled past an end until the best one is inside.
        while wanted := _wanted(grid, BatchCurve(points, refused), near, extend=extend):
            present_limits().in_time(
                lambda: f"{len(points) + len(refused)} of {len(batches)} batches tried on {question.label}"
            )
            try:
                points.append(self.at(question, wanted, advised=False))
            except (LayoutError, PlanError, NotIdentifiableError) as error:
                refused[wanted] = error
        if not points:
            for batch in refused:
                self.at(question, batch)  # raises as before, and says what is near
            raise PlanError(f"{question.label}: no batch to try")
        return BatchCurve(sorted(points, key=lambda point: point.batch_tokens), refused)

    def ramped(self, question: Question, time: TimeToAccuracy) -> TimeToAccuracy:
        """A time with the parts of the batch ramp, each in its best layout; PlanError if one has none."""
        batch = question.job.global_batch_size
        parts = []
        for part in self.ramp:
            fewer = max(1, round(part.batch * batch))
            try:
                step_s = time.step_time_s if fewer == batch else _best(question.at(fewer)).step_time_s
            except PerfsimError as error:
                raise PlanError(f"batch ramp, at {fewer} sequences: {error.problems[0].message}") from None
            parts.append(RampPart(part.share, fewer / batch, part.critical_batch, step_s / time.step_time_s))
        return replace(time, ramp=tuple(parts))


def _best(question: Question, *, advised: bool = True) -> Evaluation:
    """The plan of best estimate, simulated."""
    return evaluation_of(*best_estimate(question, advised=advised))


def _wanted(grid: list[int], known: BatchCurve, near: int | None, *, extend: bool) -> int:
    """The next batch to try; 0 where none is left."""
    tried = known.tried
    left = [batch for batch in grid if batch not in tried]
    if near is not None:
        begin = near or grid[len(grid) // 2]
        left.sort(key=lambda batch: abs(math.log(batch / begin)))
        if known.points and known.best in grid:
            best = grid.index(known.best)
            around = AROUND if near else AROUND + 1
            left = [batch for batch in left if batch in grid[max(best - around, 0) : best + around + 1]]
    if left or not (extend and known.points):
        return next(iter(left), 0)
    if known.best == tried[-1]:
        return 2 * known.best
    return known.best // 2 if known.best == tried[0] and known.best % 2 == 0 else 0


def counted(model: TransformerConfig, law: LossLaw) -> float:
    """The parameters of a model as a loss law counts them, of experts those that compute a token."""
    # The laws are fitted to dense models; the loss of a model with experts is below a dense one's of its
    # active parameters [2202.01169], so this is its upper bound.
    counts = parameters(model)
    return float(counts.active if law.counts_embeddings else counts.active_body_matrices)
