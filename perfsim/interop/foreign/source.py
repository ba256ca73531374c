"""The text of a foreign file, its parsers for JSON, YAML and TOML, and the lines of its keys."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import yaml

from perfsim.errors import InputError, Problem, not_text
from perfsim.files import must_exist

MOST_CHARACTERS = 4_000_000
"""Of a file of settings; logs may be longer."""
MOST_DEPTH = 60
MOST_KEYS = 100_000
"""Of a file with its aliases written out."""
MOST_EXCERPT = 160


@dataclass(frozen=True)
class Source:
    """The text of a file, as the path names it in messages."""

    path: Path
    text: str
    given: Mapping[str, Any] = field(default_factory=dict)
    """Values that the user sets beside the file, by key."""
    model: str = ""
    """The model of a file that has none: a name of the catalogue, or a file; "": what lies beside it."""

    @classmethod
    def read(cls, path: Path, given: Mapping[str, Any] | None = None) -> Source:
        """Read a file. Raises InputError for one that is not there or that is no UTF-8 text."""
        must_exist(path)
        data = path.read_bytes()
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError([not_text(error, str(path))]) from None
        return cls(path, text.replace("\r\n", "\n"), given or {})

    @cached_property
    def lines(self) -> list[str]:
        """The lines without their ends."""
        return self.text.split("\n")

    def problem(self, message: str, help_text: str = "", line: int = 0) -> Problem:
        """A problem at a line, which counts from 1; 0 for the file as a whole, that is its first line."""
        excerpt = self.lines[line - 1][:MOST_EXCERPT] if 0 < line <= len(self.lines) else ""
        return Problem(message, str(self.path), line or 1, 0, excerpt, help_text)

    def refuse(self, message: str, help_text: str = "", line: int = 0) -> NoReturn:
        """Raise InputError with one problem of this file."""
        raise InputError([self.problem(message, help_text, line)])

    def line_of(self, path: str) -> int:
        """The line of a key by its dotted path; 0 where it is not found."""
        place = 0
        for part in path.split("."):
            spelled = re.escape(part).replace("_", "[-_]")
            match = re.compile(rf"(?<![\w-])(?:--)?[\"']?{spelled}[\"']?(?![\w-])").search(self.text, place)
            if match is None:
                return 0
            place = match.start()
        return self.text.count("\n", 0, place) + 1

    # -------------------------------------------------------------------------------- parsers
    def as_json(self) -> Any:
        """The document of a JSON file. Raises InputError for malformed JSON and infinite numbers."""
        self._refuse_long()
        try:
            return json.loads(self.text, parse_constant=self._not_finite)
        except json.JSONDecodeError as error:
            self.refuse(f"malformed JSON: {error.msg}", line=error.lineno)
        except RecursionError:
            self.refuse(f"nested more than {MOST_DEPTH} levels deep")
        except ValueError as error:
            self.refuse(f"malformed JSON: {error}")

    def as_toml(self) -> Any:
        """The document of a TOML file. Raises InputError for malformed TOML."""
        self._refuse_long()
        try:
            return tomllib.loads(self.text)
        except RecursionError:
            self.refuse(f"nested more than {MOST_DEPTH} levels deep")
        except ValueError as error:
            match = re.search(r"at line (\d+)", str(error))
            self.refuse(f"malformed TOML: {error}", line=int(match[1]) if match else 0)

    def as_yaml(self) -> Any:
        """The document of a YAML file; other tools' tags, anchors and repeated keys are allowed.

        Raises InputError for malformed YAML, several documents and deep nesting.
        """
        self._refuse_long()
        try:
            self._check_depth(yaml.parse(self.text, Loader=_Loader))
            return yaml.load(self.text, Loader=_Loader)  # noqa: S506  # a SafeLoader without objects
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self.refuse(
                f"malformed YAML: {error.problem or error.context}", line=mark.line + 1 if mark else 0
            )
        except yaml.reader.ReaderError as error:
            line = self.text.count("\n", 0, error.position) + 1
            code = error.character if isinstance(error.character, int) else ord(error.character[:1])
            self.refuse(f"malformed YAML: the character U+{code:04X} is not allowed", line=line)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            self.refuse(f"malformed YAML: {error}")

    def _check_depth(self, events: Iterator[yaml.Event]) -> None:
        depth = 0
        for event in events:
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEPTH:
                mark = event.start_mark
                self.refuse(f"nested more than {MOST_DEPTH} levels deep", line=mark.line + 1 if mark else 0)

    def _refuse_long(self) -> None:
        if len(self.text) > MOST_CHARACTERS:
            self.refuse(f"{len(self.text)} characters; a file of settings has at most {MOST_CHARACTERS}")

    def _not_finite(self, name: str) -> NoReturn:
        self.refuse(f"{name} is not a finite number", line=self.line_of(name))


class _Loader(yaml.SafeLoader):
    """Plain values of any tag; floats as YAML 1.2 and other tools write them (`1e-5`)."""


def _untagged(loader: _Loader, _suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return node.value


_Loader.add_multi_constructor("", _untagged)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+"),
    list("-+0123456789."),
)
