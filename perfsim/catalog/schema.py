"""JSON Schemas of descriptions as they are written in YAML, for editors and other checkers.

Draft 2020-12. They differ from pydantic's own: a quantity is a string with a unit, a description with a
file of its own may be written as its name, `name` may be absent, and what `extends` another need not be
complete. perfsim also checks that names exist, that values agree and that each has a source.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from perfsim.base.units import Dimension, quantity_pattern
from perfsim.catalog.reader import is_named, is_record, kind_of, kinds_of, known_fields, members
from perfsim.specs.hardware import SystemSpec

EXTENDS = {
    "type": "string",
    "description": "Name or path of another of this kind; what is written here replaces its values.",
}
_REF = "#/$defs/"
_CHANGES = ".changes"
"""Ending of the definition that leaves every key optional."""

Schema = dict[str, Any]
_QUANTITIES = {quantity_pattern(dimension): f"quantity.{dimension}" for dimension in get_args(Dimension)}


def yaml_schema(kind: str, classes: Sequence[type[BaseModel]]) -> Schema:
    """The schema of files of one kind; the key `kind` chooses among `classes`."""
    records: list[type[BaseModel]] = []  # the classes and all that are nested in them
    waiting = list(classes)
    while waiting:
        cls = waiting.pop()
        if cls not in records:
            records.append(cls)
            waiting += [record for field in known_fields(cls).values() for record in _records_in(field)]
    _, raw = models_json_schema([(cls, "validation") for cls in records], ref_template=f"{_REF}{{model}}")
    # A class that is private to its file is a definition as any other.
    writer = _Writer({cls.__name__.lstrip("_"): cls for cls in records})
    definitions = {name.lstrip("_"): body for name, body in raw["$defs"].items()}
    chosen: Schema = {"$ref": _REF + classes[0].__name__}
    if len(classes) > 1:  # with one condition per class, messages concern that class only
        by_kind = {str(kind): cls.__name__ for cls in classes for kind in kinds_of(cls)}
        chosen = {
            "required": ["kind"],
            "properties": {"kind": {"enum": list(by_kind)}},
            "allOf": [
                {"if": {"properties": {"kind": {"const": kind}}}, "then": {"$ref": _REF + name}}
                for kind, name in by_kind.items()
            ],
        }
    top = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"perfsim {kind}",
        "type": "object",
        "if": {"required": ["extends"]},
        "then": {"anyOf": [{"$ref": _REF + cls.__name__ + _CHANGES} for cls in classes]},
        "else": chosen,
    }
    return {**top, "$defs": writer.definitions(top, definitions)}


def _records_in(annotation: Any) -> Iterator[type[BaseModel]]:
    for member in members(annotation):
        if is_record(member):
            yield member
        else:
            for argument in get_args(member):
                yield from _records_in(argument)


@dataclass
class _Writer:
    """Turns pydantic's definitions into definitions of YAML and collects the quantities they use."""

    records: Mapping[str, type[BaseModel]]
    quantities: Schema = field(default_factory=dict)

    def definitions(self, top: Schema, raw: Schema) -> Schema:
        """Every definition that `top` needs, directly or not."""
        definitions: Schema = {}
        waiting = sorted(_references(top), reverse=True)
        while waiting:
            name = waiting.pop()
            if name in definitions or name in self.quantities:
                continue
            plain = name.removesuffix(_CHANGES)
            definitions[name] = self._record(raw[plain], plain, partial=plain != name)
            waiting += sorted(_references(definitions[name]), reverse=True)
        return {**definitions, **self.quantities}

    def _record(self, body: Schema, name: str, *, partial: bool) -> Schema:
        """A mapping with known keys; `partial` if it only lists differences from another one."""
        cls = self.records[name]
        notes = _field_notes(cls)
        record = {key: value for key, value in body.items() if key not in ("properties", "required", "title")}
        record["properties"] = {}
        for key, schema in body.get("properties", {}).items():
            value = self._value(schema, partial=partial)
            # What an editor shows next to a key: the field's note, then the form of the value.
            note = " ".join(filter(None, [notes.get(key, ""), value.get("description", "")]))
            record["properties"][key] = {**value, "description": note} if note else value
        if is_named(cls):
            record["properties"]["extends"] = EXTENDS
        required = [key for key in body.get("required", []) if key != "name"]
        if required and not partial:
            record["required"] = required
        return record

    def _value(self, schema: Schema, *, partial: bool) -> Schema:
        """One value and its children. A list replaces the inherited one, so its items are complete."""
        if "$ref" in schema:
            return self._reference(schema["$ref"].removeprefix(_REF).lstrip("_"), partial=partial)
        if schema.get("pattern") in _QUANTITIES:
            name = _QUANTITIES[schema["pattern"]]
            shown = ("type", "description", "examples", "pattern")
            self.quantities[name] = {key: schema[key] for key in shown}
            return {"$ref": _REF + name}
        value = {key: item for key, item in schema.items() if key not in ("title", "default")}
        for key, inner in (("items", False), ("additionalProperties", partial)):
            if isinstance(value.get(key), dict):
                value[key] = self._value(value[key], partial=inner)
        for key, inner in (("prefixItems", False), ("anyOf", partial)):
            if key in value:
                value[key] = [self._value(item, partial=inner) for item in value[key]]
        return value

    def _reference(self, name: str, *, partial: bool) -> Schema:
        """Another record; a description may be a name, a path, or written inline."""
        if name == SystemSpec.__name__:
            return {"anyOf": [self._reference(cls.__name__, partial=partial) for cls in members(SystemSpec)]}
        changes = {"$ref": _REF + name + _CHANGES}
        whole = changes if partial else {"$ref": _REF + name}
        if not is_named(self.records[name]):
            return whole
        kind = kind_of(self.records[name])
        named = {"type": "string", "description": f"Name of a {kind} of the catalogue, or a path."}
        here = {"type": "object", "if": {"required": ["extends"]}, "then": changes, "else": whole}
        return {"anyOf": [named, here]}


def _references(schema: Any) -> set[str]:
    """The definitions that a schema names."""
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    named = schema.get("$ref") if isinstance(schema, dict) else None
    own = {named.removeprefix(_REF)} if isinstance(named, str) else set()
    return own.union(*map(_references, inner))


@cache
def _field_notes(cls: type[BaseModel]) -> Mapping[str, str]:
    """The string under each field of a class and its parents, on one line; none without source text."""
    notes: dict[str, str] = {}
    for base in reversed(cls.__mro__[: cls.__mro__.index(BaseModel)]):
        with suppress(OSError, TypeError):
            (record,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            for statement, after in pairwise(getattr(record, "body", [])):
                match statement, after:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(note))):
                        notes[name] = " ".join(note.split())
    return notes
