"""What variants change: each beside the first, where both do the same work, or all side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfsim.study.spec import StudySpec
from perfsim.sweep.axes import VARIANT
from perfsim.sweep.policy import policy_changes
from perfsim.sweep.runner import PointResult, SweepResult
from perfsim.sweep.scaling import shown, time_of

SAME = 0.01
"""A change of the step time below this is called none."""
MOST_NAMED = 6
"""Changes of one group that a sentence names."""
_PROSE = ("description", "sources", "assumed", "fit", "name")


@dataclass(frozen=True)
class Change:
    """A point beside the same point of the first variant."""

    base: PointResult
    each: PointResult

    @property
    def ratio(self) -> float:
        """Its step time over the base's."""
        return float(self.each.answer["step_time_s"] / self.base.answer["step_time_s"])

    @property
    def policy(self) -> str:
        """What the planner chose anew beside what the variant changes; empty where it chose the same."""
        return policy_changes(self.base, self.each)


def variants_of(result: SweepResult) -> list[str]:
    """The names of the variants in the order of the file."""
    return list(dict.fromkeys(each.point.variant for each in result.points if each.point.variant))


def changes_of(result: SweepResult) -> dict[str, list[Change]]:
    """By what variants have in common, every variant's point beside the first variant's.

    Only where all do the same work: one model, one batch. Empty where variants differ in that.
    """
    names = variants_of(result)
    groups: dict[str, dict[str, PointResult]] = {}
    sizes = _several_sizes(result)
    for each in result.feasible:
        groups.setdefault(common(each, sizes=sizes), {}).setdefault(each.point.variant, each)
    found = {
        name: [Change(points[names[0]], points[other]) for other in names if other in points]
        for name, points in groups.items()
        if names and names[0] in points
    }
    pairs = [change for changes in found.values() for change in changes]
    return found if all(_same_work(change) for change in pairs) else {}


def common(each: PointResult, *, sizes: bool) -> str:
    """What a point shares with those of other variants: settings of the grid, devices where they vary."""
    settings = [f"{path.rpartition('.')[2]} {shown(value)}" for path, value in _grid(each).items()]
    count = [f"{each.point.num_devices:,} devices"] if sizes else []
    return ", ".join([*count, *settings]) or "all else equal"


def _several_sizes(result: SweepResult) -> bool:
    """Whether any variant runs on several numbers of devices; one that only has another number compares."""
    counts: dict[str, set[int]] = {}
    for each in result.feasible:
        counts.setdefault(each.point.variant, set()).add(each.point.num_devices)
    return any(len(own) > 1 for own in counts.values())


def _grid(each: PointResult) -> dict[str, Any]:
    return {path: value for path, value in each.point.settings.items() if path != VARIANT}


def _same_work(change: Change) -> bool:
    one, other = change.base, change.each
    same_tokens = one.answer["batch_tokens"] == other.answer["batch_tokens"]
    return same_tokens and _flat(one.point.study.model) == _flat(other.point.study.model)


def variant_sentences(result: SweepResult) -> list[str]:
    """What variants change, in words: of the step where all do the same work, else how long each takes."""
    changes = changes_of(result)
    if changes:
        return [_changed(name, own) for name, own in changes.items()]
    machines: dict[str, list[PointResult]] = {}
    for each in result.feasible:
        name = f"{each.point.num_devices:,} x {each.point.candidate.system.name}"
        machines.setdefault(name, []).append(each)
    return [_each_takes(name, own) for name, own in machines.items()]


def _changed(name: str, changes: Sequence[Change]) -> str:
    base = changes[0].base
    moved = [change for change in changes[1:] if abs(change.ratio - 1) >= SAME]
    still = [change.each.point.variant for change in changes[1:] if change not in moved]
    moved.sort(key=lambda change: -abs(change.ratio - 1))
    words = [_moved(change) for change in moved[:MOST_NAMED]]
    if len(moved) > MOST_NAMED:
        words.append(f"{len(moved) - MOST_NAMED} more")
    if still:
        words.append(f"less than {100 * SAME:.0f} %: {', '.join(still)}")
    return (
        f"{name}, step {base.answer['step_time_s']:.3g} s as it is ({base.answer['why']['cause']}): "
        f"{'; '.join(words)}."
    )


def _moved(change: Change) -> str:
    same_machine = change.base.point.candidate.system.name == change.each.point.candidate.system.name
    policy = f" (policy changed: {change.policy})" if change.policy and same_machine else ""
    return f"{change.each.point.variant} {_percent(change.ratio)}{policy}"


def _percent(ratio: float) -> str:
    return f"{ratio:.1f} times as long" if ratio >= 2 else f"{100 * (ratio - 1):+.0f} %"


def _each_takes(name: str, points: Sequence[PointResult]) -> str:
    times = [time_of(each) for each in points]
    takes = (f"{each.point.variant} {_time(time.time_s)}" for each, time in zip(points, times, strict=True))
    words = ", ".join(takes)
    if all(time.critical.given_length for time in times):
        words += f"; all together {_time(sum(time.time_s for time in times))}"
    return f"{name}: {words}."


def _time(seconds: float) -> str:
    for name, unit_s, least_s in (("days", 86400, 2 * 86400), ("h", 3600, 7200), ("min", 60, 0)):
        if seconds >= least_s:
            return f"{seconds / unit_s:.3g} {name}"
    return f"{seconds:.3g} s"


def differing(result: SweepResult) -> dict[str, list[str]]:
    """By dotted path of a study, its value in each variant, where they differ; names and reasons left out."""
    names = variants_of(result)
    first = {name: next(p for p in result.points if p.point.variant == name) for name in names}
    flat = {name: _study(each.point.study) for name, each in first.items()}
    paths = dict.fromkeys(path for values in flat.values() for path in values)
    rows = {path: [flat[name].get(path, "") for name in names] for path in paths}
    return {path: values for path, values in rows.items() if len(set(values)) > 1}


def _study(study: StudySpec) -> dict[str, str]:
    """The values of a study that decide its answer, by dotted path."""
    parts = {"model": study.model, "recipe": study.recipe, "system": study.candidates[0].system}
    return {f"{root}.{path}": value for root, part in parts.items() for path, value in _flat(part).items()}


def _flat(spec: Any) -> dict[str, str]:
    return dict(_leaves(spec.model_dump(mode="json"), ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        if "fit" in value:  # fitted constants go by their name
            yield path, str(value["name"])
            return
        for key, item in value.items():
            if key not in _PROSE:
                yield from _leaves(item, f"{path}.{key}" if path else str(key))
    else:
        text = f"{value:.6g}" if isinstance(value, float) else shown(value)
        yield path, "" if value is None else text
