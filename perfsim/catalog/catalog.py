"""The catalogue: descriptions found by name in folders, or read from a path."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from perfsim.base.errors import CatalogError, InputError, Problem
from perfsim.base.spec import SpecT, changed
from perfsim.base.text import covering, did_you_mean, nearest
from perfsim.catalog import reader
from perfsim.catalog.yaml_tree import Mark, Node
from perfsim.specs.calibration import Calibration, FrameworkCalibration
from perfsim.specs.hardware import DeviceSpec, SystemSpec
from perfsim.specs.model import TransformerConfig
from perfsim.specs.recipe import Recipe

PATH_VARIABLE = "PERFSIM_PATH"
"""Directories searched before perfsim's own, each laid out like the project: hardware/, ..."""
_SECTIONS = ("hardware", "workloads", "studies")
"""The folders of a root, each with its own register of sources."""


class Catalog:
    """Descriptions by name; each file is read once, and again once one has changed.

    `roots` are directories that hold hardware/, workloads/ and studies/; an earlier root shadows files of the
    same name in later ones. Default: the folders of PERFSIM_PATH, then perfsim's own.
    """

    def __init__(self, roots: Sequence[Path] | None = None) -> None:
        folders = filter(None, os.environ.get(PATH_VARIABLE, "").split(os.pathsep))
        self.roots = tuple(roots) if roots is not None else (*map(Path, folders), data_root())
        self._specs: dict[tuple[str, Path], Any] = {}
        self._files: dict[Path, tuple[int, ...]] = {}
        self._sources: dict[str, Source] | None = None

    def device(self, name_or_path: str) -> DeviceSpec:
        """A GPU or a wafer."""
        return cast(DeviceSpec, self.load("device", name_or_path))

    def system(self, name_or_path: str, **changes: Any) -> SystemSpec:
        """A cluster; `changes` are as in `override`: `system("cs-2", software_release="r1.7")`."""
        return self.override(cast(SystemSpec, self.load("system", name_or_path)), changes)

    def model(self, name_or_path: str) -> TransformerConfig:
        """A model."""
        return cast(TransformerConfig, self.load("model", name_or_path))

    def recipe(self, name_or_path: str) -> Recipe:
        """A recipe."""
        return cast(Recipe, self.load("recipe", name_or_path))

    def framework(self, name_or_path: str) -> FrameworkCalibration:
        """A training framework."""
        return cast(FrameworkCalibration, self.load("framework", name_or_path))

    def names(self, kind: str) -> list[str]:
        """Every name of a kind (device, link, system, calibration, model, recipe, study)."""
        return sorted({path.stem for folder in self._folders(kind) for path in folder.glob("*.yaml")})

    def _folders(self, kind: str) -> list[Path]:
        """The folders of a kind; CatalogError for an unknown kind."""
        if kind not in reader.KINDS:
            raise CatalogError(f"unknown kind `{kind}`", did_you_mean(kind, reader.KINDS))
        return [root / reader.KINDS[kind].folder for root in self.roots]

    def find(self, kind: str, name_or_path: str, near: Path | None = None) -> Path:
        """The file of a name, or of a path, looked up in `near` first; CatalogError has the nearest name."""
        folders = self._folders(kind)
        if not _is_path(name_or_path):
            files = (folder / f"{name_or_path}.yaml" for folder in folders)
            if path := next(filter(_is_file, files), None):
                return path
            if _is_file(Path(name_or_path), Path.exists):
                raise _foreign(kind, Path(name_or_path))
            help_text = did_you_mean(name_or_path, self.names(kind), f": perfsim show {kind}s")
            raise CatalogError(f"unknown {kind} `{name_or_path}`", help_text)
        candidates = [*([near / name_or_path] if near else []), Path(name_or_path)]
        for path in candidates:
            if _is_file(path) and path.suffix in FOREIGN:
                raise _foreign(kind, path)
            if _is_file(path):
                return path
        for path in candidates:
            if _is_file(path, Path.is_dir):
                raise CatalogError(f"{path} is a directory; a file is expected")
        near_name = nearest(Path(name_or_path).name.removesuffix(".yaml"), self.names(kind))
        help_text = f"the catalogue has `{near_name}`" if near_name else ""
        raise CatalogError(f"there is no file {Mark.of(candidates[0]).file}", help_text)

    def load(self, kind: str, name_or_path: str, near: Path | None = None) -> Any:
        """The description of that name or path; CatalogError lists every problem of its file."""
        self._forget_changed()
        return self._known(kind, name_or_path, near)

    def every(self, kind: str) -> list[Any]:
        """All descriptions of a kind, in the order of their names; CatalogError as in `load`."""
        self._forget_changed()
        return [self._known(kind, name) for name in self.names(kind)]

    def _forget_changed(self) -> None:
        if any(_state(file) != state for file, state in self._files.items()):
            self._specs.clear()
            self._files.clear()

    def _known(self, kind: str, name_or_path: str, near: Path | None = None) -> Any:
        path = self.find(kind, name_or_path, near)
        key = (kind, path.resolve())
        if key not in self._specs:
            mapping = reader.LocatedMapping.read(path, kind, self)
            name = mapping.node.mapping.get("name")
            if not _is_path(name_or_path) and name is not None and name.text != name_or_path:
                message = f"name: `{name.text}` stands in the file of `{name_or_path}`"
                help_text = f"write name: {name_or_path}, or rename the file"
                mapping.problems.append(name.mark.problem(message, help_text))
            self._specs[key] = mapping.build(reader.KINDS[kind].classes, self, path.stem)
        return self._specs[key]

    def will_read(self, path: Path) -> None:
        """Note the state of a file before it is read: once any file has changed, all are read again."""
        self._files[path] = _state(path)

    def override(self, spec: SpecT, changes: Mapping[str, Any]) -> SpecT:
        """A copy with some values changed: `{"node.nics": 4, "node.nic.bandwidth": "400 Gb/s"}`.

        Values are written as in YAML, or as floats in SI. Raises CatalogError for unknown fields.
        """
        if not changes:
            return spec
        model = type(spec)

        def read(path: str, value: Any) -> Any:
            return reader.value_at(model, path, value, self)

        data = changed(spec, changes, dict.fromkeys(changes, "set by the question"), read)
        try:
            return model.model_validate(data)
        except ValidationError as error:
            raise CatalogError(_complaints_of(error, model, data)) from None

    def override_part(self, root: str, part: SpecT | None, changes: Mapping[str, Any]) -> SpecT:
        """`override` of a part of a question, `root`; InputError names the whole paths."""
        if part is None:
            raise InputError(f"{root} is not given, so {', '.join(changes)} in it cannot be changed")
        try:
            return self.override(part, changes)
        except CatalogError as error:
            problems = [replace(problem, message=f"{root}.{problem.message}") for problem in error.problems]
            raise InputError(problems) from None

    def describe(
        self, name_or_path: str, kind: str, *, deep: bool = False, near: Path | None = None
    ) -> list[Row]:
        """Every value of a description as written, with its source or the reason it is assumed.

        `deep` adds the values of the descriptions that it names (a system's device and links).
        """
        mapping = reader.LocatedMapping.read(self.find(kind, name_or_path, near), kind, self)
        classes = reader.KINDS[kind].classes
        known = reader.members(mapping.chosen(classes)) if deep and classes else []
        sources, assumed = (mapping.node.mapping.get(name, Node(Mark(""), {})) for name in reader.PROVENANCE)
        listed: list[Row] = []
        for path, leaf in reader.values(mapping.node).leaves():
            if path:
                text = leaf.text if not isinstance(leaf.value, list) else ", ".join(map(str, leaf.plain()))
                row = Row(path, text)
                source_key = covering(path, sources.mapping)
                assumed_key = covering(path, assumed.mapping)
                # The longer key is the more specific one; at equal length the assumption is the safer claim.
                if assumed_key and len(assumed_key) >= len(source_key):
                    row = Row(path, text, f"assumed: {assumed.mapping[assumed_key].text}", assumed=True)
                elif source_key:
                    source_id = sources.mapping[source_key].text
                    row = Row(path, text, str(self.sources().get(source_id, source_id)), source_id)
                listed.append(row)
            named = [cls for cls in reduce(reader.element, path.split("."), known) if reader.is_named(cls)]
            if named and isinstance(leaf.value, str) and not issubclass(named[0], Calibration):
                near = Path(leaf.mark.file).parent
                rows = self.describe(leaf.text, reader.kind_of(named[0]), deep=True, near=near)
                listed += [replace(row, path=f"{path}.{row.path}") for row in rows]
        return listed

    def sources(self) -> dict[str, Source]:
        """Every registered source by its id, the earlier root first; CatalogError has every problem."""
        if self._sources is not None:
            return self._sources
        sources: dict[str, Source] = {}
        problems: list[Problem] = []
        registers = (root / section / "sources.yaml" for root in self.roots for section in _SECTIONS)
        for path in filter(Path.is_file, registers):
            node, wrong = Node.read(path)
            problems += wrong
            for key, entry in node.mapping.items():
                if not entry.is_mapping:
                    problems.append(entry.mark.problem(f"{key}: a mapping with title and url is expected"))
                    continue
                try:
                    sources.setdefault(str(key), Source.model_validate(entry.plain()))
                except ValidationError as error:
                    problems += reader.complaints(error, Source, entry)
        if problems:
            raise CatalogError(problems)
        self._sources = sources
        return sources


def data_root() -> Path:
    """The folder of perfsim's own YAML: next to the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parents[1]
    shipped = package / "_data"
    return shipped if shipped.is_dir() else package.parent


def default_catalog() -> Catalog:
    """The catalogue of PERFSIM_PATH and of perfsim itself, shared by all callers."""
    return _catalog_for(os.environ.get(PATH_VARIABLE, ""))


def parse_file(path: Path, model: type[SpecT], catalog: Catalog | None = None) -> SpecT:
    """Read a file as a `model` defined anywhere, with names resolved and all errors at once."""
    catalog = catalog or default_catalog()
    return reader.LocatedMapping.read(path, "study", catalog).build((model,), catalog, path.stem)


def parse_data(data: Mapping[str, Any], model: type[SpecT], catalog: Catalog, default_name: str) -> SpecT:
    """Python data read as a file is: with `extends` and names, but also with objects and SI floats."""
    mapping = reader.LocatedMapping(Path(), _unplaced(data), []).extended("study", catalog)
    return mapping.build((model,), catalog, default_name)


@lru_cache(maxsize=4)
def _catalog_for(_path_variable: str) -> Catalog:
    return Catalog()  # reads the variable itself; the argument only keys the cache


def _state(path: Path) -> tuple[int, ...]:
    """What changes with the content of a file: its time, size and inode; empty where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


FOREIGN = (".json", ".toml", ".sh")
"""Suffixes of files of other tools."""


def _foreign(kind: str, path: Path) -> CatalogError:
    """The error of a file of another tool where YAML of a kind is expected."""
    help_text = "perfsim import reads files of other tools"
    if kind == "model" and path.suffix in FOREIGN:
        help_text = f"write its YAML: perfsim import {path} --out {path.with_suffix('.yaml')}"
    return CatalogError(f"`{path}` is no {kind}: files of a {kind} end in .yaml", help_text)


def _is_path(name_or_path: str) -> bool:
    """Whether it has a separator, or ends as a file of YAML or of another tool."""
    suffixes = (".yaml", ".yml", *FOREIGN)
    return "/" in name_or_path or os.sep in name_or_path or name_or_path.endswith(suffixes)


def _is_file(path: Path, test: Callable[[Path], bool] = Path.is_file) -> bool:
    """Whether this is a file; text that no file system takes as a path (too long, with NUL) is none."""
    try:
        return test(path)
    except (OSError, ValueError):
        return False


def _complaints_of(error: ValidationError, model: type[BaseModel], data: Any) -> list[Problem]:
    """What pydantic refuses of Python data, in words that name the path of each value."""
    return reader.complaints(error, model, _unplaced(data))


def _unplaced(data: Any) -> Node:
    """Python data as nodes without positions, so that problems can name their paths."""
    if isinstance(data, Mapping):
        keys = dict.fromkeys(data, Mark(""))
        return Node(Mark(""), {key: _unplaced(value) for key, value in data.items()}, keys=keys)
    if isinstance(data, list | tuple):
        return Node(Mark(""), [_unplaced(value) for value in data])
    return Node(Mark(""), str(data) if isinstance(data, Path) else data, str(data))


# Where each value comes from, a source of `sources.yaml` or an assumption, as `perfsim show` lists it.


class Source(BaseModel):
    """A publication that was read; `url` is empty where none is known."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    title: str
    url: str = ""
    note: str = ""

    def __str__(self) -> str:
        return f"{self.title} <{self.url}>" if self.url else self.title


@dataclass(frozen=True, slots=True)
class Row:
    """One value of a description, as written, with its source or assumption."""

    path: str
    value_text: str
    source_or_assumption: str = ""
    """The source's title and address, or "assumed: " and the reason; empty for structure and for neither."""
    source_id: str = ""
    """Empty for assumptions."""
    assumed: bool = False
