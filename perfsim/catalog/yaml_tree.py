"""A YAML file as a tree of nodes with their positions, read without YAML 1.1's traps."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from perfsim.base.errors import MOST_EXCERPT, CatalogError, InputError, Problem, not_text

# Unquoted YAML scalars, read by the core schema of YAML 1.2 without its traps.
#
# PyYAML follows YAML 1.1, where `3e8` is a string, `on` is True, `12:30:00` is 45000, `010` is 8 and
# a date becomes an object. Here a scalar that looks like a number is one, and any other is a string.

Scalar = str | int | float | bool | None
Loc = tuple[object, ...]
"""Keys and indices that lead to a value."""

_NULLS = {"", "~", "null", "Null", "NULL"}
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_LONG_NUMBER = re.compile(rf"(?:{_OTHER_BASE.pattern}|{_FLOAT.pattern})$")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_MAX_DIGITS = 400
"""Characters of a number; the largest float takes 309 digits."""


def _resolve_plain(text: str) -> Scalar:
    """Turn an unquoted scalar into None, bool, int, float or str; InputError for numbers that are refused."""
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if len(text) > _MAX_DIGITS and _LONG_NUMBER.match(text):
        raise InputError(f"a number of {len(text)} characters")
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    if not _FLOAT.fullmatch(text) and not _NOT_FINITE.fullmatch(text):
        return text
    if _LEADING_ZERO.match(text):  # 010 is 8 in YAML 1.1, and 10 in YAML 1.2
        meant = re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", text)
        message = f"{text} begins with a zero: some readers take it for an octal number"
        help_text = f'write {meant} for the number, "{text}" in quotes for the text'
        raise InputError(message, help_text)
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NOT_FINITE.fullmatch(text) or not math.isfinite(float(text)):
        raise InputError(f"{text} is not a finite number")
    return float(text)


try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML was built without libyaml
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

_MAX_DEPTH = 60
_TOO_DEEP = f"nested more than {_MAX_DEPTH} levels deep"
_QUOTED = {"'", '"', "|", ">"}
"""Styles of scalars that are texts, whatever they look like."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file; line and column count from 1."""

    file: str
    line: int = 0
    column: int = 0
    excerpt: str = ""

    @classmethod
    def of(cls, path: Path) -> Mark:
        """A file as a whole, named relative to the working directory where possible."""
        try:
            return cls(str(path.resolve().relative_to(Path.cwd())))
        except (ValueError, OSError):
            return cls(str(path))

    def problem(self, message: str, help_text: str = "") -> Problem:
        return Problem(message, self.file, self.line, self.column, self.excerpt, help_text)


@dataclass(slots=True)
class Node:
    """A mapping, a sequence or a scalar, with its place."""

    mark: Mark
    value: dict[Scalar, Node] | list[Node] | Scalar
    text: str = ""
    """A scalar as the file spells it."""
    keys: dict[Scalar, Mark] = field(default_factory=dict)
    """Position of each key of a mapping."""
    broken: bool = False
    """A problem was already reported: for a scalar, or for a mapping whose base could not be read."""

    @classmethod
    def read(cls, path: Path) -> tuple[Node, list[Problem]]:
        """A file's mapping, with problems that did not stop the reading; CatalogError if it has none."""
        file = Mark.of(path).file
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise CatalogError([Problem(f"cannot be read: {reason}", file)]) from None
        except UnicodeDecodeError as error:
            raise CatalogError([not_text(error, file)]) from None
        return cls.parsed(text, file)

    @classmethod
    def parsed(cls, text: str, file: str = "<text>") -> tuple[Node, list[Problem]]:
        """Read YAML text, which messages name `file`; CatalogError unless it is a well-formed mapping."""
        builder = _Builder(file, text.splitlines(), yaml.parse(text, Loader=_Loader))
        try:
            root = builder.document()
        except yaml.MarkedYAMLError as error:
            position = error.problem_mark or error.context_mark
            mark = builder.mark(position) if position else Mark(file)
            words = error.problem or error.context or "cannot be understood"
            help_text = ""
            if "nesting depth" in words:  # libyaml has a limit of its own, and scans ahead of its events
                raise CatalogError([*builder.problems, mark.problem(_TOO_DEEP)]) from None
            if "mapping values are not allowed" in words:
                help_text = (
                    "a value that contains ': ' must stand in quotes; keys of one mapping stand in one column"
                )
            elif "\t" in mark.excerpt[: mark.column]:
                help_text = "indent with spaces, YAML allows no tabs there"
            elif "found character" in words:
                help_text = "a value that begins with a sign such as @ % ` must stand in quotes"
            context = f" ({error.context})" if error.context and error.problem else ""
            problem = mark.problem(f"malformed YAML: {words}{context}", help_text)
            raise CatalogError([*builder.problems, problem]) from None
        except yaml.reader.ReaderError as error:
            before = text[: error.position]
            mark = Mark(file, before.count("\n") + 1, error.position - before.rfind("\n"))
            problem = mark.problem(f"the character U+{ord(text[error.position]):04X} is not allowed in YAML")
            raise CatalogError([*builder.problems, problem]) from None
        if not root.is_mapping:
            problem = root.mark.problem("a mapping (key: value) is expected here")
            raise CatalogError([*builder.problems, problem])
        return root, builder.problems

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def mapping(self) -> dict[Scalar, Node]:
        """The children by key; empty unless the node is a mapping."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def sequence(self) -> list[Node]:
        """The elements; empty unless the node is a sequence."""
        return self.value if isinstance(self.value, list) else []

    def child(self, part: object) -> Node | None:
        """The value under a key or an index; None where there is none."""
        if isinstance(self.value, list):
            return self.value[part] if isinstance(part, int) and part < len(self.value) else None
        return self.mapping.get(part)  # type: ignore[call-overload, no-any-return]

    def mark_at(self, path: Loc, *, of_key: bool = False) -> Mark:
        """Position of the value (or key) at a path; of the innermost mapping around it where it is absent."""
        node = self
        mark = self.mark
        for part in path:
            child = node.child(part)
            if child is None:
                break
            at_key = of_key or child.mapping
            mark = node.keys.get(part, child.mark) if at_key else child.mark  # type: ignore[call-overload]
            node = child
        return mark

    def plain(self) -> Any:
        """The tree as dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def leaves(self, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Node]]:
        """Every scalar and every sequence, with its dotted path."""
        if not self.mapping:
            yield ".".join(path), self
        for key, child in self.mapping.items():
            yield from child.leaves((*path, str(key)))


def value_of(text: str) -> Any:
    """The plain value of a text: a scalar, or a list or a mapping in brackets. Raises InputError."""
    if not text.startswith(("[", "{")):
        return _resolve_plain(text)
    node, problems = Node.parsed(f"value: {text}")
    if problems:
        raise InputError(problems)
    return node.mapping["value"].plain()


@dataclass(slots=True)
class _Builder:
    """Turns PyYAML's events into nodes and collects their problems.

    It reads events, not PyYAML's own nodes, because libyaml composes nodes by recursion in C: a very
    deeply nested file would crash the process.
    """

    file: str
    lines: list[str]
    events: Iterator[yaml.Event]
    problems: list[Problem] = field(default_factory=list)

    def mark(self, position: Any) -> Mark:
        excerpt = self.lines[position.line][:MOST_EXCERPT] if position.line < len(self.lines) else ""
        return Mark(self.file, position.line + 1, position.column + 1, excerpt)

    def document(self) -> Node:
        root = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise CatalogError([self.mark(event.start_mark).problem("a second document begins here")])
                root = self.build(next(self.events), 0)
        if root is None:
            raise CatalogError([Problem("is empty: a mapping (key: value) is expected", self.file, 1)])
        return root

    def build(self, event: yaml.Event, depth: int) -> Node:
        mark = self.mark(event.start_mark)
        if depth > _MAX_DEPTH:
            raise CatalogError([*self.problems, mark.problem(_TOO_DEEP)])
        if isinstance(event, yaml.MappingStartEvent):
            node = self.mapping(mark, depth)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = Node(mark, [self.build(inner, depth + 1) for inner in self.until(yaml.SequenceEndEvent)])
        elif isinstance(event, yaml.ScalarEvent):
            text = str(event.value)
            node = Node(mark, text, text)
            if event.style not in _QUOTED:
                try:
                    node.value = _resolve_plain(text)
                except InputError as error:
                    node = self.reject(mark, error.problems[0].message, error.problems[0].help)
        else:
            help_text = "write the value again, or use extends"
            return self.reject(mark, "aliases (*name) are not supported", help_text)
        if event.tag in (None, "!"):
            return node
        shown = event.tag.replace("tag:yaml.org,2002:", "!!")
        return self.reject(
            mark, f"the tag {shown} is not supported", "write the plain value; quotes make it text"
        )

    def until(self, end: type[yaml.Event]) -> Iterator[yaml.Event]:
        """The events up to the matching end; the caller consumes the children of every event it takes."""
        for event in self.events:
            if isinstance(event, end):
                return
            yield event

    def reject(self, mark: Mark, message: str, help_text: str = "") -> Node:
        """A node in place of one that is wrong."""
        self.problems.append(mark.problem(message, help_text))
        return Node(mark, None, broken=True)

    def mapping(self, mark: Mark, depth: int) -> Node:
        """A mapping; merge keys, repeated keys and keys that are no scalars are reported and left out."""
        node = Node(mark, {})
        for event in self.until(yaml.MappingEndEvent):
            key = self.build(event, depth + 1)
            value = self.build(next(self.events), depth + 1)
            if key.broken:
                continue
            if isinstance(key.value, dict | list):
                self.reject(key.mark, "a key must be a single word or number")
            elif key.value == "<<":
                self.reject(key.mark, "merge keys (<<) are not supported", "use extends: NAME")
            elif key.value in node.mapping:
                first = node.keys[key.value].line
                self.reject(key.mark, f"the key `{key.text}` stands here again, first in line {first}")
            else:
                node.mapping[key.value] = value
                node.keys[key.value] = key.mark
        return node
