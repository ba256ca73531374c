"""Effects of variants: step times relative to the first one, times side by side, and layouts that change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from perfsim.studies.spec import StudySpec
from perfsim.sweeps.axes import LAYOUT, VARIANT
from perfsim.sweeps.points import PointResult, setting_name, setting_text
from perfsim.units import DAY_S

SAME = 0.01
"""Relative changes of the step time below this are not reported one by one."""
MAX_NAMED = 6
"""Most changes of one group that a sentence names."""
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
        """Differences between the two layouts; empty if there are none."""
        return policy_changes(self.base, self.point)


def variants_of(points: Sequence[PointResult]) -> list[str]:
    """The names of the variants in the order of the file."""
    return list(dict.fromkeys(point.variant for point in points if point.variant))


def changes_of(feasible: Sequence[PointResult], variants: Sequence[str]) -> dict[str, list[Change]]:
    """By the settings that variants share, every variant's point compared with the first variant's.

    Empty if the variants train different models or batches, because step times are then not comparable.
    """
    groups: dict[str, dict[str, PointResult]] = {}
    sizes = _several_sizes(feasible)
    for point in feasible:
        groups.setdefault(common(point, sizes=sizes), {}).setdefault(point.variant, point)
    changes = {
        name: [Change(points[variants[0]], points[variant]) for variant in variants if variant in points]
        for name, points in groups.items()
        if variants and variants[0] in points
    }
    return changes if all(_same_work(change) for group in changes.values() for change in group) else {}


def common(point: PointResult, *, sizes: bool) -> str:
    """What a point shares with other variants' points: the grid's settings; with `sizes` also its devices."""
    settings = [f"{setting_name(path)} {setting_text(value)}" for path, value in _grid(point).items()]
    count = [f"{point.num_devices:,} devices"] if sizes else []
    return ", ".join([*count, *settings]) or "all else equal"


def _several_sizes(feasible: Sequence[PointResult]) -> bool:
    """Whether any variant runs on several numbers of devices."""
    counts: dict[str, set[int]] = {}
    for point in feasible:
        counts.setdefault(point.variant, set()).add(point.num_devices)
    return any(len(numbers) > 1 for numbers in counts.values())


def _grid(point: PointResult) -> dict[str, Any]:
    return {path: value for path, value in point.settings.items() if path != VARIANT}


def _same_work(change: Change) -> bool:
    base, point = change.base, change.point
    same_tokens = base.target_time.batch_tokens == point.target_time.batch_tokens
    return same_tokens and _flat(base.point.study.model) == _flat(point.point.study.model)


def variant_sentences(feasible: Sequence[PointResult], changes: Mapping[str, Sequence[Change]]) -> list[str]:
    """The effect of variants in words: step times if all do the same work, else times to the target."""
    if changes:
        return [_changed(name, group) for name, group in changes.items()]
    machines: dict[str, list[PointResult]] = {}
    for point in feasible:
        machines.setdefault(point.machine, []).append(point)
    return [_times(name, members) for name, members in machines.items()]


def _changed(name: str, changes: Sequence[Change]) -> str:
    base = changes[0].base
    moved = [change for change in changes[1:] if abs(change.ratio - 1) >= SAME]
    still = [change.point.variant for change in changes[1:] if change not in moved]
    moved.sort(key=lambda change: -abs(change.ratio - 1))
    words = [_moved(change) for change in moved[:MAX_NAMED]]
    if len(moved) > MAX_NAMED:
        words.append(f"{len(moved) - MAX_NAMED} more")
    if still:
        words.append(f"less than {100 * SAME:.0f} %: {', '.join(still)}")
    step = base.prediction
    return (
        f"{name}: a step of '{base.variant}' takes {step.step_time_s:.3g} s, limited by {step.why.cause}; "
        f"changes: {'; '.join(words)}."
    )


def _moved(change: Change) -> str:
    policy = (
        f" (policy changed: {change.policy})"
        if change.policy and change.base.system == change.point.system
        else ""
    )
    return f"{change.point.variant} {_percent(change.ratio)}{policy}"


def _percent(ratio: float) -> str:
    return f"{ratio:.1f} times as long" if ratio >= 2 else f"{100 * (ratio - 1):+.0f} %"


def _times(name: str, points: Sequence[PointResult]) -> str:
    times = [point.target_time for point in points]
    takes = (f"{_named(point)} {_time(time.time_s)}" for point, time in zip(points, times, strict=True))
    words = ", ".join(takes)
    variants = {point.variant for point in points}
    if all(time.critical.given_length for time in times) and len(variants) == len(points) > 1:
        words += f"; all together {_time(sum(time.time_s for time in times))}"
    return f"{name}: {words}."


def _named(point: PointResult) -> str:
    """The variant, with a fixed layout that tells it from others."""
    return f"{point.variant} with {point.settings[LAYOUT]}" if LAYOUT in point.settings else point.variant


def _time(seconds: float) -> str:
    for name, unit_s, least_s in (("days", DAY_S, 2 * DAY_S), ("h", 3600, 7200), ("min", 60, 120)):
        if seconds >= least_s:
            value = seconds / unit_s
            return f"{value:,.0f} {name}" if value >= 100 else f"{value:.3g} {name}"
    return f"{seconds:.3g} s"


def differing(points: Sequence[PointResult], variants: Sequence[str]) -> dict[str, list[str]]:
    """By dotted path of a study, its value in each variant, if they differ; names and prose are left out."""
    first = {name: next(point for point in points if point.variant == name) for name in variants}
    flat = {name: _study(point.point.study) for name, point in first.items()}
    paths = dict.fromkeys(path for values in flat.values() for path in values)
    rows = {path: [flat[name].get(path, "") for name in variants] for path in paths}
    return {path: values for path, values in rows.items() if len(set(values)) > 1}


def _study(study: StudySpec) -> dict[str, str]:
    """The values of a study's model, recipe and system by dotted path."""
    parts = {"model": study.model, "recipe": study.recipe, "system": study.candidates[0].system}
    return {f"{root}.{path}": value for root, part in parts.items() for path, value in _flat(part).items()}


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


_DEGREES = {"tensor": "tp", "pipeline": "pp", "data": "dp"}
_NAMES = {
    "micro_batch_size": "micro-batch",
    "zero_stage": "ZeRO",
    "virtual_pipeline": "virtual pipeline",
    "layers_per_stage": "layers per stage",
    "sequence_parallel": "sequence parallel",
}
_DERIVED = ("num_microbatches", "recompute_layers", "stream_chunks", *_DEGREES)
"""Fields that follow from other fields, or that are stated together with them."""


def policy_changes(before: PointResult, after: PointResult) -> str:
    """`tp1 dp8 → tp2 dp4, micro-batch 4 → 2`: each field of the layout that differs; empty if none does.

    The data-parallel degree is not compared if the numbers of devices differ.
    """
    old, new = before.prediction.layout, after.prediction.layout
    changes = _degrees(old, new, same_devices=before.num_devices == after.num_devices)
    for name in dict.fromkeys([*old, *new]):
        if name in _DERIVED:
            continue
        old_text, new_text = _value(name, old), _value(name, new)
        if old_text != new_text:
            changes.append(f"{_NAMES.get(name, name.replace('_', ' '))} {old_text} \u2192 {new_text}")
    return ", ".join(changes)


def _degrees(old: Mapping[str, Any], new: Mapping[str, Any], *, same_devices: bool) -> list[str]:
    compared = [name for name in _DEGREES if name != "data" or same_devices]
    if all(old.get(name, 1) == new.get(name, 1) for name in compared):
        return []
    worded = [name for name in _DEGREES if old.get(name, 1) != 1 or new.get(name, 1) != 1]
    ends = (" ".join(f"{_DEGREES[name]}{layout.get(name, 1)}" for name in worded) for layout in (old, new))
    return [" \u2192 ".join(ends)]


def _value(name: str, layout: Mapping[str, Any]) -> str:
    value = layout.get(name)
    if name == "recompute":
        layers = layout.get("recompute_layers") or 0
        return f"{value} every {layers} layers" if value == "full" and layers > 1 else str(value)
    if value is None or isinstance(value, bool):
        return "yes" if value else "no"
    return "-".join(str(part) for part in value) if isinstance(value, (list, tuple)) else str(value)


def successions(points: Sequence[PointResult]) -> dict[str, list[Change]]:
    """By machine, each variant with the previous one; empty if all variants train the same model.

    Only machines with at most one feasible point per variant are included.
    """
    if not points or not points[0].variant:
        return {}
    if all(point.point.study.model == points[0].point.study.model for point in points):
        return {}
    machines: dict[tuple[str, str, int], list[PointResult]] = {}
    for point in points:
        if point.feasible:
            machines.setdefault((point.system, point.strategy, point.num_devices), []).append(point)
    steps_of: dict[str, list[Change]] = {}
    for members in machines.values():
        names = {point.variant for point in members}
        if len(names) == len(members) > 1:
            machine = members[0].machine
            steps_of.setdefault(machine, [Change(before, after) for before, after in pairwise(members)])
    return steps_of


def policy_sentence(steps_of: Mapping[str, Sequence[Change]]) -> str:
    """The layout changes on each machine from the first variant to the last; empty without successions."""
    if not steps_of:
        return ""
    first = next(iter(steps_of.values()))
    ends = f"{first[0].base.variant} to {first[-1].point.variant}"
    words = [
        f"{machine}: {policy_changes(steps[0].base, steps[-1].point) or 'nothing'}"
        for machine, steps in steps_of.items()
    ]
    return f"What the planner changed from {ends}: {'; '.join(words)}."


def sparsity_sentence(steps_of: Mapping[str, Sequence[Change]]) -> str:
    """The share of the tokens that experts must save to be worth their time, by variant and machine.

    Empty unless the first variant is dense, all others have experts and all take as many tokens.
    """
    rows: dict[str, list[str]] = {}
    for machine, steps in steps_of.items():
        dense, sparse = steps[0].base, [step.point for step in steps]
        tokens = {round(point.target_time.examples_tokens / 1e6) for point in (dense, *sparse)}
        if len(tokens) > 1 or _experts(dense) or not all(_experts(point) for point in sparse):
            return ""
        for point in sparse:
            saved = 1 - dense.target_time.time_s / point.target_time.time_s
            rows.setdefault(point.variant, []).append(f"{100 * max(0.0, saved):.0f} % on {machine}")
    words = "; ".join(f"{variant} {', '.join(shares)}" for variant, shares in rows.items())
    return f"Experts pay where they save more tokens than they cost time: {words}." if rows else ""


def _experts(point: PointResult) -> bool:
    return point.point.study.model.experts is not None
