"""What a sweep says: variants compared with the first one, machines with each other, and the verdict."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from perfsim.base.units import DAY_S
from perfsim.convergence.time_to_accuracy import split_speedup
from perfsim.prediction.caveats import SharedCaveat, confidence, shared_caveats
from perfsim.specs.layout import AXES
from perfsim.studies.answers import Assumption, Circumstances, PointResult, setting_text, settings_text
from perfsim.studies.axes import LAYOUT, VARIANT
from perfsim.studies.decision import outcome_of, time_unit, verb
from perfsim.studies.scaling import Machines, Match, Series
from perfsim.studies.spec import Digests, runtime_of

SAME = 0.01
"""Relative changes of the step time below this are not reported one by one."""
MAX_NAMED = 6
"""Most changes of one group that a sentence names."""
MAX_SENTENCES = 3
"""Most sentences of one kind; the page shows the rest."""
BILL = ("wall_s", "device_hours", "energy_kwh", "carbon_kg", "money")
"""What a point's document says of its outcome, each with its 90 % interval."""
_PROSE = ("description", "sources", "assumed", "fit", "name")


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
        """`tp1 dp8 → tp2 dp4, micro-batch 4 → 2`: fields of the layout that differ; empty if none does.

        The data-parallel degree is not compared if the numbers of devices differ.
        """
        old = self.base.prediction.layout
        new = self.point.prediction.layout
        same_devices = self.base.num_devices == self.point.num_devices
        changes = []
        if any(old.get(name, 1) != new.get(name, 1) for name in _DEGREES if name != "data" or same_devices):
            shown = [name for name in _DEGREES if old.get(name, 1) != 1 or new.get(name, 1) != 1]
            ends = (
                " ".join(f"{_DEGREES[name]}{layout.get(name, 1)}" for name in shown) for layout in (old, new)
            )
            changes.append(" \u2192 ".join(ends))
        for name in dict.fromkeys([*old, *new]):
            was = _value(name, old)
            becomes = _value(name, new)
            if name not in _DERIVED and was != becomes:
                changes.append(f"{_NAMES.get(name, name.replace('_', ' '))} {was} \u2192 {becomes}")
        return ", ".join(changes)

    @property
    def is_same_work(self) -> bool:
        """Whether both train one model on one batch."""
        same_tokens = self.base.target_time.batch_tokens == self.point.target_time.batch_tokens
        return same_tokens and _flat(self.base.study.model) == _flat(self.point.study.model)


def _flat(spec: Any) -> dict[str, str]:
    return dict(_leaves(spec.model_dump(mode="json"), ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        if "fit" in value:  # fitted constants are represented by their name
            yield path, str(value["name"])
            return
        for key, item in value.items():
            if key not in _PROSE:
                yield from _leaves(item, f"{path}.{key}" if path else str(key))
    else:
        text = f"{value:.6g}" if isinstance(value, float) else setting_text(value)
        yield path, "" if value is None else text


_DEGREES = {name: AXES[name].short for name in ("tensor", "pipeline", "data")}
_NAMES = {
    "micro_batch_size": "micro-batch",
    "zero_stage": "ZeRO",
    "virtual_pipeline": "virtual pipeline",
    "layers_per_stage": "layers per stage",
    "sequence_parallel": "sequence parallel",
}
_DERIVED = ("num_microbatches", "recompute_layers", "stream_chunks", *_DEGREES)
"""Fields that follow from other fields, or that are stated together with them."""


def _value(name: str, layout: Mapping[str, Any]) -> str:
    value = layout.get(name)
    if name == "recompute":
        layers = layout.get("recompute_layers") or 0
        return f"{value} every {layers} layers" if value == "full" and layers > 1 else str(value)
    if value is None or isinstance(value, bool):
        return "yes" if value else "no"
    return "-".join(str(part) for part in value) if isinstance(value, (list, tuple)) else str(value)


@dataclass(frozen=True)
class Analysis(Machines):
    """Comparisons between the points of a sweep; empty if the sweep has nothing to compare in that way."""

    @cached_property
    def variants(self) -> Sequence[str]:
        """The names of the variants in the order of the file."""
        return list(dict.fromkeys(point.variant for point in self.points if point.variant))

    @cached_property
    def changes(self) -> Mapping[str, Sequence[Change]]:
        """By the settings that variants share, each variant's point compared with the first variant's.

        Empty if the variants train different models or batches, because step times are then not comparable.
        """
        counts: dict[str, set[int]] = {}
        for point in self.feasible:
            counts.setdefault(point.variant, set()).add(point.num_devices)
        several = any(len(numbers) > 1 for numbers in counts.values())
        groups: dict[str, dict[str, PointResult]] = {}
        for point in self.feasible:
            grid = tuple(
                (path, setting_text(given)) for path, given in point.settings.items() if path != VARIANT
            )
            shared = [f"{point.num_devices:,} devices"] if several else []
            name = ", ".join(filter(None, [*shared, settings_text(grid)])) or "all else equal"
            groups.setdefault(name, {}).setdefault(point.variant, point)
        changes = {
            name: [Change(points[self.variants[0]], points[own]) for own in self.variants if own in points]
            for name, points in groups.items()
            if self.variants and self.variants[0] in points
        }
        alike = all(change.is_same_work for group in changes.values() for change in group)
        return changes if alike else {}

    @cached_property
    def differences(self) -> Mapping[str, Sequence[str]]:
        """By dotted path, the value in each variant where they differ; names and prose are left out."""
        columns: list[dict[str, str]] = []
        for name in self.variants:
            first = next(point for point in self.points if point.variant == name)
            study = first.study
            recipe = study.recipe.model_copy(update={"runtime": None})
            runtime = runtime_of(study, first.candidate)
            parts = {
                "model": study.model,
                "recipe": recipe,
                "runtime": runtime,
                "system": first.candidate.system,
            }
            columns.append(
                {
                    f"{root}.{path}": value
                    for root, part in parts.items()
                    for path, value in _flat(part).items()
                }
            )
        paths = dict.fromkeys(path for values in columns for path in values)
        rows = {path: [values.get(path, "") for values in columns] for path in paths}
        return {path: values for path, values in rows.items() if len(set(values)) > 1}

    @cached_property
    def successions(self) -> Mapping[str, Sequence[Change]]:
        """By machine, layout changes from each variant to the next, if variants train different models.

        Only machines with at most one feasible point per variant are included.
        """
        first = self.points[0] if self.variants else None
        if first is None or all(point.study.model == first.study.model for point in self.points):
            return {}
        machines: dict[tuple[str, str, int], list[PointResult]] = {}
        for point in self.feasible:
            machines.setdefault((point.system, point.strategy, point.num_devices), []).append(point)
        steps: dict[str, list[Change]] = {}
        for members in machines.values():
            if len({point.variant for point in members}) == len(members) > 1:
                steps.setdefault(members[0].machine, [Change(*pair) for pair in pairwise(members)])
        return steps

    @cached_property
    def sentences(self) -> Sequence[str]:
        """Who reaches the target first, how machines compare or scale, and what variants change."""
        if not self.feasible:
            reasons = self.points[0].reasons if self.points else ("the grid is empty",)
            return [f"No point of the grid has a feasible plan: {'; '.join(reasons)}."]
        if self.variants:
            effects = [scaling.sentence for scaling in self.scalings]
            effects = effects or [_changed(name, group) for name, group in self.changes.items()]
            effects = effects or _times(self.feasible)
            more = [_sparsity(self.successions), _policies(self.successions)]
            return [*effects[:MAX_SENTENCES], *filter(None, more)]
        if len(self.targets) > 1:
            return [_scales(member) for member in self.series[:MAX_SENTENCES]]
        second = _matched(self.matches) if self.matches else _scales(self.series[0])
        return [first_sentence(self), second]


# The sentences about variants: step times if all do the same work, else times to the target.


def _changed(name: str, changes: Sequence[Change]) -> str:
    step = changes[0].base.prediction
    moved = [change for change in changes[1:] if abs(change.ratio - 1) >= SAME]
    still = [change.point.variant for change in changes[1:] if change not in moved]
    words = []
    for change in sorted(moved, key=lambda change: -abs(change.ratio - 1))[:MAX_NAMED]:
        ratio = change.ratio
        said = f"{ratio:.1f} times as long" if ratio >= 2 else f"{100 * (ratio - 1):+.0f} %"
        replanned = change.policy and change.base.system == change.point.system
        policy = f" (policy changed: {change.policy})" if replanned else ""
        words.append(f"{change.point.variant} {said}{policy}")
    if len(moved) > MAX_NAMED:
        words.append(f"{len(moved) - MAX_NAMED} more")
    if still:
        words.append(f"less than {100 * SAME:.0f} %: {', '.join(still)}")
    return (
        f"{name}: a step of '{changes[0].base.variant}' takes {step.step_time_s:.3g} s, limited by "
        f"{step.why.cause}; changes: {'; '.join(words)}."
    )


def _times(feasible: Sequence[PointResult]) -> list[str]:
    """By machine, the time to the target of each variant."""
    machines: dict[str, list[PointResult]] = {}
    for point in feasible:
        machines.setdefault(point.machine, []).append(point)
    sentences = []
    for machine, points in machines.items():
        words = []
        for point in points:
            layout = f" with {point.settings[LAYOUT]}" if LAYOUT in point.settings else ""
            words.append(f"{point.variant}{layout} {_rough_time(point.target_time.time_s)}")
        said = ", ".join(words)
        given = all(point.target_time.critical.given_length for point in points)
        if given and len({point.variant for point in points}) == len(points) > 1:
            said += f"; all together {_rough_time(sum(point.target_time.time_s for point in points))}"
        sentences.append(f"{machine}: {said}.")
    return sentences


def _rough_time(seconds: float) -> str:
    for name, unit_s, least_s in (("days", DAY_S, 2 * DAY_S), ("h", 3600, 7200), ("min", 60, 120)):
        if seconds >= least_s:
            return f"{_number(seconds / unit_s)} {name}"
    return f"{seconds:.3g} s"


def _policies(successions: Mapping[str, Sequence[Change]]) -> str:
    """The layout changes on each machine from the first variant to the last; empty without successions."""
    if not successions:
        return ""
    first = next(iter(successions.values()))
    words = [
        f"{machine}: {Change(steps[0].base, steps[-1].point).policy or 'nothing'}"
        for machine, steps in successions.items()
    ]
    ends = f"{first[0].base.variant} to {first[-1].point.variant}"
    return f"What the planner changed from {ends}: {'; '.join(words)}."


def _sparsity(successions: Mapping[str, Sequence[Change]]) -> str:
    """The share of the tokens that experts must save to be worth their time, by variant and machine.

    Empty unless the first variant is dense, all others have experts and all take as many tokens.
    """
    rows: dict[str, list[str]] = {}
    for machine, steps in successions.items():
        dense = steps[0].base
        sparse = [step.point for step in steps]
        tokens = {round(point.target_time.examples_tokens / 1e6) for point in (dense, *sparse)}
        has_experts = [point.study.model.experts is not None for point in (dense, *sparse)]
        if len(tokens) > 1 or has_experts[0] or not all(has_experts[1:]):
            return ""
        for point in sparse:
            saved = 1 - dense.target_time.time_s / point.target_time.time_s
            rows.setdefault(point.variant, []).append(f"{100 * max(0.0, saved):.0f} % on {machine}")
    words = "; ".join(f"{variant} {', '.join(shares)}" for variant, shares in rows.items())
    return f"Experts pay where they save more tokens than they cost time: {words}." if rows else ""


# The verdict of a sweep: how many devices of one machine match another, or how well a machine scales.


def first_sentence(analysis: Analysis) -> str:
    """Which point reaches the one target first, and when."""
    first = min(analysis.feasible, key=lambda point: point.target_time.time_s)
    reach = verb(first.num_devices, "reach", "reaches")
    _, scale = time_unit(first.target_time.time_s)
    low, high = (_number(end / scale) for end in first.target_time.band_s)
    return f"{_machine(first)} {reach} the target first, in {_time(first)} ({low} to {high})."


def _machine(point: PointResult) -> str:
    """`16 CS-2`, with the settings of the grid."""
    return _with_settings(point.machine, point.circumstances)


def _with_settings(machine: str, settings: Circumstances) -> str:
    return " with ".join(filter(None, [machine, settings_text(settings)]))


def _time(point: PointResult) -> str:
    unit, scale = time_unit(point.target_time.time_s)
    return f"{_number(point.target_time.time_s / scale)} {unit}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _matched(matches: Sequence[Match]) -> str:
    """The largest rival that is matched and one at most a quarter of its size, or that none is matched."""
    same_rival = [match for match in matches if match.rival.system == matches[0].rival.system]
    matched = [match for match in same_rival if match.fewest is not None]
    if not matched:
        series = same_rival[0].series
        rival = same_rival[0].rival
        system = _with_settings(series.devices_noun, series.circumstances)
        most = f"{series.counts[-1]:,}"
        return f"No number of {system} up to {most} matches {_machine(rival)} ({_time(rival)})."
    largest = matched[-1]
    quarter = [match for match in matched if 4 * match.rival.num_devices <= largest.rival.num_devices]
    return " ".join(_match_sentence(match) for match in [*quarter[-1:], largest])


def _match_sentence(match: Match) -> str:
    fewest = match.fewest
    rival = f"{_machine(match.rival)} ({_time(match.rival)})"
    if fewest is None:
        return f"Nothing matches {rival}."
    count = fewest.num_devices
    if match.between is not None:
        slower, about = match.between
        system = _with_settings(match.series.devices_noun, match.series.circumstances)
        return (
            f"About {_number(about)} {system} match {rival}: {_takes(slower)}, {_takes(fewest)} "
            f"({_certainty(match, count)})."
        )
    smallest = " or fewer" if 1 < count == match.series.counts[0] else ""
    matches = verb(count, "match", "matches")
    return f"{_machine(fewest)}{smallest} {matches} {rival}: {_time(fewest)} ({_certainty(match, count)})."


def _takes(point: PointResult) -> str:
    return f"{point.num_devices:,} {verb(point.num_devices, 'take', 'takes')} {_time(point)}"


def _certainty(match: Match, count: int) -> str:
    low = match.possibly or count
    if low == match.surely:
        return f"{count:,} throughout the 90 % band"
    high = f"{match.surely:,}" if match.surely else f"more than {match.series.counts[-1]:,}"
    return f"90 % band {low:,} to {high}"


def _scales(series: Series) -> str:
    first = series.points[0]
    last = series.points[-1]
    if first is last:
        return (
            f"{_machine(first)} {verb(first.num_devices, 'take', 'takes')} {_time(first)} at its best batch."
        )
    small = first.target_time
    large = last.target_time
    ratio = last.num_devices / first.num_devices
    split = split_speedup(small.time_s / large.time_s, ratio, small.examples_tokens, large.examples_tokens)
    return (
        f"From {first.num_devices:,} to {_machine(last)} the time falls from {_time(first)} to "
        f"{_time(last)}: a scaling efficiency of {_percent(series.efficiency(last))} relative to the "
        f"smallest machine ({_percent(split.hardware)} in throughput, {_percent(split.statistical)} in "
        "tokens to the target)."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


@dataclass(frozen=True)
class SweepResult:
    """Every point of a grid, in the grid's order."""

    name: str
    """Name of the sweep."""
    title: str
    """Title of the page."""
    question: str
    """What is asked."""
    study: str
    """Name of the study that the grid varies."""
    points: tuple[PointResult, ...]
    assumptions: tuple[Assumption, ...] = ()
    asked: str = ""
    """The name or path by which it was read; empty for one that was not read from a file."""

    @property
    def command(self) -> str:
        """The command line that answers the same."""
        return shlex.join(["perfsim", "sweep", self.asked or self.name])

    @property
    def feasible(self) -> tuple[PointResult, ...]:
        return self.analysis.feasible

    @cached_property
    def analysis(self) -> Analysis:
        """Series, changes and matches of the points; computed once."""
        return Analysis(self.points)

    @cached_property
    def inputs_digest(self) -> str:
        """SHA-256 of the digests of all points."""
        digests = Digests()
        known = "".join(digests.of(point.study) for point in self.points)
        return hashlib.sha256(known.encode()).hexdigest()

    @cached_property
    def caveats(self) -> tuple[SharedCaveat, ...]:
        """The caveats of all points, each once, worst first."""
        return shared_caveats([point.prediction for point in self.feasible])

    @cached_property
    def verdict(self) -> str:
        """The sentences that answer the sweep's question, the worst caveat last."""
        trust = confidence(self.caveats) if self.feasible else ""
        said = [f"{trust[0].upper()}{trust[1:]}."] if trust else []
        return " ".join([*self.analysis.sentences, *said])

    def head(self) -> dict[str, Any]:
        """What a document says besides the points."""
        return {
            "sweep": self.name,
            "title": self.title,
            "question": self.question,
            "study": self.study,
            "command": self.command,
            "inputs_digest": self.inputs_digest,
            "caveats": [asdict(caveat) for caveat in self.caveats],
        }

    def documents(self) -> Iterator[dict[str, Any]]:
        """The points, each with its bill: time on the wall, device-hours, energy, carbon and money."""
        for point in self.points:
            document = point.as_dict()
            if point.feasible:
                outcome = asdict(outcome_of(point))
                document["bill"] = {name: outcome[name] for name in BILL}
                document["bill"]["currency"] = point.study.currency
            yield document

    def as_dict(self) -> dict[str, Any]:
        """The result as one document, independent of which points were already stored."""
        return {**self.head(), "points": list(self.documents())}
