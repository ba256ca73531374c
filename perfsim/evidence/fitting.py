"""What all fits share: tables of measurements, SciPy, records, standard errors, and files of calibrations.

A standard error comes from the sandwich estimator of a robust fit, H^-1 (sum over clusters of squared scores)
H^-1, times c / (c - p) for c clusters and p constants (Huber 1967, White 1980; errors within a cluster are
correlated: Liang and Zeger 1986). A constant whose relative standard error exceeds a third is not determined:
it is held fixed, which is an assumption, and the others are estimated without it.
"""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from perfsim.base.arrays import Floats
from perfsim.base.errors import InputError, Problem
from perfsim.base.files import write_file
from perfsim.base.sizes import MOST_DEVICES
from perfsim.base.units import dimension_of, format_quantity
from perfsim.interop.source import Source
from perfsim.specs.calibration import MOST_STANDARD_ERROR, Calibration

_MEASURABLE = {
    "time_us": (1e-3, 1e12),
    "bytes": (1.0, 1e15),
    "num_gpus": (2.0, float(MOST_DEVICES)),
    **dict.fromkeys(("batch", "steps", "examples", "tokens", "b_simple"), (0.0, math.inf)),
}
"""Range of a column; of any other (the sides of a matrix) 1 to 1e9."""
Row = Mapping[str, str]
"""A measurement as it stands in a table, by column."""


def refused(path: Path, message: str, help_text: str = "", line: int = 1) -> InputError:
    """The refusal of a file of measurements."""
    return InputError([Problem(message, str(path), line, help=help_text)])


def read_table(path: Path, columns: Sequence[str], texts: Sequence[str] = ()) -> list[Row]:
    """Rows of a CSV table, numbers in `columns`, words in `texts`; InputError with the line of wrong ones."""
    reader = csv.DictReader(io.StringIO(Source.read(path).text, newline=""))
    names = (*texts, *columns)
    try:
        if missing := [name for name in names if name not in (reader.fieldnames or [])]:
            help_text = f"the first line must name {', '.join(names)}"
            raise refused(path, f"has no column {', '.join(missing)}", help_text)
        return _measurable(path, [(reader.line_num, row) for row in reader], columns)
    except csv.Error as error:
        raise refused(path, f"is not a CSV table: {error}", line=reader.line_num) from None


def _measurable(path: Path, rows: Sequence[tuple[int, Row]], columns: Sequence[str]) -> list[Row]:
    """Rows, given with their lines. Raises InputError for none, and for what cannot have been measured."""
    problems = [
        Problem(f"{name} {wrong}, not {row[name]!r}", str(path), line)
        for line, row in rows
        for name in columns
        if (wrong := _wrong_number(name, row[name]))
    ]
    if problems or not rows:
        raise InputError(problems or [Problem("holds no measurement", str(path), line=1)])
    return [row for _, row in rows]


def _wrong_number(name: str, text: str | None) -> str:
    """What a measured number must be instead; empty for one that can have been measured."""
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    low, high = _MEASURABLE.get(name, (1.0, 1e9))
    if not (math.isfinite(value) and (value > 0 or value == low)):
        return "must be a positive number" if low > 0 else "must be a number of at least 0"
    return "" if low <= value <= high else f"must be from {low:g} to {high:g}"


_HEADER = re.compile(r"^#\s+size\s+count\s+type\b.*\btime\s+algbw\s+busbw\b.*$", re.MULTILINE)
_RANK = re.compile(r"^#\s+Rank\s+\d+ (?:Group\s+(\d+) )?.*?\bon\s+(\S+)\s+device\b", re.MULTILINE)
_PROGRAM = re.compile(r"^# Collective test starting: (\w+?)_perf", re.MULTILINE)
"""Releases since 2.17 name the program."""
_MESSAGE = re.compile(r"[1-9][0-9]*")
"""The size of a message; with few bytes and many ranks nccl-tests also times empty ones."""


def read_collectives(path: Path, operations: Sequence[str]) -> list[Row]:
    """Rows `collective, num_gpus, bytes, time_us` of a CSV table, or the out-of-place times of nccl-tests.

    Raises InputError for an output of several nodes or groups, or without its operation or ranks.
    """
    text = Source.read(path).text
    header = _HEADER.search(text)
    if header is None:
        return read_table(path, ("num_gpus", "bytes", "time_us"), ("collective",))
    # The header of an output of nccl-tests or rccl-tests says in which column the time is, since releases
    # differ. Its operation, one of `operations`, is the program's, else in the name of the file.
    ranks = _RANK.findall(text)
    groups = {group for group, _ in ranks}
    hosts = {host for _, host in ranks}
    program = _PROGRAM.search(text)
    named = [program[1]] if program else [name for name in operations if name in path.stem]
    refusals = {
        "names no ranks": "" if ranks else "keep the lines `# Rank 0 ... on HOST device 0`",
        f"was measured over {len(hosts)} nodes": "run it on the GPUs of one node" if len(hosts) > 1 else "",
        "has several groups of ranks": "run it without NCCL_TESTS_SPLIT" if len(groups) > 1 else "",
        "does not name its operation": "" if named else "name the file after it: all_reduce.txt",
    }
    for message, help_text in refusals.items():
        if help_text:
            raise refused(path, f"this output of nccl-tests {message}", help_text, line=0)
    shared = {"collective": max(named, key=len), "num_gpus": str(len(ranks))}
    at_time = header.group().split()[1:].index("time")
    rows = [
        (line, {**shared, "bytes": words[0], "time_us": "".join(words[at_time : at_time + 1])})
        for line, words in enumerate(map(str.split, text.splitlines()), 1)
        if words and _MESSAGE.fullmatch(words[0])
    ]
    return _measurable(path, rows, ("time_us",))


def scipy(module: str) -> Any:
    """A module of SciPy (`optimize`, `stats`); raises InputError if SciPy is not installed."""
    try:
        return import_module(f"scipy.{module}")
    except ImportError:
        missing = "fitting needs SciPy, which is not installed"
        raise InputError(missing, 'pip install "perfsim[fit]"') from None


def robust_fit(residuals: Callable[[Floats], Floats], first: Floats, scale: float, **options: Any) -> Any:
    """SciPy's least squares in which residuals above `scale` have decreasing influence (soft L1)."""
    return scipy("optimize").least_squares(residuals, first, loss="soft_l1", f_scale=scale, **options)


def rounded(value: float, digits: int = 4) -> float:
    """`value` with the given number of significant digits, the precision of a fit."""
    return float(f"{value:.{digits}g}")


def need_more_than(constants: int, count: int, path: Path, measurements: str) -> None:
    """Raise InputError unless there are more measurements than constants; `measurements` names them."""
    if count <= constants:
        message = f"holds {count} {measurements}, which cannot determine {constants} constants"
        raise refused(path, message, f"at least {constants + 1} are needed")


def need_unit(rate: float, path: Path, what: str, limit: str) -> None:
    """Raise InputError where the rate of the fastest row, over its limit, tells of another unit of time."""
    if not 1e-3 < rate < 3.0:
        raise refused(
            path, f"the fastest {what} has {rate:.3g} times the {limit}", "time_us are microseconds"
        )


def family_weight(families: Sequence[str]) -> Floats:
    """Weights of runs that give every family the same total, as square roots."""
    sizes = Counter(families)
    return np.array([1.0 / np.sqrt(sizes[family]) for family in families])


def weighted_quantile(values: Floats, weight: Floats, fraction: float) -> float:
    """The least value up to which that fraction of the weight lies."""
    order = np.lexsort((weight, values))
    sums = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(sums, fraction * sums[-1])])


_STEP = 1e-4


@dataclass(frozen=True)
class Account:
    """Relative standard errors of determined constants, and the reasons for the values of the others."""

    errors: dict[str, float] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SoftL1:
    """The loss of a fit at its optimum, by row: its slope in a log error e is weight e / sqrt(1 + z)."""

    error: Floats
    """Of the logarithm."""
    weight: Floats
    z: Floats
    """The squared error over that from which on rows have less influence; 0 for least squares."""
    cluster: NDArray[np.intp]
    """Rows with one number err together."""

    @staticmethod
    def clusters(*columns: Floats) -> NDArray[np.intp]:
        """The same number for rows that are equal in all columns."""
        _, index = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        return np.asarray(index.ravel(), dtype=np.intp)

    @staticmethod
    def jacobian(predict: Callable[[Floats], Floats], logs: Floats, step: float = _STEP) -> Floats:
        """Derivative of log seconds by log constant, by central differences; one column per constant."""
        shifts = step * np.eye(logs.size)
        return np.stack([(predict(logs + by) - predict(logs - by)) / (2 * step) for by in shifts], axis=1)

    def errors(self, jacobian: Floats, *, few: bool = True) -> Floats:
        """Standard errors of log constants; `few` allows for few clusters per constant."""
        slope = self.weight * self.error / np.sqrt(1 + self.z)
        curvature = self.weight / (1 + self.z) ** 1.5
        count = int(self.cluster.max()) + 1
        scores = np.zeros((count, jacobian.shape[1]))
        np.add.at(scores, self.cluster, jacobian * slope[:, None])
        inverse = np.linalg.pinv((jacobian * curvature[:, None]).T @ jacobian, hermitian=True)
        factor = count / max(count - jacobian.shape[1], 1) if few else 1.0
        covariance = inverse @ (scores.T @ scores) @ inverse * factor
        return np.asarray(np.sqrt(np.maximum(np.diag(covariance), 0.0)))

    def account(self, names: Sequence[str], jacobian: Floats) -> Account:
        """Errors of the constants with these names; those above a third are held, the worst first."""
        running = [axis for axis in range(len(names)) if jacobian[:, axis].any()]
        assumed = {
            name: "no row of the table depends on it: near where the fit started"
            for axis, name in enumerate(names)
            if axis not in running
        }
        errors: list[float] = []
        while running:
            errors = self.errors(jacobian[:, running]).tolist()
            worst = int(np.argmax(errors))
            if errors[worst] < MOST_STANDARD_ERROR:
                break
            share = "over 10 times" if errors[worst] > 10 else f"{errors[worst]:.0%} of"
            # One at a time: holding one constant may determine another that was correlated with it.
            name = names[running.pop(worst)]
            assumed[name] = (
                f"not determined by the table (standard error {share} the value): held where the fit ended"
            )
        return Account({names[axis]: rounded(errors[at], 2) for at, axis in enumerate(running)}, assumed)


# Files of `hardware/calibrations`.


def delivered(calibration: Calibration, out: Path | None) -> str:
    """The YAML of a calibration, with units; or, written under the file's name, the path of the file."""
    # The catalogue finds a file by its name, so the name inside must agree.
    named = calibration if out is None else calibration.model_copy(update={"name": out.stem})
    content = _with_units(named.model_dump(mode="json", exclude_none=True))
    ordered = {key: content[key] for key in ("name", "kind", "description") if content.get(key)}
    ordered |= {key: value for key, value in content.items() if key not in ordered and value not in ("", {})}
    text = yaml.dump(ordered, Dumper=_Dumper, sort_keys=False, width=140, allow_unicode=True)
    if out is None:
        return text.rstrip()
    write_file(out, text)
    return f"Calibration: {out}"


class _Dumper(yaml.SafeDumper):
    """Writes small groups of numbers on one line, and no YAML aliases."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True

    def represent_sequence(self, tag: str, sequence: Any, _flow: bool | None = None) -> yaml.SequenceNode:
        return super().represent_sequence(tag, sequence, _is_small(sequence))

    def represent_mapping(self, tag: str, mapping: Any, _flow: bool | None = None) -> yaml.MappingNode:
        values = list(mapping.values())
        numbers = _is_small(values) and not all(isinstance(value, str) for value in values)
        return super().represent_mapping(tag, mapping, numbers or "latency_base_s" in mapping)


def _is_small(items: list[Any]) -> bool:
    """Whether all items are numbers, short words or lists of them."""
    return all(
        _is_small(item) if isinstance(item, list) else not isinstance(item, dict) and len(str(item)) < 30
        for item in items
    )


def _with_units(value: Any, name: str = "") -> Any:
    """The tree with every dimensioned number as a string; the suffix of its name gives the unit."""
    if isinstance(value, dict):
        # The record of a fit holds fractions, under the names of the constants.
        return {key: item if key == "fit" else _with_units(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_units(item, name) for item in value]
    dimension = dimension_of(name)
    if not isinstance(value, float) or dimension is None:
        return value
    return format_quantity(value, dimension, precision=None)
