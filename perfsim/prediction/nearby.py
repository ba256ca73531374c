"""The nearest batch and the nearest number of devices that divide, where those that are asked hardly do.

Replicas share a batch evenly, so their number divides batch and devices: of 216 devices with 250 sequences
only 1 or 2 replicas can be made, and all other devices become stages.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

from perfsim.prediction.question import Question

SHARE = 8
"""A batch divides where one in so many devices, a node of a DGX, can be a replica."""
RANGE = 0.1
"""How far another batch, or number of devices, may be away, as a share of it."""

FAR = 0.5
"""The same where no layout of the asked ones is legal."""


def divides(batch: int, devices: int) -> bool:
    """Whether enough replicas can be made."""
    return math.gcd(batch, devices) * SHARE >= devices


def divisible(question: Question, *, legal: bool = True) -> list[Question]:
    """The same with the nearest batch that divides, and with such a number of devices; none where it does.

    Of a question without a `legal` layout the nearest that has one, up to half as far away.
    """
    batch = question.job.global_batch_size
    devices = question.devices
    node = question.topology.devices_per_node if question.machine.fragments_memory else 0
    if not node or (legal and divides(batch, devices)):
        return []
    away = RANGE if legal else FAR

    def answers(other: Question) -> bool:
        return legal or any(True for _ in other.chosen.layouts(other.job, other.topology))

    batches = (batch + sign * step for step in range(1, 1 + int(away * batch)) for sign in (-1, 1))
    numbers = (
        devices + sign * step for step in range(node, 1 + int(away * devices), node) for sign in (-1, 1)
    )
    found = (replace(question, batch=other) for other in batches if divides(other, devices))
    others = (replace(question, devices=n, batch=batch) for n in numbers if divides(batch, n))
    return [near for some in (found, others) for near in islice(filter(answers, some), 1)]
