"""Hostile inputs: mutations of files that a verb reads."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

WRONG_NUMBERS = ("inf", "nan", "1e999", "1e300", "-1", "0")
NUMBERS = (*WRONG_NUMBERS, ".inf", "1e-300", "1e30", "0x" + "f" * 40)
VALUES = (
    *NUMBERS,
    *("''", "null", "true", "[]", "{}", "[1, 2]", "{a: 1}", "'12'", "1.5", "010", "2 s", "-5 GB/s", "1 GB"),
    *(
        "../../x",
        r'"\0"',
        r'"\e[31m"',
        r'"\u202e"',
        "x" * 3000,
        "<script>",
        "&a 1",
        "*a",
        "!!int 3",
        "12:30:00",
    ),
)
_SCALAR = re.compile(r"(?<=[:\[,-] )[^\[\]{},\n#]+|(?<=\[)[^\[\]{},\n#]+")
_NUMBER = re.compile(r"(?<=[ \[])-?\d[\d.e+-]*(?![\w-])")
_KEY = re.compile(r"[A-Za-z_][A-Za-z_.0-9]*(?=:)")
Source = TypeVar("Source")


def _mutated(text: str, rng: random.Random) -> bytes:
    """The text with one to three changes, as bytes."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        text = rng.choice(_MUTATIONS)(text, rng)
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.05 and data:
        damaged = bytearray(data)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        return bytes(damaged)
    return data


def _value(text: str, rng: random.Random) -> str:
    return _replaced(text, _SCALAR, rng.choice(VALUES), rng)


def _number(text: str, rng: random.Random) -> str:
    return _replaced(text, _NUMBER, rng.choice(NUMBERS), rng)


def _key(text: str, rng: random.Random) -> str:
    new = rng.choice(("x", "kind", "extends", "name", "<<", "1", "null", r'"\e"', "a" * 3000))
    return _replaced(text, _KEY, new, rng)


def _replaced(text: str, pattern: re.Pattern[str], new: str, rng: random.Random) -> str:
    places = [match.span() for match in pattern.finditer(text)]
    if not places:
        return text
    start, end = rng.choice(places)
    return text[:start] + new + text[end:]


def _line(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    place = rng.randrange(len(lines))
    other = rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            del lines[place]
        case 1:
            lines.insert(other, lines[place])
        case 2:
            lines[place], lines[other] = lines[other], lines[place]
        case 3:
            lines[place] = rng.choice((" ", "  ", "\t")) + lines[place]
        case 4:
            lines[place] = lines[place].strip() + "\n"
        case _:
            lines[place] = (
                lines[place].rstrip("\n") + rng.choice((" {", " [", " ]", ": x", " '", ' "', " |")) + "\n"
            )
    return "".join(lines)


def _cut(text: str, rng: random.Random) -> str:
    place = rng.randrange(len(text) + 1)
    match rng.randrange(4):
        case 0:
            return text[:place]
        case 1:
            return text[:place] + rng.choice("\x00\x1b\u202e\ufeff{}[]:,'\"#&*!|>%@`\t\r\n") + text[place:]
        case 2:
            return text[:place] + text[place + rng.randrange(1, 12) :]
        case _:
            return rng.choice(
                (text.replace("\n", "\r\n"), "\ufeff" + text, text + text, text + "---\n" + text)
            )


_MUTATIONS = (_value, _value, _value, _number, _number, _key, _line, _line, _cut)


def hostile_inputs(
    sources: Sequence[tuple[Source, str]], count: int, seed: int
) -> Iterator[tuple[Source, bytes]]:
    """So many mutations, of each text in turn, with what the text is of; the same seed gives the same."""
    for number in range(count):
        source, text = sources[number % len(sources)]
        yield source, _mutated(text, random.Random(f"{seed} {number}"))


def numbers_replaced(sources: Sequence[tuple[Source, str]], every: int = 1) -> Iterator[tuple[Source, bytes]]:
    """The texts with each number replaced by each of `WRONG_NUMBERS`; of all these each `every`-th."""
    count = 0
    for source, text in sources:
        for match in _NUMBER.finditer(text):
            for number in WRONG_NUMBERS:
                count += 1
                if count % every == 0:
                    yield source, f"{text[: match.start()]}{number}{text[match.end() :]}".encode()
