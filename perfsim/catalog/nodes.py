"""A YAML file as a tree of nodes that know where they stand, read without YAML 1.1's traps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from perfsim.catalog.scalars import Scalar, ScalarError, resolve_plain
from perfsim.errors import CatalogError, Problem

try:
    from yaml import CSafeLoader as _Base
except ImportError:  # PyYAML was built without libyaml
    from yaml import SafeLoader as _Base  # type: ignore[assignment]

_PREFIX = "tag:yaml.org,2002:"
_MAX_DEPTH = 60


class _Loader(_Base):
    """Composes nodes and leaves every plain scalar a string: `resolve_plain` decides what it means."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - PyYAML's own class attribute


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file; line and column count from 1."""

    file: str
    line: int = 0
    column: int = 0
    excerpt: str = ""

    def problem(self, message: str, help_text: str = "") -> Problem:
        """Say that something is wrong at this place."""
        return Problem(message, self.file, self.line, self.column, self.excerpt, help_text)


@dataclass(slots=True)
class Node:
    """A mapping, a sequence or a scalar, with its place."""

    mark: Mark
    value: dict[Scalar, Node] | list[Node] | Scalar
    text: str = ""
    """A scalar as it is written."""
    keys: dict[Scalar, Mark] = field(default_factory=dict)
    """Where each key of a mapping stands."""
    broken: bool = False
    """A problem was already reported for this scalar."""

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def mapping(self) -> dict[Scalar, Node]:
        """The children by key; empty for what is not a mapping."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def sequence(self) -> list[Node]:
        """The elements; empty for what is not a sequence."""
        return self.value if isinstance(self.value, list) else []

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


def shown_path(path: Path) -> str:
    """The path as messages print it: short where it lies under the working directory."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def read_yaml(path: Path) -> tuple[Node, list[Problem]]:
    """Read a file whose top level is a mapping; the problems are those that let reading go on.

    Raises CatalogError where nothing can be read: no such file, not UTF-8, malformed YAML.
    """
    file = shown_path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CatalogError([Problem(f"cannot be read: {reason}", file)]) from None
    except UnicodeDecodeError as error:
        raise CatalogError([Problem(f"is not UTF-8 text (byte {error.start})", file)]) from None
    return parse_yaml(text, file)


def parse_yaml(text: str, file: str = "<text>") -> tuple[Node, list[Problem]]:
    """Read YAML text whose top level is a mapping; `file` stands in the messages.

    Raises CatalogError for malformed YAML and for a top level that is no mapping.
    """
    builder = _Builder(file, text.splitlines())
    root = builder.build(_compose(text, builder), 0)
    if not root.is_mapping:
        raise CatalogError([*builder.problems, root.mark.problem("a mapping (key: value) is expected here")])
    return root, builder.problems


def _compose(text: str, builder: _Builder) -> yaml.Node:
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise CatalogError([_malformed(error, builder)]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position)
        column = error.position - (text.rfind("\n", 0, error.position) + 1)
        message = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML"
        raise CatalogError([builder.mark(line, column).problem(message)]) from None
    except RecursionError:
        raise CatalogError([Problem("is nested too deeply", builder.file)]) from None
    if node is None:
        raise CatalogError([Problem("is empty: a mapping (key: value) is expected", builder.file)])
    return node


def _malformed(error: yaml.MarkedYAMLError, builder: _Builder) -> Problem:
    place = error.problem_mark or error.context_mark
    mark = builder.mark(place.line, place.column) if place else Mark(builder.file)
    problem = error.problem or error.context or "cannot be understood"
    help_text = ""
    if "mapping values are not allowed" in problem:
        help_text = "a value that contains ': ' must stand in quotes; keys of one mapping stand in one column"
    elif "\t" in mark.excerpt[: mark.column]:
        help_text = "indent with spaces, YAML allows no tabs there"
    elif "found character" in problem:
        help_text = "a value that begins with a sign such as @ % ` must stand in quotes"
    context = f" ({error.context})" if error.context and error.problem else ""
    return mark.problem(f"malformed YAML: {problem}{context}", help_text)


@dataclass(slots=True)
class _Builder:
    """Turns PyYAML's nodes into ours and collects what is wrong with them."""

    file: str
    lines: list[str]
    problems: list[Problem] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    """Nodes built so far: one that comes again was written as an alias."""

    def mark(self, line: int, column: int) -> Mark:
        excerpt = self.lines[line] if line < len(self.lines) else ""
        return Mark(self.file, line + 1, column + 1, excerpt)

    def build(self, node: yaml.Node, depth: int) -> Node:
        mark = self.mark(node.start_mark.line, node.start_mark.column)
        if id(node) in self.seen:
            return self.reject(
                mark, "aliases (*name) are not supported", "write the value again, or use extends"
            )
        self.seen.add(id(node))
        if depth > _MAX_DEPTH:
            return self.reject(mark, f"nested more than {_MAX_DEPTH} levels deep")
        if isinstance(node, yaml.MappingNode) and node.tag == _PREFIX + "map":
            return self.mapping(node, mark, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == _PREFIX + "seq":
            return Node(mark, [self.build(child, depth + 1) for child in node.value])
        if isinstance(node, yaml.ScalarNode) and node.tag == _PREFIX + "str":
            return self.scalar(node, mark)
        tag = str(node.tag).replace(_PREFIX, "!!")
        return self.reject(
            mark, f"the tag {tag} is not supported", "write the plain value, quotes make it text"
        )

    def reject(self, mark: Mark, message: str, help_text: str = "") -> Node:
        self.problems.append(mark.problem(message, help_text))
        return Node(mark, None, broken=True)

    def scalar(self, node: yaml.ScalarNode, mark: Mark) -> Node:
        text = str(node.value)
        if node.style is not None:
            return Node(mark, text, text)
        try:
            return Node(mark, resolve_plain(text), text)
        except ScalarError as error:
            return self.reject(mark, str(error), error.help)

    def mapping(self, node: yaml.MappingNode, mark: Mark, depth: int) -> Node:
        children: dict[Scalar, Node] = {}
        keys: dict[Scalar, Mark] = {}
        for key_node, value_node in node.value:
            key_mark = self.mark(key_node.start_mark.line, key_node.start_mark.column)
            key = self.build(key_node, depth + 1)
            value = self.build(value_node, depth + 1)
            if key.broken:
                continue
            if isinstance(key.value, dict | list):
                self.reject(key_mark, "a key must be a single word or number")
            elif key.value == "<<":
                self.reject(key_mark, "merge keys (<<) are not supported", "use extends: NAME")
            elif key.value in children:
                first = keys[key.value].line
                self.reject(key_mark, f"the key `{key.text}` stands here again, first in line {first}")
            else:
                children[key.value], keys[key.value] = value, key_mark
        return Node(mark, children, keys=keys)
