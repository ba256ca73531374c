"""Descriptions: frozen values that refuse unknown fields and name where their values come from."""

import unicodedata
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from perfsim.base.dates import PATTERN
from perfsim.base.errors import CatalogError, InputError, Problem, refused_values
from perfsim.base.text import did_you_mean

PROSE = frozenset({"description", "sources", "assumed"})
"""Fields that explain a description, and on which no answer depends."""
CHANGED = "set in Python"
"""The assumption recorded for a value that `with_` changed."""


MOST_NAME = 1000
MOST_FOLDER_NAME = 200
"""Bytes in UTF-8; file systems allow 255, and files of a folder add to it."""


def _named(name: str) -> str:
    """A name that can be shown in one line."""
    bad = next((char for char in name if unicodedata.category(char)[0] == "C"), "")
    if bad:
        raise _wrong_name(f"a name cannot contain the character U+{ord(bad):04X}", name)
    if not 0 < len(name) <= MOST_NAME:
        raise _wrong_name(f"a name has 1 to {MOST_NAME} characters, not {len(name)}", name)
    return name


def _folder(name: str) -> str:
    """A name under which a folder can be made inside another one, and nowhere else."""
    separator = next((char for char in "/\\" if char in name), "")
    if separator or name.strip(" .") == "" or name != name.strip():
        refused = f"`{separator}`" if separator else "only dots and blanks, or blanks at an end"
        raise _wrong_name(f"it is the name of the report's folder and cannot contain {refused}", name)
    if len(name.encode()) > MOST_FOLDER_NAME:
        raise _wrong_name(f"it is the name of the report's folder, at most {MOST_FOLDER_NAME} bytes", name)
    return name


def _wrong_name(message: str, name: str) -> InputError:
    kept = "".join(char if char.isalnum() or char in "._- " else "_" for char in name)[:60].strip(" ._")
    return InputError(message, f"write for example {kept}" if kept else "")


Name = Annotated[str, AfterValidator(_named)]
"""Shown in tables and messages."""
FolderName = Annotated[Name, AfterValidator(_folder)]
"""Also the name of a folder: one component of a path."""
Date = Annotated[str, Field(pattern=PATTERN)]
"""A month (`2023-06`), or a day (`2023-06-15`)."""


SpecT = TypeVar("SpecT", bound=BaseModel)


class Spec(BaseModel):
    """A frozen description; unknown keys are errors, and every leaf has a source or an assumption."""

    # Validators are built at first use (`defer_build`): a command needs few of the descriptions.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False)
    moved: ClassVar[Mapping[str, str]] = {}
    """Fields that a description of this kind had once, with what to write today."""

    def with_(self, **changes: Any) -> Self:
        """A copy with some values changed; a key may be a dotted path (`**{"memory.capacity": "96 GiB"}`).

        Quantities are text with a unit or floats in SI units. A description with a name takes a new one that
        tells the changes, unless `name` is among them. Raises CatalogError with everything that is wrong.
        """
        if not changes:
            return self
        words = ", ".join(f"{key}={getattr(value, 'name', value)}" for key, value in changes.items())
        name = getattr(self, "name", None)
        named = {} if name is None else {"name": f"{name} with {words}"}
        try:
            return self.model_validate(changed(self, {**named, **changes}, dict.fromkeys(changes, CHANGED)))
        except ValidationError as error:
            raise CatalogError([Problem(words) for words in refused_values(error.errors())]) from None


UNNAMED = "inline"
"""The name of a description that is written without one inside another."""


class CatalogSpec(Spec):
    """A description that stands in a file of its own and is found by its name.

    `sources` maps a key (or the first part of a dotted path) to a source id of the catalogue's
    `sources.yaml`; `assumed` maps a key to the reason why a value without a source stands there.
    """

    name: Name
    description: str = ""
    sources: dict[str, str] = Field(default_factory=dict)
    assumed: dict[str, str] = Field(default_factory=dict)


class DatedSpec(CatalogSpec):
    """A description of something that did not always exist."""

    date: Date | None = None
    """When it could first be bought or installed; of a calibration, when the newest of its measurements was
    published. Not inherited; None: not known. A date from memory is assumed: `recalled`, and why."""

    @property
    def date_is_recalled(self) -> bool:
        return self.assumed.get("date", "").startswith("recalled")


def changed(
    spec: BaseModel,
    changes: Mapping[str, Any],
    assumed: Mapping[str, str],
    read: Callable[[str, Any], Any] = lambda _, value: value,
) -> dict[str, Any]:
    """The values of a description, those at dotted paths replaced by what `read` makes of path and value.

    `assumed` are the reasons that are recorded. Raises CatalogError with every path that leads nowhere.
    """
    data = spec.model_dump()
    problems: list[Problem] = []
    for path, value in changes.items():
        try:
            _put(spec, data, path, read(path, value))
        except CatalogError as error:
            problems += [Problem(f"{path}: {known.message}", help=known.help) for known in error.problems]
    if problems:
        raise CatalogError(problems)
    if "assumed" in data:
        data["assumed"] = {**data["assumed"], **assumed}
    return data


def _put(spec: Any, data: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path, in a mapping also of a new key; CatalogError where it leads nowhere."""
    part, inner, rest = path.partition(".")
    if isinstance(spec, BaseModel) and part not in data:
        raise CatalogError(f"`{part}` is not a field", did_you_mean(part, data))
    if not inner:
        data[part] = value
        return
    within = getattr(spec, part) if isinstance(spec, BaseModel) else spec.get(part, {})
    if not isinstance(within, (BaseModel, dict)):
        state = "not set" if within is None else "a list" if isinstance(within, tuple) else "a single value"
        raise CatalogError(
            f"`{part}` is {state}, so nothing in it can be changed", f"write {part} as a whole"
        )
    _put(within, data.setdefault(part, {}), rest, value)
