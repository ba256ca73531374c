"""The planner's choice among measured layouts of one machine, next to the fastest of them as measured.

Everything is left out: a run is predicted by constants that were fitted without its family, its band and its
novelty know nothing of it. With PERFSIM_REGRET=FILE (`make regret`) FILE gets the tables.
"""

import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
import pytest

from perfsim.base.errors import PerfsimError
from perfsim.catalog import default_catalog
from perfsim.evidence.cases import CaseRows, PlacedCase, StepCase, mapped, published_cases
from perfsim.evidence.score import CaseBand
from perfsim.prediction.bands import Reached
from perfsim.prediction.planner import best_plan, plan_of
from perfsim.prediction.risk import EXPECTED, Novelty, expected_ratios, kinds_of
from perfsim.prediction.run import evaluation_of
from perfsim.specs.layout import text_of
from perfsim.studies.shortlist import ratio_error

pytestmark = pytest.mark.slow

FILES = ("gpu.yaml", "modern.yaml")
CONFIDENT = 3
"""assumed: families after which the mean of a class is believed by half."""
OF_LAYOUT = {"micro_batch_size", "recompute", "recompute_modules", "recompute_detail", "compiled"}
"""Keys of how a case was trained that belong to its layout, or that only one kind of layout names."""


class Run(NamedTuple):
    """One measured run, and what is known of it without its family."""

    id: str
    family: str
    asked: str
    """All that it has in common with runs of other layouts."""
    layout: str
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    points: int

    @property
    def error(self) -> float:
        """Log of measured over predicted step."""
        return math.log(self.measured_s / self.predicted_s)


def run_of(case: StepCase, families: dict[str, str]) -> Run | None:
    """A case with its band, its centre and its points of novelty; None where it cannot be left out."""
    catalog = default_catalog()
    question = case.question(catalog)
    try:
        band = CaseBand.of(PlacedCase.of(case, question))
    except PerfsimError:
        return None
    if band is None or band.left_out_s is None:
        return None
    recorded = {row.id: row for row in Reached.recorded()}
    others = [row for row in recorded.values() if families.get(row.id) != case.family]
    layout = question.given_layout
    layout = replace(layout, zero_stage=recorded[case.id].settings[1])
    points = Novelty.of([layout], question.job, question.system.device, kinds_of(others)).points
    parts = (case.system, None), (question.model, {"name"}), (case.training, OF_LAYOUT)
    described = [part.model_dump(mode="json", exclude=left_out) for part, left_out in parts]
    asked = [case.family, case.container, *described]
    words = case.id, case.family, json.dumps(asked, sort_keys=True), text_of(layout)
    seconds = case.measured.step_time_s, band.left_out_s, band.low_s, band.high_s
    return Run(*words, *seconds, int(points[0]))


def measured_runs() -> list[Run]:
    """All scored runs on GPUs."""
    paths = [path for path in published_cases() if path.name in FILES]
    cases = [case for path in paths for case in CaseRows.read(path, StepCase).cases if case.scored]
    families = {case.id: case.family for case in cases}
    return [run for run in mapped(partial(run_of, families=families), cases) if run is not None]


def sweeps_of(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs of several layouts of one question; of one layout that was measured again the mean."""
    sweeps: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        sweeps[run.asked][run.layout].append(run)
    return [
        [alike[0]._replace(measured_s=mean(run.measured_s for run in alike)) for alike in layouts.values()]
        for layouts in sweeps.values()
        if len(layouts) > 1
    ]


def cost(runs: Sequence[Run], points: int) -> float:
    """Mean log of measured over predicted of so many points (the last class: or more), shrunk to 0."""
    last = len(EXPECTED) - 1
    alike: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if min(run.points, last) == min(points, last):
            alike[run.family].append(run.error)
    if not alike:
        return 0.0
    weights = [math.sqrt(len(errors)) for errors in alike.values()]
    whole = float(np.average([mean(errors) for errors in alike.values()], weights=weights))
    return whole * len(alike) / (len(alike) + CONFIDENT)


def spread(runs: Sequence[Run], points: int) -> float:
    """Root mean square of log(measured / predicted) of so many points."""
    errors = [run.error for run in runs if min(run.points, 3) == min(points, 3)]
    return math.sqrt(mean(error**2 for error in errors)) if errors else 0.0


Rule = Callable[[Sequence[Run], Sequence[Run]], Sequence[float]]
"""The step to be expected of each layout of a sweep, by the runs of other families."""


def quantile(sweep: Sequence[Run], others: Sequence[Run]) -> list[float]:
    return [run.predicted_s * math.exp(1.2816 * spread(others, run.points)) for run in sweep]


def toward_the_sweep(sweep: Sequence[Run], others: Sequence[Run]) -> list[float]:
    logs = np.log([run.predicted_s for run in sweep])
    noise = np.array([spread(others, run.points) for run in sweep]) ** 2
    signal = max(0.0, float(logs.var() - noise.mean()))
    return list(np.exp(logs.mean() + signal / (signal + noise) * (logs - logs.mean())))


RULES: dict[str, Rule] = {
    "predicted step": lambda sweep, _: [run.predicted_s for run in sweep],
    "times the class's mean error, shrunk (chosen)": lambda sweep, others: [
        run.predicted_s * math.exp(cost(others, run.points)) for run in sweep
    ],
    "the 90 % quantile of the class's band": quantile,
    "shrunk to the mean of the sweep": toward_the_sweep,
}


class Pick(NamedTuple):
    """The choice of a rule in one sweep."""

    family: str
    layouts: int
    regret: float
    """Measured step of the pick over that of the fastest, less 1."""
    error: float
    """Log of the measured step of the pick over the one to be expected."""
    inside: bool
    """Whether the measured step is in the pick's band."""


def picks(rule: Rule, sweeps: Sequence[Sequence[Run]], runs: Sequence[Run]) -> list[Pick]:
    chosen = []
    for sweep in sweeps:
        others = [run for run in runs if run.family != sweep[0].family]
        seconds = rule(sweep, others)
        pick = sweep[int(np.argmin(seconds))]
        regret = pick.measured_s / min(run.measured_s for run in sweep) - 1
        error = math.log(pick.measured_s / min(seconds))
        inside = pick.low_s <= pick.measured_s <= pick.high_s
        chosen.append(Pick(pick.family, len(sweep), regret, error, inside))
    return chosen


class Claim(NamedTuple):
    """What a planner claims against a published layout."""

    family: str
    gain: float
    """Predicted step of the published layout over that of the pick, less 1."""
    error: float
    """The model's own error in this ratio."""


def claims_of(case: StepCase) -> dict[str, Claim] | None:
    """The claims of both ranks; None where the published layout or a plan is not possible."""
    asked = case.question(default_catalog())
    paper = re.search(r"arxiv.org/abs/(\d\d)(\d\d)", case.source.get("url", ""))
    framework = asked.ran_by.framework
    if paper and framework is not None:  # what its tool ran in the month of the paper
        dated = framework.model_copy(update={"date": f"20{paper[1]}-{paper[2]}"})
        asked = replace(asked, runtime=asked.ran_by.model_copy(update={"framework": dated}))
    try:
        published = evaluation_of(asked, PlacedCase.of(case, asked).plan)
        asked = replace(asked, layout=None, strategy="", rank="proven", must_fit=True)
        ranks = best_plan(asked, ranks=True).ranks
        picks = {ranked.rank: replace(asked, layout=ranked.layout) for ranked in ranks}
        runs = {rank: evaluation_of(pick, plan_of(pick)) for rank, pick in picks.items()}
    except PerfsimError:
        return None
    return {
        rank: Claim(case.family, published.step_time_s / run.step_time_s - 1, ratio_error(run, published))
        for rank, run in runs.items()
    }


def all_claims() -> list[dict[str, Claim]]:
    """The claims against the published run of each family that reached the highest utilisation."""
    reached = {row.id: row.mfu for row in Reached.recorded()}
    best: dict[str, StepCase] = {}
    for path in published_cases():
        if path.name in FILES:
            for case in CaseRows.read(path, StepCase).cases:
                known = best.get(case.family)
                if case.scored and (known is None or reached[case.id] > reached[known.id]):
                    best[case.family] = case
    return [claims for claims in mapped(claims_of, [*best.values()]) if claims is not None]


def test_the_pick_among_measured_layouts_is_nearly_the_fastest_and_lies_in_its_band() -> None:
    runs = measured_runs()
    sweeps = sweeps_of(runs)
    by_rule = {name: picks(rule, sweeps, runs) for name, rule in RULES.items()}
    chosen = by_rule["times the class's mean error, shrunk (chosen)"]
    claims = all_claims()
    if target := os.environ.get("PERFSIM_REGRET"):
        write(Path(target), section(runs, by_rule, claims))
    assert len(sweeps) >= 25
    assert mean(pick.regret for pick in chosen) <= 0.03
    assert mean(pick.inside for pick in chosen) >= 0.85
    for points, factor in enumerate(EXPECTED):
        fitted = 1.0 if points < 2 else math.exp(cost(runs, points))
        assert factor == pytest.approx(fitted, abs=0.005), f"EXPECTED[{points}] is {fitted:.3f}"
    beyond = [claim["proven"].gain > claim["proven"].error for claim in claims]
    assert sum(beyond) <= 4, "of 23 families"


HEADING = "## Measured regret"
HEAD = """
Of the published runs, the sweeps in which several layouts of one machine were measured: {sweeps} sweeps of
{layouts} layouts. Each layout is predicted by constants that were fitted without its family, with its band
and its novelty (`prediction/risk.py`) from the other families. The pick is the layout whose expected step is
least; its regret is its measured step over that of the fastest measured one.

| family | sweeps | layouts | mean regret | worst | picks in their 90 % band |
|---|---:|---:|---:|---:|---:|
"""
RULES_HEAD = """
What to expect of a step, given that it was chosen. *Error* is the root mean square of the log of the pick's
measured step over the expected one. The rule that is chosen has no larger regret than any other, and the
least error over all {runs} runs. No sweep decides between the first two: its layouts are about equally novel.

| rule | mean regret | worst | error of picks | error of all runs |
|---|---:|---:|---:|---:|
"""
CLASSES_HEAD = """
Runs by their points of novelty: the axes in which they differ from the nearest kind of published runs of
other families. *Cost* is what an expected step is multiplied by (`EXPECTED`; none for proven layouts).

| points | families | runs | measured over predicted, mean | spread of its log | in their 90 % band | cost |
|---:|---:|---:|---:|---:|---:|---:|
"""
CLAIMS_HEAD = """
What the planner claims against the published layout that reached the highest utilisation in its family:
predicted step of the published layout over that of the pick, less 1. The pick is one that the run's tool had
in the month of the paper, where it is on arXiv. *Beyond* counts claims that are larger than the model's own
error in this ratio, as plans print it. The published layouts beyond are without ZeRO, sequence parallelism,
interleaved or V schedules, or show tensor parallelism where the pick has less of it.

| rank | families | median claim | largest | beyond | of |
|---|---:|---:|---:|---:|---|
"""


def section(runs: Sequence[Run], by_rule: dict[str, list[Pick]], claims: list[dict[str, Claim]]) -> str:
    """The tables."""
    chosen = by_rule["times the class's mean error, shrunk (chosen)"]
    text = HEAD.format(sweeps=len(chosen), layouts=sum(pick.layouts for pick in chosen))
    for name in [*dict.fromkeys(pick.family for pick in chosen), ""]:
        alike = [pick for pick in chosen if name in ("", pick.family)]
        regrets = [pick.regret for pick in alike]
        figures = f"{mean(regrets):.1%} | {max(regrets):.1%} | {sum(pick.inside for pick in alike)}"
        layouts = sum(pick.layouts for pick in alike)
        text += f"| {name or 'all'} | {len(alike)} | {layouts} | {figures} of {len(alike)} |\n"
    text += RULES_HEAD.format(runs=len(runs))
    for name, rule in RULES.items():
        errors = []
        for run in runs:
            others = [other for other in runs if other.family != run.family]
            errors.append(math.log(run.measured_s / rule([run], others)[0]))
        regrets = [pick.regret for pick in by_rule[name]]
        of_picks = rms(pick.error for pick in by_rule[name])
        text += f"| {name} | {mean(regrets):.2%} | {max(regrets):.1%} | "
        text += f"{of_picks:.3f} | {rms(errors):.3f} |\n"
    text += CLASSES_HEAD
    for points in range(len(EXPECTED)):
        last = points == len(EXPECTED) - 1
        alike_runs = [run for run in runs if run.points == points or (last and run.points > points)]
        inside = mean(run.low_s <= run.measured_s <= run.high_s for run in alike_runs)
        ratio = math.exp(mean(run.error for run in alike_runs))
        families = len({run.family for run in alike_runs})
        factor = float(expected_ratios(np.array([points]))[0])
        text += f"| {points}{' or more' if last else ''} | {families} | {len(alike_runs)} | {ratio:.3f} | "
        text += f"{spread(runs, points):.3f} | {inside:.0%} | {factor:.3f} |\n"
    text += CLAIMS_HEAD
    for rank in ("proven", "fastest"):
        own = [claim[rank] for claim in claims]
        gains = [claim.gain for claim in own]
        beyond = [claim.family for claim in own if claim.gain > claim.error]
        text += f"| {rank} | {len(own)} | {np.median(gains):.1%} | {max(gains):.1%} | {len(beyond)} | "
        text += f"{', '.join(beyond)} |\n"
    return text


def rms(errors: Iterable[float]) -> float:
    return math.sqrt(mean(error**2 for error in errors))


def write(file: Path, text: str) -> None:
    """Write the section behind the wide search, which `test_regret.py` writes."""
    before = file.read_text(encoding="utf-8").split(HEADING)[0] if file.exists() else ""
    file.write_text(f"{before.rstrip()}\n\n{HEADING}\n{text}", encoding="utf-8")
