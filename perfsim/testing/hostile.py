"""Hostile inputs: mutations of every file that a verb reads, and what a verb must make of each.

A verb may answer, or end with a message and an exit code of its own. It must not end in a traceback, take
long, answer with numbers that are none, or refuse a file without saying where.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from click.testing import CliRunner

from perfsim.catalog import data_root
from perfsim.cli import main

MOST_SECONDS = 20.0
CODES = (0, 1, 2, 3, 4)
NUMBERS = ("inf", ".inf", "nan", "1e999", "1e300", "-1", "0", "1e-300", "1e30", "0x" + "f" * 40)
VALUES = (
    *NUMBERS,
    *("''", "null", "true", "[]", "{}", "[1, 2]", "{a: 1}", "'12'", "1.5", "010", "2 s", "-5 GB/s", "1 GB"),
    *("../../x", r'"\0"', r'"\e[31m"', r'"\u202e"', "x" * 3000, "<script>", "&a 1", "*a", "!!int 3", "12:30:00"),
)
_SCALAR = re.compile(r"(?<=[:\[,-] )[^\[\]{},\n#]+|(?<=\[)[^\[\]{},\n#]+")
_KEY = re.compile(r"[A-Za-z_][A-Za-z_.0-9]*(?=:)")
_UNPLACED = re.compile(r"is not UTF-8 text|is empty|cannot be read")


@dataclass(frozen=True)
class Target:
    """A file that a verb reads."""

    name: str
    text: str
    suffix: str
    command: Callable[[Path], Sequence[str]]
    """Writes what the file needs beside it; the verb and its arguments."""


@dataclass(frozen=True)
class Outcome:
    """What a verb made of an input."""

    code: int
    seconds: float
    wrong: str = ""
    """What it must not do; empty where all is well."""


def mutated(text: str, rng: random.Random) -> bytes:
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
    return _replaced(text, re.compile(r"(?<=[ \[])-?\d[\d.e+-]*"), rng.choice(NUMBERS), rng)


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
    place, other = rng.randrange(len(lines)), rng.randrange(len(lines))
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
            lines[place] = lines[place].rstrip("\n") + rng.choice((" {", " [", " ]", ": x", " '", ' "', " |")) + "\n"
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
            return rng.choice((text.replace("\n", "\r\n"), "\ufeff" + text, text + text, text + "---\n" + text))


_MUTATIONS = (_value, _value, _value, _number, _number, _key, _line, _line, _cut)


def inputs(targets: Sequence[Target], count: int, seed: int) -> Iterator[tuple[Target, bytes]]:
    """So many mutations, of each target in turn; the same seed gives the same."""
    for number in range(count):
        target = targets[number % len(targets)]
        yield target, mutated(target.text, random.Random(f"{seed} {number}"))


def judged(target: Target, data: bytes, folder: Path) -> Outcome:
    """Run the verb on the input in this folder, and say what is wrong with what it did."""
    with TemporaryDirectory(dir=folder) as own:  # the catalogue reads a path only once
        path = Path(own) / f"input{target.suffix}"
        path.write_bytes(data)
        began_s = time.monotonic()
        result = CliRunner().invoke(main, list(target.command(path)))
        seconds = time.monotonic() - began_s
    code, error = result.exit_code, result.exception
    if error is not None and not isinstance(error, SystemExit):
        return Outcome(code, seconds, f"{type(error).__name__}: {str(error)[:200]}")
    if code not in CODES:
        return Outcome(code, seconds, f"exit code {code}")
    if seconds > MOST_SECONDS:
        return Outcome(code, seconds, f"took {seconds:.0f} s")
    return Outcome(code, seconds, _wrong_words(code, result.stdout, result.stderr, path))


def _wrong_words(code: int, stdout: str, stderr: str, path: Path) -> str:
    if "Traceback" in stderr or "\x1b" in stdout + stderr or "\x00" in stdout + stderr:
        return "a traceback or control characters are printed"
    if code == 0 and stdout.startswith("{"):
        try:
            json.loads(stdout, parse_constant=_refuse_constant)
        except ValueError as error:
            return f"no strict JSON: {error}"
    placed = re.search(rf"{re.escape(path.stem)}\w*{path.suffix}:\d+|\w+\.(yaml|csv|json):\d+", stderr)
    if code == 2 and not placed and not _UNPLACED.search(stderr):
        return f"no place: {stderr[:300]}"
    return ""


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} in the answer")


STEP = ("--batch", "16", "--json", "--max-seconds", "15")
WAFER = ("run", "--devices", "1", *STEP)
GPUS = ("run", "--devices", "8", "--layout", "tp=2,pp=2,dp=2,mbs=1", *STEP)


def targets(root: Path | None = None) -> list[Target]:
    """Every YAML file of a checkout with a verb that reads it."""
    root = root or data_root()
    named = [(kind, path) for kind in COMMANDS for path in sorted((root / kind).glob("*.yaml"))]
    return [
        Target(f"{kind}/{path.name}", text, ".yaml", COMMANDS[kind](path.stem, text))
        for kind, path in named
        if (text := path.read_text(encoding="utf-8"))
    ]


Command = Callable[[Path], Sequence[str]]


def _beside(path: Path, text: str) -> str:
    other = path.with_name("other.yaml")
    other.write_text(text.replace("INPUT", str(path)), encoding="utf-8")
    return str(other)


def _model(_name: str, _text: str) -> Command:
    return lambda path: (*WAFER, "--model", str(path), "--system", "cs-2")


def _recipe(_name: str, _text: str) -> Command:
    return lambda path: (*WAFER, "--model", "gpt3_xl", "--system", "cs-2", "--recipe", str(path))


def _system(_name: str, text: str) -> Command:
    step = GPUS if "kind: gpu-cluster" in text or "extends: dgx" in text else WAFER
    return lambda path: (*step, "--model", "gpt3_xl", "--system", str(path))


def _part(base: str, key: str, step: Sequence[str]) -> Command:
    def command(path: Path) -> Sequence[str]:
        return (*step, "--model", "gpt3_xl", "--system", _beside(path, f"extends: {base}\n{key}\n"))

    return command


def _device(name: str, _text: str) -> Command:
    if name.startswith("wse"):
        return _part("cs-2", "device: INPUT", WAFER)
    return _part("dgx-h100" if "h100" in name else "dgx-a100-80gb", "device: INPUT", GPUS)


def _link(name: str, _text: str) -> Command:
    place = "scale_up" if name.startswith("nvlink") else "nic"
    return _part("dgx-a100-80gb", f"node: {{{place}: INPUT}}", GPUS)


def _calibration(_name: str, text: str) -> Command:
    if "kind: gpu" in text:
        return _part("dgx-a100-80gb", "device: {extends: a100-sxm4-80gb, calibration: INPUT}", GPUS)
    if "kind: wafer" in text:
        return _part("cs-2", "device: {extends: wse-2, calibration: INPUT}", WAFER)
    if "kind: framework" in text:
        return lambda path: (
            *(*GPUS, "--model", "gpt3_xl", "--system", "dgx-a100-80gb"),
            *("--recipe", _beside(path, "extends: gpt3_pretraining\nframework: INPUT\n")),
        )
    return _part("dgx-a100-80gb", "node: {scale_up: {extends: nvlink3, calibration: INPUT}}", GPUS)


def _wall_clock(name: str, _text: str) -> Command:
    machine = "3d, system: dgx-a100-80gb, devices: [8]" if "gpu" in name else "weight-streaming, system: cs-2, devices: [1]"
    study = (
        "title: t\nquestion: q\nmodel: gpt3_xl\nrecipe: gpt3_20b_chinchilla\nbatch_sizes: [16]\n"
        f"sampling: {{tasks: 0}}\ncandidates: [{{strategy: {machine}, wall_clock: INPUT}}]\n"
    )
    return lambda path: ("study", _beside(path, study), "--out", str(path.parent / "out"), "--max-seconds", "15")


def _study(_name: str, text: str) -> Command:
    if "grid:" in text or "variants:" in text:
        return lambda path: ("sweep", str(path), "--dry-run", "--out", str(path.parent / "out"), "--max-seconds", "15")
    return lambda path: ("study", str(path), "--out", str(path.parent / "out"), "--max-events", "1", "--max-seconds", "1")


COMMANDS: dict[str, Callable[[str, str], Command]] = {
    "hardware/calibrations": _calibration,
    "hardware/devices": _device,
    "hardware/links": _link,
    "hardware/systems": _system,
    "hardware/wall_clocks": _wall_clock,
    "studies": _study,
    "workloads/models": _model,
    "workloads/recipes": _recipe,
}
