"""The kinds of document, with their folders and classes, and what the annotations of a class accept."""

from __future__ import annotations

import collections.abc
import dataclasses
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from perfsim.base.errors import CatalogError, Problem
from perfsim.base.spec import CatalogSpec
from perfsim.base.text import did_you_mean
from perfsim.specs.calibration import Calibration, FrameworkCalibration
from perfsim.specs.hardware import DeviceSpec, LinkSpec, SystemSpec, system_classes
from perfsim.specs.model import TransformerConfig
from perfsim.specs.recipe import Recipe
from perfsim.specs.runtime import Runtime
from perfsim.specs.wall_clock import WallClockSpec

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
    return isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)
    )


def is_named(annotation: Any) -> bool:
    """Whether values of this type have their own file and may be given by name."""
    return isinstance(annotation, type) and issubclass(annotation, CatalogSpec | Calibration)


def known_fields(record: type) -> dict[str, Any]:
    """Annotations of a record's fields, by their key in YAML."""
    if issubclass(record, BaseModel):
        return {info.alias or name: info.annotation for name, info in record.model_fields.items()}
    if not dataclasses.is_dataclass(record):
        return {}
    hints = get_type_hints(record, include_extras=True)
    return {item.name: hints[item.name] for item in dataclasses.fields(record) if item.init}


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


def types_at(model: type, path: Sequence[object]) -> list[Any]:
    """The types accepted at a path of keys and indices inside a record."""
    alternatives: list[Any] = [model]
    for part in path:
        alternatives = [inner for outer in alternatives for inner in element(outer, part)]
    return alternatives


def records_at(model: type, path: Sequence[object]) -> list[type]:
    """The records that a mapping at a path may be."""
    return [member for outer in types_at(model, path) for member in members(outer) if is_record(member)]


def keys_of(records: Sequence[type]) -> list[str]:
    """The keys that a mapping accepts which may be any of these records."""
    return list(dict.fromkeys(key for record in records for key in known_fields(record)))


def help_of_key(name: str, records: Sequence[type]) -> str:
    """Where a key has moved that no record accepts, or the nearest that one does."""
    moved = (getattr(record, "moved", {}).get(name, "") for record in records)
    return next(filter(None, moved), "") or did_you_mean(name, keys_of(records))


def takes_boolean(alternatives: list[Any]) -> bool:
    """Whether true and false keep their meaning; a number field would coerce them to 1 and 0."""
    return any(
        member in (bool, Any, object) or any(isinstance(value, bool) for value in _literal_values(member))
        for member in alternatives
    )


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
