"""Measured steps of a run as cases of a file of measurements, for a scale of the cluster."""

from __future__ import annotations

from typing import Any

from perfsim.errors import InputError
from perfsim.interop.foreign.imported import Reading, all_gaps, model_document, name_of
from perfsim.interop.foreign.megatron_log import iteration_steps
from perfsim.workload import ParallelLayout

PARTS = 2
"""Intervals of a run with one batch size, so that the spread of its steps is seen."""
LAYOUT_FIELDS = (
    *("tensor", "pipeline", "data", "virtual_pipeline", "sequence_parallel", "zero_stage", "schedule"),
    "layers_per_stage",
)
MODEL_FIELDS = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "gated_mlp"),
    *("vocab_size", "tied_embeddings", "bias", "position_embedding"),
)
TRAINING_FIELDS = ("precision", "attention", "overlap_grad_reduce", "reduce_precision")


def measured_document(reading: Reading, device: str, *, alone: bool = True) -> dict[str, Any]:
    """The YAML of the measured steps of a run on `device`, one case for each batch size.

    A run with a single batch size that stands `alone` is divided into two intervals. Raises InputError for
    a log without steps, or without the number of ranks, and for a model that cannot be expressed.
    """
    source, layout = reading.settings.source, reading.layout
    if not reading.steps:
        source.refuse("no measured step: there is no line with `elapsed time per iteration`")
    if reading.shape is None or not isinstance(layout, ParallelLayout) or reading.devices is None:
        source.refuse(
            "the number of ranks is unknown", "the dump of arguments has world_size; or --set world_size=N"
        )
    model_document(reading, name_of(reading), "")  # refuses a shape that no model can have
    if lacking := [gap.text for gap in all_gaps(reading) if gap.changes_model]:
        raise InputError([source.problem(f"cannot be expressed: {text}") for text in lacking])
    steps = iteration_steps(source.text, PARTS) if alone and len(reading.steps) == 1 else reading.steps
    batch, name = reading.recipe.get("global_batch_size"), name_of(reading)
    cases = [
        _case(reading, f"{name}-{number}", device, step.global_batch_size or batch, step.step_time_s)
        for number, step in enumerate(steps, 1)
    ]
    return {"schema": 1, "cluster": name, "cases": cases}


def _case(reading: Reading, name: str, device: str, batch: Any, step_time_s: float) -> dict[str, Any]:
    fields = reading.shape.fields() if reading.shape is not None else {}
    layout: Any = reading.layout
    if batch is None:
        reading.settings.source.refuse(
            "the global batch size is unknown", "give it with --set global_batch_size=N"
        )
    training = {key: reading.recipe[key] for key in TRAINING_FIELDS if reading.recipe.get(key) is not None}
    split = {field: getattr(layout, field) for field in LAYOUT_FIELDS if getattr(layout, field) is not None}
    if "layers_per_stage" in split:
        split["layers_per_stage"] = list(split["layers_per_stage"])
    return {
        "id": name,
        "system": {"device": device, "num_devices": reading.devices},
        "model": {
            **{field: fields[field] for field in MODEL_FIELDS if field in fields},
            "seq_length": reading.recipe["seq_length"],
        },
        "strategy": "zero3" if layout.zero_stage == 3 else "3d",
        "parallel": split,
        "training": {
            "global_batch_size": batch,
            "micro_batch_size": layout.micro_batch_size,
            "recompute": layout.recompute,
            **training,
        },
        "measured": {"step_time_s": step_time_s},
    }
