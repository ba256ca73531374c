"""Published runs next to a law, or equations next to simulated bytes: a table with its answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator

from perfsim.base.errors import InputError, PlanError
from perfsim.base.spec import CatalogSpec, FolderName, Spec
from perfsim.base.units import Seconds, number
from perfsim.catalog import Catalog, default_catalog, parse_file
from perfsim.convergence.critical_batch import HyperbolaFit, examples
from perfsim.convergence.laws import LossLaw, loss_law, power_law
from perfsim.convergence.time_to_accuracy import split_speedup
from perfsim.prediction.prediction import predict
from perfsim.prediction.question import Question
from perfsim.prediction.run import graph_of
from perfsim.specs.hardware import Devices, GpuClusterSpec
from perfsim.specs.model import TransformerConfig
from perfsim.specs.precisions import PRECISIONS
from perfsim.specs.recipe import Recipe, Sequences
from perfsim.work.counts import parameters

_Amount = Annotated[float, *number(1e-9, 1e30)]


class TrainedRun(Spec):
    """A trained model: its size, its tokens or FLOP, and its loss where one is published."""

    name: str
    family: str = ""
    """Runs of one family are told of together."""
    params: _Amount
    tokens: _Amount
    flop: _Amount | None = None
    """Of the whole run; None: 6 N D."""
    loss: _Amount | None = None
    """Nats per token."""

    @property
    def all_flop(self) -> float:
        """FLOP of the whole run: the published ones, else 6 N D."""
        return 6.0 * self.params * self.tokens if self.flop is None else self.flop


class LossesSpec(Spec):
    """Losses of runs over their FLOP, next to a law: a named one, or the line through some of the runs."""

    law: str | None = None
    fitted_to: tuple[str, ...] = ()
    """Names of the runs that the line is fitted to; the others are predicted."""
    runs: Annotated[tuple[TrainedRun, ...], Field(min_length=2)]

    @model_validator(mode="after")
    def _has_one_law(self) -> Self:
        if (self.law is None) == (not self.fitted_to):
            raise ValueError("write law (a named one) or fitted_to (names of runs), one of them")
        known = {run.name: run for run in self.runs}
        for name in self.fitted_to:
            if name not in known or known[name].loss is None:
                raise ValueError(f"fitted_to: {name!r} is no run with a loss")
        return self


class TimedRun(Spec):
    """A published run to a quality target."""

    name: str
    devices: Devices
    batch: _Amount
    examples: _Amount
    """To the target, in any unit that all runs share (samples, epochs)."""
    time: Seconds


class SpeedsSpec(Spec):
    """Times of runs on more and more devices; the first is what the others are compared with."""

    device: str
    runs: Annotated[tuple[TimedRun, ...], Field(min_length=2)]


class EquationsSpec(Spec):
    """Equations of communication and memory in L, T, B, P and N, for a model on a few GPUs."""

    model: TransformerConfig
    recipe: Recipe
    system: GpuClusterSpec
    batch: Sequences
    devices: Annotated[tuple[Devices, ...], Field(min_length=2)]


class ComparisonSpec(CatalogSpec):
    """A question that published figures, laws and equations answer, without a choice of machines."""

    name: FolderName
    title: str
    question: str = ""
    losses: LossesSpec | None = None
    speeds: SpeedsSpec | None = None
    equations: EquationsSpec | None = None

    @model_validator(mode="after")
    def _has_one_subject(self) -> Self:
        if sum(part is not None for part in (self.losses, self.speeds, self.equations)) != 1:
            raise ValueError("write one of losses, speeds and equations")
        return self


def load_comparison(name_or_path: str, catalog: Catalog | None = None) -> ComparisonSpec:
    """A comparison of the catalogue by name, or from a file; CatalogError lists every problem."""
    catalog = catalog or default_catalog()
    return parse_file(Path(catalog.study_path(name_or_path)), ComparisonSpec, catalog)


_Value = str | float | None
_Row = dict[str, _Value]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A table of plain values with its answer in words."""

    name: str
    title: str
    question: str
    verdict: str
    columns: Mapping[str, str]
    """Key of a row's value to its heading."""
    rows: tuple[Mapping[str, _Value], ...]
    notes: tuple[str, ...] = ()
    """What each column is, and where it is from."""


def compare(spec: ComparisonSpec) -> Comparison:
    """The rows and sentences of a comparison; raises what predictions and laws of its subject raise."""
    if spec.losses is not None:
        columns = _LOSSES
        note = _LOSSES_NOTE
        rows, verdict = _by_law(spec.losses) if spec.losses.law else _fitted(spec.losses)
        if all(row["loss"] is None for row in rows):
            columns = {key: name for key, name in columns.items() if key not in ("loss", "error")}
    elif spec.speeds is not None:
        rows, verdict = _speeds(spec.speeds)
        columns = {**_SPEEDS, "devices": spec.speeds.device}
        note = _SPEEDS_NOTE.format(device=spec.speeds.device)
    elif spec.equations is not None:
        rows, verdict = _equations(spec.equations)
        columns = _EQUATIONS
        note = _EQUATIONS_NOTE
    else:
        raise InputError(f"{spec.name} compares nothing")
    return Comparison(spec.name, spec.title, spec.question, verdict, columns, tuple(rows), (note,))


# Losses of published runs over their FLOP, next to a law.
#
# A law reaches the loss L of a run with C(L) FLOP: c / L^(1 / gamma) for a line through runs, the least 6 N D
# over all sizes N for a law in parameters and tokens. What a run takes over C(L) is the price of its choice
# of size and tokens.

SIZES = np.geomspace(1e7, 1e13, 4801)
"""Parameters among which the size of least compute is looked for."""
_LOSSES = {
    "name": "run", "params": "parameters", "tokens": "tokens", "flop": "FLOP", "loss": "loss",
    "law_loss": "loss\nby law", "error": "difference", "times_flop": "FLOP over\nlaw's FLOP",
}  # fmt: skip
_LOSSES_NOTE = (
    "FLOP: as published, else 6 N D. Law's FLOP: the least with which the law reaches the run's "
    "published loss, or its loss by law where none is published."
)


def _losses_row(run: TrainedRun, law_loss: float, least_flop: float) -> _Row:
    return {
        "name": run.name,
        "params": run.params,
        "tokens": run.tokens,
        "flop": run.all_flop,
        "loss": run.loss,
        "law_loss": law_loss,
        "error": None if run.loss is None else law_loss - run.loss,
        "times_flop": run.all_flop / least_flop,
    }


def _fitted(losses: LossesSpec) -> tuple[list[_Row], str]:
    """Rows by the line through some runs, what it predicts of their family, and what others pay."""
    fitted = [run for run in losses.runs if run.name in losses.fitted_to]
    c_flop, gamma = power_law([(run.all_flop, run.loss or math.nan) for run in fitted])
    family = fitted[0].family
    told: list[str] = []
    paid: dict[str, list[float]] = {}
    rows = []
    for run in losses.runs:
        law_loss = (c_flop / run.all_flop) ** gamma
        least = c_flop / (run.loss or law_loss) ** (1 / gamma)
        rows.append(_losses_row(run, law_loss, least))
        if run.family != family:
            paid.setdefault(run.family, []).append(run.all_flop / least)
        elif run not in fitted:
            published = "" if run.loss is None else f" (published {run.loss:.3f})"
            told.append(f"{law_loss:.3f}{published} for {run.name}")
    said = [f"Loss = ({c_flop:.3g} / FLOP)^{gamma:.4f}, fitted to {len(fitted)} runs"]
    if told:
        said.append(f"predicts {', '.join(told)}")
    said += [
        f"{other} takes {min(times):.2g} to {max(times):.2g} times the law's FLOP for its losses"
        for other, times in paid.items()
    ]
    return rows, f"{'; '.join(said)}."


def least_flop(law: LossLaw, loss: float) -> tuple[float, float]:
    """The least 6 N D with which a law reaches a loss, and the N of it; PlanError where no size does."""
    best = (math.inf, math.nan)
    for size in SIZES.tolist():
        with suppress(PlanError):
            best = min(best, (6.0 * size * law.tokens_to_loss(loss, size), size))
    if math.isinf(best[0]):
        raise PlanError(f"law {law.name} reaches a loss of {loss:g} with no model")
    return best


def _by_law(losses: LossesSpec) -> tuple[list[_Row], str]:
    """Rows by a named law, the size of least loss at the first run's FLOP, and what it is worth."""
    law = loss_law(losses.law or "")
    runs = losses.runs
    first = runs[0]
    flop = first.all_flop
    sizes = SIZES[(flop / (6 * SIZES)) > 1]
    by_size = [law.loss(size, flop / (6 * size)) for size in sizes.tolist()]
    size = float(sizes[int(np.argmin(by_size))])
    best = TrainedRun(name="least loss at the first's FLOP", params=size, tokens=flop / (6 * size))
    rows = []
    for run in (*runs, best):
        law_loss = law.loss(run.params, run.tokens)
        rows.append(_losses_row(run, law_loss, least_flop(law, run.loss or law_loss)[0]))
    reached = law.loss(first.params, first.tokens)
    share = least_flop(law, reached)[0] / flop
    outside = [run.name for run in runs if law.outside(run.params, run.tokens)]
    verdict = (
        f"By law {law.name}, {first.name} reaches a loss of {reached:.3f} with {flop:.3g} FLOP. With as "
        f"many, {size / 1e9:.3g} billion parameters on {best.tokens / 1e9:.3g} billion tokens "
        f"({best.tokens / size:.1f} a parameter) reach {min(by_size):.3f}; {100 * share:.0f} % of the FLOP "
        f"are enough for {reached:.3f}."
    )
    if outside:
        verdict += f" Outside the law's runs ({law.data}): {', '.join(outside)}."
    return rows, verdict


# Speedup of published runs split into statistics, by the law of the batch, and hardware, from their times.
#
#     speedup = device ratio x statistics x hardware,   statistics = E(B of the first) / E(B of the run)
#
# E is the hyperbola through the runs' examples by batch. The hardware half is what is left of the published
# times: no machine is simulated.

_SPEEDS = {
    "name": "run", "devices": "", "batch": "batch", "examples": "examples",
    "law_examples": "examples\nby law", "time_s": "time", "speedup": "speedup",
    "statistical": "statistics", "hardware": "hardware\n(published)",
}  # fmt: skip
_SPEEDS_NOTE = (
    "Statistics: examples of the first over those of the run, by the law. Hardware: what is left of the "
    "published speedup over the number of {device}, of which none is simulated."
)


def _speeds(speeds: SpeedsSpec) -> tuple[list[_Row], str]:
    """One row a run: its speedup over the first, and what statistics and hardware have of it.

    Raises InputError for runs of one batch, and where the examples do not grow with it.
    """
    first = speeds.runs[0]
    levels: dict[float, list[float]] = {}
    for run in speeds.runs:
        levels.setdefault(run.batch, []).append(run.examples)
    if len(levels) < 2:
        raise InputError("runs of one batch tell nothing of statistics: give runs of at least two batches")
    if len(levels) > 2:
        fit = HyperbolaFit.of([run.batch for run in speeds.runs], [run.examples for run in speeds.runs])
        e_min = fit.e_min
        b_crit = fit.b_crit
    else:
        (small, low), (large, high) = sorted((batch, fmean(known)) for batch, known in levels.items())
        slope = (high - low) / (large - small)
        e_min = low - slope * small
        if slope <= 0 or e_min <= 0:
            raise InputError(
                "the examples of the two batches are on no hyperbola: they must grow with the batch"
            )
        b_crit = e_min / slope
    rows: list[_Row] = []
    for run in speeds.runs:
        speedup = first.time / run.time
        needed = [float(examples(batch, e_min, b_crit)) for batch in (first.batch, run.batch)]
        statistical, hardware = split_speedup(speedup, run.devices / first.devices, *needed)
        rows.append(
            {
                "name": run.name,
                "devices": run.devices,
                "batch": run.batch,
                "examples": run.examples,
                "law_examples": needed[1],
                "time_s": run.time,
                "speedup": speedup,
                "statistical": statistical,
                "hardware": hardware,
            }
        )
    last = rows[-1]
    times = speeds.runs[-1].devices / first.devices
    checked = " (two batches determine it without a check)." if len(levels) == 2 else "."
    verdict = (
        f"{times:g} times the {speeds.device} are {last['speedup']:.1f} times as fast: {times:g} × "
        f"{last['statistical']:.2f} (statistics, by the law) × {last['hardware']:.2f} (hardware, "
        f"read from published times). The law: E_min {e_min:.3g}, B_crit {b_crit:.3g}{checked}"
    )
    return rows, verdict


# The equations of data, tensor and pipeline parallelism next to the bytes of simulated steps.
#
# L layers, T bytes of an activation tensor of a sample, B samples, P bytes of the gradients of all
# parameters, N GPUs. A ring all-reduce of M bytes puts 2 M (N - 1) / N on the wire of each GPU.
#
#     data      all-reduces P once                               2 P (N - 1) / N
#     tensor    all-reduces T B four times a layer               8 L T B (N - 1) / N
#     pipeline  sends T B and its gradient over a boundary       2 T B (N - 1)
#
# Stages of a pipeline under 1F1B hold N, N - 1, ... 1 micro-batches of L / N layers of a bytes each. Together
# they hold a L (N + 1) / 2 for one model, and a l N (N + 1) / 2 where the model grows with l layers a stage.

_EQUATIONS = {
    "approach": "approach", "devices": "N", "equation": "equation", "equation_bytes": "by equation",
    "simulated_bytes": "simulated", "relative_error": "difference",
}  # fmt: skip
_EQUATIONS_NOTE = (
    "L layers, T bytes of an activation tensor of a sample, B samples, P bytes of all gradients, N GPUs; "
    "bytes on the wire of each GPU, of a pipeline on all wires. Memory: activations of all stages; a is "
    "that of a layer and micro-batch, from the smallest N."
)


def _equations(equations: EquationsSpec) -> tuple[list[_Row], str]:
    """One row for each equation and number of GPUs."""
    model = equations.model
    recipe = equations.recipe
    gradients = PRECISIONS[recipe.reduce_precision or "fp32"].bytes * parameters(model).total
    tensor_bytes = recipe.element_bytes * recipe.seq_length * model.hidden_size * equations.batch
    by_tensor = 8 * model.num_layers * tensor_bytes
    fewest, *others = equations.devices
    machine: dict[str, Any] = {"system": equations.system, "devices": fewest, "strategy": "3d"}
    smallest = Question(model=model, recipe=recipe, batch=equations.batch, **machine)
    # Approach, devices, the equation, its bytes, and the simulated bytes.
    known: list[tuple[str, int, str, float, float]] = []
    for devices in equations.devices:
        wire = (devices - 1) / devices
        question = replace(smallest, devices=devices)
        data = 2 * _sent(replace(question, layout=f"dp={devices},mbs=1,zero=0"), "data") * wire
        tensor = 2 * _sent(replace(question, layout=f"tp={devices},mbs=1"), "tensor") * wire
        pipeline = _sent(replace(question, layout=f"pp={devices},mbs=1"), "pipeline")
        known += [
            ("data", devices, "2 P (N - 1) / N", 2 * gradients * wire, data),
            ("tensor", devices, "8 L T B (N - 1) / N", by_tensor * wire, tensor),
            ("pipeline", devices, "2 T B (N - 1)", 2 * tensor_bytes * (devices - 1), pipeline),
        ]
    for words, equation, grows in (
        ("pipeline memory, one model", "a L (N + 1) / 2", False),
        ("pipeline memory, grown model", "a l N (N + 1) / 2", True),
    ):
        base = 0.0
        for devices in (fewest, *others):
            layers = model.num_layers * devices // others[-1] if grows else model.num_layers
            grown = model.with_(num_layers=layers) if grows else model
            layout = f"pp={devices},mbs=1,recompute=none"
            step = predict(replace(smallest, model=grown, devices=devices, layout=layout))
            held = sum(bar.parts_bytes["activations"] for bar in step.memory)
            base = base or held / (layers * (devices + 1))
            if devices != fewest:
                known.append((words, devices, equation, base * layers * (devices + 1), held))
    rows: list[_Row] = [dict(zip(_EQUATIONS, (*row, row[-1] / row[-2] - 1.0), strict=True)) for row in known]
    errors = [abs(float(row["relative_error"] or 0.0)) for row in rows]
    worst = rows[errors.index(max(errors))]
    verdict = (
        f"Simulated bytes of {model.name} on {fewest} to {others[-1]} "
        f"GPUs are within {100 * max(errors):.1f} % of all {len(rows)} equations (furthest: "
        f"{worst['approach']} on {worst['devices']}). Activations of a pipeline grow as N + 1 for one model, "
        "and as N (N + 1) where the model grows with the stages."
    )
    return rows, verdict


def _sent(question: Question, kind: str) -> float:
    """Bytes of the messages of one kind in a step's graph, each counted once for its group."""
    graph = graph_of(predict(question).run.plan)
    sent = (task.work for task in graph.tasks() if task.work.category == f"{kind}_communication")
    return sum(work.comm_bytes for work in sent if kind != "pipeline" or work.op == "send_recv")
