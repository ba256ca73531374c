"""The messages of Chakra execution traces, compiled when they are first used.

Source: mlcommons/chakra, `schema/protobuf/et_def.proto` (Apache-2.0): the field numbers of its messages, as
far as compute, memory and communication nodes need them. Chakra itself is not packaged. The library comes
with the extra `[chakra]`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from perfsim.errors import PerfsimError

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
"""Types of an attribute's value: `double_val = 3`, a list of them `double_list = 4`, and so on."""
MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "IOInfo": (("values", 1, "string"), ("shapes", 2, "string"), ("types", 3, "string")),
    "GlobalMetadata": (("version", 1, "string"), ("attr", 2, "repeated AttributeProto")),
    "Node": (
        ("id", 1, "uint64"),
        ("name", 2, "string"),
        ("type", 3, "NodeType"),
        ("ctrl_deps", 4, "repeated uint64"),
        ("data_deps", 5, "repeated uint64"),
        ("start_time_micros", 6, "uint64"),
        ("duration_micros", 7, "uint64"),
        ("inputs", 8, "IOInfo"),
        ("outputs", 9, "IOInfo"),
        ("attr", 10, "repeated AttributeProto"),
    ),
}


@cache
def messages() -> dict[str, Any]:
    """The classes of the messages by name. Raises PerfsimError without protobuf."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise PerfsimError("Chakra traces need protobuf: pip install 'perfsim[chakra]'") from None
    file: Any = descriptor_pb2.FileDescriptorProto(
        name="perfsim/et_def.proto", package=PACKAGE, syntax="proto3"
    )
    for name, values in (("NodeType", NODE_TYPES), ("CollectiveCommType", COLLECTIVES)):
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    attribute = file.message_type.add(name="AttributeProto")
    _field(attribute, "name", 1, "string")
    _field(attribute, "doc_string", 2, "string")
    attribute.oneof_decl.add(name="value")
    for index, scalar in enumerate(SCALARS):
        values_of = f"{scalar.capitalize()}List"
        _field(file.message_type.add(name=values_of), "values", 1, f"repeated {scalar}")
        _field(attribute, f"{scalar}_val", 3 + 2 * index, scalar).oneof_index = 0
        _field(attribute, f"{scalar}_list", 4 + 2 * index, values_of).oneof_index = 0
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _field(message, *field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in ("AttributeProto", *MESSAGES)
    }


def _field(message: Any, name: str, number: int, kind: str) -> Any:
    """Add a field of a scalar type, of an enumeration or of another message."""
    word = kind.removeprefix("repeated ")
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if kind != word else field.LABEL_OPTIONAL
    if word in SCALARS:
        field.type = getattr(field, f"TYPE_{word.upper()}")
    else:
        field.type = field.TYPE_ENUM if word == "NodeType" else field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{word}"
    return field
