"""The task graph, the interface between all parts: strategies write it, the others only read it."""

from __future__ import annotations

from perfsim.work.builder import GraphBuilder, Slots, Template
from perfsim.work.graph import (
    EMBEDDING,
    EMBEDDING_AND_HEAD,
    HEAD,
    WAIT_OF_EXPERTS,
    WAIT_OF_HOST,
    WHOLE_DEVICE,
    Kind,
    RankGroup,
    Task,
    TaskGraph,
    TensorClass,
    Work,
    block_name,
)
from perfsim.work.unfold import peer_classes, unfold

__all__ = [
    "EMBEDDING",
    "EMBEDDING_AND_HEAD",
    "HEAD",
    "WAIT_OF_EXPERTS",
    "WAIT_OF_HOST",
    "WHOLE_DEVICE",
    "GraphBuilder",
    "Kind",
    "RankGroup",
    "Slots",
    "Task",
    "TaskGraph",
    "Template",
    "TensorClass",
    "Work",
    "block_name",
    "peer_classes",
    "unfold",
]
