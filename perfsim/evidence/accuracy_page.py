"""The content of the accuracy page: scores, ablation, families left out, and likely causes of errors.

Causes follow from explicit rules on the parts of the predicted step and on the run. Unusual facts come first
(weak evidence, a head size off the fast path, tensor parallelism between nodes, ...). Then come mechanisms
large enough to explain the error alone, by size: a mechanism with the share s of the predicted step must be
wrong by the factor 1 - e / ((1 + e) s), where e is the error; it is named if that is between 0 and 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from perfsim.base.errors import PerfsimError
from perfsim.catalog import Catalog, default_catalog
from perfsim.costs.wafer import ROWS, WaferCosts
from perfsim.evidence.ablation import NOTHING, REMOVALS, without_each
from perfsim.evidence.cases import CaseRows, StepCase, mapped
from perfsim.evidence.left_out import LeavingOut, LeftOut, Tangent
from perfsim.evidence.score import Scored
from perfsim.machines.gpu_cluster import gpu_plan

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
    ROWS,
)
"""Disjoint removals of the ablation and categories of the breakdown."""
_COMPUTING = ("forward", "backward", "recompute")


@dataclass(frozen=True)
class _Facts:
    """A case, its error, and the parts of its predicted step."""

    case: StepCase
    shares: Mapping[str, float]
    """Fraction of the predicted step by mechanism and by category of the breakdown."""
    steps_s: Mapping[str, float] = field(default_factory=dict)
    """Step time by removed mechanism; empty for a wafer."""
    tensor_across_nodes: bool = False
    tangent: Tangent | None = None
    error: float = 0.0
    """Predicted over measured, minus 1."""
    family_bias: float = 0.0
    """Mean error of the other scored runs of its family; 0 if there are none."""

    @property
    def likely_cause(self) -> str:
        """At most two causes, the most likely first."""
        causes = list(islice(self._unusual(), _MOST_CAUSES))
        texts = [text for text, _ in causes]
        blamed = {mechanism for _, mechanism in causes}
        for mechanism in sorted(set(_MECHANISMS) - blamed, key=lambda name: (-self.share(name), name)):
            if self.explains(mechanism):
                texts.append(f"{self.words(mechanism)}, right at {self.factor(mechanism):.2f} times)")
        none = "no single mechanism besides the matrix products is large enough"
        return "; ".join(texts[:_MOST_CAUSES]) or none

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

    def _unusual(self) -> Iterator[tuple[str, str]]:
        """What is unusual about the run, the most likely cause first, each with its mechanism, if any."""
        case = self.case
        model = case.model
        if not case.scored:
            notes = [part.strip() for part in case.notes.split(";")]
            reasons = [part.removeprefix("weak:").strip() for part in notes if part.startswith("weak:")]
            assumed = [re.split(r"[:(]", part)[0].strip() for part in case.assumed]
            why = reasons[0] if reasons else f"not printed: {', '.join(assumed)}" if assumed else ""
            yield (f"weak evidence ({why})" if why else "weak evidence"), ""
        size = model.hidden_size // model.num_attention_heads
        if size % _HEAD_MULTIPLE and self.share(_ATTENTION) >= _LEAST_SHARE:
            how = "slower still than" if self.error < 0 else "faster than"
            text = (
                f"head size {size} is no multiple of {_HEAD_MULTIPLE}: attention {how} without matrix cores"
            )
            yield text, _ATTENTION
        if self.tensor_across_nodes and self.share(_COLLECTIVES) >= _LEAST_SHARE:
            yield f"{self.words(_COLLECTIVES, 'tensor parallelism between nodes')})", _COLLECTIVES
        rows = self.factor(_ENDS) * model.vocab_size
        if "vocab" in case.assumed and _FEWEST_ROWS <= rows < model.vocab_size:
            fitting = f"right with about {rows:,.0f} rows in place of {model.vocab_size:,}"
            yield f"{self.words(_ENDS)} at a vocabulary that is assumed; {fitting})", _ENDS
        if abs(self.family_bias) >= _FAMILY_BIAS and self.family_bias * self.error > 0:
            yield f"shared by its family ({100 * self.family_bias:+.1f} % on average in its other runs)", ""
        if case.training.host_blocking and self.explains(_HOST):
            yield f"{self.words(_HOST, 'a host that waits for every kernel')})", _HOST
        if any(text.startswith("layers_per_stage") for text in case.assumed):
            yield "which stages are short is inferred", "bubble"
        if case.parallel.pipeline > 1 and self.explains(_ENDS):
            yield f"{self.words(_ENDS, 'embedding, or head and loss on the last stage')})", _ENDS
        if self.share("bubble") >= _MUCH_IDLE:
            yield f"{self.words('bubble')})", "bubble"
        release = case.system.software_release
        computing = sum(self.share(category) for category in _COMPUTING)
        if release is not None and computing > 0:
            share = f"{100 * computing:.0f} % of the step"
            yield f"computing ({share}) at the speed of release {release}", ""


@dataclass(frozen=True)
class Removed:
    """The score of the public GPU runs without one mechanism."""

    mechanism: str
    instead: str
    """What replaces it."""
    summary: Mapping[str, Any]
    left_out: Mapping[str, Any]
    """The score of runs by a new fit without the mechanism and their family; empty if not requested."""


@dataclass(frozen=True)
class StepAccuracy:
    """The score of a file of step-time cases and its explanation."""

    result: Mapping[str, Any]
    causes: Mapping[str, str]
    removed: Sequence[Removed]
    leaving: Sequence[LeavingOut] = ()
    """Its runs as predicted without their family or release; empty if not requested."""

    @classmethod
    def of(
        cls, cases: Sequence[StepCase], result: Mapping[str, Any], catalog: Catalog, *, leaves_out: bool
    ) -> StepAccuracy:
        """Explain the score of some step-time cases."""
        parts = mapped(partial(_examine, catalog=catalog, leaves_out=leaves_out), cases)
        examined = [part for part in parts if part is not None]
        errors = {row["id"]: row["error"] for row in result["cases"] if row["error"] is not None}
        scored = [case for case in cases if case.id in errors and case.scored]
        causes = {}
        for facts in examined:
            if (name := facts.case.id) in errors:
                alike = [
                    errors[case.id] for case in scored if case.family == facts.case.family and case.id != name
                ]
                bias = float(np.mean(alike)) if alike else 0.0
                causes[name] = replace(facts, error=errors[name], family_bias=bias).likely_cause
        tangents = [part.tangent for part in examined if part.tangent is not None]
        removed = _removed([part for part in examined if part.steps_s], tangents)
        leaving = LeavingOut.by_kind(cases, catalog, tangents) if leaves_out else []
        return cls(result, causes, removed, leaving)

    @property
    def outside(self) -> Mapping[str, Any] | None:
        """`left_out` of the JSON document; None if not requested."""
        return LeavingOut.document(self.leaving)

    @property
    def left_out(self) -> list[LeftOut]:
        """Families of runs on GPUs, then all of them together."""
        return [row for part in self.leaving if part.by == "family" for row in part.rows]

    @property
    def models_left_out(self) -> Mapping[str, Any] | None:
        """Wafer logs predicted without their model."""
        return next((part.as_dict() for part in self.leaving if part.by == "model"), None)


def accuracy_of(
    paths: Sequence[Path], results: Sequence[Mapping[str, Any]], *, leaves_out: bool
) -> list[StepAccuracy]:
    """The files of step times among `results`, as from `validate_file` for `paths`; takes minutes.

    Raises CatalogError for a malformed file, and InputError for `leaves_out` without SciPy.
    """
    catalog = default_catalog()
    return [
        StepAccuracy.of(CaseRows.read(path, StepCase, catalog).cases, result, catalog, leaves_out=leaves_out)
        for path, result in zip(paths, results, strict=True)
        if result["kind"] == "step_time"
    ]


def _examine(case: StepCase, catalog: Catalog, *, leaves_out: bool) -> _Facts | None:
    """The parts of one case; None if it cannot be predicted."""
    try:
        placed = case.placed(catalog)
        costs = placed.costs
        trace = placed.step(costs).run(contention=False)
        parts = {name: seconds / trace.step_time_s for name, seconds in trace.mean_breakdown().items()}
        if isinstance(costs, WaferCosts):
            costs.row_s = 0.0
            without_s = placed.step(costs).run(contention=False).step_time_s
            return _Facts(case, {**parts, ROWS: 1.0 - without_s / trace.step_time_s})
        plan = gpu_plan(placed.plan)
        steps_s = without_each(placed)
        saved = {name: 1.0 - seconds / steps_s[NOTHING] for name, seconds in steps_s.items()}
        return _Facts(
            case,
            {**saved, "bubble": parts["bubble"]},
            steps_s,
            plan.layout.tensor > plan.topology.devices_per_node,
            Tangent.of(placed) if leaves_out and case.scored else None,
        )
    except PerfsimError:
        return None


def _removed(on_gpus: Sequence[_Facts], tangents: Sequence[Tangent]) -> list[Removed]:
    """The score of the GPU cases with and without each mechanism; with `tangents` also after a new fit."""
    rows = []
    for removal in REMOVALS if on_gpus else ():
        runs = [Scored.of(part.case, part.steps_s[removal.key]) for part in on_gpus]
        left_out = Scored.scores(Tangent.refitted(tangents, runs, removal.constants)) if tangents else {}
        rows.append(Removed(removal.key, removal.instead, Scored.scores(runs), left_out))
    return rows
