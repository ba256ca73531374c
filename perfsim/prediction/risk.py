"""How much of a layout nobody has published, what that costs a prediction, and the two answers that follow.

The least of thousands of predicted times is also the one with the luckiest error. So a question has two
answers: the fastest layout, and the fastest that is proven. A layout is proven where it differs from a kind
of published runs in at most `MOST` axes of `RULE`, with each degree of `DEGREES` inside the range of the
published runs of that ZeRO stage, generation of chips and sort of model (with experts or without). Kinds are
read from the record of published runs (`bands.Reached`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.base.groups import listed
from perfsim.prediction.bands import Reached, precision_class
from perfsim.prediction.question import Rank
from perfsim.specs.hardware import DeviceSpec
from perfsim.specs.layout import ParallelLayout, text_of
from perfsim.specs.recipe import Job
from perfsim.strategies.plan import Plan, Screening
from perfsim.strategies.schedules import SCHEDULES

if TYPE_CHECKING:
    from perfsim.prediction.run import Evaluation

RULE: Mapping[str, str] = {
    "schedule": "order of the passes of micro-batches; a single stage has none",
    "passes": "whether rows travel to experts while another micro-batch computes",
    "zero_stage": "what replicas shard; without replicas it is any",
    "recompute": "none, selective or full, of all layers of a rank or of some",
    "offload": "states that leave the device",
    "precision": "class of the matrix products: 16-bit, fp8, ...",
    "generation": "of the devices' chips",
}
"""Axes of a kind of layout."""
_JOINED = "joined passes"
MOST = 1
"""Axes in which a proven layout differs from a published kind at most."""
DEGREES = {"tensor": "tp", "context": "cp", "expert": "ep"}
"""Degrees that are published for a proven layout."""
_OUTSIDE = MOST + 1
"""As how many axes a degree outside its range counts."""
EXPECTED = (1.0, 1.0, 1.0, 1.014)
"""Measured over predicted step by points of novelty, the last for all above.

Of runs that were left out of the fit and of the kinds together with their family: the mean of the log over n
families, with sqrt(runs) as weights, times n / (n + 3) (`tests/regret`, which compares it with other rules).
"""


class Kind(NamedTuple):
    """What some published runs have in common, and the range of their degrees."""

    experts: bool
    """Whether their models have experts; a layout is compared with models of its own sort."""
    axes: tuple[Hashable, ...]
    """A value for each axis of `RULE`."""
    degrees: tuple[tuple[int, int], ...]
    """Least and most for each of `DEGREES`."""
    runs: int = 1

    @classmethod
    def of(cls, experts: bool, settings: Sequence[Any], degrees: Sequence[int], *machine: Hashable) -> Kind:
        """One layout as a kind of its own; `machine` has the class of precision and the generation."""
        schedule, *others = settings
        axes = schedule, _passes(schedule), *others, *machine
        return cls(experts, axes, tuple((degree, degree) for degree in degrees))

    @property
    def spanned(self) -> tuple[Hashable, ...]:
        """What runs have in common that span one range of degrees."""
        axes = dict(zip(RULE, self.axes, strict=True))
        return self.experts, axes["zero_stage"], axes["generation"]

    def lacks(self, other: Kind) -> tuple[str, ...]:
        """What a layout, as a kind of its own, has that this kind has not."""
        said = [
            f"{_written(axis, value)} instead of {_written(axis, known)}"
            for axis, value, known in zip(RULE, other.axes, self.axes, strict=True)
            if value not in (known, None)
        ]
        degrees = zip(DEGREES.values(), other.degrees, self.degrees, strict=True)
        for short, (degree, _), (low, high) in degrees:
            if not low <= degree <= high:
                span = f"{low} to {high}" if low < high else str(low)
                said.append(f"{short} {degree} instead of {span}")
        return tuple(said)


def _written(axis: str, value: Hashable) -> str:
    """`ZeRO 1`, `no pipeline`, `recompute full`."""
    names = {"zero_stage": "ZeRO ", "recompute": "recompute ", "offload": "offload of "}
    return "no pipeline" if value == "" else f"{names.get(axis, '')}{value}"


def settings_of(layout: ParallelLayout) -> tuple[str, int, str, str]:
    """The axes of a kind that a layout says: schedule (empty: one stage), ZeRO, recompute and offload."""
    part = " of some layers" if layout.recompute_every > 1 else ""
    schedule = layout.schedule if layout.pipeline > 1 or _passes(layout.schedule) == _JOINED else ""
    moved = " and ".join(name.removeprefix("offload_") for name in layout.offloads)
    return schedule, layout.zero_stage, layout.recompute + part, moved or "nothing"


def _compared(layout: ParallelLayout) -> tuple[Hashable, ...]:
    """The same; without replicas ZeRO shards nothing, and None equals the stage of every kind."""
    schedule, stage, *others = settings_of(layout)
    return schedule, stage if layout.has_replicas else None, *others


def _passes(schedule: str) -> str:
    """How forwards and backwards of a schedule run; a single stage has none."""
    return _JOINED if schedule in SCHEDULES and SCHEDULES[schedule].has("joins") else "passes apart"


def degrees_of(layout: ParallelLayout) -> tuple[int, ...]:
    """The degrees of a layout that are in `DEGREES`."""
    return tuple(getattr(layout, name) for name in DEGREES)


def kinds_of(runs: Iterable[Reached]) -> tuple[Kind, ...]:
    """The kinds of some published runs on GPUs."""
    every = []
    for run in runs:
        if run.kind == "gpu-cluster":
            machine = precision_class(run.precision), run.generation or run.constants
            every.append(Kind.of(run.experts, run.settings, run.degrees, *machine))
    spans = listed((kind.spanned, kind.degrees) for kind in every)
    found = []
    for kinds in listed((kind[:2], kind) for kind in every).values():
        of_degrees = zip(*spans[kinds[0].spanned], strict=True)
        degrees = tuple((min(ends)[0], max(ends)[1]) for ends in of_degrees)
        found.append(kinds[0]._replace(degrees=degrees, runs=len(kinds)))
    return tuple(found)


@cache
def published_kinds() -> tuple[Kind, ...]:
    """The kinds of all published runs on record."""
    return kinds_of(Reached.recorded())


@dataclass(frozen=True)
class Novelty:
    """What some layouts have that no published run has."""

    points: Ints
    """Axes in which each differs from the nearest kind, and `_OUTSIDE` for each degree outside its range."""
    lacks: Sequence[tuple[str, ...]]
    """In words; empty where all of it is published."""

    @classmethod
    def of(
        cls, layouts: Sequence[Any], job: Job, device: DeviceSpec, published: Sequence[Kind] | None = None
    ) -> Novelty:
        """The novelty of layouts of a job on a device, by `published` kinds or all that are on record."""
        experts = job.model.experts is not None
        machine = precision_class(job.recipe.precision), device.generation or device.name
        own = [Kind.of(experts, _compared(layout), degrees_of(layout), *machine) for layout in layouts]
        known = [kind for kind in published or published_kinds() if kind.experts == experts]
        if not known:
            words = (f"{'experts' if experts else 'a dense model'}, of which nothing is published",)
            return cls(np.full(len(own), len(RULE)), [words] * len(own))
        points = np.zeros((len(own), len(known)), dtype=np.int64)
        for axis in range(len(RULE)):
            codes = {value: code for code, value in enumerate({kind.axes[axis] for kind in (*own, *known)})}
            ours, theirs = (np.array([codes[kind.axes[axis]] for kind in kinds]) for kinds in (own, known))
            points += (ours[:, None] != theirs) & (ours != codes.get(None, -1))[:, None]
        for degree in range(len(DEGREES)):
            value = np.array([kind.degrees[degree][0] for kind in own])[:, None]
            low, high = np.array([kind.degrees[degree] for kind in known]).T
            points += _OUTSIDE * ((value < low) | (value > high))
        nearest = points.argmin(axis=1).tolist()
        lacks = [known[index].lacks(kind) for index, kind in zip(nearest, own, strict=True)]
        return cls(points.min(axis=1), lacks)


def points_of(screening: Screening, job: Job, device: DeviceSpec) -> Ints:
    """The points of every layout that fits; 0 on machines whose layouts have no kinds."""
    every = np.arange(screening.feasible)
    first, of_row = screening.alike() if screening.alike else (every, every)
    layouts = list(map(screening.layout, first.tolist()))
    if not isinstance(layouts[0], ParallelLayout):
        return np.zeros_like(every)
    return Novelty.of(layouts, job, device).points[of_row]


def expected_ratios(points: Ints) -> Floats:
    """The ratio of measured to predicted step that is expected of layouts, by their points."""
    return np.array(EXPECTED)[np.minimum(points, len(EXPECTED) - 1)]


def ratio_of(plan: Plan) -> float:
    """The expected ratio of a plan; 1 on wafers, whose layouts have no kinds."""
    if not isinstance(plan.layout, ParallelLayout):
        return 1.0
    return float(expected_ratios(Novelty.of([plan.layout], plan.job, plan.system.device).points)[0])


@dataclass(frozen=True, slots=True)
class Ranked:
    """The fastest layout of a question, among proven layouts or among all."""

    rank: Rank
    """Whether it is the fastest of the proven or of all."""
    layout: str
    """As `--layout` takes it."""
    step_time_s: float
    """Simulated step time."""
    band_s: tuple[float, float]
    """90 % band of the step time."""
    novelty: tuple[str, ...]
    """What it has that the nearest kind of published runs has not, in words."""
    is_proven: bool
    """Whether it keeps the rule of proven layouts; else the answer of this rank is the nearest to it."""

    @classmethod
    def of(cls, rank: Rank, run: Evaluation) -> Ranked:
        plan = run.plan
        novel = Novelty.of([plan.layout], plan.job, plan.system.device)
        proven = bool(novel.points[0] <= MOST)
        return cls(rank, text_of(plan.layout), run.step_time_s, run.band_s, novel.lacks[0], proven)
