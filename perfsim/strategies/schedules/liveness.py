"""What a rank holds in flight, counted slot by slot over its order."""

from __future__ import annotations

from perfsim.strategies.schedules.slot import StageOrder


def held_at_peak(order: StageOrder, virtual: int) -> tuple[tuple[float, float], ...]:
    """Activations and weight inputs at the possible peaks of a rank, for an order with W slots.

    A forward adds activations, a backward turns these into inputs of weight gradients, and W frees them.
    Which moment is the peak depends on the bytes of both, so all Pareto-optimal moments are returned.
    """
    activations = weight_inputs = 0
    most_inputs: dict[int, int] = {}
    for slot in order:
        activations += {"F": 1, "B": -1, "W": 0}[slot.which]
        weight_inputs += {"F": 0, "B": 1, "W": -1}[slot.which]
        most_inputs[activations] = max(most_inputs.get(activations, 0), weight_inputs)
    peaks: list[tuple[float, float]] = []
    most = -1
    for count in sorted(most_inputs, reverse=True):
        if most_inputs[count] > most:
            most = most_inputs[count]
            peaks.append((count / virtual, most / virtual))
    return tuple(peaks)
