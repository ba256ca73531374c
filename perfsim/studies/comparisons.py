"""Published runs next to a law, or equations next to simulated bytes: a table with its answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from perfsim.base.errors import InputError, within_floats
from perfsim.base.groups import listed
from perfsim.base.spec import CatalogSpec, FolderName, Spec
from perfsim.base.units import Seconds, number
from perfsim.catalog import Catalog, default_catalog, parse_file
from perfsim.convergence.critical_batch import HyperbolaFit, examples
from perfsim.convergence.laws import LOSS_LAWS, SIZES, LossLaw, power_law
from perfsim.convergence.time_to_accuracy import split_speedup
from perfsim.prediction.prediction import predict
from perfsim.prediction.question import Question
from perfsim.specs.hardware import Devices, GpuClusterSpec
from perfsim.specs.model import TransformerConfig
from perfsim.specs.precisions import PRECISIONS
from perfsim.specs.recipe import Recipe, Sequences
from perfsim.studies.spec import LossLawName
from perfsim.work.counts import parameters

_Amount = Annotated[float, *number(1e-9, 1e30)]
_Value = str | float | None
_Answer = tuple[Mapping[str, str], Sequence[Sequence[_Value]], str, str]
"""Headings by the key of their column, rows in the order of the keys, the verdict, what each column is."""


# Losses of published runs over their FLOP, next to a law.
#
# A law reaches the loss L of a run with C(L) FLOP: c / L^(1 / gamma) for a line through runs, the least 6 N D
# over all sizes N for a law in parameters and tokens. What a run takes over C(L) is the price of its choice
# of size and tokens.


class _TrainedRun(Spec):
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

    def row(self, law_loss: float, least_flop: float) -> Sequence[_Value]:
        """The run next to its loss by a law, and to the FLOP with which the law reaches its loss."""
        error = None if self.loss is None else law_loss - self.loss
        figures = (self.params, self.tokens, self.all_flop, self.loss)
        return (self.name, *figures, law_loss, error, self.all_flop / least_flop)


class _LossesSpec(Spec):
    """Losses of runs over their FLOP, next to a law: a named one, or the line through some of the runs."""

    law: LossLawName | None = None
    fitted_to: tuple[str, ...] = ()
    """Names of the runs that the line is fitted to; the others are predicted."""
    runs: Annotated[tuple[_TrainedRun, ...], Field(min_length=2)]

    @model_validator(mode="after")
    def _has_one_law(self) -> Self:
        if (self.law is None) == (not self.fitted_to):
            raise ValueError("write law (a named one) or fitted_to (names of runs), one of them")
        with_loss = [run.name for run in self.runs if run.loss is not None]
        for name in self.fitted_to:
            if name not in with_loss:
                raise ValueError(f"fitted_to: {name!r} is no run with a loss")
        return self

    def answer(self) -> _Answer:
        """A row a run, and what the law says of the runs."""
        rows, verdict = self._by_line() if self.law is None else self._by_law(LOSS_LAWS[self.law])
        columns = {
            "name": "run", "params": "parameters", "tokens": "tokens", "flop": "FLOP", "loss": "loss",
            "law_loss": "loss\nby law", "error": "difference", "times_flop": "FLOP over\nlaw's FLOP",
        }  # fmt: skip
        note = (
            "FLOP: as published, else 6 N D. Law's FLOP: the least with which the law reaches the run's "
            "published loss, or its loss by law where none is published."
        )
        return columns, rows, verdict, note

    def _by_line(self) -> tuple[list[Sequence[_Value]], str]:
        """Rows by the line through some runs, what it predicts of their family, and what others pay."""
        fitted = [run for run in self.runs if run.name in self.fitted_to]
        c_flop, gamma = power_law([(run.all_flop, run.loss or math.nan) for run in fitted])
        told: list[str] = []
        paid: dict[str, list[float]] = {}
        rows = []
        for run in self.runs:
            law_loss = (c_flop / run.all_flop) ** gamma
            least = c_flop / (run.loss or law_loss) ** (1 / gamma)
            rows.append(run.row(law_loss, least))
            if run.family != fitted[0].family:
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

    def _by_law(self, law: LossLaw) -> tuple[list[Sequence[_Value]], str]:
        """Rows by a named law, the size of least loss at the first run's FLOP, and what it is worth."""
        first = self.runs[0]
        flop = first.all_flop
        loss, size = min((law.loss(size, flop / (6 * size)), size) for size in SIZES.tolist())
        best = _TrainedRun(name="least loss at the first's FLOP", params=size, tokens=flop / (6 * size))
        rows = []
        for run in (*self.runs, best):
            law_loss = law.loss(run.params, run.tokens)
            rows.append(run.row(law_loss, law.least_flop(run.loss or law_loss)[0]))
        reached = law.loss(first.params, first.tokens)
        share = law.least_flop(reached)[0] / flop
        verdict = (
            f"By law {law.name}, {first.name} reaches a loss of {reached:.3f} with {flop:.3g} FLOP. With as "
            f"many, {size / 1e9:.3g} billion parameters on {best.tokens / 1e9:.3g} billion tokens "
            f"({best.tokens / size:.1f} a parameter) reach {loss:.3f}; {100 * share:.0f} % of the FLOP "
            f"are enough for {reached:.3f}."
        )
        if outside := [run.name for run in self.runs if law.outside(run.params, run.tokens)]:
            verdict += f" Outside the law's runs ({law.data}): {', '.join(outside)}."
        return rows, verdict


# Speedup of published runs split into statistics, by the hyperbola through their examples by batch, and
# hardware, which is what is left of their times (`split_speedup`): no machine is simulated.


class _TimedRun(Spec):
    """A published run to a quality target."""

    name: str
    devices: Devices
    batch: _Amount
    examples: _Amount
    """To the target, in any unit that all runs share (samples, epochs)."""
    time: Seconds


class _SpeedsSpec(Spec):
    """Times of runs on more and more devices; the first is what the others are compared with."""

    device: str
    runs: Annotated[tuple[_TimedRun, ...], Field(min_length=2)]

    @field_validator("runs")
    @classmethod
    def _on_a_hyperbola(cls, runs: tuple[_TimedRun, ...]) -> tuple[_TimedRun, ...]:
        _hyperbola(runs)
        return runs

    def answer(self) -> _Answer:
        """One row a run: its speedup over the first, and what statistics and hardware have of it."""
        first = self.runs[0]
        last = self.runs[-1]
        e_min, b_crit, checked = _hyperbola(self.runs)
        rows = []
        for run in self.runs:
            speedup = first.time / run.time
            needed = [float(examples(batch, e_min, b_crit)) for batch in (first.batch, run.batch)]
            statistical, hardware = split_speedup(speedup, run.devices / first.devices, *needed)
            published = (run.name, run.devices, run.batch, run.examples)
            rows.append((*published, needed[1], run.time, speedup, statistical, hardware))
        times = last.devices / first.devices
        verdict = (
            f"{times:g} times the {self.device} are {speedup:.1f} times as fast: {times:g} × "
            f"{statistical:.2f} (statistics, by the law) × {hardware:.2f} (hardware, "
            f"read from published times). The law: E_min {e_min:.3g}, B_crit {b_crit:.3g}{checked}"
        )
        columns = {
            "name": "run", "devices": self.device, "batch": "batch", "examples": "examples",
            "law_examples": "examples\nby law", "time_s": "time", "speedup": "speedup",
            "statistical": "statistics", "hardware": "hardware\n(published)",
        }  # fmt: skip
        note = (
            "Statistics: examples of the first over the run's, by the law. Hardware: what is left of "
            f"the published speedup over the number of {self.device}, of which none is simulated."
        )
        return columns, rows, verdict, note


def _hyperbola(runs: Sequence[_TimedRun]) -> tuple[float, float, str]:
    """E_min and B_crit of the runs, and the end of the sentence; InputError where they determine none."""
    levels = listed((run.batch, run.examples) for run in runs)
    if len(levels) < 2:
        raise InputError("runs of one batch tell nothing of statistics: give runs of at least two batches")
    if len(levels) > 2:
        fit = HyperbolaFit.of([run.batch for run in runs], [run.examples for run in runs])
        return fit.e_min, fit.b_crit, "."
    (small, low), (large, high) = sorted((batch, fmean(known)) for batch, known in levels.items())
    slope = (high - low) / (large - small)
    e_min = low - slope * small
    if slope <= 0 or e_min <= 0:
        raise InputError("the examples of the two batches are on no hyperbola: they must grow with the batch")
    return e_min, e_min / slope, " (two batches determine it without a check)."


# The equations of data, tensor and pipeline parallelism next to the bytes of simulated steps.
#
# Letters as in the note of the answer. A ring all-reduce of M bytes puts 2 M (N - 1) / N on the wire of each
# GPU: data parallelism all-reduces P once, tensor parallelism T B four times a layer; a pipeline sends T B
# and its gradient over every boundary.
#
# Stages of a pipeline under 1F1B hold N, N - 1, ... 1 micro-batches of L / N layers of a bytes each. Together
# they hold a L (N + 1) / 2 for one model, and a l N (N + 1) / 2 where the model grows with l layers a stage.


class _EquationsSpec(Spec):
    """Equations of communication and memory in L, T, B, P and N, for a model on a few GPUs."""

    model: TransformerConfig
    recipe: Recipe
    system: GpuClusterSpec
    batch: Sequences
    devices: Annotated[tuple[Devices, ...], Field(min_length=2)]

    def answer(self) -> _Answer:
        """One row for each equation and number of GPUs."""
        # Approach, devices, the equation, its bytes, and the simulated bytes.
        known = [row for devices in self.devices for row in self._messages(devices)]
        known += self._memory("pipeline memory, one model", "a L (N + 1) / 2", grows=False)
        known += self._memory("pipeline memory, grown model", "a l N (N + 1) / 2", grows=True)
        rows = [(*row, row[-1] / row[-2] - 1.0) for row in known]
        approach, devices, *_, worst = max(rows, key=lambda row: abs(row[-1]))
        verdict = (
            f"Simulated bytes of {self.model.name} on {self.devices[0]} to {self.devices[-1]} "
            f"GPUs are within {100 * abs(worst):.1f} % of all {len(rows)} equations (furthest: "
            f"{approach} on {devices}). Activations of a pipeline grow as N + 1 for one model, "
            "and as N (N + 1) where the model grows with the stages."
        )
        columns = {
            "approach": "approach", "devices": "N", "equation": "equation",
            "equation_bytes": "by equation", "simulated_bytes": "simulated", "relative_error": "difference",
        }  # fmt: skip
        note = (
            "L layers, T bytes of an activation tensor of a sample, B samples, P bytes of all gradients, N "
            "GPUs; bytes on the wire of each GPU, of a pipeline on all wires. Memory: activations of all "
            "stages; a is the memory of a layer and micro-batch, from the smallest N."
        )
        return columns, rows, verdict, note

    def _question(self, devices: int, layout: str, **changes: Any) -> Question:
        given: dict[str, Any] = {"model": self.model, "recipe": self.recipe, "system": self.system, **changes}
        return Question(batch=self.batch, devices=devices, strategy="3d", layout=layout, **given)

    def _messages(self, devices: int) -> list[_Bytes]:
        """Bytes that are sent under each kind of parallelism."""
        recipe = self.recipe
        gradients = PRECISIONS[recipe.reduce_precision or "fp32"].bytes * parameters(self.model).total
        tensor_bytes = recipe.element_bytes * recipe.seq_length * self.model.hidden_size * self.batch
        by_tensor = 8 * self.model.num_layers * tensor_bytes
        wire = (devices - 1) / devices
        data = 2 * _sent(self._question(devices, f"dp={devices},mbs=1,zero=0"), "data") * wire
        tensor = 2 * _sent(self._question(devices, f"tp={devices},mbs=1"), "tensor") * wire
        pipeline = _sent(self._question(devices, f"pp={devices},mbs=1"), "pipeline")
        return [
            ("data", devices, "2 P (N - 1) / N", 2 * gradients * wire, data),
            ("tensor", devices, "8 L T B (N - 1) / N", by_tensor * wire, tensor),
            ("pipeline", devices, "2 T B (N - 1)", 2 * tensor_bytes * (devices - 1), pipeline),
        ]

    def _memory(self, approach: str, equation: str, *, grows: bool) -> list[_Bytes]:
        """Activations of pipelines; the smallest gives the activations of a layer and is no row."""
        base = 0.0
        rows: list[_Bytes] = []
        for devices in self.devices:
            layers = self.model.num_layers * devices // self.devices[-1] if grows else self.model.num_layers
            grown = self.model.with_(num_layers=layers) if grows else self.model
            step = predict(self._question(devices, f"pp={devices},mbs=1,recompute=none", model=grown))
            held = sum(bar.parts_bytes["activations"] for bar in step.memory)
            base = base or held / (layers * (devices + 1))
            rows.append((approach, devices, equation, base * layers * (devices + 1), held))
        return rows[1:]


_Bytes = tuple[str, int, str, float, float]


def _sent(question: Question, kind: str) -> float:
    """Bytes of the messages of one kind in a step's graph, each counted once for its group."""
    graph = predict(question).run.graph
    sent = (task.work for task in graph.tasks() if task.work.category == f"{kind}_communication")
    return sum(work.comm_bytes for work in sent if kind != "pipeline" or work.op == "send_recv")


# A file with one of these subjects, and its answer.


class ComparisonSpec(CatalogSpec):
    """A question that published figures, laws and equations answer, without a choice of machines."""

    name: FolderName
    title: str
    question: str = ""
    losses: _LossesSpec | None = None
    speeds: _SpeedsSpec | None = None
    equations: _EquationsSpec | None = None

    @property
    def subjects(self) -> list[_LossesSpec | _SpeedsSpec | _EquationsSpec]:
        """What is compared: exactly one subject."""
        return [part for part in (self.losses, self.speeds, self.equations) if part is not None]

    @model_validator(mode="after")
    def _has_one_subject(self) -> Self:
        if len(self.subjects) != 1:
            raise ValueError("write one of losses, speeds and equations")
        return self


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


@within_floats
def comparison(name: str | Path, *, catalog: Catalog | None = None) -> Comparison:
    """Answer a comparison: a name of the catalogue, or the path of a YAML file.

    Raises InputError for what is wrong in the file, and what the predictions and laws of its subject raise.
    """
    catalog = catalog or default_catalog()
    spec = parse_file(catalog.find("study", str(name)), ComparisonSpec, catalog)
    (subject,) = spec.subjects
    columns, cells, verdict, note = subject.answer()
    rows = tuple(dict(zip(columns, row, strict=True)) for row in cells)
    if all(row.get("loss", 0.0) is None for row in rows):
        columns = {key: name for key, name in columns.items() if key not in ("loss", "error")}
    return Comparison(spec.name, spec.title, spec.question, verdict, columns, rows, (note,))
