"""The nearest batch and the nearest number of devices that divide, where those that are asked hardly do.

Replicas share a batch evenly, so their number divides batch and devices: of 216 devices with 250 sequences
only 1 or 2 replicas can be made, and all other devices become stages.
"""

from __future__ import annotations

import math
from dataclasses import replace

from perfsim.prediction.question import Question

SHARE = 8
"""A batch divides where one in so many devices, a node of a DGX, can be a replica."""
RANGE = 0.1
"""How far another batch, or number of devices, may be away, as a share of it."""


def divides(batch: int, devices: int) -> bool:
    """Whether enough replicas can be made."""
    return math.gcd(batch, devices) * SHARE >= devices


def divisible(question: Question) -> list[Question]:
    """The same with the nearest batch that divides, and with such a number of devices; none where it does."""
    batch = question.job.global_batch_size
    devices = question.devices
    node = question.topology.devices_per_node if question.machine.fragments_memory else 0
    if not node or divides(batch, devices):
        return []
    batches = (batch + sign * away for away in range(1, 1 + int(RANGE * batch)) for sign in (-1, 1))
    numbers = (
        devices + sign * away for away in range(node, 1 + int(RANGE * devices), node) for sign in (-1, 1)
    )
    others = [replace(question, batch=other) for other in batches if divides(other, devices)][:1]
    return others + [replace(question, devices=n, batch=batch) for n in numbers if divides(batch, n)][:1]
