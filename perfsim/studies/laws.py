"""All laws of the critical batch side by side: best batch and time of every candidate, and who is first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfsim.convergence.critical_batch import CriticalBatch, LawInputs, critical_batch
from perfsim.convergence.hyperbola import steps
from perfsim.convergence.loss_laws import KAPLAN
from perfsim.errors import PerfsimError
from perfsim.studies.batches import Target, counted
from perfsim.studies.result import CandidateResult, LawAnswer, LawRow
from perfsim.studies.spec import StudySpec

GENERAL = ("data_law", "bergsma_2025", "kaplan_loss")
"""Laws that need no measurement of the user's."""


@dataclass(frozen=True, slots=True)
class _Asked:
    law: str
    inputs: LawInputs


def laws_side_by_side(
    spec: StudySpec, target: Target, candidates: Sequence[CandidateResult]
) -> tuple[LawAnswer, ...]:
    """The answers by the study's own law and by every general law; empty where the tokens are given.

    Steps of the batches that were tried are those of the study; only the number of steps differs by law.
    """
    if target.critical.given_length or not candidates:
        return ()
    known = {target.critical.law: target.critical}
    for asked in _general(spec, target):
        try:
            known.setdefault(asked.law, critical_batch(asked.law, asked.inputs))
        except PerfsimError:
            continue
    return tuple(_answer(critical, target, candidates) for critical in known.values())


def _general(spec: StudySpec, target: Target) -> Iterator[_Asked]:
    """The general laws; Kaplan's takes the loss of its own corpus at these parameters and tokens."""
    loss = KAPLAN.loss(counted(spec.model, KAPLAN), target.d_min_tokens)
    inputs = LawInputs(d_min_tokens=target.d_min_tokens, loss=loss, loss_scale=KAPLAN.corpus)
    return (_Asked(law, inputs) for law in GENERAL)


def _answer(critical: CriticalBatch, target: Target, candidates: Sequence[CandidateResult]) -> LawAnswer:
    rows = []
    for candidate in candidates:
        times = [
            (steps(point.batch_tokens, target.d_min_tokens, critical.tokens) * point.step_time_s, point)
            for point in candidate.batch_curve
        ]
        time_s, best = min(times, key=lambda pair: pair[0])
        rows.append(LawRow(candidate.label, best.global_batch_size, time_s))
    first = min(rows, key=lambda row: row.time_s)
    return LawAnswer(
        critical.law, critical.source, critical.tokens, critical.band_tokens, tuple(rows), first.label
    )
