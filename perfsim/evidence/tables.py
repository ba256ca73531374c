"""Output of nccl-tests and rccl-tests (`all_reduce_perf` and others) as rows of a table of collectives."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

from perfsim.base.errors import InputError, Problem, not_text
from perfsim.base.sizes import MOST_DEVICES
from perfsim.catalog import data_root

# Tables of measurements: CSV files with a header, every bad line reported at once.

_MOST_PROBLEMS = 20
"""Limit, because a file of another kind is wrong in every line."""
MEASURABLE = {"time_us": (1e-3, 1e12), "bytes": (1.0, 1e15), "num_gpus": (2.0, float(MOST_DEVICES))}
"""Range of a column; of any other (the sides of a matrix) 1 to 1e9."""


def read_table(path: Path, columns: Sequence[str], texts: Sequence[str] = ()) -> list[dict[str, str]]:
    """Rows of a CSV table; `columns` hold positive numbers, `texts` words; other columns are ignored.

    Raises InputError with `file:line` for a missing file or column and for each value that is not
    a positive number.
    """
    table = csv.DictReader(io.StringIO(table_text(path), newline=""))
    try:
        return _read_rows(path, table, columns, texts)
    except csv.Error as error:
        raise InputError([Problem(f"is not a CSV table: {error}", str(path), table.line_num)]) from None


def table_text(path: Path) -> str:
    """The text of a file of measurements; raises InputError where it cannot be read or is no text."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError([Problem(f"cannot be read: {error.strerror}", file=str(path))]) from None
    except UnicodeDecodeError as error:
        problem = not_text(error, str(path))
        raise InputError([replace(problem, message=f"is not a CSV table: {problem.message}")]) from None


def scipy_optimize() -> ModuleType:
    """SciPy's optimizers; raises InputError if SciPy is not installed."""
    return _scipy("optimize")


def scipy_stats() -> ModuleType:
    """SciPy's distributions; raises InputError if SciPy is not installed."""
    return _scipy("stats")


def _scipy(module: str) -> ModuleType:
    try:
        return import_module(f"scipy.{module}")
    except ImportError:
        problem = Problem("fitting needs SciPy, which is not installed", help='pip install "perfsim[fit]"')
        raise InputError([problem]) from None


def rounded(value: float, digits: int = 4) -> float:
    """`value` with the given number of significant digits, the precision of a fit."""
    return float(f"{value:.{digits}g}")


def need_more_than(constants: int, count: int, path: Path, measurements: str) -> None:
    """Raise InputError unless there are more measurements than constants; `measurements` names them."""
    if count <= constants:
        message = f"holds {count} {measurements}, which cannot determine {constants} constants"
        raise InputError(
            [Problem(message, file=str(path), line=1, help=f"at least {constants + 1} are needed")]
        )


def source_of(path: Path, bundled: str) -> str:
    """The source id `bundled` for perfsim's own file of runs; the name of any other file."""
    ours = path.resolve().parent == (data_root() / "studies" / "validation").resolve()
    return bundled if ours else path.name


def _read_rows(
    path: Path, reader: csv.DictReader[str], columns: Sequence[str], texts: Sequence[str]
) -> list[dict[str, str]]:
    header = reader.fieldnames or []
    missing = [name for name in (*texts, *columns) if name not in header]
    if missing:
        help_text = f"the first line must name {', '.join((*texts, *columns))}"
        problem = Problem(f"has no column {', '.join(missing)}", file=str(path), line=1, help=help_text)
        raise InputError([problem])
    problems: list[Problem] = []
    rows = []
    for row in reader:
        problems += [
            Problem(f"{name} {wrong}, not {row[name]!r}", str(path), reader.line_num)
            for name in columns
            if (wrong := _wrong_number(name, row[name]))
        ]
        if len(problems) >= _MOST_PROBLEMS:
            break
        rows.append(row)
    if not rows and not problems:
        problems.append(Problem("holds no measurement", file=str(path), line=1))
    if problems:
        raise InputError(problems)
    return rows


def _wrong_number(name: str, text: str | None) -> str:
    """What a measured number must be instead; empty for one that can have been measured."""
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        return "must be a positive number"
    low, high = MEASURABLE.get(name, (1.0, 1e9))
    return "" if low <= value <= high else f"must be from {low:g} to {high:g}"


_HEADER = re.compile(r"^#\s+size\s+count\s+type\b.*\btime\s+algbw\s+busbw\b.*$", re.MULTILINE)
_RANK = re.compile(r"^#\s+Rank\s+\d+ (?:Group\s+(\d+) )?.*?\bon\s+(\S+)\s+device\b", re.MULTILINE)
_PROGRAM = re.compile(r"^# Collective test starting: (\w+?)_perf", re.MULTILINE)
"""Releases since 2.17 name the program."""
_MESSAGE = re.compile(r"[1-9][0-9]*")
"""The size of a message; with few bytes and many ranks nccl-tests also times empty ones."""


def is_output(text: str) -> bool:
    """Whether a text has the header of a table of nccl-tests."""
    return bool(_HEADER.search(text))


def output_rows(path: Path, text: str, operations: Sequence[str]) -> list[dict[str, str]]:
    """Rows `collective, num_gpus, bytes, time_us` of the out-of-place times of an output.

    The header says in which column the time is, since releases differ. The operation is that of the program,
    or for older releases that of the file's name (`all_reduce.txt`), one of `operations`. Raises InputError
    for an output of several nodes or groups, and for one that does not name its operation or ranks.
    """
    header = _HEADER.search(text)
    columns = header.group().split()[1:] if header else []
    ranks = _RANK.findall(text)
    if not ranks:
        raise _refused(path, "names no ranks", "keep the lines `# Rank 0 ... on HOST device 0`")
    if len({host for _, host in ranks}) > 1:
        hosts = len({host for _, host in ranks})
        raise _refused(path, f"was measured over {hosts} nodes", "run it on the GPUs of one node")
    if len({group for group, _ in ranks}) > 1:
        raise _refused(path, "has several groups of ranks", "run it without NCCL_TESTS_SPLIT")
    operation = _operation(path, text, operations)
    places = [columns.index("size"), columns.index("time")]
    rows = []
    problems = []
    for line, words in enumerate(map(str.split, text.splitlines()), 1):
        if not (words and _MESSAGE.fullmatch(words[0])):
            continue
        size, time_us = (words[place] if place < len(words) else "" for place in places)
        if wrong := _wrong_number("time_us", time_us):
            problems.append(Problem(f"time {wrong}, not {time_us!r}", str(path), line))
        rows.append({"collective": operation, "num_gpus": str(len(ranks)), "bytes": size, "time_us": time_us})
    if problems:
        raise InputError(problems)
    return rows


def _operation(path: Path, text: str, operations: Sequence[str]) -> str:
    program = _PROGRAM.search(text)
    named = [name for name in operations if name in path.stem]
    if not program and not named:
        raise _refused(path, "does not name its operation", "name the file after it: all_reduce.txt")
    return program.group(1) if program else max(named, key=len)


def _refused(path: Path, message: str, help_text: str) -> InputError:
    return InputError([Problem(f"this output of nccl-tests {message}", str(path), help=help_text)])
