"""What a rank holds over its order, counted slot by slot."""

from __future__ import annotations

from perfsim.strategies.schedules.slot import Held, StageOrder


def held_at_peak(order: StageOrder, virtual: int) -> tuple[Held, ...]:
    """The moments at which a rank can hold most, for an order with W slots.

    A forward adds activations, a backward turns them into what its weight gradients read, W frees
    that. Which moment is the worst depends on the bytes of the two, so all that no other moment
    exceeds in both are given.
    """
    activations = weight_inputs = 0
    least: dict[int, int] = {}
    for slot in order:
        activations += {"F": 1, "B": -1, "W": 0}[slot.which]
        weight_inputs += {"F": 0, "B": 1, "W": -1}[slot.which]
        least[activations] = max(least.get(activations, 0), weight_inputs)
    peaks: list[Held] = []
    most = -1
    for count in sorted(least, reverse=True):
        if least[count] > most:
            most = least[count]
            peaks.append(Held(count / virtual, most / virtual))
    return tuple(peaks)
