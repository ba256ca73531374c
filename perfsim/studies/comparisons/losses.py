"""Losses of published runs over their FLOP, beside a law.

A law reaches the loss L of a run with C(L) FLOP: c / L^(1 / gamma) for a line through runs, the least 6 N D
over all sizes N for a law in parameters and tokens. What a run takes over C(L) is the price of its choice of
size and tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from perfsim.convergence.loss_laws import LossLaw, loss_law, power_law
from perfsim.errors import PlanError
from perfsim.studies.comparisons.spec import Comparison, ComparisonSpec, LossesSpec, TrainedRun, Value

SIZES = np.geomspace(1e7, 1e13, 4801)
"""Parameters among which the size of least compute is looked for."""


def compare_losses(spec: ComparisonSpec, losses: LossesSpec) -> Comparison:
    """Each run's published loss, the law's loss for it, and its FLOP over what the law needs for its loss."""
    rows, verdict = _fitted(losses) if losses.law is None else _by_law(loss_law(losses.law), losses.runs)
    columns = {
        "name": "run", "params": "parameters", "tokens": "tokens", "flop": "FLOP", "loss": "loss",
        "law_loss": "loss\nby law", "error": "difference", "times_flop": "FLOP over\nlaw's FLOP",
    }  # fmt: skip
    if all(row["loss"] is None for row in rows):
        columns = {key: name for key, name in columns.items() if key not in ("loss", "error")}
    note = (
        "FLOP: as published, else 6 N D. Law's FLOP: the least with which the law reaches the run's "
        "published loss, or its loss by law where none is published."
    )
    return Comparison(spec.name, spec.title, spec.question, verdict, columns, tuple(rows), (note,))


def flop_of(run: TrainedRun) -> float:
    """FLOP of a run: the published ones, else 6 N D."""
    return 6.0 * run.params * run.tokens if run.flop is None else run.flop


def _row(run: TrainedRun, law_loss: float, least_flop: float) -> dict[str, Value]:
    error = None if run.loss is None else law_loss - run.loss
    return {
        "name": run.name,
        "params": run.params,
        "tokens": run.tokens,
        "flop": flop_of(run),
        "loss": run.loss,
        "law_loss": law_loss,
        "error": error,
        "times_flop": flop_of(run) / least_flop,
    }


def _fitted(losses: LossesSpec) -> tuple[list[dict[str, Value]], str]:
    """Rows by the line through some runs, what it predicts of their family, and what others pay."""
    fitted = [run for run in losses.runs if run.name in losses.fitted_to]
    c_flop, gamma = power_law([(flop_of(run), run.loss or math.nan) for run in fitted])
    told: dict[str, list[str]] = {}
    paid: dict[str, list[float]] = {}
    rows = []
    for run in losses.runs:
        law_loss = (c_flop / flop_of(run)) ** gamma
        least = c_flop / (run.loss or law_loss) ** (1 / gamma)
        rows.append(_row(run, law_loss, least))
        if run.family == fitted[0].family and run not in fitted:
            published = "" if run.loss is None else f" (published {run.loss:.3f})"
            told.setdefault(run.family, []).append(f"{law_loss:.3f}{published} for {run.name}")
        elif run.family != fitted[0].family:
            paid.setdefault(run.family, []).append(flop_of(run) / least)
    said = [f"Loss = ({c_flop:.3g} / FLOP)^{gamma:.4f}, fitted to {len(fitted)} runs"]
    said += [f"predicts {', '.join(words)}" for words in told.values()]
    said += [
        f"{family} takes {min(times):.2g} to {max(times):.2g} times the law's FLOP for its losses"
        for family, times in paid.items()
    ]
    return rows, f"{'; '.join(said)}."


def least_flop(law: LossLaw, loss: float) -> tuple[float, float]:
    """The least 6 N D with which a law reaches a loss, and the N of it; PlanError where no size does."""
    best = (math.inf, math.nan)
    for size in SIZES.tolist():
        try:
            flop = 6.0 * size * law.tokens_to_loss(loss, size)
        except PlanError:
            continue
        best = min(best, (flop, size))
    if math.isinf(best[0]):
        raise PlanError(f"law {law.name} reaches a loss of {loss:g} with no model")
    return best


def _by_law(law: LossLaw, runs: Sequence[TrainedRun]) -> tuple[list[dict[str, Value]], str]:
    """Rows by a named law, the size of least loss at the first run's FLOP, and what it is worth."""
    first = runs[0]
    flop = flop_of(first)
    sizes = SIZES[(flop / (6 * SIZES)) > 1]
    losses = [law.loss(size, flop / (6 * size)) for size in sizes.tolist()]
    size = float(sizes[int(np.argmin(losses))])
    best = TrainedRun(name="least loss at the first's FLOP", params=size, tokens=flop / (6 * size))
    rows = []
    for run in (*runs, best):
        law_loss = law.loss(run.params, run.tokens)
        rows.append(_row(run, law_loss, least_flop(law, run.loss or law_loss)[0]))
    own, least = law.loss(first.params, first.tokens), min(losses)
    share = least_flop(law, own)[0] / flop
    outside = [run.name for run in runs if law.outside(run.params, run.tokens)]
    verdict = (
        f"By law {law.name}, {first.name} reaches a loss of {own:.3f} with {flop:.3g} FLOP. With as many, "
        f"{size / 1e9:.3g} billion parameters on {best.tokens / 1e9:.3g} billion tokens "
        f"({best.tokens / size:.1f} a parameter) reach {least:.3f}; {100 * share:.0f} % of the FLOP are "
        f"enough for {own:.3f}."
    )
    if outside:
        verdict += f" Outside the law's runs ({law.data}): {', '.join(outside)}."
    return rows, verdict
