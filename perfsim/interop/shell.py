"""Flags of a command in a shell script: variables, arrays and simple conditions are followed, nothing is run.

Understood are assignments, arrays, `${NAME:-default}`, `$((...))`, line continuations, `if` with tests of
strings and numbers. A value that depends on something else (`$(nproc)`, an unset variable) is unknown; it is
an error only where it is needed.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

UNKNOWN = "\ufffd"
"""Stands in a word for what cannot be known without running the script."""
MOST_WORD = 20_000
"""Characters of a word with its variables written out."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(
    r"\$(?:\{#?(?P<braced>[A-Za-z_]\w*|[0-9@*])(?:\[[@*]\])?(?::?(?P<sign>[-=])(?P<default>[^{}]*))?\}"
    r"|(?P<plain>[A-Za-z_]\w*|[0-9@*]))"
)
_ARITHMETIC = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
_SUBSTITUTION = re.compile(r"\$\([^()]*(?:\([^()]*\)[^()]*)*\)|`[^`]*`")
_TOKEN = re.compile(
    r"""(?P<comment>(?<![^\s;&|()<>])\#[^\n]*)
    | (?P<blank>[ \t]+)
    | (?P<operator>&&|\|\||[\n;&|()<>])
    | '(?P<single>[^']*)(?:'|\Z)
    | "(?P<double>(?:\\.|[^"\\])*+)(?:"|\Z)
    | (?P<expansion>\$\((?:[^()]++|\((?:[^()]++|\([^()]*+\))*+\))*+\)? | \$\{(?:[^{}]++|\{[^{}]*+\})*+\}?)
    | \\(?P<escaped>.)
    | (?P<plain>.)""",
    re.VERBOSE | re.DOTALL,
)
"""A part of a word, or what ends one; an expansion may hold brackets."""
_PREFIXES = (
    *("if", "elif", "else", "fi", "then", "case", "esac", "for", "while", "until", "do", "done"),
    *("{", "}", "!", "time", "export", "local", "readonly", "declare"),
)
"""Words that may stand before a command."""
_TEST_BEGINS = ("[", "[[", "test")
_TESTS: Mapping[str, Callable[[float, float], bool]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_SIGNS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class _Word(NamedTuple):
    """A word as written; `literal` where a part with a `$` stood in single quotes."""

    text: str
    literal: bool = False
    quoted: bool = False
    array: tuple[_Word, ...] | None = None
    """What is assigned in brackets."""


@dataclass
class _Script:
    """What a script's variables and commands are after all that can be followed."""

    variables: dict[str, list[str]] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    tests: list[list[int]] = field(default_factory=list)
    """Of each open `if` or loop the truth of the tests up to the present branch: 1, -1, or 0 for unknown."""
    last: int = 1
    """How the statement before ended, for `&&` and `||`."""
    in_test: bool = False
    """Whether the tests of an `if` go on, up to its `then`."""

    def run(self, text: str) -> _Script:
        for separator, words in _statements(text):
            if separator == "":
                self.last = 1
                self._statement(words)
            elif self.in_test and self.tests:
                either = min if separator == "&&" else max
                self.tests[-1][-1] = either(self.tests[-1][-1], self._test(words))
            else:
                self.tests.append([self.last if separator == "&&" else -self.last])
                self._statement(words)
                del self.tests[-1:]  # there may be none
        return self

    def _statement(self, words: list[_Word]) -> None:
        while words and words[0].text in _PREFIXES:
            head, *words = words
            self.in_test = head.text in ("if", "elif") or (
                self.in_test and head.text not in ("then", "else", "fi")
            )
            match head.text:
                case "if" | "case" | "for" | "while" | "until":
                    self.tests.append([self._test(words) if head.text == "if" else 0])
                    return
                case "elif" | "else" if self.tests:
                    self.tests[-1].append(1 if head.text == "else" else self._test(words))
                case "fi" | "esac" | "done":
                    del self.tests[-1:]  # there may be none
            if head.text == "elif":
                return
        # An open branch is taken where its test holds and none before it did.
        taken = min((min(now, *(-test for test in before), 1) for *before, now in self.tests), default=1)
        if not words or taken < 0:
            return
        while words and (match := _ASSIGNMENT.fullmatch(words[0].text)) and not words[0].literal:
            self._assign(match, words.pop(0), certain=taken > 0)
        if words and words[0].text in _TEST_BEGINS:
            self.last = self._test(words)
        elif words:
            self.commands.append([part for word in words for part in self.expand(word)])

    def _test(self, words: list[_Word]) -> int:
        """The truth of `[ a = b ]`, `[[ -z $a ]]` and the like; 0 where it cannot be known."""
        parts = [" ".join(self.expand(word)) for word in words]
        if not parts or parts[0] not in _TEST_BEGINS or any(UNKNOWN in part for part in parts):
            return 0
        holds = None
        match [part for part in parts[1:] if part not in ("]", "]]")]:
            case ["-z", value]:
                holds = not value
            case ["-n", value] | [value]:
                holds = bool(value)
            case [left, "=" | "==", right]:
                holds = left == right
            case [left, "!=", right]:
                holds = left != right
            case [left, sign, right] if sign in _TESTS:
                with suppress(ValueError):
                    holds = _TESTS[sign](float(left), float(right))
        return 0 if holds is None else 1 if holds else -1

    def _assign(self, match: re.Match[str], word: _Word, *, certain: bool) -> None:
        name, plus, value = match.groups()
        if word.array is not None:
            content = [part for item in word.array for part in self.expand(item)]
        else:
            # Inside quotes a value keeps its blanks, so that it is split where it is used.
            content = [" ".join(self.expand(_Word(value, word.literal, quoted=True)))]
        before = self.variables.get(name, [])
        if plus:
            content = [*before, *content]
            if word.array is None and len(before) <= 1:
                content = ["".join(content)]
        if not certain and name in self.variables and content != before:
            content = [UNKNOWN]
        self.variables[name] = content

    def expand(self, word: _Word) -> list[str]:
        """A word with its variables written out, split at blanks unless it is quoted."""
        if word.literal:
            return [word.text]
        array = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}|\$([@*])", word.text)
        if array:
            parts = self.variables.get(array[1] or "", [UNKNOWN])
            return parts if word.quoted else [piece for part in parts for piece in part.split()]
        text = _ARITHMETIC.sub(lambda match: self._arithmetic(match[1]), word.text)
        text = _SUBSTITUTION.sub(UNKNOWN, text)
        text = _VARIABLE.sub(self._value, text)[:MOST_WORD]
        return [text] if word.quoted else text.split()

    def _value(self, match: re.Match[str]) -> str:
        name = match["braced"] or match["plain"]
        default = match["default"]
        known = self.variables.get(name)
        if known is not None and any(known):
            return " ".join(known)
        if match["sign"]:
            return _VARIABLE.sub(self._value, (default or "").strip("\"'"))
        return "" if known is not None else UNKNOWN

    def _arithmetic(self, expression: str) -> str:
        text = _VARIABLE.sub(self._value, expression)
        named = re.sub(r"[A-Za-z_]\w*", lambda match: " ".join(self.variables.get(match[0], [UNKNOWN])), text)
        try:
            return str(_calculated(ast.parse(named.strip().replace("/", "//"), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError, OverflowError):
            return UNKNOWN


def _calculated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < 2**53:
        return int(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        return _SIGNS[type(node.op)](_calculated(node.left), _calculated(node.right))
    raise ValueError("not a sum of whole numbers")


def _statements(text: str) -> Iterator[tuple[str, list[_Word]]]:
    """The words between separators, after the `&&` or `||` before them; an array is part of its word."""
    statement: list[_Word] = []
    separator = ""
    array: list[_Word] | None = None
    for word in _words(text):
        if isinstance(word, _Word):
            (statement if array is None else array).append(word)
        elif array is not None:
            if word == ")":
                statement[-1] = statement[-1]._replace(array=tuple(array))
                array = None
        elif word == "(" and statement and statement[-1].text.endswith("=") and not statement[-1].quoted:
            array = []
        elif word not in ("<", ">"):
            if statement:
                yield separator, statement
                statement = []
                separator = ""
            if word != "\n":  # a line may end in `&&`
                separator = word if word in ("&&", "||") else ""
    if statement:
        yield separator, statement


def _words(text: str) -> Iterator[_Word | str]:
    """The words of a shell script, and its operators as texts; comments are left out."""
    parts: list[tuple[str, str]] = []
    for match in _TOKEN.finditer(text.replace("\\\n", " ") + "\n"):
        kind = str(match.lastgroup)
        part = match[kind]
        if kind not in ("blank", "operator", "comment"):
            parts.append((kind, part.replace('\\"', '"') if kind == "double" else part))
            continue
        if parts:
            literal = any(own == "single" and "$" in word for own, word in parts)
            quoted = any(own in ("single", "double") for own, _ in parts)
            yield _Word("".join(word for _, word in parts), literal, quoted)
            parts = []
        if kind == "operator":
            yield part


def flags_of(
    text: str, needed: str, lists: Collection[str] = ()
) -> tuple[dict[str, str | bool], dict[str, str]]:
    """The flags of the command that has the flag `needed`, by name with underscores, and the variables.

    A flag without a value is True; those in `lists` have all words up to the next flag.
    """
    script = _Script().run(text)
    variables = {name: " ".join(value) for name, value in script.variables.items()}
    commands = [command for command in script.commands if command and not command[0].startswith("--")]
    # Lines that begin with a flag count as one command.
    bare = [command for command in script.commands if command and command[0].startswith("--")]
    commands.append([word for command in bare for word in command])
    has = (words for words in commands if needed in [word.split("=")[0].replace("_", "-") for word in words])
    # Where no command has it, as in a file of argument arrays, the flags of all variables are taken.
    words = next(has, " ".join(variables.values()).split())
    flags: dict[str, str | bool] = {}
    name = ""
    for word, following in pairwise([*words, "--"]):
        is_value = not following.startswith("--") and not re.fullmatch(r"-[a-z]", following)
        if word in ("-np", "-N") and following != "--":
            flags.setdefault("ranks" if word == "-np" else "nodes", following)
        if word.startswith("--") and len(word) > 2:
            key, equals, value = word[2:].partition("=")
            name = key.replace("-", "_")
            flags[name] = value if equals else following if is_value else True
        elif name in lists and is_value:
            flags[name] = f"{flags[name]} {following}"
    return flags, variables
