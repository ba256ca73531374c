"""What a sweep says: how machines scale and match one another, what variants change, and the verdict."""

import hashlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Self

from pydantic import BaseModel

from perfsim.base.groups import listed
from perfsim.base.spec import PROSE
from perfsim.base.text import number
from perfsim.convergence.critical_batch import CriticalBatch
from perfsim.convergence.time_to_accuracy import EqualDevices, split_speedup
from perfsim.costs.wafer import HIDES
from perfsim.prediction.dates import newest_part
from perfsim.specs.layout import AXES, written
from perfsim.studies.answers import (
    QUANTITIES,
    Assumption,
    Circumstances,
    PointResult,
    SharedCaveat,
    confidence,
    leaves,
    setting_text,
    settings_text,
    shared_caveats,
)
from perfsim.studies.atlas import Atlas
from perfsim.studies.decision import amount, duration, far_apart, ratio_of, verb
from perfsim.studies.loading import LAYOUT, VARIANT, Sweep
from perfsim.studies.spec import digests

KNEE = 0.9
"""Scaling efficiency below which a machine no longer scales."""

# Series of one machine over numbers of devices at its best batch, and how many of one match another.


@dataclass(frozen=True)
class Series:
    """One machine under one combination of settings: its best point at each number of devices."""

    points: tuple[PointResult, ...]
    """By increasing number of devices."""

    @property
    def first(self) -> PointResult:
        """The smallest machine."""
        return self.points[0]

    @property
    def last(self) -> PointResult:
        """The largest machine."""
        return self.points[-1]

    @property
    def target(self) -> tuple[CriticalBatch, float]:
        """What ends its runs: the critical batch and the tokens."""
        return self.first.target_time.critical, self.first.target_time.d_min_tokens

    @property
    def machine(self) -> tuple[str, str]:
        """Strategy and system."""
        return self.first.strategy, self.first.system

    @property
    def circumstance(self) -> str:
        """The name of its variant, and the other settings of the grid."""
        return settings_text(self.first.circumstances)

    @property
    def several(self) -> str:
        """`CS-2 with software release r1.7`."""
        return " with ".join(filter(None, [self.first.devices_noun, self.circumstance]))

    @property
    def label(self) -> str:
        """`CS-2, weight-streaming, software release r1.7`."""
        system = self.first.candidate.system
        name = system.noun.device if system.noun else system.name
        return ", ".join(filter(None, [name, self.first.strategy, self.circumstance]))

    def at(self, point: PointResult) -> str:
        """One of its points: `16 CS-2, weight-streaming, software release r1.7`."""
        return ", ".join(filter(None, [point.machine, point.strategy, self.circumstance]))

    @property
    def fastest(self) -> PointResult:
        """The point that reaches the target first."""
        return min(self.points, key=lambda point: point.prediction.wall_s)

    def efficiency(self, point: PointResult) -> float:
        """Scaling efficiency in time to the target, relative to the smallest machine."""
        speedup = self.first.target_time.time_s / point.target_time.time_s
        return speedup * self.first.num_devices / point.num_devices

    def speedup(self, point: PointResult) -> float:
        """Throughput relative to the smallest machine."""
        return point.prediction.tokens_per_s / self.first.prediction.tokens_per_s

    def throughput_efficiency(self, point: PointResult) -> float:
        """Scaling efficiency in throughput, relative to the smallest machine."""
        return self.speedup(point) * self.first.num_devices / point.num_devices

    @property
    def knee(self) -> PointResult | None:
        """The first point under 90 % scaling efficiency in throughput, if there is one."""
        return next((point for point in self.points if self.throughput_efficiency(point) < KNEE), None)

    def losses(self, point: PointResult) -> dict[str, float]:
        """By cause, its share of the growth in device-seconds per token since the smallest, largest first."""
        before, after = (
            {
                cause: seconds * known.num_devices / known.target_time.batch_tokens
                for cause, seconds in known.prediction.why.parts_s.items()
            }
            for known in (self.first, point)
        )
        grown = {cause: seconds - before.get(cause, 0.0) for cause, seconds in after.items()}
        total = sum(after.values()) - sum(before.values())
        shares = {cause: seconds / total for cause, seconds in grown.items() if seconds > 0 < total}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    @property
    def sentence(self) -> str:
        """How far the series scales and what limits it."""
        in_throughput = self.throughput_efficiency(self.last)
        in_time = self.efficiency(self.last)
        tokens = ""
        if abs(in_time - in_throughput) >= 0.05:
            tokens = (
                f"; {100 * in_time:.0f} % in time to the target, because the larger batch needs more tokens"
            )
        head = (
            f"{self.circumstance or self.label}: from {self.first.num_devices:,} to {self.last.machine}, "
            f"throughput grows {self.speedup(self.last):,.3g} times (scaling efficiency "
            f"{100 * in_throughput:.0f} %{tokens})"
        )
        knee = self.knee
        if knee is None:
            return f"{head}; efficiency stays at {100 * KNEE:.0f} % or more."
        # The largest loss, and the second if it exceeds a fifth of the total.
        losses = list(self.losses(knee).items())
        named = [*losses[:1], *(loss for loss in losses[1:2] if loss[1] > 0.2)]
        causes = " and ".join(f"{cause} ({100 * share:.0f} % of the loss)" for cause, share in named)
        roof = knee.prediction.why.streaming_roof
        if roof is not None and roof.hidden_from_tokens:
            causes += (
                f"; a micro-batch has {roof.tokens:,.0f} tokens per system there, and hiding "
                f"{HIDES[roof.lane]} takes {roof.hidden_from_tokens:,.0f}"
            )
        return (
            f"{head}; efficiency falls below {100 * KNEE:.0f} % at {knee.num_devices:,} "
            f"({100 * self.throughput_efficiency(knee):.0f} %), because of {causes}."
        )


@dataclass(frozen=True)
class Match:
    """The fewest devices of a series that are as fast as a point of another machine; None: more than all."""

    rival: PointResult
    series: Series
    fewest: PointResult | None
    """The central estimate; the others take the low and the high end of the ratio's 90 % band."""
    possibly: int | None
    surely: int | None
    equal: EqualDevices
    """The number of devices that takes equal time, interpolated."""

    @classmethod
    def of(cls, rival: PointResult, series: Series) -> Self:
        """The fewest devices of `series` that reach the target no later than `rival`."""
        ratios = [(point, ratio_of(point.prediction, rival.prediction)) for point in series.points]
        return cls(
            rival,
            series,
            fewest=next((point for point, ratio in ratios if ratio.typical <= 1), None),
            possibly=next((point.num_devices for point, ratio in ratios if ratio.low <= 1), None),
            surely=next((point.num_devices for point, ratio in ratios if ratio.high <= 1), None),
            equal=EqualDevices.of([(point.num_devices, ratio) for point, ratio in ratios]),
        )

    def written(self, count: float | None) -> str:
        """A number of devices, whole or interpolated, which the grid may end before."""
        least, most = self.series.first.num_devices, self.series.last.num_devices
        if count is None or count <= least:
            return f"> {most:,}" if count is None else f"\u2264 {least:,}"
        return f"{count:,}" if isinstance(count, int) else number(count)


SAME = 0.01
"""Relative changes of the step time below this are not reported one by one."""
MAX_NAMED = 6
"""Most changes of one group that a sentence names."""
MOST_OF_A_POLICY = 40
"""Characters of a changed policy that a sentence tells; the page tells a longer one."""
MAX_SENTENCES = 3
"""Most sentences of one kind; the page shows the rest."""
BILL = ("wall_s", "device_hours", "energy_kwh", "carbon_kg", "money")
"""What a point's document says of its outcome, each with its 90 % interval."""
_UNLISTED = PROSE | {"fit", "name"}


@dataclass(frozen=True)
class Change:
    """A point and the corresponding point of the first variant, or of the previous one."""

    base: PointResult
    point: PointResult

    @property
    def ratio(self) -> float:
        """Its step time relative to the base's."""
        return self.point.prediction.step_time_s / self.base.prediction.step_time_s

    @property
    def policy(self) -> str:
        """`tp=1 mbs=4 → tp=2 mbs=2`: settings that differ; replicas only of as many devices."""
        layouts = (self.base.prediction.layout, self.point.prediction.layout)
        left_out = _DERIVED if self.base.num_devices == self.point.num_devices else (*_DERIVED, "data")
        names = [
            name
            for name in dict.fromkeys(chain(*layouts))
            if name not in left_out and len({str(layout.get(name)) for layout in layouts}) > 1
        ]
        known = ([name for name in names if layout.get(name) is not None] for layout in layouts)
        ends = (
            " ".join(f"{_SHORT.get(name, name)}={written(layout[name])}" for name in own)
            for layout, own in zip(layouts, known, strict=True)
        )
        return " → ".join(end or "default" for end in ends) if names else ""


def _values(spec: BaseModel, root: str) -> dict[str, str]:
    """Every value of a description as text, by its dotted path; names and prose are left out."""
    texts = {}
    for path, value in leaves(spec.model_dump(mode="json"), root, _UNLISTED):
        text = f"{value:.6g}" if isinstance(value, float) else setting_text(value)
        texts[path] = "" if value is None else text
    return texts


_SHORT = {name: axis.short for name, axis in AXES.items() if axis.short}

_DERIVED = ("num_microbatches", "stream_chunks")
"""Settings that follow from others."""


@dataclass(frozen=True)
class SweepResult:
    """Every point of a grid in its order, and the comparisons between them, each made once."""

    sweep: Sweep
    """What was asked; in a document its name."""
    points: tuple[PointResult, ...]
    assumptions: tuple[Assumption, ...] = ()

    @cached_property
    def feasible(self) -> tuple[PointResult, ...]:
        """The points that have a plan."""
        return tuple(point for point in self.points if point.feasible)

    @cached_property
    def series(self) -> Sequence[Series]:
        """Every machine under every combination of settings: at each size its fastest point, then batch."""
        groups: dict[tuple[str, str, Circumstances], dict[int, PointResult]] = {}
        for point in self.feasible:
            best = groups.setdefault((point.strategy, point.system, point.circumstances), {})
            best[point.num_devices] = min(
                best.get(point.num_devices, point),
                point,
                key=lambda known: (known.target_time.time_s, known.target_time.batch_tokens),
            )
        return [Series(tuple(best[count] for count in sorted(best))) for best in groups.values()]

    @cached_property
    def targets(self) -> Sequence[Sequence[Series]]:
        """The series grouped by model and target; times are comparable only within a group."""
        ends = ((f"{member.first.study.model!r} {member.target}", member) for member in self.series)
        return list(listed(ends).values())

    @cached_property
    def atlas(self) -> Atlas | None:
        """Maps of who is first, where the grid has several models on several machines."""
        return Atlas.of(self.targets) if self.targets and not self.variants else None

    @cached_property
    def equal_times(self) -> Sequence[tuple[Sequence[Match], Sequence[Match]]]:
        """For each other machine of the first's target, its points matched by the first, and the reverse."""
        rivals: dict[tuple[str, str], Series] = {}
        for rival in self.targets[0] if self.targets else ():
            if rival.machine != self.series[0].machine:
                rivals.setdefault(rival.machine, rival)
        return [
            (
                [Match.of(point, self.series[0]) for point in rival.points],
                [Match.of(point, rival) for point in self.series[0].points],
            )
            for rival in rivals.values()
        ]

    @cached_property
    def matches(self) -> Sequence[Match]:
        """For each point of the other machines, the fewest devices of the first machine that are as fast."""
        return [matched for forward, _ in self.equal_times for matched in forward]

    @cached_property
    def scalings(self) -> Sequence[Series]:
        """The series that have several numbers of devices."""
        return [member for member in self.series if len(member.points) > 1]

    @cached_property
    def variants(self) -> Sequence[str]:
        """The names of the variants in the order of the file."""
        return list(dict.fromkeys(point.variant for point in self.points if point.variant))

    @cached_property
    def changes(self) -> Mapping[str, Sequence[Change]]:
        """By what variants share, each one's point next to the first's; empty if models or batches differ."""
        if not self.variants:
            return {}
        first = self.variants[0]
        machines = listed((point.variant, (point.system, point.num_devices)) for point in self.points)
        several = any(len(set(own)) > 1 for own in machines.values())
        alike = all(set(own) <= set(machines[first]) for own in machines.values())
        trained = {(point.machine, point.strategy) for point in self.points if point.variant == first}
        apart = len(trained) > len(set(machines[first]))
        groups: dict[str, dict[str, PointResult]] = {}
        mixed = set()  # without one machine that the others are compared with
        for point in self.feasible:
            shared = [point.machine if alike else f"{point.num_devices:,} devices"] if several else []
            shared += [point.strategy] if apart else []
            name = ", ".join(filter(None, [*shared, settings_text(point.settings_but(VARIANT))]))
            name = name or "all else equal"
            if groups.setdefault(name, {}).setdefault(point.variant, point).system != point.system:
                mixed.add(name)
        changes = {
            name: [Change(points[first], points[variant]) for variant in self.variants if variant in points]
            for name, points in groups.items()
            if first in points and name not in mixed
        }
        for change in chain(*changes.values()):
            models = [_values(side.study.model, "") for side in (change.base, change.point)]
            tokens = {side.target_time.batch_tokens for side in (change.base, change.point)}
            if models[0] != models[1] or len(tokens) > 1:
                return {}
        return changes

    @cached_property
    def differences(self) -> Mapping[str, Sequence[str]]:
        """By dotted path, the value in each variant where they differ; names and prose are left out."""
        columns: list[dict[str, str]] = []
        for name in self.variants:
            first = next(point for point in self.points if point.variant == name)
            columns.append(
                _values(first.study.model, "model")
                | _values(first.study.recipe.model_copy(update={"runtime": None}), "recipe")
                | _values(first.runtime, "runtime")
                | _values(first.candidate.system, "system")
                | _values(first.study.prices, "prices")
            )
        paths = dict.fromkeys(path for values in columns for path in values)
        rows = {path: [values.get(path, "") for values in columns] for path in paths}
        return {path: values for path, values in rows.items() if len(set(values)) > 1}

    @cached_property
    def successions(self) -> Mapping[str, Sequence[Change]]:
        """By machine with one point a variant, layout changes to the next, where the models differ."""
        first = self.points[0] if self.variants else None
        if first is None or all(point.study.model == first.study.model for point in self.points):
            return {}
        machines = listed(((one.system, one.strategy, one.num_devices), one) for one in self.feasible)
        steps: dict[str, list[Change]] = {}
        for members in machines.values():
            if len({point.variant for point in members}) == len(members) > 1:
                steps.setdefault(members[0].machine, [Change(*pair) for pair in pairwise(members)])
        return steps

    @cached_property
    def sentences(self) -> Sequence[str]:
        """What the points with a plan say, and a few points that have none."""
        if not self.feasible:
            reasons = self.points[0].reasons if self.points else ("the grid is empty",)
            return [f"No point of the grid has a feasible plan: {'; '.join(reasons)}."]
        without = [point.named for point in self.points if not point.feasible]
        few = 0 < len(without) <= MAX_SENTENCES
        left_out = [f"Without a feasible plan: {'; '.join(without)}."] if few else []
        return [*self._answers(), *self._far_apart(), *left_out]

    def _far_apart(self) -> Iterator[str]:
        """Machines whose newest parts are far apart in time."""
        machines = {(point.system, point.strategy): point for point in self.feasible}
        dates = {machine: newest_part(point.question).date for machine, point in machines.items()}
        dated = sorted((machine for machine in machines if dates[machine]), key=dates.__getitem__)
        if len(dated) > 1 and (said := far_apart([machines[dated[0]], machines[dated[-1]]])):
            yield f"{said}: `as_of: equal` compares them on one day."

    def _answers(self) -> Sequence[str]:
        """Who reaches the target first, how machines compare or scale, and what variants change."""
        if self.variants:
            machines = listed((point.machine, point) for point in self.feasible)
            effects = _fastest((scaling.points, scaling.sentence) for scaling in self.scalings)
            effects = effects or _fastest(
                ([change.point for change in group], _changed(name, group))
                for name, group in self.changes.items()
            )
            effects = effects or _fastest(
                ((points, _times(machine, points)) for machine, points in machines.items()), MAX_NAMED
            )
            if not self.successions:
                return effects
            first, *_ = self.successions.values()
            ends = f"{first[0].base.variant} to {first[-1].point.variant}"
            policies = "; ".join(
                f"{machine}: {Change(steps[0].base, steps[-1].point).policy or 'nothing'}"
                for machine, steps in self.successions.items()
            )
            return [*effects, f"What the planner changed from {ends}: {policies}."]
        if len(self.targets) > 1:
            compared = [target for target in self.targets if len({member.machine for member in target}) > 1]
            summary = [] if self.atlas is None else [self.atlas.sentence]
            alone = [] if compared else _fastest((own.points, _scales(own)) for own in self.series)
            return [*summary, *map(_first_at_each, compared), *alone]
        earliest = min(self.feasible, key=lambda point: point.prediction.wall_s)
        reach = verb(earliest.num_devices, "reach", "reaches")
        when = duration(earliest.outcome.wall_s.typical, earliest.outcome.wall_s.band)
        more = _matched(self.matches) if self.matches else _scales(self.series[0])
        return [f"{earliest.named} {reach} the target first, after {when}.", more]

    @property
    def command(self) -> str:
        """The command line that answers the same."""
        return shlex.join(["perfsim", "sweep", self.sweep.asked or self.sweep.name])

    @cached_property
    def inputs_digest(self) -> str:
        """SHA-256 of the digests of all points."""
        return hashlib.sha256("".join(digests(point.study for point in self.points)).encode()).hexdigest()

    @cached_property
    def caveats(self) -> tuple[SharedCaveat, ...]:
        """The caveats of all points, each once, worst first."""
        return shared_caveats([point.prediction for point in self.feasible])

    @cached_property
    def said(self) -> Sequence[str]:
        """The sentences of the verdict."""
        trust = confidence(self.caveats) if self.feasible else ""
        return [*self.sentences, *([f"{trust[0].upper()}{trust[1:]}."] if trust else [])]

    @property
    def verdict(self) -> str:
        """The sentences that answer the sweep's question, the worst caveat last."""
        return " ".join(self.said)

    def documents(self) -> Iterator[dict[str, Any]]:
        """The points, each with its bill (hours, energy, carbon, money) or the reasons why it has no plan."""
        for point in self.points:
            names = ("strategy", "system", "num_devices", "feasible")
            document = {name: getattr(point, name) for name in names} | {"settings": dict(point.settings)}
            row = point.answer
            if row is None:
                yield {**document, "reasons": list(point.reasons)}
                continue
            outcome = asdict(point.outcome)
            yield {
                **document,
                **row.document(),
                "wall_s": row.wall_s,
                "production_time_s": row.production_time_s,
                "production_band_s": row.production_band_s,
                "bill": {name: outcome[name] for name in BILL} | {"currency": point.study.prices.currency},
                **{name: QUANTITIES[name](row, point.outcome) for name in ("cost", "energy_kwh")},
                "currency": point.study.prices.currency,
            }


# The sentences about variants: step times if all do the same work, else times to the target.


def _fastest(told: Iterable[tuple[Sequence[PointResult], str]], most: int = MAX_SENTENCES) -> list[str]:
    """In their order the sentences about the points with the least times, and how many are left out."""
    times_s = {words: min(point.prediction.wall_s for point in points) for points, words in told}
    kept = sorted(times_s, key=times_s.__getitem__)[:most]
    left = len(times_s) - len(kept)
    more = [f"{left} more in the tables, {verb(left, 'all slower', 'slower')}."] if left else []
    return [*filter(kept.__contains__, times_s), *more]


def _first_at_each(target: Sequence[Series]) -> str:
    """Which kind of machine is first to a target, and which with as much power or money an hour."""
    points = [point for member in target for point in member.points]
    first = min(points, key=lambda point: point.outcome.wall_s.typical)
    said = [f"{first.named}: first, after {duration(first.outcome.wall_s.typical)} on the wall"]
    # Where speed grows in proportion to devices, the first with as much power is who takes least energy.
    rates = ("power", "energy_kwh", "kWh"), ("money an hour", "money", first.study.prices.currency)
    for words, name, per in rates:
        spreads = [getattr(point.outcome, name) for point in points]
        if None not in spreads:
            spread, least = min(zip(spreads, points, strict=True), key=lambda pair: pair[0].typical)
            same = (least.strategy, least.system) == (first.strategy, first.system)
            who = "the same" if same else f"{least.machine}, {amount(spread, per)}"
            said.append(f"with as much {words}: {who}")
    return f"{'; '.join(said)}."


def _changed(name: str, changes: Sequence[Change]) -> str:
    step = changes[0].base.prediction
    moved = [change for change in changes[1:] if abs(change.ratio - 1) >= SAME]
    still = [change.point.variant for change in changes[1:] if change not in moved]
    largest = sorted(moved, key=lambda change: -abs(change.ratio - 1))[:MAX_NAMED]
    words = []
    for change in filter(largest.__contains__, moved):
        ratio = change.ratio
        said = f"{ratio:.1f} times as long" if ratio >= 2 else f"{100 * (ratio - 1):+.0f} %"
        replanned = change.policy and change.base.system == change.point.system
        short = len(change.policy) <= MOST_OF_A_POLICY
        policy = f" (policy changed: {change.policy})" if short else " (another layout)"
        words.append(f"{change.point.variant} {said}{policy if replanned else ''}")
    if len(moved) > MAX_NAMED:
        words.append(f"{len(moved) - MAX_NAMED} more")
    if still:
        words.append(f"less than {100 * SAME:.0f} %: {', '.join(still)}")
    return (
        f"{name}: a step of '{changes[0].base.variant}' takes {step.step_time_s:.3g} s, limited by "
        f"{step.why.cause}; changes: {'; '.join(words)}."
    )


def _times(machine: str, points: Sequence[PointResult]) -> str:
    """The time to the target of each variant on one machine."""
    said = ", ".join(
        f"{point.variant}{f' with {point.settings[LAYOUT]}' if LAYOUT in point.settings else ''} "
        f"{_time(point)}"
        for point in points
    )
    given = all(point.target_time.critical.given_length for point in points)
    if given and len({point.variant for point in points}) == len(points) > 1:
        said += f"; all together {_time(*points)}"
    return f"{machine}, on the wall: {said}."


# The verdict of a sweep: how many devices of one machine match another, or how well a machine scales.


def _time(*points: PointResult) -> str:
    """The time on the wall, of several points together."""
    return duration(sum(point.prediction.wall_s for point in points))


def _takes(point: PointResult, machine: str) -> str:
    return f"{machine} {verb(point.num_devices, 'take', 'takes')} {_time(point)}"


def _matched(matches: Sequence[Match]) -> str:
    """The largest rival that is matched and one at most a quarter of its size, or that none is matched."""
    same_rival = [match for match in matches if match.rival.system == matches[0].rival.system]
    matched = [(match, match.fewest) for match in same_rival if match.fewest is not None]
    if not matched:
        series = same_rival[0].series
        rival = f"{same_rival[0].rival.named} ({_time(same_rival[0].rival)})"
        if series.first is series.last:
            return f"{_takes(series.last, series.last.named)}, longer than {rival}."
        return f"No number of {series.several} up to {series.last.num_devices:,} matches {rival}."
    most = matched[-1][0].rival.num_devices
    quarter = [pair for pair in matched if 4 * pair[0].rival.num_devices <= most]
    return " ".join(_match_sentence(*pair) for pair in [*quarter[-1:], matched[-1]])


def _match_sentence(match: Match, fewest: PointResult) -> str:
    rival = f"{match.rival.named} ({_time(match.rival)})"
    count = fewest.num_devices
    low, about, high = map(match.written, astuple(match.equal))
    certainty = f"{count:,} throughout the 90 % band" if low == high else f"90 % band {low} to {high}"
    if fewest is not match.series.first:
        slower = match.series.points[match.series.points.index(fewest) - 1]
        ends = ", ".join(_takes(point, f"{point.num_devices:,}") for point in (slower, fewest))
        return f"About {about} {match.series.several} match {rival}: {ends} ({certainty})."
    smallest = " or fewer" if 1 < count == match.series.first.num_devices else ""
    return (
        f"{fewest.named}{smallest} {verb(count, 'match', 'matches')} {rival}: {_time(fewest)} ({certainty})."
    )


def _scales(series: Series) -> str:
    first = series.first
    last = series.last
    if first is last:
        return f"{_takes(first, first.named)} on the wall at the best batch."
    small = first.target_time
    large = last.target_time
    ratios = (small.time_s / large.time_s, last.num_devices / first.num_devices)
    statistical, hardware = split_speedup(*ratios, small.examples_tokens, large.examples_tokens)
    return (
        f"From {first.num_devices:,} to {last.named} the time on the wall falls from {_time(first)} to "
        f"{_time(last)}: a scaling efficiency of {100 * series.efficiency(last):.0f} % relative to the "
        f"smallest machine ({100 * hardware:.0f} % in throughput, {100 * statistical:.0f} % in "
        "tokens to the target)."
    )
