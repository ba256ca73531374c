"""The task graph, the interface between all parts: strategies write it, the others only read it."""

from perfsim.work.builder import GraphBuilder as GraphBuilder
from perfsim.work.builder import Slots as Slots
from perfsim.work.builder import Template as Template
from perfsim.work.graph import EMBEDDING as EMBEDDING
from perfsim.work.graph import EMBEDDING_AND_HEAD as EMBEDDING_AND_HEAD
from perfsim.work.graph import HEAD as HEAD
from perfsim.work.graph import WAIT_OF_EXPERTS as WAIT_OF_EXPERTS
from perfsim.work.graph import WAIT_OF_HOST as WAIT_OF_HOST
from perfsim.work.graph import WHOLE_DEVICE as WHOLE_DEVICE
from perfsim.work.graph import Kind as Kind
from perfsim.work.graph import RankGroup as RankGroup
from perfsim.work.graph import Task as Task
from perfsim.work.graph import TaskGraph as TaskGraph
from perfsim.work.graph import TensorClass as TensorClass
from perfsim.work.graph import Work as Work
from perfsim.work.graph import block_name as block_name
from perfsim.work.unfold import peer_classes as peer_classes
from perfsim.work.unfold import unfold as unfold
