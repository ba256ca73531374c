"""Reads a file into a description of its kind: `extends`, names, and all errors at once."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from perfsim.base.errors import MOST_SHOWN, CatalogError, InputError, Problem, refused_value
from perfsim.base.spec import UNNAMED, CatalogSpec, SpecT
from perfsim.base.text import GAP, covering, did_you_mean, nearest
from perfsim.base.units import YAML_CONTEXT
from perfsim.catalog.yaml_tree import Loc, Mark, Node, Scalar
from perfsim.specs.calibration import Calibration, CollectiveCalibration, FrameworkCalibration
from perfsim.specs.hardware import DeviceSpec, GpuClusterSpec, LinkSpec, SystemSpec, system_classes
from perfsim.specs.model import TransformerConfig
from perfsim.specs.precisions import PRECISIONS
from perfsim.specs.prices import Prices
from perfsim.specs.recipe import Recipe
from perfsim.specs.runtime import Runtime
from perfsim.specs.wall_clock import WallClockSpec

if TYPE_CHECKING:
    from perfsim.catalog.catalog import Catalog

# The kinds of document, and what the annotations of a class accept.


class Kind(NamedTuple):
    """A kind of document: where its files are, and what they describe."""

    folder: str
    """Below a root of the catalogue."""
    base: type[BaseModel]
    """The class of its descriptions, or what several have in common, which their key `kind` tells apart."""

    @property
    def classes(self) -> tuple[type[BaseModel], ...]:
        """The classes that a file of this kind may describe; none for a study, which its caller validates."""
        if self.base is Calibration:
            return tuple(cls for cls in Calibration.__subclasses__() if cls is not FrameworkCalibration)
        return () if self.base is BaseModel else tuple(members(self.base))


KINDS: Mapping[str, Kind] = {
    "device": Kind("hardware/devices", DeviceSpec),
    "link": Kind("hardware/links", LinkSpec),
    "system": Kind("hardware/systems", SystemSpec),
    "framework": Kind("hardware/calibrations/frameworks", FrameworkCalibration),
    "calibration": Kind("hardware/calibrations", Calibration),
    "wall_clock": Kind("hardware/wall_clocks", WallClockSpec),
    "prices": Kind("hardware/prices", Prices),
    "model": Kind("workloads/models", TransformerConfig),
    "recipe": Kind("workloads/recipes", Recipe),
    "runtime": Kind("workloads/runtimes", Runtime),
    "study": Kind("studies", BaseModel),
}
"""Every kind of document of the catalogue; the last one is for any class without a folder."""


def kind_of(cls: type) -> str:
    """The kind of a class of descriptions."""
    return next(kind for kind, (_, base) in KINDS.items() if issubclass(cls, base))


def members(annotation: Any) -> list[Any]:
    """The types that an annotation accepts, without `Annotated`; `None` appears as NoneType."""
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
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def is_named(annotation: Any) -> bool:
    """Whether values of this type have their own file and may be given by name."""
    return isinstance(annotation, type) and issubclass(annotation, CatalogSpec)


def known_fields(record: type[BaseModel]) -> dict[str, Any]:
    """Annotations of a record's fields, by their key in YAML."""
    return {info.alias or name: info.annotation for name, info in record.model_fields.items()}


def kinds_of(record: type[BaseModel]) -> list[Any]:
    """Values that the key `kind` may have in a record; empty without such a key."""
    accepted = members(known_fields(record).get("kind", Any))
    return [value for cls in accepted if get_origin(cls) is Literal for value in get_args(cls)]


def element(accepted: Sequence[Any], part: object) -> list[Any]:
    """The types accepted under a key or an index of a value that may be of these types."""
    inner: list[Any] = []
    for cls in accepted:
        origin = get_origin(cls)
        arguments = get_args(cls)
        if is_record(cls):
            annotation = known_fields(cls).get(str(part))
            inner += [] if annotation is None else members(annotation)
        elif origin in (dict, Mapping) and len(arguments) == 2:
            inner += members(arguments[1])
        elif origin in (list, tuple, set, frozenset, Sequence) and arguments:
            # A tuple of fixed length has one type per position.
            fixed = len(arguments) > 1 and Ellipsis not in arguments and isinstance(part, int)
            inner += members(arguments[min(int(str(part)), len(arguments) - 1)] if fixed else arguments[0])
    return inner


def _help_of_key(name: str, records: Sequence[type[BaseModel]], root: type[BaseModel], value: Any) -> str:
    """Where an unknown key has moved, which part of the records or of the file has it, or the nearest one."""
    moved = (getattr(record, "moved", {}).get(name, "") for record in records)
    inside = (
        f"write it in {key}: {{{name}: ...}}"
        for record in (*records, root)
        for key, kind in known_fields(record).items()
        for cls in members(kind)
        if is_record(cls) and _takes(known_fields(cls).get(name), value)
    )
    known = [key for record in records for key in known_fields(record)]
    meant = any(key.removesuffix("s") == name.removesuffix("s") for key in known)  # `device` for `devices`
    found = next(filter(None, moved if meant else (*moved, *inside)), "")
    return found or did_you_mean(name, known)


def _takes(annotation: Any, value: Any) -> bool:
    """Whether there is a field, which is no list where the value is none, and a record where it has parts."""
    accepted = [] if annotation is None else members(annotation)
    if isinstance(value, Mapping):
        return any(is_record(cls) or get_origin(cls) in (dict, Mapping) for cls in accepted)
    return any(isinstance(value, list) or get_origin(cls) not in (list, tuple, Sequence) for cls in accepted)


# Resolves the names in a file's tree to descriptions, giving the data that pydantic validates.
#
# A field of a description with its own file is written as that file's name, as a path, or as a mapping.

MOST_PROBLEMS = 1000
"""Of one file; then no more names are looked up."""


@dataclass(slots=True)
class _Resolver:
    """Walks the tree of a file along the types of its values and collects its problems."""

    catalog: Catalog
    file: Path
    problems: list[Problem] = field(default_factory=list)
    failed: list[Loc] = field(default_factory=list)
    """Paths with a reported problem: pydantic's errors on them are dropped."""

    def data(self, node: Node, accepted: Sequence[Any], path: Loc = ()) -> Any:
        """The data to validate for a node of one of these types; None where a problem was reported."""
        if node.broken and not node.is_mapping:
            self.failed.append(path)
            return None
        named = [cls for cls in accepted if is_named(cls)]
        # An empty path is the file itself, which is never a reference.
        if path and named and (node.is_mapping or isinstance(node.value, str)):
            return self._described(node, path, named)
        if node.is_mapping:
            children = node.mapping.items()
            return {key: self.data(child, element(accepted, key), (*path, key)) for key, child in children}
        if isinstance(node.value, list):
            items = enumerate(node.value)
            return [self.data(child, element(accepted, index), (*path, index)) for index, child in items]
        # A field for numbers would take true and false as 1 and 0.
        takes_booleans = any(cls in (bool, Any, object) for cls in accepted)
        if isinstance(node.value, bool) and accepted and not takes_booleans:
            self._fail(node, path, f"{node.text} is not a number or a text", "quotes make it text")
            return None
        return node.value

    def _described(self, node: Node, path: Loc, named: Sequence[type[BaseModel]]) -> Any:
        """The description that a node names, or that stands there, with or without `extends`."""
        if len(self.problems) >= MOST_PROBLEMS:
            self.failed.append(path)
            return None
        kind = kind_of(named[0])
        try:
            if not node.is_mapping:
                loaded = self.catalog.load(kind, node.text, Path(node.mark.file).parent)
            else:
                mapping = LocatedMapping(self.file, node, [])
                default_name = UNNAMED
                if "extends" in node.mapping:
                    base = Path(node.mapping["extends"].text).name
                    default_name = f"{base.removesuffix('.yaml').removesuffix('.yml')} (changed)"
                    mapping = mapping.extended(kind, self.catalog)
                loaded = mapping.build(named, self.catalog, default_name)
        except CatalogError as error:
            self.failed.append(path)
            place = "" if node.mark.file else f"{dotted(path)}: "
            self.problems += placed(error.problems, node.mark, place)
            return None
        if not isinstance(loaded, tuple(named)):
            expected = " or ".join(name for cls in named for name in kinds_of(cls)) or named[0].__name__
            kind = getattr(loaded, "kind", type(loaded).__name__)
            self._fail(node, path, f"`{node.text}` is of kind {kind}; {expected} is expected here")
            return None
        return loaded

    def _fail(self, node: Node, path: Loc, message: str, help_text: str = "") -> None:
        self.failed.append(path)
        self.problems.append(node.mark.problem(f"{dotted(path)}: {message}", help_text))


def placed(problems: Sequence[Problem], mark: Mark, prefix: str = "") -> list[Problem]:
    """Problems of what a node names; those without a file stand where it is named."""
    return [
        problem if problem.file else mark.problem(f"{prefix}{problem.message}", problem.help)
        for problem in problems
    ]


def dotted(path: Loc) -> str:
    """A path as messages print it: `memory.capacity`, `candidates[2].system`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


# Pydantic's validation errors as problems, with the file's own keys and places.

_NOT_A_MAPPING = {"model_type", "dict_type", "model_attributes_type", "mapping_type"}
_NOT_A_LIST = {"list_type", "tuple_type"}


def complaints(
    error: ValidationError, model: type[BaseModel], node: Node, reported: Sequence[Loc] = ()
) -> list[Problem]:
    """One problem for each validation error, except those at or below a path in `reported`."""
    problems: dict[Problem, None] = {}
    known = set(reported)
    all_details = [(details, _path(details, node)) for details in error.errors(include_url=False)]
    otherwise = {path for details, path in all_details if details["type"] not in _NOT_A_MAPPING}
    limited = {path for details, path in all_details if {"ge", "le"} & details.get("ctx", {}).keys()}
    unlisted = limited | {path for details, path in all_details if details["type"] in _NOT_A_LIST}
    inner = {path[:length] for _, path in all_details for length in range(len(path))}
    mapped = inner | {path for details, path in all_details if details["type"] == "value_error"}
    for details, path in all_details:
        if details["type"] in _NOT_A_MAPPING and path in otherwise:
            continue  # a number or a mapping is accepted, and the number has a complaint of its own
        if details["type"] == "float_type" and isinstance(details["input"], dict) and path in mapped:
            continue  # the mapping has a complaint of its own
        if details["type"] == "literal_error" and (path in inner or path in unlisted):
            continue  # a list or a number is accepted too, and has a complaint of its own
        if any(path[:length] in known for length in range(len(path) + 1)):
            continue
        if node.broken and details["type"] == "missing":
            continue  # the base that could not be read may set the missing key
        if details["type"] == "too_short" and details["ctx"]["actual_length"] < len(details["input"]):
            continue  # entries that were refused are not counted, and have complaints of their own
        accepted = reduce(element, path[:-1], members(model))
        records = [cls for cls in accepted if is_record(cls)]
        named = next(filter(is_named, records), None)
        help_text = ""
        if details["type"] == "extra_forbidden" and len(problems) < MOST_SHOWN and records:
            help_text = _help_of_key(str(path[-1]), records, model, details["input"])
        elif details["type"] == "missing" and not problems and named and path[-1] not in NOT_INHERITED:
            help_text = f"write it, or `extends: NAME` of a {kind_of(named)} that has it"
        elif details["type"] in _NOT_A_LIST:
            items = element(element(accepted, path[-1]), 0)
            plain = int in items or details["input"] is None
            help_text = "" if plain else f"write it in brackets: [{details['input']}]"
        elif details["type"] in _NOT_A_MAPPING and path:
            wanted = [cls for cls in element(accepted, path[-1]) if is_record(cls)]
            called = [f"write the name of a {kind_of(cls)}" for cls in wanted if is_named(cls)]
            keys = [f"its keys are {', '.join(known_fields(cls))}" for cls in wanted]
            help_text = "; or ".join(called or keys)
        problems[_problem(details, node, path, help_text)] = None
    return list(problems)


def _path(details: ErrorDetails, node: Node) -> Loc:
    """The error's location without pydantic's own parts: names of union members, `[key]`."""
    parts: list[object] = []
    for part in details["loc"]:
        if (child := node.child(part)) is not None:
            parts.append(part)
            node = child
    absent = details["type"] == "missing" and parts[-1:] != [details["loc"][-1]]
    return (*parts, details["loc"][-1]) if absent else tuple(parts)


def _problem(details: ErrorDetails, node: Node, path: Loc, help_text: str) -> Problem:
    """A validation error at its place, with the help for an unknown key."""
    kind = details["type"]
    value = details["input"]
    context = details.get("ctx", {})
    name = str(path[-1]) if path else ""
    inside = f" in {dotted(path[:-1])}" if path[:-1] else ""
    if kind == "missing":
        return node.mark_at(path).problem(f"`{name}` is missing{inside}", help_text)
    if kind == "extra_forbidden":
        return node.mark_at(path, of_key=True).problem(f"unknown key {_shown(name)}{inside}", help_text)
    if isinstance(error := context.get("error"), InputError):
        message = error.line
        help_text = "; ".join(problem.help for problem in error.problems[:MOST_SHOWN] if problem.help)
    elif kind == "value_error":
        message = refused_value(details)
    elif kind in {"literal_error", "enum"}:
        allowed = re.findall(r"'([^']*)'", str(context["expected"])) or [str(context["expected"])]
        message = f"{_shown(value)} is not one of {', '.join(allowed)}"
        near = nearest(str(value), allowed)
        help_text = f"did you mean `{near}`?" if near else ""
    elif kind in _NOT_A_MAPPING:
        message = f"{_shown(value)} stands where a mapping (key: value) is expected"
    elif kind in _NOT_A_LIST:
        number = re.match(r"\s*(\d+)\s*\D", value) if isinstance(value, str) else None
        message = f"{_shown(value)} stands where a list is expected"
        alone = f"write the number alone: {number[1]}" if number else "write it in brackets: [...]"
        help_text = help_text or alone
    elif kind == "string_type" and isinstance(value, int | float):
        message = f"{_shown(value)} is a number, a text is expected"
        help_text = f'put it in quotes: "{value}"'
    else:
        message = f"{refused_value(details)}, not {_shown(value)}"
        limit = next((context[key] for key in ("ge", "le") if key in context), None)
        help_text = "" if limit is None else f"the nearest possible value is {limit:.12g}"
    mark = node.mark_at(path, of_key=details["loc"][-1:] == ("[key]",))
    # What is wrong of a whole mapping stands at the first key that is named and that the file itself has.
    record = reduce(lambda inner, part: inner.child(part) or inner, path, node)
    named = (record.keys[word] for word in re.findall(r"\w+", message) if word in record.keys)
    mark = next((key for key in named if key.file == mark.file), mark)
    return mark.problem(f"{dotted(path)}: {message}" if path else message, help_text)


def _shown(value: Any) -> str:
    text = f"`{value}`" if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# `extends`: a description written as its differences from another.
#
# Nested keys of the child override the same keys of the parent. Provenance follows the value: the child's
# `sources` and `assumed` cover what it sets, the parent's cover what it inherits.

PROVENANCE = ("sources", "assumed")
NOT_INHERITED = ("name", "description", "noun", "title", "question")
OWN_VALUES = ("date", "line", "as_of")
"""Values that hold for one description only: what extends it states its own or has none."""
META = ("extends", *NOT_INHERITED, *PROVENANCE)
"""Keys that describe a description; all others are values and need a source or an assumption."""


def _without(node: Node, *names: str) -> Node:
    return replace(node, value={key: child for key, child in node.mapping.items() if key not in names})


def values(node: Node) -> Node:
    """The mapping without its meta keys."""
    return _without(node, *META)


def _extend(child: Node, parent: Node) -> Node:
    """Merge `child` over `parent`; values and their provenance keep their marks."""
    parent = _without(parent, *OWN_VALUES)
    merged = _overlay(values(child), values(parent))
    kept = [name for name in NOT_INHERITED if name in child.mapping]
    written = {path for path, _ in values(child).leaves()}
    inherited = [path for path, _ in merged.leaves() if path not in written]
    for name in PROVENANCE:
        table = parent.mapping.get(name, Node(Mark(""), {}))
        keys = {path: key for path in inherited if (key := covering(path, table.mapping))}
        entries: dict[Scalar, Node] = {path: table.mapping[key] for path, key in keys.items()}
        marks: dict[Scalar, Mark] = {path: table.keys[key] for path, key in keys.items()}
        of_parent = Node(table.mark, entries, keys=marks)
        if entries or name in child.mapping:
            merged.mapping[name] = _overlay(child.mapping.get(name, of_parent), of_parent)
            merged.keys[name] = child.keys.get(name, table.mark)
    for name in kept:
        merged.mapping[name] = child.mapping[name]
        merged.keys[name] = child.keys[name]
    return merged


def _overlay(child: Node, parent: Node) -> Node:
    if not (child.is_mapping and parent.is_mapping):
        return child
    result: dict[Scalar, Node] = dict(parent.mapping)
    for key, node in child.mapping.items():
        result[key] = _overlay(node, result[key]) if key in result else node
    return Node(child.mark, result, keys={**parent.keys, **child.keys})


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

    def problem(self, path: Loc, message: str, help_text: str = "") -> Problem:
        """A problem with the value at a path of keys and indices, or with the mapping that lacks it."""
        return self.node.mark_at(path).problem(message, help_text)

    @classmethod
    def read(cls, path: Path, kind: str, catalog: Catalog, children: Sequence[Path] = ()) -> LocatedMapping:
        """A file merged over what it extends; raises CatalogError if it cannot be read."""
        catalog.will_read(path)
        return cls(path, *Node.read(path)).extended(kind, catalog, children)

    def extended(self, kind: str, catalog: Catalog, children: Sequence[Path] = ()) -> LocatedMapping:
        """Merged over what it extends; `children` are the files that extend it, against a cycle."""
        base = self.node.mapping.get("extends")
        if base is None:
            return self
        files = (*children, self.path.resolve())
        node = replace(_without(self.node, "extends"), broken=True)  # its missing keys may be the base's
        try:
            if not isinstance(base.value, str):
                raise CatalogError("the name of one other description is expected")
            path = catalog.find(kind, base.value, Path(base.mark.file).parent)
            if path.resolve() in files:
                raise CatalogError(f"`{base.value}` extends this file in turn")
            parent = self.read(path, kind, catalog, files)
        except CatalogError as error:
            more = placed(error.problems, base.mark, "extends: ")
        else:
            more = parent.problems
            # A device that computes as the one that it extends has its chip.
            if kind == "device" and not {"kind", "peak", "compute_units"} & node.mapping.keys():
                parent.node.mapping.setdefault("chip", parent.node.mapping.get("name", base))
            node = replace(_extend(node, parent.node), broken=parent.node.broken)
        return LocatedMapping(self.path, node, self.problems + more)

    def chosen(self, classes: Sequence[type[SpecT]]) -> type[SpecT]:
        """The only class, or that of the key `kind`; CatalogError if the key is missing or names none."""
        if len(classes) == 1:
            return classes[0]
        kinds = {str(kind): cls for cls in classes for kind in kinds_of(cls)}
        node = self.node.mapping.get("kind")
        if node is None:
            problem = self.node.mark.problem("`kind` is missing", f"one of {', '.join(kinds)}")
        elif node.text in kinds:
            return kinds[node.text]
        else:
            message = f"kind: `{node.text}` is not one of {', '.join(kinds)}"
            problem = node.mark.problem(message, did_you_mean(node.text, kinds))
        raise CatalogError(in_order([*self.problems, problem]))

    def build(self, classes: Sequence[type[SpecT]], catalog: Catalog, default_name: str) -> SpecT:
        """The description; its `kind` chooses among `classes`.

        A description without a name takes `default_name`, a GPU or a link of a node without a calibration
        the nearest one. Raises CatalogError with every problem.
        """
        model = self.chosen(classes)
        resolver = _Resolver(catalog, self.path)
        data = resolver.data(self.node, members(model))
        if "name" in model.model_fields:
            data.setdefault("name", default_name)
        problems = self.problems + resolver.problems + list(self._astray(model))
        context = YAML_CONTEXT if self.node.mark.file else {}  # Python data has no place
        try:
            spec = model.model_validate(data, context=context)
        except ValidationError as error:
            problems += complaints(error, model, self.node, resolver.failed)
            raise CatalogError(in_order(problems)) from None
        if problems:
            raise CatalogError(in_order(problems))
        return _calibrated(spec, catalog)

    def _astray(self, model: type[BaseModel]) -> Iterator[Problem]:
        """Sources and assumptions of values that descriptions of this class do not have."""
        given = {path for path, _ in values(self.node).leaves()}  # paths in a grid are keys with dots
        for name in PROVENANCE if issubclass(model, CatalogSpec) else ():
            keys = self.node.mapping[name].keys if name in self.node.mapping else {}
            for key in (key for key in keys.keys() - given if not str(key).startswith(GAP)):
                try:
                    _types_at(model, str(key))
                except CatalogError as error:
                    yield from placed(error.problems, keys[key], f"{name}: {key}: ")


def in_order(problems: list[Problem]) -> list[Problem]:
    """The problems without repeats, by file, line and column."""
    files = list(dict.fromkeys(problem.file for problem in problems))
    unique = dict.fromkeys(problems)
    return sorted(unique, key=lambda problem: (files.index(problem.file), problem.line, problem.column))


def _types_at(model: type[BaseModel], path: str) -> Sequence[Any]:
    """The types of values at a dotted path; CatalogError where it leads nowhere."""
    # The types know every field; the data stops where an optional part is None.
    accepted: Sequence[Any] = members(model)
    parts = path.split(".")
    for number, part in enumerate(parts, 1):
        records = [cls for cls in accepted if is_record(cls)]
        accepted = element(accepted, part)
        if not (any(part in known_fields(record) for record in records) if records else accepted):
            inside = None if number == len(parts) else dict[str, Any]()
            raise CatalogError(f"`{part}` is not a field", _help_of_key(part, records, model, inside))
    return accepted


def value_at(model: type[BaseModel], path: str, value: Any, catalog: Catalog) -> Any:
    """The value at a path, or the description that it names; CatalogError where the path leads nowhere."""
    named = [cls for cls in _types_at(model, path) if is_named(cls)]
    return catalog.load(kind_of(named[0]), value) if named and isinstance(value, str) else value


# Calibrations for devices and links that name none: they have the calibration of the nearest one.
#
# The nearest device of its kind is of its generation, which its narrowest precision tells (16, 8 or 4 bits),
# and has the most similar peak and memory bandwidth. The nearest link has the most similar bandwidth.
# Distances are in logarithms. What is borrowed is recorded as an assumption, so that answers carry a caveat.
# Rates of collectives inside a node are scaled by the bandwidths of the two links.


def _calibrated(spec: SpecT, catalog: Catalog) -> SpecT:
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
    if None not in (node.scale_up.calibration, node.nic.calibration):
        return spec
    links = [(link, link.calibration) for link in _measured(catalog, "link", LinkSpec) if link.calibration]
    port = node.scale_up.bandwidth * node.lanes(node.devices)
    inside = [(link, known) for link, known in links if known.collectives]
    across = [(link, known) for link, known in links if known.network]
    inner = _of_link(node.scale_up, inside, port)
    outer = _of_link(node.nic, across, node.nic.bandwidth)
    return spec.model_copy(update={"node": node.model_copy(update={"scale_up": inner, "nic": outer})})


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

    def faster(segment: Any) -> Any:
        rates = {name: getattr(segment, name) for name in ("bandwidth_bytes_per_s", "local_bytes_per_s")}
        scaled_rates = {name: rate * factor for name, rate in rates.items() if rate is not None}
        return segment.model_copy(update=scaled_rates)

    collectives = {op: tuple(map(faster, segments)) for op, segments in calibration.collectives.items()}
    scaled = calibration.model_copy(update={"collectives": collectives})
    words = f"that of the link of nearest bandwidth with one ({near.name}), scaled by it"
    return _borrowing(link, scaled, words)


def _measured(catalog: Catalog, kind: str, cls: type[SpecT]) -> Iterator[SpecT]:
    """Every description of the catalogue whose file names a calibration that is not marked as borrowed."""
    for name in catalog.names(kind):
        try:
            values = LocatedMapping.read(catalog.find(kind, name), kind, catalog).data
            owns = values.get("calibration") and "calibration" not in (values.get("assumed") or {})
            spec = catalog.load(kind, name) if owns else None
        except CatalogError:
            continue  # a broken file is reported where it is asked for
        if isinstance(spec, cls):
            yield spec
