"""The caveats of several predictions together, each said once, and the worst of them for a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfsim.prediction.caveats import rank
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.result import SharedCaveat

MOST_COUNTS = 4
"""More numbers of devices are written as a range."""


def shared_caveats(predictions: Sequence[Prediction]) -> tuple[SharedCaveat, ...]:
    """The caveats of all predictions, worst first: one for each code and system, in the words of the worst.

    Those of several systems that have the same words are one.
    """
    groups: dict[tuple[str, str], list[Prediction]] = {}
    for prediction in predictions:
        for caveat in prediction.caveats:
            groups.setdefault((caveat.code, prediction.system), []).append(prediction)
    merged: dict[tuple[str, str], SharedCaveat] = {}
    for (code, system), members in groups.items():
        own = [(caveat, step) for step in members for caveat in step.caveats if caveat.code == code]
        worst, _ = min(own, key=lambda pair: (rank(pair[0]), -pair[1].num_devices))
        as_worst = [step for caveat, step in own if caveat.text == worst.text]
        machine = _machine(system, as_worst, predictions)
        alike = {step.num_devices for step in as_worst}
        if lesser := [step for step in members if step.num_devices not in alike]:
            machine += f" (to a lesser degree {_counts(lesser)})"
        shared = SharedCaveat(
            worst.code, worst.severity, worst.text, (system,), (machine,), (members[0].devices_noun,)
        )
        known = merged.get((code, worst.text))
        if known is not None:
            least = min(known, shared, key=rank)
            shared = replace(
                least,
                systems=(*known.systems, system),
                machines=(*known.machines, machine),
                nouns=(*known.nouns, members[0].devices_noun),
            )
        merged[code, worst.text] = shared
    return tuple(sorted(merged.values(), key=rank))


def confidence(caveats: Sequence[SharedCaveat]) -> str:
    """The worst caveat as a clause of a verdict; empty where all are for information only."""
    worst = min(caveats, key=rank, default=None)
    if worst is None or worst.severity == "info":
        return ""
    level = "low" if worst.severity == "serious" else "limited"
    return f"{level} confidence in {' and '.join(worst.nouns)}: {worst.headline}"


def _machine(system: str, members: Sequence[Prediction], predictions: Sequence[Prediction]) -> str:
    """`1, 4 and 16 CS-2`, with the strategies where others of this system are left out."""
    own = {_name(step) for step in members}
    every = {_name(step) for step in predictions if step.system == system}
    names = f", {' and '.join(sorted(own))}" if own != every else ""
    return f"{_counts(members)} {members[0].devices_noun}{names}"


def _name(step: Prediction) -> str:
    """What tells a prediction from others on its machine: its strategy, and a layout that is named."""
    return step.label.removeprefix(f"{step.machine}, ")


def _counts(members: Sequence[Prediction]) -> str:
    """`1, 4 and 16`."""
    counts = sorted({step.num_devices for step in members})
    if len(counts) > MOST_COUNTS:
        return f"{counts[0]:,} to {counts[-1]:,}"
    return " and ".join(filter(None, [", ".join(f"{n:,}" for n in counts[:-1]), f"{counts[-1]:,}"]))
