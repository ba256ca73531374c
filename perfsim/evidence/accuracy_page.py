"""The content of the accuracy page: scores, ablation, families left out, and likely causes of errors.

Causes follow from explicit rules on the parts of the predicted step and on the run. Unusual facts come first
(weak evidence, a head size off the fast path, tensor parallelism between nodes, ...). Then come mechanisms
large enough to explain the error alone, by size: a mechanism with the share s of the predicted step must be
wrong by the factor 1 - e / ((1 + e) s), where e is the error; it is named if that is between 0 and 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from perfsim.base.errors import PerfsimError
from perfsim.catalog import Catalog, default_catalog
from perfsim.costs.wafer import WaferCosts
from perfsim.evidence.ablation import NOTHING, REMOVALS, TRIED, ablate, shares
from perfsim.evidence.cases import PlacedCase, StepCase, mapped, place_case, read_cases
from perfsim.evidence.left_out import (
    LeavingOut,
    LeftOut,
    Tangent,
    left_out,
    left_out_document,
    refitted,
    tangent,
)
from perfsim.evidence.score import Scored, families, scored_case, summary
from perfsim.evidence.step_fit import FittedConstant, fitted_constants
from perfsim.machines.gpu_cluster import gpu_plan
from perfsim.machines.wafer_cluster import wafer_plan

_MOST_CAUSES = 2
_HEAD_MULTIPLE = 8
"""Attention's matrix products read 16-byte rows only if the head size is a multiple of this."""
_FEWEST_ROWS = 16_000
"""A smaller vocabulary is unlikely to have been used."""
_FAMILY_BIAS = 0.05
"""Mean error above which a whole family counts as biased."""
_LEAST_SHARE = 0.02
"""Least share of the step for an unusual fact to matter."""
_MUCH_IDLE = 0.2

_COLLECTIVES = "tensor-parallel collectives"
_HOST = "host-launch floor"
_ATTENTION = "attention core"
_ENDS = "embedding, head and loss"
_MECHANISMS = (
    _COLLECTIVES,
    "data-parallel and FSDP traffic",
    _HOST,
    "memory-bound kernels",
    _ATTENTION,
    _ENDS,
    "optimizer",
    "stage-to-stage transfers",
    "bubble",
    "weight_stream",
    "gradient_stream",
    "movement over the mesh",
)
"""Disjoint removals of the ablation and categories of the breakdown."""
_COMPUTING = ("forward", "backward", "recompute")


@dataclass(frozen=True)
class Facts:
    """A case, its error, and the parts of its predicted step."""

    case: StepCase
    error: float
    """Predicted over measured, minus 1."""
    shares: Mapping[str, float]
    """Fraction of the predicted step by mechanism."""
    family_bias: float = 0.0
    """Mean error of the other scored runs of its family; 0 if there are none."""
    tensor_across_nodes: bool = False

    def share(self, mechanism: str) -> float:
        """Fraction of the predicted step of a mechanism."""
        return self.shares.get(mechanism, 0.0)

    def factor(self, mechanism: str) -> float:
        """Factor on the mechanism's time that would make the prediction exact."""
        share = self.share(mechanism)
        return 1.0 - self.error / (1.0 + self.error) / share if share > 0 else float("inf")

    def explains(self, mechanism: str) -> bool:
        """Whether the mechanism alone can explain the error."""
        return self.share(mechanism) > _LEAST_SHARE and 0.0 <= self.factor(mechanism) <= 2.0

    def words(self, mechanism: str, name: str = "") -> str:
        """A mechanism and its share, with the parenthesis left open."""
        name = name or mechanism.replace("_", " ").replace("bubble", "pipeline bubble")
        return f"{name} ({100 * self.share(mechanism):.0f} % of the step"


def likely_cause(facts: Facts) -> str:
    """At most two causes, the most likely first."""
    causes = list(islice(_unusual(facts), _MOST_CAUSES))
    blamed = {mechanism for _, mechanism in causes}
    heavy = sorted(set(_MECHANISMS) - blamed, key=lambda name: (-facts.share(name), name))
    texts = [text for text, _ in causes]
    texts += [
        f"{facts.words(mechanism)}, right at {facts.factor(mechanism):.2f} times)"
        for mechanism in heavy
        if facts.explains(mechanism)
    ]
    return (
        "; ".join(texts[:_MOST_CAUSES]) or "no single mechanism besides the matrix products is large enough"
    )


def _unusual(facts: Facts) -> Iterator[tuple[str, str]]:
    """What is unusual about a run, the most likely cause first, each with its mechanism, if it has one."""
    case = facts.case
    model = case.model
    if not case.scored:
        notes = [part.strip() for part in case.notes.split(";")]
        reasons = [part.removeprefix("weak:").strip() for part in notes if part.startswith("weak:")]
        assumed = [re.split(r"[:(]", part)[0].strip() for part in case.assumed]
        why = reasons[0] if reasons else f"not printed: {', '.join(assumed)}" if assumed else ""
        yield (f"weak evidence ({why})" if why else "weak evidence"), ""
    size = model.hidden_size // model.num_attention_heads
    if size % _HEAD_MULTIPLE and facts.share(_ATTENTION) >= _LEAST_SHARE:
        how = "slower still than" if facts.error < 0 else "faster than"
        text = f"head size {size} is no multiple of {_HEAD_MULTIPLE}: attention {how} without matrix cores"
        yield text, _ATTENTION
    if facts.tensor_across_nodes and facts.share(_COLLECTIVES) >= _LEAST_SHARE:
        yield f"{facts.words(_COLLECTIVES, 'tensor parallelism between nodes')})", _COLLECTIVES
    rows = facts.factor(_ENDS) * model.vocab_size
    if "vocab" in case.assumed and _FEWEST_ROWS <= rows < model.vocab_size:
        fitting = f"right with about {rows:,.0f} rows in place of {model.vocab_size:,}"
        yield f"{facts.words(_ENDS)} at a vocabulary that is assumed; {fitting})", _ENDS
    if abs(facts.family_bias) >= _FAMILY_BIAS and facts.family_bias * facts.error > 0:
        yield f"shared by its family ({100 * facts.family_bias:+.1f} % on average in its other runs)", ""
    if case.training.host_blocking and facts.explains(_HOST):
        yield f"{facts.words(_HOST, 'a host that waits for every kernel')})", _HOST
    if any(text.startswith("layers_per_stage") for text in case.assumed):
        yield "which stages are short is inferred", "bubble"
    if case.parallel.pipeline > 1 and facts.explains(_ENDS):
        yield f"{facts.words(_ENDS, 'embedding, or head and loss on the last stage')})", _ENDS
    if facts.share("bubble") >= _MUCH_IDLE:
        yield f"{facts.words('bubble')})", "bubble"
    release = case.system.software_release
    computing = sum(facts.share(category) for category in _COMPUTING)
    if release is not None and computing > 0:
        share = f"{100 * computing:.0f} % of the step"
        yield f"computing ({share}) at one efficiency for all of release {release}", ""


@dataclass(frozen=True)
class Removed:
    """The score of the public GPU runs without one mechanism."""

    mechanism: str
    instead: str
    summary: Mapping[str, Any]
    most_hurt: str
    """The family whose mean error grows most; empty if none does."""
    most_hurt_mape: float | None
    refitted: Mapping[str, Any] | None = None
    """The score after a new fit of the constants without the mechanism."""
    left_out: Mapping[str, Any] | None = None
    """The score of runs predicted by such a fit without their family."""
    tried: bool = False
    """Whether the mechanism was dropped; then the scores are those with it."""


@dataclass(frozen=True)
class _Examined:
    """The parts of one case's predicted step."""

    case: StepCase
    steps_s: dict[str, float]
    """Step time by removed mechanism; empty for a wafer."""
    shares: dict[str, float]
    """Fraction of the step by mechanism and by category of the breakdown."""
    tensor_across_nodes: bool = False
    tangent: Tangent | None = None


@dataclass(frozen=True)
class StepAccuracy:
    """The score of a file of step-time cases and its explanation."""

    result: Mapping[str, Any]
    causes: Mapping[str, str]
    removed: Sequence[Removed]
    leaving: Sequence[LeavingOut] = ()
    """Its runs as predicted without their family or release; empty if not requested."""

    @property
    def outside(self) -> Mapping[str, Any] | None:
        """`left_out` of the JSON document; None if not requested."""
        return left_out_document(self.leaving)

    @property
    def left_out(self) -> list[LeftOut]:
        """Families of runs on GPUs, then all of them together."""
        return [row for each in self.leaving if each.by == "family" for row in each.rows]

    @property
    def releases_left_out(self) -> Mapping[str, Any] | None:
        """Wafer logs predicted without their release."""
        return next((each.as_dict() for each in self.leaving if each.by == "release"), None)


@dataclass(frozen=True)
class AccuracyPage:
    """The scores of all files, in their order."""

    steps: Sequence[StepAccuracy]
    convergence: Sequence[Mapping[str, Any]]
    leaves_out: bool
    """Whether each family was left out of a fit."""
    constants: Sequence[FittedConstant] = ()


def accuracy_page(
    paths: Sequence[Path], results: Sequence[Mapping[str, Any]], *, leaves_out: bool
) -> AccuracyPage:
    """The page for `results`, as from `validate_file` for `paths`; takes minutes.

    Raises CatalogError for a malformed file, and InputError for `leaves_out` without SciPy.
    """
    catalog = default_catalog()
    steps = [
        step_accuracy(read_cases(path, StepCase, catalog).cases, result, catalog, leaves_out=leaves_out)
        for path, result in zip(paths, results, strict=True)
        if result["kind"] == "step_time"
    ]
    convergence = [result for result in results if result["kind"] == "convergence"]
    return AccuracyPage(steps, convergence, leaves_out, fitted_constants(catalog))


def step_accuracy(
    cases: Sequence[StepCase], result: Mapping[str, Any], catalog: Catalog, *, leaves_out: bool
) -> StepAccuracy:
    """Explain the score of some step-time cases."""
    parts = mapped(partial(_examine, catalog=catalog, leaves_out=leaves_out), cases)
    examined = [part for part in parts if part is not None]
    tangents = [part.tangent for part in examined if part.tangent is not None]
    return StepAccuracy(
        result=result,
        causes=_causes(cases, result, examined),
        removed=_ablation([part for part in examined if part.steps_s], tangents),
        leaving=left_out(cases, catalog, tangents) if leaves_out else [],
    )


def _examine(case: StepCase, catalog: Catalog, *, leaves_out: bool) -> _Examined | None:
    """The parts of one case; None if it cannot be predicted."""
    try:
        placed = place_case(case, catalog)
        if placed.plan.system.kind == "wafer-cluster":
            return _examine_wafers(placed)
        return _examine_gpus(placed, leaves_out=leaves_out and case.scored)
    except PerfsimError:
        return None


def _examine_gpus(placed: PlacedCase, *, leaves_out: bool) -> _Examined:
    plan = gpu_plan(placed.plan)
    steps, trace = ablate(placed)
    idle = trace.mean_breakdown()["bubble"] / trace.step_time_s
    return _Examined(
        placed.case,
        steps,
        {**shares(steps), "bubble": idle},
        plan.layout.tensor > plan.topology.devices_per_node,
        tangent(placed) if leaves_out else None,
    )


def _examine_wafers(placed: PlacedCase) -> _Examined:
    costs = WaferCosts(wafer_plan(placed.plan).topology, placed.plan.job.recipe)
    trace = placed.step(costs).run(contention=False)
    parts = {name: seconds / trace.step_time_s for name, seconds in trace.mean_breakdown().items()}
    costs.link_s_per_element = 0.0
    without_s = placed.step(costs).run(contention=False).step_time_s
    parts["movement over the mesh"] = 1.0 - without_s / trace.step_time_s
    return _Examined(placed.case, {}, parts)


def _causes(
    cases: Sequence[StepCase], result: Mapping[str, Any], examined: Sequence[_Examined]
) -> dict[str, str]:
    errors = {row["id"]: row["error"] for row in result["cases"] if row["error"] is not None}
    scored = [case for case in cases if case.id in errors and case.scored]
    causes = {}
    for parts in examined:
        case = parts.case
        if case.id not in errors:
            continue
        relatives = [
            errors[other.id] for other in scored if other.id != case.id and other.family == case.family
        ]
        bias = float(np.mean(relatives)) if relatives else 0.0
        facts = Facts(case, errors[case.id], parts.shares, bias, parts.tensor_across_nodes)
        causes[case.id] = likely_cause(facts)
    return causes


def _ablation(on_gpus: Sequence[_Examined], tangents: Sequence[Tangent]) -> list[Removed]:
    """The score with every mechanism in place and without each one, over the GPU cases.

    With `tangents` also after a new fit of the constants.
    """
    if not on_gpus:
        return []

    def runs_without(key: str) -> list[Scored]:
        return [scored_case(part.case, part.steps_s[key]) for part in on_gpus]

    def mean_errors(runs: Sequence[Scored]) -> dict[str, float]:
        return {name: figures["mape"] for name, figures in families(runs).items() if figures["n"]}

    before = mean_errors(runs_without(NOTHING))

    def removed(key: str, instead: str, constants: Sequence[str] = (), *, tried: bool = False) -> Removed:
        runs = runs_without(key)
        after = mean_errors(runs)
        hurt = max(after, key=lambda name: after[name] - before[name], default="")
        if hurt and after[hurt] <= before[hurt]:
            hurt = ""
        predicted_s = {part.case.id: part.steps_s[key] for part in on_gpus}

        def after_fit(*, leave_out: bool) -> Mapping[str, Any] | None:
            if not tangents:
                return None
            fitted_s = refitted(tangents, predicted_s, constants, leave_out=leave_out)
            return summary(replace(run, predicted_s=fitted_s.get(run.id, run.predicted_s)) for run in runs)

        return Removed(
            key,
            instead,
            summary(runs),
            hurt,
            after.get(hurt),
            after_fit(leave_out=False),
            after_fit(leave_out=True),
            tried,
        )

    return [
        removed(NOTHING, ""),
        *(removed(row.key, row.instead, row.constants, tried=row in TRIED) for row in (*REMOVALS, *TRIED)),
    ]
