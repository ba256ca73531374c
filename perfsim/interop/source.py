"""A foreign file: its text, its parsers for JSON, YAML and TOML, and its settings by dotted path.

`Settings` gives typed access that remembers which keys were used, what was read and what perfsim cannot
express.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, get_args, overload

import yaml

from perfsim.base.errors import MOST_EXCERPT, InputError, Problem, not_text
from perfsim.base.files import must_exist
from perfsim.base.text import did_you_mean, nearest
from perfsim.interop.nearest_model import Gap, Nearest
from perfsim.specs.layout import ParallelLayout

if TYPE_CHECKING:
    from perfsim.interop.tool import Row

MOST_CHARACTERS = 4_000_000
"""Of a file of settings; logs may be longer."""
MOST_DEPTH = 60
"""Of mappings in mappings."""
MOST_KEYS = 100_000
"""Of a file with its aliases written out."""
Syntax = Literal["json", "yaml", "toml", "text"]
Sections = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Source:
    """The text of a file, as the path names it in messages."""

    path: Path
    text: str
    given: Mapping[str, Any] = field(default_factory=dict)
    """Values that the user gives with the file, by key."""
    model: str = ""
    """The model of a file that has none: a name of the catalogue, or a file; "": what lies next to it."""

    @classmethod
    def read(cls, path: Path, given: Mapping[str, Any] | None = None) -> Source:
        """Read a file. Raises InputError for one that is not there or that is no UTF-8 text."""
        must_exist(path)
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError([not_text(error, str(path))]) from None
        return cls(path, text.replace("\r\n", "\n"), given or {})

    def problem(self, message: str, help_text: str = "", line: int = 0) -> Problem:
        """A problem at a line, which counts from 1; 0 for the file as a whole, that is its first line."""
        (excerpt,) = self.text.split("\n")[max(line, 1) - 1 : line] or [""]
        return Problem(message, str(self.path), line or 1, 0, excerpt[:MOST_EXCERPT], help_text)

    def refuse(self, message: str, help_text: str = "", line: int = 0) -> NoReturn:
        """Raise InputError with one problem of this file."""
        raise InputError([self.problem(message, help_text, line)])

    def line_of(self, path: str) -> int:
        """The line of a key by its dotted path; 0 where it is not found."""
        start = 0
        for part in path.split("."):
            spelled = re.escape(part).replace("_", "[-_]")
            match = re.compile(rf"(?<![\w-])(?:--)?[\"']?{spelled}[\"']?(?![\w-])").search(self.text, start)
            if match is None:
                return 0
            start = match.start()
        return self.text.count("\n", 0, start) + 1

    def parsed(self, syntax: Syntax) -> Any:
        """The document of a file in a syntax. Raises InputError for one that is malformed, at its line."""
        if syntax == "text":
            return self.text
        if len(self.text) > MOST_CHARACTERS:
            self.refuse(f"{len(self.text)} characters; a file of settings has at most {MOST_CHARACTERS}")
        try:
            if syntax == "json":
                return json.loads(self.text, parse_constant=self._not_finite)
            if syntax == "toml":
                return tomllib.loads(self.text)
            # It may have tags of other tools, anchors and repeated keys, but not several documents.
            return yaml.load(self.text, Loader=_Loader)  # noqa: S506  # a SafeLoader without objects
        except RecursionError:
            self.refuse("nested too deeply")
        except InputError:  # a number that is not finite
            raise
        except (ValueError, TypeError, OverflowError, LookupError, AttributeError, yaml.YAMLError) as error:
            words = getattr(error, "problem", None) or getattr(error, "msg", None) or str(error)
            lines = re.findall(r"line (\d+)", str(error))
            first_words = words.split("\n")[0]
            self.refuse(f"malformed {syntax.upper()}: {first_words}", line=int(lines[-1]) if lines else 0)

    @cached_property
    def documents(self) -> Mapping[Syntax, Any]:
        """The document in each syntax in which the file can be parsed."""
        documents: dict[Syntax, Any] = {}
        for syntax in get_args(Syntax):
            with suppress(InputError):
                documents[syntax] = self.parsed(syntax)
        return documents

    def _not_finite(self, name: str) -> NoReturn:
        self.refuse(f"{name} is not a finite number", line=self.line_of(name))


class _Loader(yaml.SafeLoader):
    """Plain values of any tag; floats as YAML 1.2 and other tools write them (`1e-5`)."""


def _untagged(loader: _Loader, _suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    return loader.construct_sequence(node, deep=True) if isinstance(node, yaml.SequenceNode) else node.value


_Loader.add_multi_constructor("", _untagged)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+"),
    list("-+0123456789."),
)
MOST_NUMBER = 2**53
"""Of a whole number that has no narrower range of its own."""
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0", "none")

ChoiceT = TypeVar("ChoiceT")


@dataclass
class Settings:
    """The leaves of a file by dotted path; lists are leaves."""

    source: Source
    values: Mapping[str, Any]
    textual: bool = False
    """Whether all values are text, as flags of a command are."""
    sections: Sections = field(default_factory=dict)
    """By the first section of a name (`model.`, or "" without one) all sections where it may stand."""
    used: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    """Keys that stand in the file with values that it does not tell."""
    gaps: list[Gap] = field(default_factory=list)
    """What readers of this file could not express."""
    ours: dict[str, Any] = field(default_factory=dict)
    """What was read so far, by field: `model.num_layers`, `layout.tensor`, `recipe.precision`."""

    def __post_init__(self) -> None:
        self.values = {**self.values, **self.source.given}

    @classmethod
    def of(cls, source: Source, document: Any, sections: Sections | None = None) -> Settings:
        """The leaves of a parsed document. Raises InputError if it is no mapping."""
        if not isinstance(document, Mapping):
            source.refuse(f"a mapping (key: value) is expected, not {_kind(document)}")
        values = dict(islice(leaves(document), MOST_KEYS + 1))
        if len(values) > MOST_KEYS:
            source.refuse(f"more than {MOST_KEYS} keys")
        return cls(source, values, sections=sections or {})

    def has(self, *names: str) -> bool:
        """Whether one of the keys stands in the file with a value."""
        return any(self.values.get(path) is not None for path in self._paths(names))

    def gap(self, text: str, *, changes_model: bool = False) -> None:
        self.gaps.append(Gap(text, changes_model))

    def unused(self) -> tuple[str, ...]:
        """The keys that nothing asked for, in the order of the file."""
        return tuple(path for path in self.values if path not in self.used)

    def ignore(self, *names: str) -> None:
        """Count keys as used: what they say is known by other means."""
        self.used.update(self._paths(names))

    def raw(self, *names: str) -> Any:
        """The value under the first of these keys that has one, of whatever type."""
        return self._first(names)[1]

    def read(self, rows: Sequence[Row]) -> Settings:
        """Itself, with our values from these rows, in their order."""
        for row in rows:
            if row.read is None:
                self.ignore(*row.keys.split())
            elif (value := row.read(self)) is not None:
                self.ours[row.field] = value
        return self

    def part(self, name: str) -> dict[str, Any]:
        """What was read of `model`, `layout`, `recipe` or `runtime`, as a tree of fields."""
        start = f"{name}."
        return nested({key[len(start) :]: value for key, value in self.ours.items() if key.startswith(start)})

    @property
    def model(self) -> Nearest:
        return Nearest.of(self.part("model"))

    @property
    def recipe(self) -> dict[str, Any]:
        """What was read of a recipe and its runtime; without a key, sequences are as long as the model's."""
        recipe = self.part("recipe") | self.part("runtime")
        if longest := self.ours.get("model.max_position_embeddings"):
            recipe.setdefault("seq_length", longest)
        return recipe

    def layout(self, ranks: int | None = None) -> ParallelLayout:
        """What was read of a layout; `ranks` in all tell its replicas."""
        layout = ParallelLayout(**self.part("layout"))
        return layout if ranks is None else replace(layout, data=self.replicas(layout, ranks))

    def replicas(self, layout: ParallelLayout, ranks: int) -> int:
        """The replicas of a layout on `ranks` ranks; InputError where its degrees do not divide them."""
        degrees = {"tensor": layout.tensor, "pipeline": layout.pipeline, "context": layout.context}
        ways = math.prod(degrees.values())
        if ranks < ways or ranks % ways:
            product = " × ".join(f"{name} {degree}" for name, degree in degrees.items())
            help_text = "check the number of nodes and of ranks of a node"
            self.source.refuse(f"{ranks} ranks are not a multiple of {product}", help_text)
        return ranks // ways

    @overload
    def integer(self, *names: str, default: int, least: int = 1, most: int = MOST_NUMBER) -> int: ...
    @overload
    def integer(self, *names: str, least: int = 1, most: int = MOST_NUMBER) -> int | None: ...
    def integer(
        self, *names: str, default: int | None = None, least: int = 1, most: int = MOST_NUMBER
    ) -> int | None:
        """A whole number under the first of these keys that has one; the default where none has."""
        name, value = self._first(names)
        if value is None:
            return default
        number = self._number(name, value, "a whole number")
        if number != int(number):
            raise self.error(name, f"{value!r} is not a whole number")
        if not least <= number <= most:
            raise self.error(name, f"{_short(value)} is out of range; {least} to {most} is allowed")
        return int(number)

    def needed(self, *names: str, least: int = 1, most: int = MOST_NUMBER) -> int:
        """A whole number that must be there. Raises InputError with the names that were looked for."""
        value = self.integer(*names, least=least, most=most)
        if value is None:
            raise self.missing(*names)
        return value

    def number(self, *names: str, default: float | None = None) -> float | None:
        name, value = self._first(names)
        return default if value is None else self._number(name, value, "a number")

    def flag(self, *names: str, default: bool = False) -> bool:
        name, value = self._first(names)
        folded = str(default if value is None else value).casefold()
        if folded in _TRUE or folded in _FALSE:
            return folded in _TRUE
        raise self.error(name, f"{_short(value)} is not true or false")

    def text(self, *names: str, default: str = "") -> str:
        name, value = self._first(names)
        if isinstance(value, (list, dict)):
            raise self.error(name, f"{_kind(value)} stands where a word is expected")
        return default if value is None else str(value)

    def choice(self, names: tuple[str, ...], known: Mapping[str, ChoiceT], default: ChoiceT) -> ChoiceT:
        """What a word stands for, ignoring case. Raises InputError with the known words for another."""
        name, value = self._first(names)
        if value is None:
            return default
        for word, meaning in known.items():
            if word.casefold() == str(value).casefold():
                return meaning
        raise self.error(name, f"{_short(value)} is unknown", did_you_mean(str(value)[:80], known))

    def error(self, name: str, message: str, help_text: str = "") -> InputError:
        """A problem with the value of a key, at its line."""
        return InputError([self.source.problem(f"{name}: {message}", help_text, self.source.line_of(name))])

    def missing(self, *names: str) -> InputError:
        """The error of a needed key; the help names the present key that is most like it."""
        given = f"perfsim import {shlex.quote(str(self.source.path))} --out NAME.yaml --set"
        if told := next((name for name in names if name in self.unknown), ""):
            help_text = f"its value is computed when the script runs; give it: {given} {told}=VALUE"
            return self.error(told, "the file does not tell this value", help_text)
        roots, first = self._roots(names[0])
        short = [self._roots(name)[1] for name in names]
        sections = [root.rstrip(".") for root in roots if root]
        also = f" (nor {', '.join(short[1:])})" if names[1:] else ""
        also += f" in {' or '.join(sections)}" if sections else ""
        near = next(filter(None, (nearest(name, self.values) for name in short)), "")
        seen = f"the file has `{near}`; " if near else ""
        root = "" if "" in roots else roots[0]
        help_text = f"{seen}what a file lacks can be given: {given} {root}{first}=VALUE"
        # The line of a key like the one that is missing, or of the section where it should stand.
        inside = (key for root in roots for key in self.values if root and key.startswith(root))
        like = near or next(inside, "").rpartition(".")[0]
        line = self.source.line_of(like) if like else 0
        return InputError([self.source.problem(f"{first} is missing{also}", help_text, line)])

    def _first(self, names: tuple[str, ...]) -> tuple[str, Any]:
        """The first of the keys with a value; all of them count as used."""
        paths = self._paths(names)
        self.used.update(path for path in paths if path in self.values)
        present = ((path, self.values[path]) for path in paths if self.values.get(path) is not None)
        return next(present, (names[0], None))

    def _roots(self, name: str) -> tuple[tuple[str, ...], str]:
        """The sections where a name may stand, and the name in them."""
        section, dot, rest = name.partition(".")
        if section + dot in self.sections:
            return self.sections[section + dot], rest
        return self.sections.get("", ("",)), name

    def _paths(self, names: tuple[str, ...]) -> list[str]:
        return [root + rest for roots, rest in map(self._roots, names) for root in roots]

    def _number(self, name: str, value: Any, wanted: str) -> float:
        if self.textual and isinstance(value, str):
            try:
                value = float(value) if any(sign in value for sign in ".eEnN") else int(value)
            except ValueError:
                raise self.error(name, f"{_short(value)} is not {wanted}") from None
        elif self.textual and value is True:
            raise self.error(name, "its value is missing")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            quoted = isinstance(value, str) and value.strip().isdigit()
            help_text = "write the number without quotes" if quoted else ""
            raise self.error(name, f"{_short(value)} is not {wanted}", help_text)
        if isinstance(value, float) and not math.isfinite(value):
            raise self.error(name, f"{value} is not a finite number")
        return value


def leaves(document: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The values of a tree of mappings by dotted path; an empty mapping is a value."""
    for key, value in document.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and depth < MOST_DEPTH:
            yield from leaves(value, f"{path}.", depth + 1)
        else:
            yield path, value


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted path as a tree of mappings."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *groups, name = path.split(".")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
        branch[name] = value
    return tree


def names_in(document: Any, *paths: str) -> set[str]:
    """The keys of the mapping at the first of these dotted paths that leads to one; else none."""
    for path in paths:
        branch = document
        for part in filter(None, path.split(".")):
            branch = branch.get(part) if isinstance(branch, Mapping) else None
        if isinstance(branch, Mapping):
            return {str(name) for name in branch}
    return set()


def _kind(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "a text", bool: "a truth value", type(None): "nothing"}
    return names.get(type(value), "a number")


def _short(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MOST_NUMBER:
        return "a very large number"
    if isinstance(value, (list, dict)):
        return _kind(value)
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
