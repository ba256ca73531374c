"""The kinds of description: their folders and their classes."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from perfsim.calibration import Calibration, FrameworkCalibration
from perfsim.catalog.annotations import kinds_of
from perfsim.errors import CatalogError, Problem
from perfsim.hardware import DeviceSpec, LinkSpec, SystemSpec, system_classes
from perfsim.suggest import did_you_mean
from perfsim.wall_clock import WallClockSpec
from perfsim.workload import TrainingRecipe, TransformerConfig

FOLDERS = {
    "device": "hardware/devices",
    "link": "hardware/links",
    "system": "hardware/systems",
    "calibration": "hardware/calibrations",
    "framework": "hardware/calibrations/frameworks",
    "wall_clock": "hardware/wall_clocks",
    "model": "workloads/models",
    "recipe": "workloads/recipes",
    "study": "studies",
}
"""Kind to folder below a root of the catalogue."""

_CLASSES: dict[str, tuple[type[BaseModel], ...]] = {
    "device": (DeviceSpec,),
    "link": (LinkSpec,),
    "model": (TransformerConfig,),
    "recipe": (TrainingRecipe,),
    "framework": (FrameworkCalibration,),
    "wall_clock": (WallClockSpec,),
}
_BASES: dict[str, type[BaseModel]] = {
    "framework": FrameworkCalibration,
    "calibration": Calibration,
    "system": SystemSpec,
}
"""Kinds whose classes have a common base, and a key `kind` that tells them apart."""


def folder_of(kind: str) -> str:
    """The folder of a kind; CatalogError for an unknown kind."""
    if kind not in FOLDERS:
        raise CatalogError([Problem(f"unknown kind `{kind}`", help=did_you_mean(kind, FOLDERS))])
    return FOLDERS[kind]


def classes_of(kind: str) -> tuple[type[BaseModel], ...]:
    """The classes that a file of this kind may describe; none for a study, which its caller validates."""
    if kind == "system":
        return tuple(system_classes().values())
    if kind == "calibration":
        calibrations = (cls for cls in _subclasses(Calibration) if cls is not FrameworkCalibration)
        return tuple(cls for cls in calibrations if kinds_of(cls))  # a base has no `kind`
    return _CLASSES.get(kind, ())


def kind_of(cls: type) -> str:
    """The kind of a class of descriptions; `study` for a class without a folder."""
    for kind, base in _BASES.items():
        if issubclass(cls, base):
            return kind
    return next((kind for kind, classes in _CLASSES.items() if issubclass(cls, classes)), "study")


def _subclasses(cls: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)
