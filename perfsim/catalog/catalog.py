"""The catalogue: descriptions found by name in folders, or read from a path."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from perfsim.base.errors import CatalogError, Problem
from perfsim.base.text import did_you_mean
from perfsim.catalog.kinds import (
    classes_of,
    element,
    folder_of,
    is_named,
    is_record,
    kind_of,
    known_fields,
    members,
)
from perfsim.catalog.provenance import Describer, Row, Source, read_sources
from perfsim.catalog.reader import LocatedMapping, Shelf, build, complaints, in_order, read_mapping
from perfsim.catalog.yaml_tree import Mark, Node, shown_path
from perfsim.specs.calibration import Calibration, FrameworkCalibration
from perfsim.specs.hardware import DeviceSpec, LinkSpec, SystemSpec
from perfsim.specs.model import TransformerConfig
from perfsim.specs.recipe import TrainingRecipe

# A description with some values changed, as sweeps and the command line request.

SpecT = TypeVar("SpecT", bound=BaseModel)

REASON = "set by the question"
"""The assumption recorded for a changed value."""


def _overridden(spec: SpecT, changes: Mapping[str, Any], shelf: Shelf) -> SpecT:
    """A copy of `spec` with the value at each dotted path replaced.

    A value is written as in YAML (a quantity string, a name) or is a float in SI. Raises
    CatalogError for an unknown path and for a value that the description refuses.
    """
    model = type(spec)
    data = spec.model_dump()
    problems = [
        problem for path, value in changes.items() for problem in _set(data, path, value, model, shelf)
    ]
    if problems:
        raise CatalogError(problems)
    if "assumed" in model.model_fields:
        data["assumed"] = {**data["assumed"], **dict.fromkeys(changes, REASON)}
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise CatalogError(complaints_of(error, model, data)) from None


def complaints_of(error: ValidationError, model: type[BaseModel], data: Any) -> list[Problem]:
    """What pydantic refuses of Python data, in words that name the path of each value."""
    return complaints(error, model, _unplaced(data))


def _set(data: dict[str, Any], path: str, value: Any, model: type[BaseModel], shelf: Shelf) -> list[Problem]:
    """Set the value at a dotted path of `data`; returns the problems that prevent it."""
    *parents, last = path.split(".")
    # First along the types, which know every field; then along the data, where an optional part is None.
    alternatives: list[Any] = [model]
    for part in (*parents, last):
        records = [member for outer in alternatives for member in members(outer) if is_record(member)]
        fields = list(dict.fromkeys(key for record in records for key in known_fields(record)))
        if fields and part not in fields:
            moved = [getattr(record, "moved", {}).get(part, "") for record in records]
            help_text = next(filter(None, moved), "") or did_you_mean(part, fields)
            return [Problem(f"{path}: `{part}` is not a field", help=help_text)]
        alternatives = [inner for outer in alternatives for inner in element(outer, part)]
        if not alternatives:
            return [Problem(f"{path}: `{part}` is not a field")]
    for part in parents:
        inner = data.get(part)
        if not isinstance(inner, dict):
            return [Problem(f"{path}: `{part}` is not set, so nothing in it can be changed")]
        data = inner
    named = [cls for cls in alternatives if is_named(cls)]
    try:
        data[last] = shelf.load(kind_of(named[0]), value) if named and isinstance(value, str) else value
    except CatalogError as error:
        return [Problem(f"{path}: {problem.message}", help=problem.help) for problem in error.problems]
    return []


def _unplaced(data: Any) -> Node:
    """Python data as nodes without positions, so that problems can name their paths."""
    if isinstance(data, dict):
        return Node(Mark(""), {key: _unplaced(value) for key, value in data.items()})
    if isinstance(data, list | tuple):
        return Node(Mark(""), [_unplaced(value) for value in data])
    return Node(Mark(""), None, str(data))


PATH_VARIABLE = "PERFSIM_PATH"
"""Directories searched before perfsim's own, each laid out like the project: hardware/, ..."""


class DescriptionsByName(Mapping[str, SpecT]):
    """All descriptions of one kind, by name; a path of a YAML file is taken as well."""

    def __init__(self, catalog: Catalog, kind: str) -> None:
        self._catalog = catalog
        self._kind = kind

    def __getitem__(self, name_or_path: str) -> SpecT:
        return cast(SpecT, self._catalog.load(self._kind, name_or_path))

    def __iter__(self) -> Iterator[str]:
        return iter(self._catalog.names(self._kind))

    def __len__(self) -> int:
        return len(self._catalog.names(self._kind))

    def __contains__(self, name: object) -> bool:
        return name in self._catalog.names(self._kind)

    def __repr__(self) -> str:
        return f"<{len(self)} {self._kind}s: {', '.join(self)}>"


class Catalog:
    """Descriptions by name; each file is read once.

    `roots` are directories that hold hardware/, workloads/ and studies/; an earlier root shadows files
    of the same name in later ones. Default: those of PERFSIM_PATH, then perfsim's own.
    """

    def __init__(self, roots: Sequence[Path] | None = None) -> None:
        self.roots = tuple(roots) if roots is not None else (*_extra_roots(), data_root())
        self._specs: dict[tuple[str, Path], Any] = {}
        self._sources: dict[str, Source] | None = None

    @property
    def models(self) -> DescriptionsByName[TransformerConfig]:
        """Every model."""
        return DescriptionsByName(self, "model")

    @property
    def recipes(self) -> DescriptionsByName[TrainingRecipe]:
        """Every recipe."""
        return DescriptionsByName(self, "recipe")

    @property
    def devices(self) -> DescriptionsByName[DeviceSpec]:
        """Every device."""
        return DescriptionsByName(self, "device")

    @property
    def systems(self) -> Mapping[str, SystemSpec]:
        """Every system."""
        return DescriptionsByName(self, "system")

    def device(self, name_or_path: str) -> DeviceSpec:
        """A GPU or a wafer."""
        return cast(DeviceSpec, self.load("device", name_or_path))

    def link(self, name_or_path: str) -> LinkSpec:
        """A link."""
        return cast(LinkSpec, self.load("link", name_or_path))

    def system(self, name_or_path: str, **changes: Any) -> SystemSpec:
        """A cluster; `changes` are as in `override`: `system("cs-2", software_release="r1.7")`."""
        return self.override(cast(SystemSpec, self.load("system", name_or_path)), changes)

    def model(self, name_or_path: str) -> TransformerConfig:
        """A model."""
        return cast(TransformerConfig, self.load("model", name_or_path))

    def recipe(self, name_or_path: str) -> TrainingRecipe:
        """A recipe."""
        return cast(TrainingRecipe, self.load("recipe", name_or_path))

    def calibration(self, name_or_path: str) -> Calibration:
        """Fitted constants."""
        return cast(Calibration, self.load("calibration", name_or_path))

    def framework(self, name_or_path: str) -> FrameworkCalibration:
        """A training framework."""
        return cast(FrameworkCalibration, self.load("framework", name_or_path))

    def study_path(self, name_or_path: str) -> Path:
        """The file of a study; reading it is `parse_file`."""
        return self.find("study", name_or_path)

    def names(self, kind: str) -> list[str]:
        """Every name of a kind (device, link, system, calibration, model, recipe, study)."""
        folder = folder_of(kind)
        return sorted({path.stem for root in self.roots for path in (root / folder).glob("*.yaml")})

    def find(self, kind: str, name_or_path: str, beside: Path | None = None) -> Path:
        """The file of a name; a path (with a separator or ending in .yaml) is taken as it is.

        A relative path is looked up in the folder `beside` first. Raises CatalogError with the nearest
        name for an unknown one.
        """
        folder = folder_of(kind)
        if _is_path(name_or_path):
            return _existing(name_or_path, beside)
        for root in self.roots:
            path = root / folder / f"{name_or_path}.yaml"
            if _is_file(path):
                return path
        if _is_file(Path(name_or_path)) or _is_folder(Path(name_or_path)):
            said = f"`{name_or_path}` is no {kind}: the name of its file ends in .yaml"
            raise CatalogError([Problem(said)])
        help_text = did_you_mean(name_or_path, self.names(kind))
        raise CatalogError([Problem(f"unknown {kind} `{name_or_path}`", help=help_text)])

    def load(self, kind: str, name_or_path: str, beside: Path | None = None) -> Any:
        """The description of that name or path; CatalogError lists every problem of its file."""
        path = self.find(kind, name_or_path, beside)
        key = (kind, path.resolve())
        if key not in self._specs:
            mapping = read_mapping(path, kind, self)
            if not _is_path(name_or_path):
                _check_name(mapping, name_or_path)
            self._specs[key] = build(mapping, classes_of(kind), self, path.stem)
        return self._specs[key]

    def override(self, spec: SpecT, changes: Mapping[str, Any]) -> SpecT:
        """A copy with some values changed: `{"node.nics": 4, "node.nic.bandwidth": "400 Gb/s"}`.

        Values are written as in YAML, or as floats in SI. Raises CatalogError for unknown fields.
        """
        return _overridden(spec, changes, self) if changes else spec

    def describe(self, name_or_path: str, kind: str, *, deep: bool = False) -> list[Row]:
        """Every value of a description as written, with its source or the reason it is assumed.

        `deep` adds the values of the descriptions that it names (a system's device and links).
        """
        return Describer(self, self.sources()).rows(name_or_path, kind, deep=deep)

    def source(self, source_id: str) -> Source:
        """A registered source; CatalogError with the nearest id for an unknown one."""
        sources = self.sources()
        if source_id not in sources:
            help_text = did_you_mean(source_id, sources)
            raise CatalogError([Problem(f"unknown source `{source_id}`", help=help_text)])
        return sources[source_id]

    def sources(self) -> dict[str, Source]:
        """Every registered source by its id."""
        if self._sources is None:
            self._sources = read_sources(self.roots)
        return self._sources


def data_root() -> Path:
    """The folder of perfsim's own YAML: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parents[1]
    shipped = package / "_data"
    return shipped if shipped.is_dir() else package.parent


def default_catalog() -> Catalog:
    """The catalogue of PERFSIM_PATH and of perfsim itself, shared by all callers."""
    return _catalog_for(os.environ.get(PATH_VARIABLE, ""))


def load_mapping(path: Path, catalog: Catalog | None = None, kind: str = "study") -> LocatedMapping:
    """The raw data of a file with the place of each value; raises CatalogError if it is malformed.

    For callers that validate the data themselves: `mapping.error(validation_error, Model)` turns
    pydantic's errors into problems at the file's own lines.
    """
    return read_mapping(path, kind, catalog or default_catalog())


def parse_file(path: Path, model: type[SpecT], catalog: Catalog | None = None) -> SpecT:
    """Read a file as a `model` defined anywhere, with names resolved and all errors at once."""
    catalog = catalog or default_catalog()
    return build(read_mapping(path, "study", catalog), (model,), catalog, path.stem)


@lru_cache(maxsize=4)
def _catalog_for(_path_variable: str) -> Catalog:
    return Catalog()  # reads the variable itself; the argument only keys the cache


def _extra_roots() -> list[Path]:
    return [Path(part) for part in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if part]


def _is_path(name_or_path: str) -> bool:
    return "/" in name_or_path or os.sep in name_or_path or name_or_path.endswith((".yaml", ".yml"))


def _is_file(path: Path) -> bool:
    """Whether this is a file; text that no file system takes as a path (too long, with NUL) is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _existing(text: str, beside: Path | None) -> Path:
    candidates = [*([beside / text] if beside else []), Path(text)]
    for path in candidates:
        if _is_file(path):
            return path
    for path in candidates:
        if _is_folder(path):
            raise CatalogError([Problem(f"{path} is a directory; a file is expected")])
    raise CatalogError([Problem(f"there is no file {shown_path(candidates[0])}")])


def _check_name(mapping: LocatedMapping, name: str) -> None:
    """Report a `name` that differs from the file's name, by which the catalogue finds it."""
    name_node = mapping.node.mapping.get("name")
    if name_node is not None and name_node.text != name:
        message = f"name: `{name_node.text}` stands in the file of `{name}`"
        mapping.problems.append(name_node.mark.problem(message, f"write name: {name}, or rename the file"))
        mapping.problems = in_order(mapping.problems)
