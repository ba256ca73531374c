"""Predicts each group of runs with constants that were fitted without it, and fits bands to the errors.

A group of GPU runs is a family. Where a family alone determines a constant of a framework or a device,
leaving it out whole would leave no run to fit it to: such a family is left out by model and number of
devices. The constants of `step_fit` are fitted again to the runs of all other groups, with the same weights
and loss. A device without other runs gets its ceiling from the others: the geometric mean of ceilings over
long kernels in the benchmark of the same device, times its own benchmark's. For speed, each log step
time is linearised in the log constants around their recorded values, so a fit needs no new pricing; the group
left out is then priced in full with the new constants.

The log error of a run is Student's t with a scale s(u) = sqrt(scale^2 + (growth u)^2), where u is the run's
unlikeness to the most similar of the other families. Scale and growth are the maximum of the likelihood, with
as many degrees of freedom as families, each of n runs with the weight sqrt(n), for its errors are neither
independent nor all the same. The width is q s(u), where q is the quantile of |log error| / s(u) that holds
90 % of new runs (conformal prediction with normalised errors, Vovk et al. 2005). `perfsim.prediction.bands`
has what follows for a plan, `_of_classes` the factor of a class of runs on the scale of dense models.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import combinations
from statistics import geometric_mean
from typing import Any, Literal, TypeVar

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.base.errors import PerfsimError
from perfsim.base.groups import listed
from perfsim.catalog import Catalog
from perfsim.evidence.cases import PlacedCase, StepCase, mapped
from perfsim.evidence.fitting import family_weight, robust_fit, rounded, scipy, weighted_quantile
from perfsim.evidence.score import Scored
from perfsim.evidence.step_fit import CEILING, OUTLIER, Constants, GpuRun, WaferFit
from perfsim.prediction.bands import BandWidths, Traits

ALL = "all runs"
"""The row over all groups, each predicted with itself left out."""
_WAFER = "wse-2"
"""The wafer whose constants are fitted to the public logs."""
_STEP = 0.05
"""Relative step of each constant, up and down, for its slope."""
_UNSEEN = 0.01
"""A constant whose slopes are all below this does not affect the runs."""
_DETERMINES = 0.1
"""A run with a slope of this determines a constant."""
_PULL = 0.02
"""Pull towards the recorded constants, as of one run with this slope, where runs do not tell two apart."""
_PARENT = 2
"""Families that the width of a class's parent counts as: with 2 the classes of public runs that were left out
by family are held best, and the interval score is within 2 % of the best (0.359; without classes 0.379)."""
FEWEST_FAMILIES = 3
"""Fewer families show neither the growth with unlikeness nor what runs of one machine share."""
_COVERAGE = 0.9


@dataclass(frozen=True)
class LeftOut:
    """A group as predicted with itself left out of the fit."""

    family: str
    """The family, with model and number of devices where it is left out in parts; of wafers the model."""
    calibration: str
    runs: tuple[Scored, ...]
    constants: Constants = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    """Constants at their recorded values, because no other group determines them."""
    borrowed: str = ""
    """The devices whose ceilings are used, if no other run was made on this one."""

    @property
    def outside(self) -> dict[str, Any]:
        return Scored.scores(self.runs)

    @property
    def ceiling(self) -> str:
        """Name of the constant that is the ceiling of its device."""
        return CEILING + self.calibration


@dataclass(frozen=True)
class LeavingOut:
    """The runs of a file, each predicted by a fit without its group."""

    by: Literal["family", "model"]
    groups: tuple[LeftOut, ...]
    runs: tuple[Scored, ...]
    split: tuple[LeftOut, ...] = ()
    """Whole families that `groups` has in parts: each alone determines a constant, which is here the mean of
    the same constant of other frameworks or devices."""

    @property
    def whole(self) -> tuple[Scored, ...]:
        """The runs, each predicted by a fit without its whole family; none where no family is split."""
        known = {run.id: run for row in self.split for run in row.runs}
        return tuple(known.get(run.id, run) for run in self.runs) if known else ()

    @property
    def rows(self) -> list[LeftOut]:
        """The groups, then all runs together."""
        return [*self.groups, LeftOut(ALL, "", self.runs)]

    def widths(self, others: BandWidths | None = None, *, without: str = "") -> BandWidths:
        """The widths of bands that follow from the errors of the runs, but for the family of a group."""
        # With fewer than three families every run counts as a family of its own, and the widths of `others`
        # (another kind of machine) give the growth with unlikeness in log time, and the unshared part where
        # no two runs of a family are of one machine. assumed: nothing else is known of them.
        family = without.rpartition(", ")[0]
        used = [run for run in self.whole or self.runs if run.left_out != without and run.family != family]
        runs = [run for run in used if run.counts and run.predicted_s is not None and run.traits is not None]
        widths = _widths_of_alike(
            [run for run in runs if run.traits and not run.traits.experts] or runs, others
        )
        several = self.by == "family" and len({run.family for run in runs}) >= FEWEST_FAMILIES
        return replace(widths, classes=_of_classes(runs, widths)) if several else widths

    def as_dict(self) -> dict[str, Any]:
        """What `perfsim validate --json` prints; `groups` and `whole` where a family is left out in parts."""
        families = Scored.of_families(self.runs)
        parts = {row.family: row.outside for row in self.groups if row.family not in families}
        names = ("id", "measured_s", "predicted_s", "error")
        return {
            "by": self.by,
            **_summaries(self.runs),
            **({"groups": parts} if parts and self.by == "family" else {}),
            **({"whole": _summaries(self.whole)} if self.whole else {}),
            "cases": [{name: getattr(run, name) for name in names} for run in self.runs],
        }

    @classmethod
    def by_kind(
        cls, cases: Sequence[StepCase], catalog: Catalog, tangents: Sequence[Tangent] | None = None
    ) -> list[LeavingOut]:
        """The scored runs on GPUs and logs of wafers, if any; needs scipy, and minutes without `tangents`."""
        logs = [case for case in cases if case.on_wafers]
        if tangents is None:
            on_gpus = [case for case in cases if case.scored and not case.on_wafers]
            tangents = [run for run in mapped(partial(_tangent, catalog=catalog), on_gpus) if run is not None]
        wafers = [_models_left_out(logs, catalog)] if logs else []
        # Runs of a single family leave none from which its constants could come.
        if len({run.scored.family for run in tangents}) == 1:
            return wafers
        return wafers if wafers and not tangents else [_families_left_out(tangents, cases, catalog), *wafers]

    @classmethod
    def document(cls, parts: Sequence[LeavingOut]) -> dict[str, Any] | None:
        """`left_out` of the JSON document; of a file with both, its logs stand under `wafers`."""
        if not parts:
            return None
        first, *wafers = (part.as_dict() for part in parts)
        return {**first, **({"wafers": wafers[0]} if wafers else {})}


@dataclass(frozen=True)
class Tangent:
    """A case's step time around the recorded constants: d log(step) / d log(constant), by constant."""

    scored: Scored
    """The case as predicted with the recorded constants."""
    calibration: str
    constants: Constants
    slopes: Constants
    benchmark_ceiling: float = 1.0
    """Fraction of peak of long kernels in the benchmark of its device."""
    setting: str = ""
    """Model and number of devices."""
    slowed: float = 1.0
    """Its step time over the longest path, which no constant changes much."""

    @classmethod
    def of(cls, placed: PlacedCase) -> Tangent:
        """The slopes of one case. Raises InputError for a case that does not run on GPUs."""
        run = GpuRun.of(placed)
        at = run.recorded
        here = run.step(at)
        step_s = here.run(contention=False).step_time_s

        def log_step(constants: Constants) -> float:
            step = run.step(constants)
            # Many constants do not affect a run, which then need not be simulated.
            moved = not np.array_equal(step.duration_s, here.duration_s)
            return float(np.log(step.run(contention=False).step_time_s if moved else step_s))

        slopes = {}
        for name, value in at.items():
            rise = log_step({**at, name: value * (1 + _STEP)}) - log_step({**at, name: value / (1 + _STEP)})
            slopes[name] = rise / (2 * float(np.log1p(_STEP)))
        scored = replace(Scored.of(placed.case, placed.slowed * step_s), traits=Traits.of(placed.plan))
        ceiling = run.device.gemm.burst_fraction
        return cls(scored, run.device.name, at, slopes, ceiling, placed.case.setting, placed.slowed)

    @staticmethod
    def refitted(
        tangents: Sequence[Tangent], runs: Sequence[Scored], without: Sequence[str] = ()
    ) -> list[Scored]:
        """Runs as predicted with recorded constants, each by a fit to other groups `without` some fields."""
        by_id = {run.id: run for run in runs}  # slopes are of the unchanged model
        moved = [replace(run, scored=by_id[run.scored.id]) for run in tangents if run.scored.counts]
        factors = {}
        for _, left, others in _each_group(moved, _groups_of(moved)):
            fit = _Fit(others, without)
            for run in left:
                change = fit.change(run)
                moves = sum(run.slopes.get(name, 0.0) * value for name, value in change.items())
                factors[run.scored.id] = float(np.exp(moves))
        return [replace(run, predicted_s=(run.predicted_s or 0.0) * factors.get(run.id, 1.0)) for run in runs]


def _tangent(case: StepCase, catalog: Catalog) -> Tangent | None:
    try:
        return Tangent.of(case.placed(catalog))
    except PerfsimError:
        return None


Item = TypeVar("Item")


def _each_group(items: Sequence[Item], groups: Sequence[str]) -> Iterator[tuple[str, list[Item], list[Item]]]:
    """Each group with its items and the items of all other groups."""
    together = list(zip(groups, items, strict=True))
    for group, left in listed(together).items():
        yield group, left, [item for its_group, item in together if its_group != group]


def _models_left_out(logs: Sequence[StepCase], catalog: Catalog) -> LeavingOut:
    """Each wafer log predicted without all logs of its model, whatever their batch and release."""
    fit = WaferFit.of(logs, _WAFER, catalog)
    rows = []
    for model, left, others in _each_group(fit.runs, [run.case.trained for run in fit.runs]):
        if not others:
            continue
        known = replace(fit, runs=others)
        without = known.calibration(known.least_squares().x)
        factors = np.exp(replace(fit, runs=left).log_errors(without))
        runs = []
        for run, factor in zip(left, factors.tolist(), strict=True):
            scored = Scored.of(run.case, factor * run.case.measured.step_time_s)
            runs.append(replace(scored, traits=Traits.of(run.plan), left_out=model))
        constants = {name: getattr(without, name) for name in known.free}
        rows.append(LeftOut(model, _WAFER, tuple(runs), constants))
    predicted = {run.id: run for row in rows for run in row.runs}
    together = tuple(predicted.get(case.id) or Scored.of(case, None) for case in logs)
    return LeavingOut("model", tuple(rows), together)


def _groups_of(tangents: Sequence[Tangent]) -> list[str]:
    """What is left out together with each run: its family, or a part of it."""
    slopes = ((name, slope, run.scored.family) for run in tangents for name, slope in run.slopes.items())
    families = listed(
        (name, family) for name, slope, family in slopes if " of " in name and abs(slope) >= _DETERMINES
    )
    alone = {determined[0] for determined in families.values() if len(set(determined)) == 1}
    return [
        f"{run.scored.family}, {run.setting}" if run.scored.family in alone else run.scored.family
        for run in tangents
    ]


def _families_left_out(
    tangents: Sequence[Tangent], cases: Sequence[StepCase], catalog: Catalog
) -> LeavingOut:
    """Every group of runs on GPUs with constants from the others; runs among the cases are priced in full."""
    used = [run for run in tangents if run.scored.counts]
    price = partial(_priced_without, {case.id: case for case in cases}, catalog)
    parts = _groups_of(used)
    groups = price(_each_group(used, parts))
    families = [run.scored.family for run in used]
    split = {family for family, part in zip(families, parts, strict=True) if family != part}
    whole = price((row for row in _each_group(used, families) if row[0] in split), borrow=True)
    outside = {run.id: run for row in groups for run in row.runs}
    scored = [run.scored for run in used]
    return LeavingOut("family", groups, tuple(outside[run.id] for run in scored), whole)


def _priced_without(
    by_id: Mapping[str, StepCase],
    catalog: Catalog,
    groups: Iterable[tuple[str, Sequence[Tangent], Sequence[Tangent]]],
    *,
    borrow: bool = False,
) -> tuple[LeftOut, ...]:
    """Groups, each with its runs priced with constants fitted to the others; runs of no case as they are."""
    questions: list[tuple[StepCase, float, Constants]] = []
    rows = []
    for group, left, others in groups:
        fit = _Fit(others, borrow=borrow)
        at: dict[str, float] = {}
        for run in left:
            moved = fit.change(run)
            at |= {name: rounded(value * float(np.exp(moved[name]))) for name, value in run.constants.items()}
        questions += [(by_id[run.scored.id], run.slowed, at) for run in left if run.scored.id in by_id]
        runs = tuple(replace(run.scored, left_out=group) for run in left)
        kept = tuple(name for name in at if name not in fit.moved)
        borrowed = ", ".join(fit.ceilings) if any(map(fit.borrows, left)) else ""
        rows.append(LeftOut(group, left[0].calibration, runs, at, kept, borrowed))
    seconds = mapped(partial(_step_s, catalog=catalog), questions)
    predicted = {case.id: step_s for (case, *_), step_s in zip(questions, seconds, strict=True)}

    def priced(run: Scored) -> Scored:
        return replace(run, predicted_s=predicted.get(run.id, run.predicted_s))

    return tuple(replace(row, runs=tuple(map(priced, row.runs))) for row in rows)


def _summaries(runs: Sequence[Scored]) -> dict[str, Any]:
    scores = {"summary": Scored.scores(runs), "families": Scored.of_families(runs)}
    return {**scores, "classes": Scored.of_classes(runs)}


def _step_s(question: tuple[StepCase, float, Constants], catalog: Catalog) -> float:
    case, slowed, constants = question
    return slowed * GpuRun.of(case.placed(catalog)).step(constants).run(contention=False).step_time_s


@dataclass(frozen=True)
class _Fit:
    """A fit of the constants to some runs, but for the fields in `without`."""

    known: Sequence[Tangent]
    without: Sequence[str] = ()
    borrow: bool = False
    """Whether a constant that no run determines is the mean of other owners' constants; else it stays."""

    @cached_property
    def moved(self) -> Constants:
        """Change of the log constants that the runs determine; robust, families weigh alike."""
        weight = family_weight([run.scored.family for run in self.known])
        names = [
            name
            for name in dict.fromkeys(name for run in self.known for name in run.slopes)
            if name.split(" of ")[0] not in self.without
            and max(abs(run.slopes.get(name, 0.0)) for run in self.known) > _UNSEEN
        ]
        if not names:
            return {}
        start = np.array([run.scored.log_error for run in self.known]) * weight
        slopes = np.array([[run.slopes.get(name, 0.0) for name in names] for run in self.known])
        moving = slopes * weight[:, None]
        scale = float(weight.mean())

        def residuals(moved: Floats) -> Floats:
            return np.append(start + moving @ moved, _PULL * scale * moved)

        result = robust_fit(residuals, np.zeros(len(names)), OUTLIER * scale)
        return dict(zip(names, result.x.tolist(), strict=True))

    @property
    def ceilings(self) -> list[str]:
        """Calibrations with a fitted sustained ceiling."""
        return [name.removeprefix(CEILING) for name in self.moved if name.startswith(CEILING)]

    def borrows(self, run: Tangent) -> bool:
        """Whether the ceiling of a run's device comes from other devices."""
        ceiling = CEILING + run.calibration
        return bool(self.ceilings) and ceiling in run.constants and ceiling not in self.moved

    def change(self, run: Tangent) -> dict[str, float]:
        change = {name: self.moved.get(name, 0.0) for name in run.constants}
        if self.borrow:
            change |= {name: self._as_others(name, run) for name in change if name not in self.moved}
        if self.borrows(run):
            first = {other.calibration: other for other in reversed(self.known)}
            ratio = geometric_mean(
                first[name].constants[CEILING + name]
                * float(np.exp(self.moved[CEILING + name]))
                / first[name].benchmark_ceiling
                for name in self.ceilings
            )
            ceiling = CEILING + run.calibration
            change[ceiling] = float(np.log(min(1.0, run.benchmark_ceiling * ratio) / run.constants[ceiling]))
        return change

    def _as_others(self, name: str, run: Tangent) -> float:
        """Change of the log of a constant to the mean of the same constant of other owners; 0 without any."""
        values = {key: value for other in self.known for key, value in other.constants.items()}
        field_of = name.partition(" of ")[0]
        alike = [key for key in self.moved if key.startswith(f"{field_of} of ") and values[key] > 0.0]
        if not alike or run.constants[name] <= 0.0:
            return 0.0
        mean = geometric_mean(values[key] * float(np.exp(self.moved[key])) for key in alike)
        return float(np.log(mean / run.constants[name]))


# Bands: their widths, from the errors of runs that were left out.


def _widths_of_alike(runs: Sequence[Scored], others: BandWidths | None) -> BandWidths:
    """The widths that follow from the errors of runs whose models all have experts, or all have none."""
    errors = np.array([run.log_error for run in runs])
    sizes = Counter(run.family for run in runs)
    if len(sizes) < FEWEST_FAMILIES:
        percentile = float(np.percentile(np.abs(errors), 100 * _COVERAGE))
        # The 90 % band of one more run: t_95(k) sqrt(1 + 1/k) root mean squares of k errors.
        student = float(scipy("stats").t.ppf((1 + _COVERAGE) / 2, len(runs)))
        base = max(percentile, student * math.sqrt(1 + 1 / len(runs)) * math.sqrt(np.mean(errors**2)))
        slope = 0.0 if others is None else others.slope
        return BandWidths(base, slope, _unshared(runs, np.full(len(runs), base), others))
    points = np.array(_points(runs))
    weights = family_weight([run.family for run in runs])
    freedom = len(sizes)

    def loss(values: Floats) -> float:
        """Less the likelihood of the log of the scale and of its growth with each point of unlikeness."""
        squared = np.exp(2 * values[0]) + (values[1] * points) ** 2
        likelihood = -0.5 * np.log(squared) - (freedom + 1) / 2 * np.log1p(errors**2 / squared / freedom)
        return -float((weights * likelihood).sum())

    start = float(np.sqrt(np.mean(errors**2)))
    minimize = partial(
        scipy("optimize").minimize, loss, method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-8}
    )
    results = [minimize([np.log(start), start * growth]) for growth in (0.1, 1.0)]
    best = min(results, key=lambda result: float(result.fun))
    scale = float(np.exp(best.x[0]))
    growth = float(abs(best.x[1]))
    factor = _conformal_quantile(np.abs(errors) / np.hypot(scale, growth * points))
    base = max(_conformal_quantile(np.abs(errors)), factor * scale)
    slope = factor * growth
    return BandWidths(base, slope, _unshared(runs, np.hypot(base, slope * points)))


def _of_classes(runs: Sequence[Scored], widths: BandWidths) -> dict[str, float]:
    """The factor on the widths that holds 90 % of each class of runs, and of all models with experts."""
    scale = np.hypot(widths.base, widths.slope * np.array(_points(runs)))
    errors = np.abs([run.log_error for run in runs]) / scale
    named = [(run.family, *run.traits.classes) for run in runs if run.traits is not None]
    factors = {"dense": 1.0}
    if any(sparse := [parent == "experts" for _, _, parent in named]):
        factors["experts"] = max(1.0, _conformal_quantile(errors[sparse]))
    # The factor of a class with f families lies f / (f + `_PARENT`) of the way, in logs, from its parent's to
    # the quantile of its own runs. Models with experts have no narrower bands than those without, as a whole,
    # nor have classes of few families than their parent: runs of one family err alike.
    for name, parent in dict.fromkeys(known[1:] for known in named):
        own = _conformal_quantile(errors[[known[1] == name for known in named]])
        families = len({known[0] for known in named if known[1] == name})
        apart = own / factors[parent]
        if families < FEWEST_FAMILIES:
            apart = max(1.0, apart)
        factors[name] = factors[parent] * apart ** (families / (families + _PARENT))
    return factors


def _conformal_quantile(normalised: Floats) -> float:
    """The width that holds 90 % of new runs, from errors of known ones; both over the scale of an error."""
    return float(np.quantile(normalised, _COVERAGE, method="weibull"))


def _points(runs: Sequence[Scored]) -> list[float]:
    """Unlikeness of each run to the most similar family of the runs that were not left out with it."""
    known = [(run, run.traits) for run in runs if run.traits is not None]
    families: dict[str, list[Mapping[str, Any]]] = {}
    for group in {run.left_out for run, _ in known}:
        traits = listed((run.family, its_traits) for run, its_traits in known if run.left_out != group)
        families[group] = list(map(Traits.together, traits.values()))
    return [
        min(its_traits.unlikeness(family)[0] for family in families[run.left_out])
        for run, its_traits in known
    ]


def _unshared(runs: Sequence[Scored], widths: Floats, others: BandWidths | None = None) -> float:
    """What two runs of one machine do not share of their widths, at most the whole."""
    # The 90th percentile of |difference of log errors| / sqrt(w_1^2 + w_2^2) over pairs of one family and
    # device, each run with one weight. Without such a pair it is what `others` have, or the whole.
    sizes = Counter(run.family for run in runs)
    machines = [
        (run.family, run.traits.constants, run.traits.peak_flop_per_s, run.traits.memory_bytes_per_s)
        for run in runs
        if run.traits is not None
    ]
    pairs = [pair for pair in combinations(range(len(runs)), 2) if machines[pair[0]] == machines[pair[1]]]
    if not pairs:
        return 1.0 if others is None else min(1.0, others.unshared * others.base / float(widths.mean()))
    shares = [
        abs(runs[a].log_error - runs[b].log_error) / float(np.hypot(widths[a], widths[b])) for a, b in pairs
    ]
    weights = [1.0 / (sizes[runs[a].family] - 1) for a, _ in pairs]
    return min(1.0, weighted_quantile(np.array(shares), np.array(weights), _COVERAGE))
