"""The equations of data, tensor and pipeline parallelism beside the bytes of simulated steps.

L layers, T bytes of an activation tensor of a sample, B samples, P bytes of the gradients of all parameters,
N GPUs. A ring all-reduce of M bytes puts 2 M (N - 1) / N on the wire of each GPU.

    data      all-reduces P once                               2 P (N - 1) / N
    tensor    all-reduces T B four times a layer               8 L T B (N - 1) / N
    pipeline  sends T B and its gradient over a boundary       2 T B (N - 1)

Stages of a pipeline under 1F1B hold N, N - 1, ... 1 micro-batches of L / N layers of a bytes each. Together
they hold a L (N + 1) / 2 for one model, and a l N (N + 1) / 2 where the model grows with l layers a stage.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfsim.prediction.evaluation import graph_of
from perfsim.prediction.predict import predict
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.question import Question
from perfsim.studies.comparisons.spec import Comparison, ComparisonSpec, EquationsSpec, Value
from perfsim.transformer import parameters
from perfsim.workload import PRECISION_BYTES

Row = dict[str, Value]


def compare_equations(spec: ComparisonSpec, equations: EquationsSpec) -> Comparison:
    """One row for each equation and number of GPUs."""
    rows = [row for devices in equations.devices for row in _communication(equations, devices)]
    rows += _memory(equations)
    errors = [abs(float(row["relative_error"] or 0.0)) for row in rows]
    worst = rows[errors.index(max(errors))]
    fewest, most = equations.devices[0], equations.devices[-1]
    verdict = (
        f"Simulated bytes of {equations.model.name} on {fewest} to {most} GPUs are within "
        f"{100 * max(errors):.1f} % of all {len(rows)} equations (furthest: {worst['approach']} on "
        f"{worst['devices']}). Activations of a pipeline grow as N + 1 for one model, and as N (N + 1) "
        "where the model grows with the stages."
    )
    columns = {
        "approach": "approach", "devices": "N", "equation": "equation", "equation_bytes": "by equation",
        "simulated_bytes": "simulated", "relative_error": "difference",
    }  # fmt: skip
    note = (
        "L layers, T bytes of an activation tensor of a sample, B samples, P bytes of all gradients, N GPUs; "
        "bytes on the wire of each GPU, of a pipeline on all wires. Memory: activations of all stages; a is "
        "that of a layer and micro-batch, from the smallest N."
    )
    return Comparison(spec.name, spec.title, spec.question, verdict, columns, tuple(rows), (note,))


def _row(approach: str, devices: int, equation: str, by_it: float, simulated: float) -> Row:
    return {
        "approach": approach,
        "devices": devices,
        "equation": equation,
        "equation_bytes": by_it,
        "simulated_bytes": simulated,
        "relative_error": simulated / by_it - 1.0,
    }


def _predicted(equations: EquationsSpec, devices: int, layout: str, layers: int | None = None) -> Prediction:
    model = equations.model if layers is None else equations.model.with_(num_layers=layers)
    return predict(
        Question(
            model=model,
            recipe=equations.recipe,
            system=equations.system,
            devices=devices,
            strategy="3d",
            batch=equations.batch,
            layout=layout,
        )
    )


def _communication(equations: EquationsSpec, devices: int) -> Iterator[Row]:
    model, recipe, wire = equations.model, equations.recipe, (devices - 1) / devices
    tensor_bytes = recipe.element_bytes * recipe.seq_length * model.hidden_size * equations.batch
    gradients = PRECISION_BYTES[recipe.reduce_precision or "fp32"] * parameters(model).total
    sent = _sent(equations, devices, f"dp={devices},mbs=1,zero=0", "data")
    yield _row("data", devices, "2 P (N - 1) / N", 2 * gradients * wire, 2 * sent * wire)
    sent = _sent(equations, devices, f"tp={devices},mbs=1", "tensor")
    by_it = 8 * model.num_layers * tensor_bytes * wire
    yield _row("tensor", devices, "8 L T B (N - 1) / N", by_it, 2 * sent * wire)
    sent = _sent(equations, devices, f"pp={devices},mbs=1", "pipeline")
    yield _row("pipeline", devices, "2 T B (N - 1)", 2 * tensor_bytes * (devices - 1), sent)


def _sent(equations: EquationsSpec, devices: int, layout: str, kind: str) -> float:
    """Bytes of the messages of one kind in a step's graph, each counted once for its group."""
    graph = graph_of(_predicted(equations, devices, layout).run.plan)
    return sum(
        task.work.comm_bytes
        for task in graph.tasks()
        if task.work.category == f"{kind}_communication"
        and (kind != "pipeline" or task.work.op == "send_recv")
    )


def _memory(equations: EquationsSpec) -> Iterator[Row]:
    fewest, most = equations.devices[0], equations.devices[-1]
    layers = equations.model.num_layers
    for words, equation, of in (
        ("pipeline memory, one model", "a L (N + 1) / 2", lambda _: layers),
        ("pipeline memory, grown model", "a l N (N + 1) / 2", lambda devices: layers * devices // most),
    ):
        base = _held(equations, fewest, of(fewest)) / (of(fewest) * (fewest + 1))
        for devices in equations.devices[1:]:
            by_it = base * of(devices) * (devices + 1)
            yield _row(words, devices, equation, by_it, _held(equations, devices, of(devices)))


def _held(equations: EquationsSpec, stages: int, layers: int) -> float:
    """Bytes of activations of all stages."""
    prediction = _predicted(equations, stages, f"pp={stages},mbs=1,recompute=none", layers)
    return sum(bar.parts_bytes["activations"] for bar in prediction.memory)
