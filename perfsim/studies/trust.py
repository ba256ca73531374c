"""What a study and several answers together say of their basis, once for all that have it alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfsim.prediction.caveats import CODES, Caveat
from perfsim.prediction.prediction import Prediction

if TYPE_CHECKING:
    from perfsim.studies.answers import Answer, Decision


@dataclass(frozen=True, slots=True)
class SharedCaveat(Caveat):
    """A caveat of one or more answers that are compared, in the words of the worst of them."""

    systems: tuple[str, ...]
    """Systems that it is about."""
    machines: tuple[str, ...]
    """The answers by system: `1, 4 and 16 CS-2`."""
    nouns: tuple[str, ...]
    """Several devices of each system, such as `CS-2`."""
    turns: float = 0.0
    """Probability that the order of a study turns by what it is about."""


LEAST_TURN = 0.01
"""From this probability on a caveat could turn the order."""
MOST_COUNTS = 4
"""More numbers of devices are written as a range."""


def shared_caveats(predictions: Sequence[Prediction]) -> tuple[SharedCaveat, ...]:
    """The caveats of all predictions, worst first: one for each code and system, in the words of the worst.

    Those of several systems that have the same words are one.
    """
    groups: dict[tuple[str, str], list[tuple[Caveat, Prediction]]] = {}
    for step in predictions:
        for warning in step.caveats:
            groups.setdefault((warning.code, step.system), []).append((warning, step))
    merged: dict[tuple[str, str], SharedCaveat] = {}
    for (code, system), said in groups.items():
        worst, _ = min(said, key=lambda pair: (pair[0].rank(), -pair[1].num_devices))
        machine = _machine(worst, said, [step for step in predictions if step.system == system])
        noun = said[0][1].devices_noun
        shared = SharedCaveat(worst.code, worst.severity, worst.text, (system,), (machine,), (noun,))
        if known := merged.get((code, worst.text)):
            shared = replace(
                min(known, shared, key=Caveat.rank),
                systems=known.systems + shared.systems,
                machines=known.machines + shared.machines,
                nouns=known.nouns + shared.nouns,
            )
        merged[code, worst.text] = shared
    return tuple(sorted(merged.values(), key=Caveat.rank))


def weighed(predictions: Sequence[Answer], decision: Decision) -> tuple[SharedCaveat, ...]:
    """The caveats of candidates by the probability that the order turns by what they are about."""
    by_speed = {outcome.label: outcome.turns for outcome in decision.outcomes}
    known = []
    for caveat in shared_caveats(predictions):
        concern = CODES[caveat.code][1]
        about = [
            by_speed[row.label]
            for row in predictions
            if row.system in caveat.systems and caveat.code in {own.code for own in row.caveats}
        ]
        turns = {"step": max(about), "target": decision.turns, "memory": 0.0, "question": 0.0}[concern]
        known.append(replace(caveat, turns=turns))
    return tuple(sorted(known, key=lambda caveat: (-round(caveat.turns, 2), caveat.rank())))


def _machine(
    worst: Caveat, said: Sequence[tuple[Caveat, Prediction]], of_system: Sequence[Prediction]
) -> str:
    """`1, 4 and 16 CS-2`, with the strategies where others of this system are left out."""

    def names(steps: Iterable[Prediction]) -> set[str]:
        # A label is the machine and the strategy, and a layout that is named.
        return {step.label.removeprefix(f"{step.machine}, ") for step in steps}

    as_worst = [step for caveat, step in said if caveat.text == worst.text]
    named = names(as_worst)
    left_out = f", {' and '.join(sorted(named))}" if named != names(of_system) else ""
    counts = {step.num_devices for step in as_worst}
    lesser = {step.num_devices for _, step in said} - counts
    tail = f" (to a lesser degree {_counts(lesser)})" if lesser else ""
    return f"{_counts(counts)} {as_worst[0].devices_noun}{left_out}{tail}"


def _counts(numbers: Iterable[int]) -> str:
    counts = sorted(numbers)
    if len(counts) > MOST_COUNTS:
        return f"{counts[0]:,} to {counts[-1]:,}"
    return " and ".join(filter(None, [", ".join(f"{n:,}" for n in counts[:-1]), f"{counts[-1]:,}"]))


def confidence(caveats: Sequence[SharedCaveat]) -> str:
    """The worst caveat as a clause of a verdict; empty where all are for information only."""
    worst = min(caveats, key=Caveat.rank, default=None)
    if worst is None or worst.severity == "info":
        return ""
    level = "low" if worst.severity == "serious" else "limited"
    return f"{level} confidence in {' and '.join(worst.nouns)}: {worst.headline}"
