"""How far a step time may be wrong: what published runs show of a plan like it, and the band that follows.

`perfsim validate --record` writes the errors of predictions of published runs (`accuracy.json`) and the runs
themselves (`reached.json`); a test fails when they are stale. A plan is shown the errors of the family of
runs that is most like it. Its band comes from the errors of all runs that were left out of the fit, and
widens with the unlikeness to that family.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from perfsim.convergence.uncertain import Z_90
from perfsim.machines import Unknown, machine_of
from perfsim.specs.precisions import PRECISIONS, Precision
from perfsim.strategies import Plan
from perfsim.strategies.three_d.data import SHARDED
from perfsim.work.counts import parameters

# Which family of published runs is most like a plan: by device, precision, sharding, degrees and sizes.
#
# Unlikeness is a sum of points for differences (`_CHIP`, `_ALONE`, `_KINDS`, `_SIZES`).
#
# assumed: the points, which weigh differences against each other; how much a band widens with a point is
# fitted (`evidence.left_out`). A plan is compared with the family of fewest points; of equals, of most runs.

ERRORS_RECORD = "accuracy.json"
RUNS_RECORD = "reached.json"
SAME_CHIP = 1.02
"""Peaks within this factor belong to one chip."""
SIXTEEN_BIT: tuple[Precision, ...] = ("fp16", "bf16")


@dataclass(frozen=True)
class Traits:
    """The traits of a plan, or of one run of a family."""

    constants: str
    """Name of the device's calibration."""
    peak_flop_per_s: float
    """Of one device: in 16 bits, or its largest where it has none."""
    memory_bytes_per_s: float
    """Bandwidth of the memory."""
    precision: str
    """Class of the precision: `16-bit`, `fp8`, `tf32` or `fp32`."""
    sharded: bool
    """Whether replicas share the parameters."""
    tensor: bool
    """Whether there are several tensor ranks."""
    pipeline: bool
    """Whether there are several stages."""
    parameters: float
    """Parameters of the model."""
    num_devices: int
    """Devices of the run."""
    shards: int
    """Replicas that share the parameters; 1 if they are not sharded."""
    micro_batch_size: int
    """Sequences that pass a replica at once."""
    experts: bool = False
    """Whether the model has experts."""
    generation: str = ""
    """Generation of the device's chips; the name of its calibration where it has none."""

    @property
    def classes(self) -> tuple[str, str]:
        """The class of runs that its band follows, `Hopper, 8 bits or fewer, dense`, and the class above."""
        parent = "experts" if self.experts else "dense"
        narrow = self.precision in PRECISIONS and PRECISIONS[self.precision].is_narrow
        return f"{self.generation}, {'8 bits or fewer' if narrow else '16 bits'}, {parent}", parent

    @classmethod
    def of(cls, plan: Plan) -> Traits:
        device = plan.system.device
        layout = plan.layout
        sharded = layout.zero_stage == SHARDED
        peaks = [device.peak[name] for name in SIXTEEN_BIT if name in device.peak] or device.peak.values()
        return cls(
            constants=device.constants,
            peak_flop_per_s=max(peaks),
            memory_bytes_per_s=device.memory.bandwidth,
            precision=precision_class(plan.job.recipe.precision),
            sharded=sharded,
            tensor=layout.tensor > 1,
            pipeline=layout.pipeline > 1,
            parameters=float(parameters(plan.job.model).total),
            num_devices=plan.topology.num_devices,
            shards=layout.data if sharded else 1,
            micro_batch_size=layout.micro_batch_size,
            experts=plan.job.model.experts is not None,
            generation=device.generation or device.constants,
        )

    @staticmethod
    def together(runs: Sequence[Traits]) -> dict[str, Any]:
        """The traits of a family: values that occur in its runs, and ranges."""
        values = {name: sorted({getattr(run, name) for run in runs}) for name in ("constants", *_KINDS)}
        ranges = {name: sorted(getattr(run, name) for run in runs) for name in ("peak_flop_per_s", *_SIZES)}
        return {**values, **{name: [sizes[0], sizes[-1]] for name, sizes in ranges.items()}}

    def unlikeness(self, family: Mapping[str, Any]) -> tuple[float, tuple[str, ...]]:
        """Unlikeness of a family in points, and the differences in words."""
        points = 0.0
        words = []
        other_chip = _outside(self.peak_flop_per_s, *family["peak_flop_per_s"])
        if self.constants not in family["constants"]:
            points += _CHIP
            words.append(f"measured on {' and '.join(family['constants'])} instead of {self.constants}")
        elif other_chip > SAME_CHIP:
            points += _CHIP
            words.append(f"{self.constants} was measured on a chip whose peak differs {other_chip:.1f} times")
        elif family.get("alone"):
            points += _ALONE
            words.append(f"the only family of runs on {self.constants}")
        for name, (weight, label) in _KINDS.items():
            in_plan = getattr(self, name)
            if in_plan not in family[name]:
                points += weight
                said = f"{label} {in_plan}" if isinstance(in_plan, str) else label
                words.append(f"{said} only in {'this plan' if in_plan else 'the family'}")
        for name, (weight, label) in _SIZES.items():
            factor = _outside(getattr(self, name), *family[name])
            if factor > 1.0:
                points += weight * math.log10(factor)
                words.append(f"{label} outside its range by a factor of {factor:.1f}")
        return points, tuple(words)


def precision_class(precision: str) -> str:
    """The class of a precision: fp16 and bf16 have one peak on every device."""
    return "16-bit" if PRECISIONS[precision].bytes == 2.0 else precision


def alone(name: str, families: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a family is the only one on its devices; False where there is no other family at all."""
    others = [family for other, family in families.items() if other != name]
    devices = set(families[name]["constants"])
    return bool(others) and all(devices.isdisjoint(family["constants"]) for family in others)


_CHIP = 3.0
"""Points where no run of the family is on a device with the same calibration, or on that chip: a calibration
is borrowed where the peak of the device differs by more than 2 %."""
_ALONE = 2.0
"""Points where the family is the only one on its device, whose constants hold what is peculiar to it."""
_KINDS = {
    "precision": (3.0, "precision"),
    "experts": (3.0, "experts"),
    "sharded": (2.0, "sharded parameters"),
    "tensor": (1.0, "tensor parallelism"),
    "pipeline": (1.0, "pipeline parallelism"),
}
"""Points where the plan has what no run of the family has, or the reverse."""
_SIZES = {
    "memory_bytes_per_s": (3.0, "memory bandwidth"),
    "parameters": (1.0, "model"),
    "num_devices": (1.0, "number of devices"),
    "shards": (1.0, "replicas that share parameters"),
    "micro_batch_size": (1.0, "micro-batch"),
}
"""Points for each factor of ten by which the plan is outside the sizes of the family."""


def _outside(value: float, low: float, high: float) -> float:
    """The factor by which a value is outside a range; 1 inside it."""
    return max(low / value, value / high, 1.0)


# Published runs on record: what their machines, models and layouts were, and the utilisation they reached.

MARGIN = 1.05
"""Tolerance of the comparison with the best run: about the median error of predictions."""
LIKE_SCALE = 4
"""A run is compared with plans of at most this many times its devices."""


class Reached(NamedTuple):
    """One published run and its model FLOPs utilisation."""

    id: str
    device: str
    attention: str
    num_devices: int
    mfu: float
    batch_tokens: int = 0
    """Tokens of a step."""
    kind: str = ""
    constants: str = ""
    """Name of the device's calibration."""
    precision: str = ""
    parameters: float = 0.0
    sharded: bool = False
    """Whether parameters are sharded (ZeRO 3, FSDP)."""
    tensor: int = 1
    data: int = 1
    micro_batch_tokens: int = 0
    """Tokens of a replica's micro-batch; 0: not published."""
    framework: str = ""
    generation: str = ""
    """Generation of its device's chips."""
    experts: bool = False
    settings: Sequence[Any] = ()
    """Schedule, ZeRO stage, recompute and offload, as `risk.settings_of` has them."""
    degrees: Sequence[int] = ()
    """Of tensor, context and expert parallelism."""

    @staticmethod
    @cache
    def recorded() -> tuple[Reached, ...]:
        return tuple(Reached(*row) for row in json.loads(_record(RUNS_RECORD)))

    @staticmethod
    @cache
    def combinations() -> frozenset[tuple[str, str, str]]:
        """The kinds of system, constants and frameworks of the recorded runs."""
        return frozenset((row.kind, row.constants, row.framework) for row in Reached.recorded())

    @classmethod
    def like(cls, plan: Plan) -> list[Reached]:
        """The recorded runs on the kind of system of a plan whose devices have the same constants."""
        wanted = plan.system.kind, plan.system.device.constants
        return [row for row in cls.recorded() if (row.kind, row.constants) == wanted]

    @classmethod
    def best_below(cls, plan: Plan, mfu: float) -> tuple[Reached, str] | None:
        """The best comparable run where a plan's MFU is above all of them, and how the runs are alike."""
        # Comparable runs use the same device in the same class of precision, whose peak counts, and the same
        # attention on at least a quarter of the devices; else on any number of them; else any attention.
        attention = plan.job.runtime.attention
        alike = plan.system.device.name, precision_class(plan.job.recipe.precision)
        every = [row for row in cls.recorded() if (row.device, precision_class(row.precision)) == alike]
        like = [row for row in every if row.attention == attention]
        large = [row for row in like if row.num_devices * LIKE_SCALE >= plan.topology.num_devices]
        kinds = {
            f"with {attention} attention on a quarter of its devices or more": large,
            f"with {attention} attention": like,
            "with any attention": every,
        }
        words = next((words for words, rows in kinds.items() if rows), "")
        best = max(kinds.get(words, ()), key=lambda row: row.mfu, default=None)
        return None if best is None or mfu <= best.mfu * MARGIN else (best, words)


# Bands of a step time: how wide they are by unlikeness, from errors on runs left out of the fit.
#
# The log error of a new run has a part that its family shares and a part of its own, and grows with what
# makes the run unlike the published ones. The half-width of a 90 % band in log time, at u points of
# unlikeness:
#
#     w(u) = sqrt(f^2 (base^2 + (slope u)^2) + unknown^2),   band = [t exp(-w), t exp(w)]
#
# `base` and `slope` come from the errors on runs that were left out of the fit (`evidence.left_out`). `f` is
# the factor of the plan's class (generation of chips, bits, with experts or without), or of its parent, all
# models with experts or all without, where no run of the class is on record. `unknown` is the half-width of
# what no published run shows of this plan, such as more communication behind compute than in any of them.

UNKNOWN_ERROR = 1.0
"""assumed: without published runs a step time is known to a factor of two."""


@dataclass(frozen=True)
class BandWidths:
    """Half-widths of 90 % bands in log time."""

    base: float
    """At no unlikeness."""
    slope: float
    """Per point of unlikeness, added in quadrature."""
    unshared: float
    """The part of a band that two runs of one machine do not share, as a fraction of its half-width."""
    classes: Mapping[str, float] = field(default_factory=dict)
    """How many times as wide the band of a class of runs is, and of its parent (`Traits.classes`)."""

    def of_class(self, traits: Traits) -> BandWidths:
        """The widths for a plan, by its class, else its parent, else the widths of all runs."""
        factor = next((self.classes[name] for name in traits.classes if name in self.classes), 1.0)
        return replace(self, base=self.base * factor, slope=self.slope * factor)

    def log_width(self, unlikeness: float, unknown: float = 0.0) -> float:
        """Half-width in log time by points of unlikeness; `unknown` is the part that no run shows."""
        return math.hypot(self.base, self.slope * unlikeness, unknown)

    def error(self, unlikeness: float, unknown: float = 0.0) -> float:
        """The same as a relative error e: the band of a time t is [t / (1 + e), t (1 + e)]."""
        return math.expm1(self.log_width(unlikeness, unknown))

    def as_dict(self) -> dict[str, Any]:
        own = asdict(self)
        factors = {name: round(factor, 5) for name, factor in own.pop("classes").items()}
        return {name: round(value, 5) for name, value in own.items()} | {"classes": factors}


@cache
def recorded_errors() -> tuple[dict[str, Any], ...]:
    """The recorded errors, one entry per kind of system."""
    return tuple(json.loads(_record(ERRORS_RECORD)))


def _record(name: str) -> str:
    return files("perfsim.prediction").joinpath(name).read_text(encoding="utf-8")


def _families(system_kind: str, without: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The recorded families of a kind of system but one, each with its entry in the record."""
    return [
        (family, entry)
        for entry in recorded_errors()
        if entry["system_kind"] == system_kind
        for family in entry["families"]
        if family["family"] != without
    ]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of predictions for the family of published runs most like a plan."""

    strategy: str
    """Strategy of the predictions."""
    family: str
    """The family of the most similar published runs."""
    n: int
    """Scored runs."""
    median_ape: float
    """Median of the absolute relative errors."""
    p90_ape: float
    """90th percentile of the absolute relative errors."""
    baseline_median_ape: float
    """The same median of one constant efficiency."""
    held_out_p90_ape: float
    """The 90th percentile for runs left out of the fit."""
    likeness: str = ""
    """Differences between the family and the plan, in words."""
    unlikeness: float = 0.0
    """The differences in points."""
    step_time_error: float = 0.0
    """Half-width of the 90 % band of the plan's step time, as a fraction."""
    unshared_error: float = 0.0
    """The part of it that remains in the ratio of two runs of one machine."""

    @classmethod
    def of(
        cls, plan: Plan, hidden: float = 0.0, *, without: str = "", measured: Sequence[float] = ()
    ) -> Accuracy:
        """The errors of the family of published runs most like a plan, and the plan's band.

        `hidden` is the share of its step that hides communication (`Trace.hidden_share`; 0 if not simulated).
        `without` names a group of runs of which the answer knows nothing. `measured` are the residuals, as
        fractions, of steps measured on the user's own machine: they show what all its runs have alike.
        """
        unknowns = [*unknowns_of(plan), *Hidden.of(plan, hidden, without=without).unknown()]
        apart = [unknown for unknown in unknowns if not (measured and unknown.shared)]
        published = cls.nearest(plan.system.kind, Traits.of(plan), without, apart)
        return published.among(measured) if measured else published

    @classmethod
    def nearest(
        cls, system_kind: str, traits: Traits, without: str = "", unknowns: Sequence[Unknown] = ()
    ) -> Accuracy:
        """As `of`, by traits and unknowns; `UNKNOWN_ERROR` for a kind of system without published runs."""
        families = _families(system_kind, without)
        if not families:
            names = (*_ERRORS, "step_time_error", "unshared_error")
            errors: dict[str, Any] = dict.fromkeys(names, UNKNOWN_ERROR)
            words = f"no published run on a {system_kind} is recorded: an error of a factor of two is assumed"
            return cls("", "no published run", 0, **errors, likeness=words)
        family, whole = min(
            families,
            key=lambda pair: (round(traits.unlikeness(pair[0])[0], 9), -pair[0]["n"], pair[0]["family"]),
        )
        left_out = left_out_of(system_kind, without)
        bands = [left_out["band"]] if left_out else [*(entry["band"] for _, entry in families), whole["band"]]
        # A class without runs in the file of this family has the factor that another file gives it.
        classes = {name: factor for band in bands for name, factor in band["classes"].items()}
        widths = BandWidths(**bands[-1] | {"classes": classes}).of_class(traits)
        points, differences = traits.unlikeness(family)
        differences += tuple(unknown.words for unknown in unknowns)
        beyond = math.hypot(*(unknown.log_width for unknown in unknowns))
        unshared = math.hypot(*(unknown.log_width for unknown in unknowns if not unknown.shared))
        return cls(
            strategy=whole["strategy"],
            family=family["family"],
            **{name: family[name] for name in ("n", *_ERRORS)},
            likeness="; ".join(differences) or "the same device, parallelism and range of sizes",
            unlikeness=points,
            step_time_error=widths.error(points, beyond),
            unshared_error=math.expm1(math.hypot(widths.unshared * widths.log_width(points), unshared)),
        )

    def among(self, residuals: Sequence[float]) -> Accuracy:
        """The same next to steps measured on the user's own machine, with `residuals` as fractions."""
        # The predictive interval of a normal of unknown mean and variance [A. Gelman et al., "Bayesian Data
        # Analysis", 2013, 3.3], whose prior is `_PRIOR_STEPS` steps of the published scatter; the quantile of
        # Student's t is two terms of its Cornish-Fisher series.
        freedom = _PRIOR_STEPS + len(residuals) - 1
        prior = _WITHIN * math.log1p(self.step_time_error) / Z_90
        variance = _PRIOR_STEPS * prior**2 + sum(math.log1p(residual) ** 2 for residual in residuals)
        quantile = Z_90 + 1.524 / freedom + 1.420 / freedom**2
        width = quantile * math.sqrt(variance / freedom * (1 + 1 / len(residuals)))
        return replace(self, step_time_error=math.expm1(width))


_PRIOR_STEPS = 3
_WITHIN = 0.7
"""Scatter of the runs of one family over the published band. Both by what holds best with each published
family as a user's own: 91, 90 and 93 % of the runs after 3, 5 and 10 lie in a band 0.93 to 0.83 as wide."""
_ERRORS = ("median_ape", "p90_ape", "held_out_p90_ape", "baseline_median_ape")
"""Figures of a family that `Accuracy` has as they are."""
OFFLOADED = 0.5
"""Error in log time of a step that offloads states.

assumed: updates on CPUs were measured from 0.6 to 2.5 times as long as described, and are most of the step.
"""


def unknowns_of(plan: Plan) -> list[Unknown]:
    """What no published run shows of the machine of a plan, or of its job on such a machine."""
    unknowns = list(machine_of(plan.system).unknowns(plan.system, plan.job, plan.topology.num_devices))
    if getattr(plan.layout, "offloads", None):
        words = f"the range allows for {100 * math.expm1(OFFLOADED):.0f} % more or less"
        unknowns.append(Unknown("offload-outside", OFFLOADED, words))
    return unknowns


# A communication kernel takes multiprocessors and memory bandwidth from the compute next to it, so hiding is
# not free. How much it costs was checked only up to the largest share of the step that a published run hides.
# Where a plan hides a share h above that largest share m, its band is wider by (h - m) s, where s is the
# largest slowdown of compute next to communication (`Machine.overlap_slowdown`).


class Hidden(NamedTuple):
    """The share of a step in which communication hides behind compute, and the largest of published runs."""

    share: float
    published: float
    """The largest share of the published runs."""
    slowdown: float
    """Most extra time of compute next to communication, as a fraction of its time."""

    @classmethod
    def of(cls, plan: Plan, share: float, *, without: str = "") -> Hidden:
        """A share of a step that hides communication, next to the largest of runs on devices like these."""
        # How a device computes next to communication is its own: its runs count, else all of its kind.
        families = [family for family, _ in _families(plan.system.kind, without)]
        alike = [family for family in families if plan.system.device.constants in family["constants"]]
        published = max((family["hidden_communication"] for family in alike or families), default=0.0)
        return cls(share, published, machine_of(plan.system).overlap_slowdown(plan.system))

    @property
    def cost(self) -> float:
        """The most that hiding more than any published run slows the step, as a fraction of it."""
        return max(0.0, self.share - self.published) * self.slowdown

    def unknown(self) -> list[Unknown]:
        """The width that it adds to a band; none inside the published range."""
        if not self.cost:
            return []
        most = f"{100 * self.published:.0f} % in any run"
        words = f"{100 * self.share:.0f} % of the step hides communication, at most {most}"
        return [Unknown("hidden-communication", float(math.log1p(self.cost)), words)]


def left_out_of(system_kind: str, group: str) -> Mapping[str, Any] | None:
    """The record of a fit without a group (family or model): `constants` and the others' `band`; or None."""
    entries = (entry for entry in recorded_errors() if entry["system_kind"] == system_kind)
    return next((row for entry in entries for row in entry["left_out"] if row["group"] == group), None)
