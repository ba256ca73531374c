"""What a rank holds in flight, counted slot by slot over its order."""

from __future__ import annotations

from perfsim.strategies.schedules.slot import StageOrder


def held_at_peak(order: StageOrder, virtual: int) -> tuple[tuple[float, float], ...]:
    """Activations and weight inputs at the possible peaks of a rank, for an order with W slots.

    A forward adds activations, a backward turns these into inputs of weight gradients, and W frees them.
    Which moment is the peak depends on the bytes of both, so all that can be are returned: the corners of the
    convex hull of the moments.
    """
    activations = weight_inputs = 0
    most_inputs: dict[int, int] = {}
    for slot in order:
        activations += {"F": 1, "B": -1, "W": 0}[slot.which]
        weight_inputs += {"F": 0, "B": 1, "W": -1}[slot.which]
        most_inputs[activations] = max(most_inputs.get(activations, 0), weight_inputs)
    corners: list[tuple[int, int]] = []
    for count in sorted(most_inputs, reverse=True):
        moment = (count, most_inputs[count])
        if corners and moment[1] <= corners[-1][1]:
            continue
        while len(corners) > 1 and _is_inside(corners[-2], corners[-1], moment):
            corners.pop()
        corners.append(moment)
    return tuple((count / virtual, inputs / virtual) for count, inputs in corners)


def _is_inside(first: tuple[int, int], middle: tuple[int, int], last: tuple[int, int]) -> bool:
    """Whether the middle moment is on or below the line between the others, so it is never the peak alone."""
    rise = (last[1] - first[1]) * (first[0] - middle[0])
    return (middle[1] - first[1]) * (first[0] - last[0]) <= rise
