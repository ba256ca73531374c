"""Labels beside what they name: places where they hide neither each other nor the marks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from perfsim.report.figures import base

WIDE_PX, HIGH_PX, LETTER_PX, LINE_PX = 300, 330, 6.2, 16
"""A plot as labels are placed for it: that of a phone; where there is more room, marks are further apart."""

Rectangle = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Spot:
    """A place for a label: the mark that it names, and the pixels from it, to the right and up."""

    x: float
    y: float
    right: float
    up: float


@dataclass(frozen=True, slots=True)
class Canvas:
    """A plot with logarithmic axes between these ends."""

    x_ends: tuple[float, float]
    y_ends: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels from the lower left corner."""
        places = (
            length * math.log(value / low) / math.log(high / low)
            for value, (low, high), length in ((x, self.x_ends, WIDE_PX), (y, self.y_ends, HIGH_PX))
        )
        return next(places), next(places)

    def around(self, x: float, y: float, size_px: float) -> Rectangle:
        """The square of a mark."""
        right, up = self.at(x, y)
        return right - size_px / 2, up - size_px / 2, right + size_px / 2, up + size_px / 2

    def box(self, words: str, spot: Spot) -> Rectangle:
        """The rectangle of a label."""
        (right, up), half = self.at(spot.x, spot.y), half_px(words)
        middle, height = (right + spot.right, up + spot.up), LINE_PX * (1 + words.count("\n")) / 2
        return middle[0] - half, middle[1] - height, middle[0] + half, middle[1] + height

    def hidden(self, box: Rectangle, taken: Iterable[Rectangle]) -> float:
        """Square pixels of what a box covers of others, and of itself outside the plot."""
        width = max(0.0, min(box[2], WIDE_PX) - max(box[0], 0.0))
        height = max(0.0, min(box[3], HIGH_PX) - max(box[1], 0.0))
        outside = (box[2] - box[0]) * (box[3] - box[1]) - width * height
        return outside + sum(_common(box, other) for other in taken)


def half_px(words: str) -> float:
    """Half the width of a label, which may have several lines."""
    return max(map(len, words.split("\n"))) * LETTER_PX / 2


def notes(
    canvas: Canvas,
    labels: Sequence[tuple[str, Sequence[Spot], dict[str, Any]]],
    taken: Iterable[Rectangle],
    *,
    always: bool,
) -> list[dict[str, Any]]:
    """An annotation with a leader for each label (words, spots by preference, style), the first ones first.

    A label that has no free spot is left out, or with `always` put where it covers least.
    """
    covered, annotations = list(taken), []
    for words, spots, style in labels:
        costs = [canvas.hidden(canvas.box(words, spot), covered) for spot in spots]
        best = costs.index(min(costs))
        if costs[best] > 0 and not always:
            continue
        spot = spots[best]
        covered.append(canvas.box(words, spot))
        annotations.append(
            {
                "x": math.log10(spot.x),
                "y": math.log10(spot.y),
                "text": base.esc(words).replace("\n", base.BREAK),
            }
            | {"ax": spot.right, "ay": -spot.up, "arrowhead": 0, "arrowwidth": 1, "arrowcolor": base.GREY}
            | style
        )
    return annotations


def _common(a: Rectangle, b: Rectangle) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0.0
