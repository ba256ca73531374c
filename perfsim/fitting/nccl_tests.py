"""Output of nccl-tests and rccl-tests (`all_reduce_perf` and others) as rows of a table of collectives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from perfsim.errors import InputError, Problem
from perfsim.fitting.fit_tables import wrong_number

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
    operation, places = _operation(path, text, operations), [columns.index("size"), columns.index("time")]
    rows, problems = [], []
    for line, words in enumerate(map(str.split, text.splitlines()), 1):
        if not (words and _MESSAGE.fullmatch(words[0])):
            continue
        size, time_us = (words[place] if place < len(words) else "" for place in places)
        if wrong := wrong_number("time_us", time_us):
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
