"""Chakra execution traces: one file for each class of ranks, written from a run and read back.

Format: mlcommons/chakra; a file `<prefix>.<rank>.et` holds messages, each after its length as a varint:
first the metadata, then the nodes. Attributes are those that its feeder and ASTRA-sim read: `num_ops`,
`tensor_size`, `comm_type`, `comm_size`, `comm_src`, `comm_dst`, `comm_tag`, `pg_name`. Durations are whole
microseconds there, so the exact seconds stand in attributes of perfsim's own, `start_s` and `duration_s`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from perfsim.base.errors import InputError, PerfsimError, Problem
from perfsim.base.files import must_exist, write_file
from perfsim.engine.trace import Trace
from perfsim.version import __version__
from perfsim.work import Kind
from perfsim.work.graph import owners_of, rank_of

# Source of the messages: mlcommons/chakra, `schema/protobuf/et_def.proto` (Apache-2.0): their field numbers,
# as far as compute, memory and communication nodes need them. Chakra itself is not packaged; the library
# comes with the extra `[chakra]`.

PACKAGE = "ChakraProtoMsg"
NODE_TYPES = (
    *("INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE"),
    *("COMM_RECV_NODE", "COMM_COLL_NODE"),
)
COLLECTIVES = (
    *("ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL", "REDUCE_SCATTER"),
    *("REDUCE_SCATTER_BLOCK", "BARRIER"),
)
SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64"),
    *("sfixed32", "sfixed64", "bool", "string", "bytes"),
)
ATTRIBUTE = "AttributeProto"
"""A name and a value of one of these types: `double_val = 3`, `float_val = 5`, ...; lists are skipped."""
OTHER_TYPES = {"NodeType": "ENUM", ATTRIBUTE: "MESSAGE"}
MESSAGES: Mapping[str, Sequence[tuple[str, int, str]]] = {
    ATTRIBUTE: [
        ("name", 1, "string"),
        ("doc_string", 2, "string"),
        *((f"{scalar}_val", 3 + 2 * index, scalar) for index, scalar in enumerate(SCALARS)),
    ],
    "GlobalMetadata": [("version", 1, "string"), ("attr", 2, f"repeated {ATTRIBUTE}")],
    "Node": [
        ("id", 1, "uint64"),
        ("name", 2, "string"),
        ("type", 3, "NodeType"),
        ("ctrl_deps", 4, "repeated uint64"),
        ("data_deps", 5, "repeated uint64"),
        ("start_time_micros", 6, "uint64"),
        ("duration_micros", 7, "uint64"),
        ("attr", 10, f"repeated {ATTRIBUTE}"),
    ],
}


@cache
def _messages() -> dict[str, Any]:
    """The classes of the messages by name. Raises PerfsimError without protobuf."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise PerfsimError("Chakra traces need protobuf: pip install 'perfsim[chakra]'") from None
    file: Any = descriptor_pb2.FileDescriptorProto(
        name="perfsim/et_def.proto", package=PACKAGE, syntax="proto3"
    )
    types = file.enum_type.add(name="NodeType")
    for number, value in enumerate(NODE_TYPES):
        types.value.add(name=value, number=number)
    for message_name, fields in MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for name, number, kind in fields:
            word = kind.removeprefix("repeated ")
            message.field.add(
                name=name,
                number=number,
                label="LABEL_OPTIONAL" if kind == word else "LABEL_REPEATED",
                type=f"TYPE_{OTHER_TYPES.get(word, word.upper())}",
                type_name=f".{PACKAGE}.{word}" if word in OTHER_TYPES else None,
                oneof_index=0 if name.endswith("_val") else None,
            )
        if message_name == ATTRIBUTE:
            message.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptors = {name: pool.FindMessageTypeByName(f"{PACKAGE}.{name}") for name in MESSAGES}
    return {name: message_factory.GetMessageClass(message) for name, message in descriptors.items()}


SUFFIX = ".et"
SCHEMA_VERSION = "0.0.4"
MICROSECONDS = 1e6
VERSION_FIELD = 0x0A
"""First byte of the metadata: field 1, a text."""
MOST_MESSAGE = 1 << 26
"""Bytes of one message; a longer one is no trace."""


@dataclass(frozen=True)
class Node:
    """A node of a trace, with its attributes by name."""

    id: int
    name: str
    kind: str
    after: tuple[int, ...] = ()
    """Nodes that it waits for by control or program order."""
    reads: tuple[int, ...] = ()
    """Nodes whose results it reads."""
    start_s: float = 0.0
    duration_s: float = 0.0
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, message: Any) -> Node:
        attributes = _values(message.attr)
        kind = message.type
        return cls(
            id=message.id,
            name=message.name,
            kind=NODE_TYPES[kind] if kind < len(NODE_TYPES) else f"NODE_{kind}",
            after=tuple(message.ctrl_deps),
            reads=tuple(message.data_deps),
            start_s=float(attributes.pop("start_s", message.start_time_micros / MICROSECONDS)),
            duration_s=float(attributes.pop("duration_s", message.duration_micros / MICROSECONDS)),
            attributes=attributes,
        )

    def message(self) -> Any:
        exact = {"start_s": self.start_s, "duration_s": self.duration_s}
        return _messages()["Node"](
            id=self.id,
            name=self.name,
            type=NODE_TYPES.index(self.kind),
            ctrl_deps=self.after,
            data_deps=self.reads,
            start_time_micros=round(self.start_s * MICROSECONDS),
            duration_micros=round(self.duration_s * MICROSECONDS),
            attr=_attributes({**self.attributes, **exact}),
        )


@dataclass(frozen=True)
class ExecutionTrace:
    """The trace of one rank."""

    version: str
    attributes: Mapping[str, Any]
    nodes: tuple[Node, ...]

    @classmethod
    def read(cls, path: Path) -> ExecutionTrace:
        """The trace in a file, whoever wrote it; InputError for no trace, PerfsimError without protobuf."""
        must_exist(path)
        types = _messages()
        from google.protobuf.message import DecodeError

        try:
            first, *rest = _split(path.read_bytes())
            metadata = types["GlobalMetadata"].FromString(first)
            nodes = tuple(Node.of(types["Node"].FromString(part)) for part in rest)
            if not metadata.version and not nodes:
                raise ValueError("it has no version and no node")
        except (DecodeError, ValueError) as error:
            raise InputError([Problem(f"is no Chakra trace: {error}", str(path))]) from None
        return cls(metadata.version, _values(metadata.attr), nodes)

    @staticmethod
    def recognise(path: Path) -> bool:
        """Whether a file begins as a trace: a short message whose first field is the text of a version."""
        try:
            with path.open("rb") as file:
                length, kind, size, *version = file.read(64)
        except (OSError, ValueError):
            return False
        text = bytes(version[:size]).replace(b".", b"")
        return length < 0x80 and kind == VERSION_FIELD and size <= length - 2 and text.isalnum()

    @classmethod
    def write(cls, trace: Trace, path: Path) -> list[Path]:
        """Write `<path without .et>.<rank>.et` for the first rank of each class; returns the files.

        The attribute `ranks` of the metadata is how many ranks a file stands for. Raises PerfsimError without
        protobuf.
        """
        graph = trace.graph
        owners = [_ranks(stream) for stream in graph.streams]
        groups = [own.group.ranks if own.kind is Kind.COMM_COLL and own.group else () for own in graph.works]
        inside: dict[int, NDArray[np.bool_]] = {}
        for rank in sorted({rank for of_stream in owners for rank in of_stream}):
            # Devices that all ranks share (MemoryX) are in all traces, a collective in those of its members.
            on_stream = np.array([not mine or rank in mine for mine in owners])
            joint = np.array([rank in group for group in groups])
            inside[rank] = on_stream[graph.stream] | joint[graph.work]
        written = []
        for rank in inside:
            number = next(count for count, mine in zip(graph.stands_for, owners, strict=True) if rank in mine)
            attributes = {"tool": f"perfsim {__version__}", "rank": rank, "ranks": number}
            metadata = _messages()["GlobalMetadata"](version=SCHEMA_VERSION, attr=_attributes(attributes))
            messages = [metadata, *(node.message() for node in _nodes(trace, rank, inside))]
            file = path.parent / f"{path.name.removesuffix(SUFFIX)}.{rank}{SUFFIX}"
            parts = [message.SerializeToString(deterministic=True) for message in messages]
            written.append(write_file(file, b"".join(_varint(len(part)) + part for part in parts)))
        return written

    def summary(self) -> dict[str, Any]:
        """Counts by type, and sums of FLOPs, bytes and seconds."""
        # The critical path lasts from the first node to the last if only dependencies delay one.
        ends_s: dict[int, float] = {}
        for node in self.nodes:
            ready_s = max((ends_s.get(other, 0.0) for other in (*node.after, *node.reads)), default=0.0)
            ends_s[node.id] = ready_s + node.duration_s

        def total(name: str) -> float:
            values = (node.attributes.get(name) for node in self.nodes)
            return float(sum(value for value in values if isinstance(value, (int, float))))

        return {
            "nodes": len(self.nodes),
            "by_type": dict(Counter(node.kind for node in self.nodes)),
            "flop": total("num_ops"),
            "communication_bytes": total("comm_size"),
            "duration_s": max((node.start_s + node.duration_s for node in self.nodes), default=0.0),
            "critical_path_s": max(ends_s.values(), default=0.0),
        }


COLLECTIVE_OF = {name.casefold(): name for name in COLLECTIVES} | {"send_recv": "ALL_TO_ALL"}
"""Chakra has no shift by one rank, in which every rank sends one message; the nearest is an all-to-all."""


def _ranks(stream: str) -> tuple[int, ...]:
    """The ranks of a stream; none for one that all ranks share."""
    owners = (rank_of(f"{device}/") for device in owners_of(stream))
    return tuple(rank for rank in owners if rank is not None)


def _nodes(trace: Trace, rank: int, inside: Mapping[int, NDArray[np.bool_]]) -> Iterator[Node]:
    """The nodes of a rank, each after those that it waits for.

    Where a task reads what another rank computes, a send there and a receive here stand between.
    """
    graph = trace.graph
    mine = inside[rank]
    previous = graph.stream_predecessor.tolist()
    # The other ranks that read what each task of this rank writes, and do not run the task themselves.
    writers = graph.writer[graph.reads.values]
    elsewhere: dict[int, list[int]] = defaultdict(list)
    for other, theirs in inside.items():
        reads = mine[writers] & ~theirs[writers] & theirs[graph.reads.row_of_value]
        for task in np.unique(writers[reads]).tolist():
            elsewhere[task].append(other)
    received: dict[int, int] = {}
    for task in np.flatnonzero(mine).tolist():
        sources = {int(graph.writer[tensor]) for tensor in graph.reads.row(task)}
        for source in sorted(source for source in sources if not mine[source]):
            if source not in received:
                received[source] = len(graph) + source
                sent = _node(trace, source)
                sender = next(iter(_ranks(str(sent.attributes["stream"]))), 0)
                yield _message(trace, sent, "RECV", received[source], sender, rank)
        before = [previous[task]] if previous[task] >= 0 else []
        after = sorted(other for other in {*graph.after.row(task), *before} if mine[other])
        reads_of = sorted(received.get(source, source) for source in sources)
        node = _node(trace, task, tuple(after), tuple(reads_of))
        yield node
        if node.kind != "COMM_SEND_NODE":
            for number, other in enumerate(elsewhere[task], 2):
                yield _message(trace, node, "SEND", number * len(graph) + task, rank, other)


def _node(trace: Trace, task: int, after: tuple[int, ...] = (), reads: tuple[int, ...] = ()) -> Node:
    row = trace.graph.task(task)
    work = row.work
    start_s = float(trace.start_s[task])
    attributes: dict[str, Any] = {
        "is_cpu_op": False,
        "num_ops": round(work.flop),
        "tensor_size": round(work.comm_bytes or work.bytes_accessed),
        "category": work.category,
        "stream": row.stream,
    }
    if row.tag >= 0:
        attributes["microbatch"] = row.tag
    if work.kind.is_communication:
        ranks = list(work.group.ranks) if work.group is not None else []
        attributes["comm_size"] = round(work.comm_bytes)
        if work.kind is not Kind.COMM_COLL:
            ranks = ranks or [0]
            attributes |= {"comm_src": ranks[0], "comm_dst": ranks[-1], "comm_tag": task}
        else:
            attributes["comm_type"] = COLLECTIVES.index(COLLECTIVE_OF.get(work.op, "ALL_REDUCE"))
            if ranks:
                attributes["pg_name"] = ",".join(map(str, ranks))
    duration_s = float(trace.end_s[task]) - start_s
    return Node(task, row.name, f"{work.kind.name}_NODE", after, reads, start_s, duration_s, attributes)


def _message(
    trace: Trace, node: Node, end: Literal["SEND", "RECV"], number: int, source: int, target: int
) -> Node:
    """One end of the message that brings the result of a node to another rank."""
    writes = trace.graph.task(node.id).work.writes
    size = node.attributes.get("comm_size") or round(sum(tensor.n_bytes for tensor in writes))
    attributes = {
        "is_cpu_op": False,
        "comm_size": int(size),
        "comm_src": source,
        "comm_dst": target,
        "comm_tag": node.id,
        "category": node.attributes["category"],
    }
    # A node that sends is received while it lasts, the result of any other one at once.
    lasts = node.kind == "COMM_SEND_NODE"
    return Node(
        id=number,
        name=f"{node.name}.{'send' if end == 'SEND' else 'receive'}",
        kind=f"COMM_{end}_NODE",
        reads=(node.id,) if end == "SEND" else (),
        start_s=node.start_s if lasts else node.start_s + node.duration_s,
        duration_s=node.duration_s if lasts else 0.0,
        attributes=attributes,
    )


def _attributes(values: Mapping[str, Any]) -> list[Any]:
    attribute = _messages()["AttributeProto"]
    kinds = {bool: "bool_val", int: "int64_val", float: "double_val", str: "string_val"}
    return [attribute(name=name, **{kinds[type(value)]: value}) for name, value in values.items()]


def _varint(number: int) -> bytes:
    """A number in groups of 7 bits, the lowest first; all bytes but the last have the top bit."""
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + _varint(number >> 7)


def _split(data: bytes) -> list[bytes]:
    """The messages of a file. Raises ValueError for a file that is empty or ends inside of one."""
    parts: list[bytes] = []
    offset = 0
    while varint := re.compile(rb"[\x80-\xff]{0,4}[\x00-\xff]").match(data, offset):
        length = sum((group & 0x7F) << 7 * position for position, group in enumerate(varint[0]))
        offset = varint.end() + length
        if length > MOST_MESSAGE or offset > len(data):
            raise ValueError(f"a message of {length} bytes at byte {varint.end()} goes beyond the end")
        parts.append(data[varint.end() : offset])
    if not parts:
        raise ValueError("the file is empty")
    return parts


def _values(attributes: Any) -> dict[str, Any]:
    told = ((attribute, attribute.WhichOneof("value")) for attribute in attributes)
    return {attribute.name: getattr(attribute, kind) for attribute, kind in told if kind is not None}
