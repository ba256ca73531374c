"""The critical batch of one's own runs: from steps or examples to the target, gradient noise, or MLPerf logs.

A file is one of

- CSV with `batch` and `steps` or `examples` (to the target; several rows of one batch are averaged);
- CSV with `tokens` and `b_simple`, a log of the gradient noise scale tr(Sigma) / |G|^2 over a run;
- a `convergence` file with one case (`perfsim schema convergence`);
- one or several logs of MLPerf Training (`:::MLLOG`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from perfsim.base.errors import InputError, Problem
from perfsim.catalog import parse_file
from perfsim.convergence.critical_batch import Z_90, HyperbolaFit, fit_hyperbola
from perfsim.evidence.cases import ConvergenceFile
from perfsim.evidence.tables import read_table, rounded, table_columns
from perfsim.interop import mllog
from perfsim.interop.source import Source
from perfsim.specs.calibration import ConvergenceCalibration

_NOISE_FACTOR = 10.0
"""90 % band of a critical batch from gradient noise: in ten runs of McCandlish et al. 2018 (arXiv 1812.06162,
table 1) B_simple was 0.05 to 8 times the critical batch."""
_POINTS = (("batch", "examples"), ("batch", "steps"))
_NOISE = ("tokens", "b_simple")
_HELP = "a CSV has the columns batch and steps (or examples), or tokens and b_simple"


_NO_LENGTH = "an example is taken to be one token: give --tokens-per-example if it has more"


@dataclass(frozen=True)
class _Runs:
    """Batches and the examples to the target, in one unit."""

    batches: tuple[float, ...]
    examples: tuple[float, ...]
    unit: str


def fit_convergence(
    paths: Sequence[Path], tokens_per_example: float, run_kind: str = "pre-training"
) -> ConvergenceCalibration:
    """The critical batch and E_min of the runs in files, in tokens, with what they were fitted to in words.

    Raises InputError for a file that is none of the kinds above, and NotIdentifiableError, which says why,
    where the runs do not determine the critical batch.
    """
    if not (math.isfinite(tokens_per_example) and tokens_per_example > 0):
        raise InputError(f"tokens of an example: {tokens_per_example:g} is not a positive number")
    path = paths[0]
    if len(paths) == 1 and path.suffix == ".csv":
        columns = _columns(path)
        if set(columns) == set(_NOISE):
            return _of_noise(path.stem, columns, path)
        runs = _of_points(columns)
    else:
        runs = _of_file(paths)
    try:  # whether the runs alone determine it; the expectation of B_crit then steadies the numbers
        fit_hyperbola(runs.batches, runs.examples, run_kind)
        fit = fit_hyperbola(runs.batches, runs.examples, run_kind, prior=True)
    except InputError as error:
        line = Source.read(path).line_of("points") or 1
        problems = [replace(problem, file=str(path), line=line) for problem in error.problems]
        raise type(error)(problems) from None
    return _calibration(path.stem, fit, tokens_per_example, runs.unit)


def _calibration(name: str, fit: HyperbolaFit, scale: float, unit: str) -> ConvergenceCalibration:
    e_low, e_high = sorted(fit.e_min_interval)
    low = fit.b_crit / fit.band_factor
    high = fit.b_crit * fit.band_factor
    words = (
        f"E_min {fit.e_min:.4g} {unit} ({_end(fit.e_min, e_low)} to {_end(fit.e_min, e_high)}), B_crit "
        f"{fit.b_crit:.4g} {unit} ({low:.4g} to {high:.4g}), 90 %; {len(fit.batches)} batches, residual "
        f"{100 * fit.rms_log:.1f} %"
    )
    return ConvergenceCalibration(
        name=name,
        description=words,
        e_min_tokens=rounded(fit.e_min * scale),
        b_crit_tokens=rounded(fit.b_crit * scale),
        band_factor=rounded(fit.band_factor),
        residual=rounded(fit.rms_log),
        batches_tokens=tuple(batch * scale for batch in fit.batches),
        run_kind=fit.run_kind,
        notes=(*fit.notes, *([_NO_LENGTH] if scale == 1.0 and unit == "examples" else [])),
    )


def _end(middle: float, one_error: float) -> str:
    """The end of a 90 % interval whose end at one standard error is known, in the log."""
    return f"{middle * math.pow(one_error / middle, Z_90):.4g}"


def _of_noise(name: str, rows: Mapping[str, Sequence[float]], path: Path) -> ConvergenceCalibration:
    """The critical batch that a run with this gradient noise sees, harmonic over its tokens.

    Progress at batch B costs 1 + B_simple / B times the least steps, so at a fixed batch the examples are
    E_min (1 + B <1 / B_simple>): the mean of the reciprocal over the tokens counts.
    """
    tokens = np.asarray(rows["tokens"])
    noise = np.asarray(rows["b_simple"])
    if tokens.size < 2 or np.any(np.diff(tokens) <= 0) or np.any(noise <= 0):
        raise InputError(
            [Problem("tokens must increase over two rows or more, b_simple be positive", str(path), 1)]
        )
    middles = 0.5 * (1.0 / noise[1:] + 1.0 / noise[:-1])
    b_crit = float((tokens[-1] - tokens[0]) / (middles * np.diff(tokens)).sum())
    words = (
        f"E_min not identifiable from gradient noise: give tokens in the recipe. B_crit {b_crit:.4g} tokens "
        f"({b_crit / _NOISE_FACTOR:.4g} to {b_crit * _NOISE_FACTOR:.4g}), 90 %; {tokens.size} values of "
        f"B_simple, {noise.min():.4g} to {noise.max():.4g}"
    )
    return ConvergenceCalibration(
        name=name,
        description=words,
        b_crit_tokens=rounded(b_crit),
        band_factor=_NOISE_FACTOR,
        notes=("from gradient noise, which tells the critical batch within a factor of ten",),
    )


def _columns(path: Path) -> dict[str, list[float]]:
    """The columns of a CSV file of a known kind. Raises InputError at the line of a mistake."""
    header = table_columns(path)
    names = next((names for names in (_NOISE, *_POINTS) if set(names) <= set(header)), None)
    if names is None:
        raise InputError([Problem(f"the columns are {', '.join(header)}", str(path), line=1, help=_HELP)])
    rows = read_table(path, names)
    return {name: [float(row[name]) for row in rows] for name in names}


def _of_points(columns: Mapping[str, Sequence[float]]) -> _Runs:
    batches = tuple(columns["batch"])
    examples = columns.get("examples") or [
        batch * steps for batch, steps in zip(batches, columns["steps"], strict=True)
    ]
    return _Runs(batches, tuple(examples), "examples")


def _of_file(paths: Sequence[Path]) -> _Runs:
    sources = [Source.read(path) for path in paths]
    if all(mllog.TOOL.recognise(source.text) for source in sources):
        readings = [mllog.TOOL.read(source, source.text) for source in sources]
        points = [point for reading in readings for point in (reading.points or {})["cases"][0]["points"]]
        return _Runs(tuple(p[0] for p in points), tuple(p[1] for p in points), "samples")
    if len(paths) > 1 or paths[0].suffix == ".csv":
        raise InputError(
            [Problem("several files have to be logs of MLPerf Training", str(paths[0]), help=_HELP)]
        )
    cases = parse_file(paths[0], ConvergenceFile).cases
    if len(cases) != 1:
        raise InputError(
            [Problem(f"{len(cases)} cases; one benchmark with one recipe is expected", str(paths[0]), 1)]
        )
    points = [(point[0], point[1]) for point in cases[0].points]
    return _Runs(tuple(p[0] for p in points), tuple(p[1] for p in points), cases[0].unit or "examples")
