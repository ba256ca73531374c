"""Collective communication: moves of bytes (`steps`), their time (`time_s`), and NCCL's choices.

`ring`, `tree`, `hierarchical` and `in_network` are algorithms, each with its movement and its
closed form; `model` prices a collective of a real group with calibrated constants.
"""

from __future__ import annotations

from perfsim.collectives.model import CollectiveModel
from perfsim.collectives.move import Move
from perfsim.topology import Group

__all__ = ["CollectiveModel", "Group", "Move"]
