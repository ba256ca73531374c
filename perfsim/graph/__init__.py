"""The task graph, the interface between all parts: strategies write it, the others only read it."""

from perfsim.graph.builder import GraphBuilder, Port, Slots, Template
from perfsim.graph.symmetry import peer_classes
from perfsim.graph.task_graph import Task, TaskGraph
from perfsim.graph.unfold import Unfolded, unfold
from perfsim.graph.work import (
    EMBEDDING,
    EMBEDDING_AND_HEAD,
    HEAD,
    WAIT_OF_EXPERTS,
    WAIT_OF_HOST,
    WHOLE_DEVICE,
    Kind,
    RankGroup,
    TensorClass,
    Work,
    block_name,
)

__all__ = [
    "EMBEDDING",
    "EMBEDDING_AND_HEAD",
    "HEAD",
    "WAIT_OF_EXPERTS",
    "WAIT_OF_HOST",
    "WHOLE_DEVICE",
    "GraphBuilder",
    "Kind",
    "Port",
    "RankGroup",
    "Slots",
    "Task",
    "TaskGraph",
    "Template",
    "TensorClass",
    "Unfolded",
    "Work",
    "block_name",
    "peer_classes",
    "unfold",
]
