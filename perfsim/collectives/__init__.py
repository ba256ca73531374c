"""Collectives: how bytes move (`steps`), how long that takes (`time_s`), and what NCCL makes of it.

`ring`, `tree`, `hierarchical` and `in_network` are algorithms, each with its movement and its
closed form; `model` prices a collective of a real group with calibrated constants.
"""

from __future__ import annotations

from perfsim.collectives.group import Group, Move
from perfsim.collectives.model import CollectiveModel

__all__ = ["CollectiveModel", "Group", "Move"]
