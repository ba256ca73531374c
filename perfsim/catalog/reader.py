"""Reads a file into a description of its kind: `extends`, names, and all errors at once."""

from __future__ import annotations

import collections.abc
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from perfsim.base.errors import MOST_SHOWN, CatalogError, Problem, refused_value
from perfsim.base.spec import CatalogSpec
from perfsim.base.text import did_you_mean
from perfsim.base.units import YAML_CONTEXT
from perfsim.catalog.yaml_tree import Mark, Node, Scalar, read_yaml
from perfsim.specs.calibration import Calibration, CollectiveCalibration, FrameworkCalibration
from perfsim.specs.hardware import DeviceSpec, GpuClusterSpec, LinkSpec, SystemSpec, system_classes
from perfsim.specs.model import TransformerConfig
from perfsim.specs.precisions import PRECISIONS
from perfsim.specs.recipe import Recipe
from perfsim.specs.runtime import Runtime
from perfsim.specs.wall_clock import WallClockSpec

# The kinds of document, and what the annotations of a class accept.


class Kind(NamedTuple):
    """A kind of document: where its files are, and what they describe."""

    folder: str
    """Below a root of the catalogue."""
    base: type[BaseModel] | None
    """The class of its descriptions, or what several have in common, which their key `kind` tells apart; None
    for a study, which its caller validates."""


KINDS: Mapping[str, Kind] = {
    "device": Kind("hardware/devices", DeviceSpec),
    "link": Kind("hardware/links", LinkSpec),
    "system": Kind("hardware/systems", SystemSpec),
    "framework": Kind("hardware/calibrations/frameworks", FrameworkCalibration),
    "calibration": Kind("hardware/calibrations", Calibration),
    "wall_clock": Kind("hardware/wall_clocks", WallClockSpec),
    "model": Kind("workloads/models", TransformerConfig),
    "recipe": Kind("workloads/recipes", Recipe),
    "runtime": Kind("workloads/runtimes", Runtime),
    "study": Kind("studies", None),
}
"""Every kind of document of the catalogue."""


def folder_of(kind: str) -> str:
    """The folder of a kind; CatalogError for an unknown kind."""
    if kind not in KINDS:
        raise CatalogError([Problem(f"unknown kind `{kind}`", help=did_you_mean(kind, KINDS))])
    return KINDS[kind].folder


def base_of(kind: str) -> type[BaseModel]:
    """The common class of all descriptions of a kind."""
    base = KINDS[kind].base
    return BaseModel if base is None else base


def classes_of(kind: str) -> tuple[type[BaseModel], ...]:
    """The classes that a file of this kind may describe; none for a study."""
    base = KINDS[kind].base
    if base is SystemSpec:
        return tuple(system_classes().values())
    if base is Calibration:
        calibrations = (cls for cls in _subclasses(Calibration) if cls is not FrameworkCalibration)
        return tuple(cls for cls in calibrations if kinds_of(cls))  # a base has no `kind`
    return () if base is None else (base,)


def kind_of(cls: type) -> str:
    """The kind of a class of descriptions; `study` for a class without a folder."""
    return next((kind for kind, (_, base) in KINDS.items() if base and issubclass(cls, base)), "study")


def _subclasses(cls: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


# The types that a pydantic field accepts, read from its annotation.

_SEQUENCES = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable)
_MAPPINGS = (dict, collections.abc.Mapping)


def members(annotation: Any) -> list[Any]:
    """The members of a union, without `Annotated`; `None` appears as NoneType."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return members(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [member for part in get_args(annotation) for member in members(part)]
    if annotation is SystemSpec:
        return list(system_classes().values())
    return [annotation]


def is_record(annotation: Any) -> bool:
    """Whether values of this type are written as a mapping with known keys."""
    return isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation))


def is_named(annotation: Any) -> bool:
    """Whether values of this type have their own file and may be given by name."""
    return isinstance(annotation, type) and issubclass(annotation, CatalogSpec)


def known_fields(record: type) -> dict[str, Any]:
    """Annotations of a record's fields, by their key in YAML."""
    if issubclass(record, BaseModel):
        return {info.alias or name: info.annotation for name, info in record.model_fields.items()}
    if not is_dataclass(record):
        return {}
    hints = get_type_hints(record, include_extras=True)
    return {item.name: hints[item.name] for item in fields(record) if item.init}


def _literal_values(annotation: Any) -> list[Any]:
    """The values that the `Literal`s of an annotation allow."""
    return [
        value for member in members(annotation) if get_origin(member) is Literal for value in get_args(member)
    ]


def kinds_of(record: type) -> list[Any]:
    """Values that the key `kind` may have in a record; empty without such a key."""
    return _literal_values(known_fields(record).get("kind", Any))


def element(annotation: Any, part: object) -> list[Any]:
    """The types accepted under a key or an index of a value of this type."""
    accepted: list[Any] = []
    for member in members(annotation):
        origin = get_origin(member)
        arguments = get_args(member)
        if is_record(member):
            field = known_fields(member).get(str(part))
            accepted += [] if field is None else members(field)
        elif origin in _MAPPINGS and len(arguments) == 2:
            accepted += members(arguments[1])
        elif origin in _SEQUENCES and arguments:
            # A tuple of fixed length has one type per position.
            fixed = len(arguments) > 1 and Ellipsis not in arguments and isinstance(part, int)
            accepted += members(arguments[min(int(str(part)), len(arguments) - 1)] if fixed else arguments[0])
    return accepted


def _types_at(model: type, path: Sequence[object]) -> list[Any]:
    """The types accepted at a path of keys and indices inside a record."""
    alternatives: list[Any] = [model]
    for part in path:
        alternatives = [inner for outer in alternatives for inner in element(outer, part)]
    return alternatives


def _records_at(model: type, path: Sequence[object]) -> list[type]:
    """The records that a mapping at a path may be."""
    return [member for outer in _types_at(model, path) for member in members(outer) if is_record(member)]


def _keys_of(records: Sequence[type]) -> list[str]:
    """The keys that a mapping accepts which may be any of these records."""
    return list(dict.fromkeys(key for record in records for key in known_fields(record)))


def _help_of_key(name: str, records: Sequence[type]) -> str:
    """Where a key has moved that no record accepts, or the nearest that one does."""
    moved = (getattr(record, "moved", {}).get(name, "") for record in records)
    return next(filter(None, moved), "") or did_you_mean(name, _keys_of(records))


def _takes_boolean(alternatives: list[Any]) -> bool:
    """Whether true and false keep their meaning; a number field would coerce them to 1 and 0."""
    return any(
        member in (bool, Any, object) or any(isinstance(value, bool) for value in _literal_values(member))
        for member in alternatives
    )


# Resolves the names in a file's tree to descriptions, giving the data that pydantic validates.
#
# A field whose annotation is a description with its own file (DeviceSpec, LinkSpec, a
# calibration, a model, a recipe) is written as that file's name, as a path, or as a mapping.

MOST_PROBLEMS = 1000
"""Of one file; then no more names are looked up."""
Loc = tuple[object, ...]
"""Keys and indices that lead to a value."""

RecordT = TypeVar("RecordT")


class _Shelves(Protocol):
    """What reading asks of the catalogue: files and descriptions by kind and name."""

    def names(self, kind: str) -> list[str]: ...

    def find(self, kind: str, name_or_path: str, near: Path | None = None) -> Path: ...

    def load(self, kind: str, name_or_path: str, near: Path | None = None) -> Any: ...


@dataclass(slots=True)
class Resolver:
    """Walks the tree of a file along an annotation and collects its problems; paths are relative to it."""

    catalog: _Shelves
    file: Path
    problems: list[Problem] = field(default_factory=list)
    failed: list[Loc] = field(default_factory=list)
    """Paths with a reported problem: pydantic's errors on them are dropped."""
    references: list[tuple[Loc, Any]] = field(default_factory=list)
    """Every named description, with the path of the field that names it."""

    def data(self, node: Node, annotation: Any, path: Loc = ()) -> Any:
        """The data to validate for `node`; None where a problem was reported."""
        alternatives = members(annotation) if annotation is not None else []
        named = [member for member in alternatives if is_named(member)]
        if node.broken and not node.is_mapping:
            self.failed.append(path)
            return None
        # An empty path is the file itself, which is never a reference.
        if path and named and isinstance(node.value, str):
            return self._load(node, path, named, lambda: self._named(node.text, named))
        if path and named and node.is_mapping:
            return self._load(node, path, named, lambda: self._inline(node, named))
        if node.is_mapping:
            return self._mapping(node, alternatives, path)
        if isinstance(node.value, list):
            return [
                self.data(child, _joined(alternatives, index), (*path, index))
                for index, child in enumerate(node.value)
            ]
        if isinstance(node.value, bool) and alternatives and not _takes_boolean(alternatives):
            self._fail(node, path, f"{node.text} is not a number or a text", "quotes make it text")
            return None
        return node.value

    def _mapping(self, node: Node, alternatives: list[Any], path: Loc) -> dict[Any, Any]:
        records = [member for member in alternatives if is_record(member)]
        chosen: list[Any] = [member for member in alternatives if not is_record(member)]
        if records:
            chosen.append(_best(node, records))
        return {
            key: self.data(child, _joined(chosen, key), (*path, key)) for key, child in node.mapping.items()
        }

    def _load(self, node: Node, path: Loc, named: Sequence[type], load: Callable[[], Any]) -> Any:
        if len(self.problems) >= MOST_PROBLEMS:
            self.failed.append(path)
            return None
        try:
            loaded = load()
        except CatalogError as error:
            self.failed.append(path)
            self.problems += [
                problem if problem.file else node.mark.problem(problem.message, problem.help)
                for problem in error.problems
            ]
            return None
        if not isinstance(loaded, tuple(named)):
            expected = " or ".join(name for cls in named for name in kinds_of(cls)) or named[0].__name__
            kind = getattr(loaded, "kind", type(loaded).__name__)
            self._fail(node, path, f"`{node.text}` is of kind {kind}; {expected} is expected here")
            return None
        self.references.append((path, loaded))
        return loaded

    def _named(self, name: str, classes: Sequence[type]) -> Any:
        """The description of that name or path."""
        return self.catalog.load(kind_of(classes[0]), name, self.file.parent)

    def _inline(self, node: Node, classes: Sequence[type]) -> Any:
        """The description written inline in the file, with or without `extends`."""
        problems: list[Problem] = []
        default_name = "inline"
        if "extends" in node.mapping:
            default_name = f"{node.mapping['extends'].text} (changed)"
            node, problems = _extended(node, kind_of(classes[0]), self.catalog, (self.file.resolve(),))
        return build(LocatedMapping(self.file, node, problems), classes, self.catalog, default_name)

    def _fail(self, node: Node, path: Loc, message: str, help_text: str = "") -> None:
        self.failed.append(path)
        self.problems.append(node.mark.problem(f"{dotted(path)}: {message}", help_text))


def dotted(path: Loc) -> str:
    """A path as messages print it: `memory.capacity`, `candidates[2].system`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def matching(node: Node, classes: Sequence[type[RecordT]]) -> type[RecordT]:
    """The class that the mapping's key `kind` chooses; a single class needs no such key.

    Raises CatalogError if `kind` is missing or names none of them.
    """
    if len(classes) == 1:
        return classes[0]
    kinds = {str(kind): cls for cls in classes for kind in kinds_of(cls)}
    kind_node = node.mapping.get("kind")
    if kind_node is None:
        raise CatalogError([node.mark.problem("`kind` is missing", f"one of {', '.join(kinds)}")])
    if kind_node.text not in kinds:
        message = f"kind: `{kind_node.text}` is not one of {', '.join(kinds)}"
        raise CatalogError([kind_node.mark.problem(message, did_you_mean(kind_node.text, kinds))])
    return kinds[kind_node.text]


def _best(node: Node, records: Sequence[type]) -> type:
    """The record that fits a mapping: by its `kind`, else by the most shared keys."""
    kind = node.mapping.get("kind")
    of_kind = [record for record in records if kind and kind.value in kinds_of(record)]
    shared = [len(known_fields(record).keys() & node.mapping.keys()) for record in records]
    return of_kind[0] if of_kind else records[shared.index(max(shared))]


def _joined(alternatives: list[Any], part: object) -> Any:
    """The annotation under a key or index as one union; None if it is unknown."""
    accepted: list[Any] = []
    for member in alternatives:
        accepted += element(member, part)
    return reduce(or_, accepted) if accepted else None


# Pydantic's validation errors as problems, with the file's own keys and places.

_MISSING = {"missing", "missing_argument", "missing_keyword_only_argument"}
_UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument"}
_NOT_A_MAPPING = {"model_type", "dataclass_type", "dict_type", "model_attributes_type", "mapping_type"}

_NOT_A_LIST = {"list_type", "tuple_type"}


def complaints(
    error: ValidationError, model: type[BaseModel], node: Node, reported: Sequence[Loc] = ()
) -> list[Problem]:
    """One problem for each validation error, except those at or below a path in `reported`."""
    problems: dict[Problem, None] = {}
    known = set(reported)
    all_details = [(details, _path(details, node)) for details in error.errors(include_url=False)]
    otherwise = {path for details, path in all_details if details["type"] not in _NOT_A_MAPPING}
    unlisted = {path for details, path in all_details if details["type"] in _NOT_A_LIST}
    inner = {path[:length] for _, path in all_details for length in range(len(path))}
    for details, path in all_details:
        if details["type"] in _NOT_A_MAPPING and path in otherwise:
            continue  # a number or a mapping is accepted, and the number has a complaint of its own
        if details["type"] == "literal_error" and (path in inner or path in unlisted):
            continue  # a word or a list is accepted; the list or its entries have a complaint of their own
        if any(path[:length] in known for length in range(len(path) + 1)):
            continue
        if node.broken and details["type"] in _MISSING:
            continue  # the base that could not be read may set the missing key
        if details["type"] == "too_short" and details["ctx"]["actual_length"] < len(details["input"]):
            continue  # entries that were refused are not counted, and have complaints of their own
        problems[_problem(details, model, node, path, with_help=len(problems) < MOST_SHOWN)] = None
    return list(problems)


def mark_at(node: Node, path: Loc, *, of_key: bool = False) -> Mark:
    """Position of the value (or key) at a path; of the innermost mapping around it where it is absent."""
    mark = node.mark
    for part in path:
        child = _child(node, part)
        if child is None:
            return mark
        mark = node.keys.get(part, child.mark)  # type: ignore[call-overload]
        if not of_key and not child.mapping:
            mark = child.mark
        node = child
    return mark


def _child(node: Node, part: object) -> Node | None:
    if node.is_mapping:
        return node.mapping.get(part)  # type: ignore[call-overload, no-any-return]
    if isinstance(part, int) and part < len(node.sequence):
        return node.sequence[part]
    return None


def _path(details: ErrorDetails, node: Node) -> Loc:
    """The error's location without pydantic's own parts: names of union members, `[key]`."""
    parts: list[object] = []
    location = details["loc"]
    for index, part in enumerate(location):
        child = _child(node, part)
        absent = index == len(location) - 1 and details["type"] in _MISSING
        if child is not None:
            node = child
        if child is not None or absent:
            parts.append(part)
    return tuple(parts)


def _problem(
    details: ErrorDetails, model: type[BaseModel], node: Node, path: Loc, *, with_help: bool
) -> Problem:
    kind = details["type"]
    parent = path[:-1]
    name = str(path[-1]) if path else ""
    inside = f" in {dotted(parent)}" if parent else ""
    if kind in _MISSING:
        return mark_at(node, path).problem(f"`{name}` is missing{inside}")
    if kind in _UNKNOWN:
        help_text = _help_of_key(name, _records_at(model, parent)) if with_help else ""
        return mark_at(node, path, of_key=True).problem(f"unknown key {_shown(name)}{inside}", help_text)
    of_key = details["loc"][-1:] == ("[key]",)
    message, help_text = _explain(details)
    prefix = f"{dotted(path)}: " if path else ""
    return mark_at(node, path, of_key=of_key).problem(prefix + message, help_text)


def _explain(details: ErrorDetails) -> tuple[str, str]:
    kind = details["type"]
    value = details["input"]
    context = details.get("ctx", {})
    if {"message", "help"} <= context.keys():
        return str(context["message"]), str(context["help"])
    if kind == "value_error":
        return refused_value(details), ""
    if kind in {"literal_error", "enum"}:
        allowed = re.findall(r"'([^']*)'", str(context["expected"])) or [str(context["expected"])]
        return f"{_shown(value)} is not one of {', '.join(allowed)}", did_you_mean(str(value), allowed)
    if kind in _NOT_A_MAPPING:
        return f"{_shown(value)} stands where a mapping (key: value) is expected", ""
    if kind in _NOT_A_LIST:
        number = re.match(r"\s*(\d+)\s*\D", value) if isinstance(value, str) else None
        help_text = f"write the number alone: {number[1]}" if number else "write it in brackets: [...]"
        return f"{_shown(value)} stands where a list is expected", help_text
    if kind == "string_type" and isinstance(value, int | float):
        return f"{_shown(value)} is a number, a text is expected", f'put it in quotes: "{value}"'
    limit = next((context[key] for key in ("ge", "le") if key in context), None)
    help_text = "" if limit is None else f"the nearest possible value is {limit:g}"
    return f"{refused_value(details)}, not {_shown(value)}", help_text


def _shown(value: Any) -> str:
    text = f"`{value}`" if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# `extends`: a description written as its differences from another.
#
# Nested keys of the child override those of the parent. Provenance follows the value: the child's
# `sources` and `assumed` cover what it sets, the parent's cover what it inherits.

PROVENANCE = ("sources", "assumed")
NOT_INHERITED = ("name", "description", "noun")
META = ("extends", *NOT_INHERITED, *PROVENANCE)
"""Keys that describe a description; all others are values and need a source or an assumption."""


def _without(node: Node, *names: str) -> Node:
    """The mapping without some of its keys."""
    value = {key: child for key, child in node.mapping.items() if key not in names}
    return replace(node, value=value)


def values(node: Node) -> Node:
    """The mapping without its meta keys."""
    return _without(node, *META)


def _extend(child: Node, parent: Node) -> Node:
    """Merge `child` over `parent`; values and their provenance keep their marks."""
    merged = _overlay(values(child), values(parent))
    kept = [name for name in NOT_INHERITED if name in child.mapping]
    written = {path for path, _ in values(child).leaves()}
    inner = {prefix for path in written for prefix in _prefixes(path)}
    inherited = [
        path
        for path, _ in values(parent).leaves()
        if path not in inner and not any(prefix in written for prefix in _prefixes(path))
    ]
    for name in PROVENANCE:
        own = child.mapping.get(name)
        if own is not None and not own.is_mapping:
            kept.append(name)
            continue
        table = parent.mapping.get(name, Node(Mark(""), {}))
        keys = {path: key for path in inherited if (key := covering(path, table))}
        entries: dict[Scalar, Node] = {path: table.mapping[key] for path, key in keys.items()}
        marks: dict[Scalar, Mark] = {path: table.keys[key] for path, key in keys.items()}
        if own is not None:
            entries |= own.mapping
            marks |= own.keys
        if entries:
            merged.mapping[name] = Node(own.mark if own else table.mark, entries, keys=marks)
            merged.keys[name] = child.keys.get(name, table.mark)
    for name in kept:
        merged.mapping[name] = child.mapping[name]
        merged.keys[name] = child.keys[name]
    return merged


def covering(path: str, table: Node | None) -> str:
    """The longest key of a provenance table that covers a dotted path; "" if none does."""
    return next((prefix for prefix in _prefixes(path) if prefix in table.mapping), "") if table else ""


def _prefixes(path: str) -> Iterator[str]:
    """A dotted path and the paths that lead to it, the longest first."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _overlay(child: Node, parent: Node) -> Node:
    if not (child.is_mapping and parent.is_mapping):
        return child
    result: dict[Scalar, Node] = dict(parent.mapping)
    for key, node in child.mapping.items():
        result[key] = _overlay(node, result[key]) if key in result else node
    return Node(child.mark, result, keys={**parent.keys, **child.keys})


SpecT = TypeVar("SpecT", bound=BaseModel)
BorrowerT = TypeVar("BorrowerT", bound=CatalogSpec)


@dataclass(slots=True)
class LocatedMapping:
    """The data of a YAML file with the place of each value, after `extends`."""

    path: Path
    node: Node
    problems: list[Problem]
    """Problems that did not stop the reading: repeated keys, numbers with a leading zero, ..."""

    @property
    def data(self) -> dict[Any, Any]:
        """The file as dicts, lists and scalars."""
        data: dict[Any, Any] = self.node.plain()
        return data

    def mark(self, path: Loc = ()) -> Mark:
        """Position of the value at a path of keys and indices, or of the mapping that lacks it."""
        return mark_at(self.node, path)

    def problem(self, path: Loc, message: str, help_text: str = "") -> Problem:
        """A problem with the value at a path of keys and indices."""
        return self.mark(path).problem(message, help_text)

    def error(self, error: ValidationError, model: type[BaseModel]) -> CatalogError:
        """All problems of the file, after pydantic refused it as a `model`."""
        return CatalogError([*self.problems, *complaints(error, model, self.node)])


def read_mapping(path: Path, kind: str, catalog: _Shelves, children: tuple[Path, ...] = ()) -> LocatedMapping:
    """Read a file and merge it over what it extends; raises CatalogError if it cannot be read."""
    node, problems = read_yaml(path)
    base = node.mapping.get("extends")
    if base is None:
        return LocatedMapping(path, node, problems)
    node, more = _extended(node, kind, catalog, (*children, path.resolve()))
    return LocatedMapping(path, node, problems + more)


def _extended(
    node: Node, kind: str, catalog: _Shelves, files: tuple[Path, ...]
) -> tuple[Node, list[Problem]]:
    """Merge `node`, from the last of `files`, over what it extends; `files` guard against a cycle."""
    base = node.mapping["extends"]
    child = replace(_without(node, "extends"), broken=True)  # its missing keys may be the base's
    if not isinstance(base.value, str):
        return child, [base.mark.problem("extends: the name of one other description is expected")]
    try:
        path = catalog.find(kind, base.value, files[-1].parent)
        if path.resolve() in files:
            return child, [base.mark.problem(f"extends: `{base.value}` extends this file in turn")]
        parent = read_mapping(path, kind, catalog, files)
    except CatalogError as error:
        return child, [
            problem if problem.file else base.mark.problem(f"extends: {problem.message}", problem.help)
            for problem in error.problems
        ]
    return replace(_extend(child, parent.node), broken=parent.node.broken), parent.problems


def build(
    mapping: LocatedMapping, classes: Sequence[type[SpecT]], catalog: _Shelves, default_name: str
) -> SpecT:
    """Build a description from a mapping; its `kind` chooses among `classes`.

    A description without a name takes `default_name`, a GPU or a link of a node without a calibration the
    nearest one. Raises CatalogError with every problem.
    """
    try:
        model = matching(mapping.node, classes)
    except CatalogError as error:
        raise CatalogError(in_order([*mapping.problems, *error.problems])) from None
    resolver = Resolver(catalog, mapping.path)
    data = resolver.data(mapping.node, model)
    if "name" in model.model_fields:
        data.setdefault("name", default_name)
    problems = mapping.problems + resolver.problems
    try:
        spec = model.model_validate(data, context=YAML_CONTEXT)
    except ValidationError as error:
        problems += complaints(error, model, mapping.node, resolver.failed)
        raise CatalogError(in_order(problems)) from None
    if problems:
        raise CatalogError(in_order(problems))
    return _calibrated(spec, catalog)


def in_order(problems: list[Problem]) -> list[Problem]:
    """The problems without repeats, by file, line and column."""
    files = list(dict.fromkeys(problem.file for problem in problems))
    unique = dict.fromkeys(problems)
    return sorted(unique, key=lambda problem: (files.index(problem.file), problem.line, problem.column))


def value_at(model: type[BaseModel], path: str, value: Any, catalog: _Shelves) -> Any:
    """What a value at a dotted path stands for: a description, where it is the name of one.

    Raises CatalogError where the path leads nowhere. It goes along the types, which know every field; the
    data stops where an optional part is None.
    """
    parts = path.split(".")
    for depth, part in enumerate(parts):
        records = _records_at(model, parts[:depth])
        if not (part in _keys_of(records) if records else _types_at(model, parts[: depth + 1])):
            help_text = _help_of_key(part, records)
            raise CatalogError([Problem(f"`{part}` is not a field", help=help_text)])
    named = [cls for cls in _types_at(model, parts) if is_named(cls)]
    return catalog.load(kind_of(named[0]), value) if named and isinstance(value, str) else value


# Calibrations for devices and links that name none: that of the nearest one with a calibration of its own.
#
# The nearest device of its kind is of its generation, which its narrowest precision tells (16, 8 or 4 bits),
# and has the most similar peak and memory bandwidth. The nearest link has the most similar bandwidth.
# Distances are in logarithms. What is borrowed is recorded as an assumption, so that answers carry a caveat.
# Rates of collectives inside a node are scaled by the bandwidths of the two links.


def _calibrated(spec: SpecT, catalog: _Shelves) -> SpecT:
    """A device, or the links of a node of GPUs, with the nearest calibration where they name none."""
    if isinstance(spec, DeviceSpec) and spec.calibration is None:
        known = [other for other in _measured(catalog, "device", DeviceSpec) if other.kind == spec.kind]
        near = min(known, key=lambda other: (*_unlikeness(spec, other), other.name), default=None)
        if near is None or near.calibration is None:
            return spec
        words = f"{near.calibration.name}, that of the nearest {spec.kind} with one ({near.name})"
        return _borrowing(spec, near.calibration, words)
    if not isinstance(spec, GpuClusterSpec):
        return spec
    node = spec.node
    if None in (node.scale_up.calibration, node.nic.calibration):
        links = [
            (link, link.calibration) for link in _measured(catalog, "link", LinkSpec) if link.calibration
        ]
        port = node.scale_up.bandwidth * node.lanes(node.devices)
        inside = [(link, known) for link, known in links if known.collectives]
        across = [(link, known) for link, known in links if known.network]
        update = {
            "scale_up": _of_link(node.scale_up, inside, port),
            "nic": _of_link(node.nic, across, node.nic.bandwidth),
        }
        return spec.model_copy(update={"node": node.model_copy(update=update)})
    return spec


def _borrowing(spec: BorrowerT, calibration: Calibration | None, words: str) -> BorrowerT:
    """A description with a calibration that is not its own, which its assumptions tell."""
    assumed = {**spec.assumed, "calibration": f"it names none: {words}"}
    return spec.model_copy(update={"calibration": calibration, "assumed": assumed})


def _unlikeness(device: DeviceSpec, other: DeviceSpec) -> tuple[float, float]:
    """Generations apart, then the distance of the data sheets."""
    (bits, peak, bandwidth), (other_bits, other_peak, other_bandwidth) = map(_figures, (device, other))
    apart = math.hypot(math.log(peak / other_peak), math.log(bandwidth / other_bandwidth))
    return abs(math.log2(bits / other_bits)), apart


def _figures(device: DeviceSpec) -> tuple[float, float, float]:
    """Bits of the narrowest numbers that it multiplies, its peak in 16 bits or its highest, its bandwidth."""
    whole_bits = [2.0 ** round(math.log2(8 * PRECISIONS[name].bytes)) for name in device.peak]
    sixteen = [device.peak[name] for name in ("bf16", "fp16") if name in device.peak]
    return min(whole_bits), max(sixteen or device.peak.values()), device.memory.bandwidth


def _of_link(
    link: LinkSpec, known: list[tuple[LinkSpec, CollectiveCalibration]], bytes_per_s: float
) -> LinkSpec:
    """The link with the calibration of the nearest one; `bytes_per_s` is all that a device can send."""
    if link.calibration is not None or not known:
        return link
    near, calibration = min(
        known, key=lambda pair: (abs(math.log(bytes_per_s / pair[0].bandwidth)), pair[0].name)
    )
    factor = bytes_per_s / near.bandwidth
    collectives = {
        op: tuple(
            segment.model_copy(
                update={
                    name: rate * factor
                    for name in ("bandwidth_bytes_per_s", "local_bytes_per_s")
                    if (rate := getattr(segment, name)) is not None
                }
            )
            for segment in segments
        )
        for op, segments in calibration.collectives.items()
    }
    scaled = calibration.model_copy(update={"collectives": collectives})
    words = f"that of the link of nearest bandwidth with one ({near.name}), scaled by it"
    return _borrowing(link, scaled, words)


def _measured(catalog: _Shelves, kind: str, cls: type[SpecT]) -> Iterator[SpecT]:
    """Every description of the catalogue whose file names a calibration that is not marked as borrowed."""
    for name in catalog.names(kind):
        try:
            values = read_mapping(catalog.find(kind, name), kind, catalog).data
            owns = values.get("calibration") and "calibration" not in (values.get("assumed") or {})
            spec = catalog.load(kind, name) if owns else None
        except CatalogError:
            continue  # a broken file is reported where it is asked for
        if isinstance(spec, cls):
            yield spec
