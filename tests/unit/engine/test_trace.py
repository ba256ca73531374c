"""What is measured on a run: step time, and where every second of a device went."""

from __future__ import annotations

import numpy as np
import pytest

from perfsim.engine.trace import Trace
from perfsim.testing import toys
from perfsim.work import GraphBuilder


def trace_of(tasks: list[tuple[str, str, float, float]], steps: tuple[int, ...] = ()) -> Trace:
    """A trace of (stream, category, start, end) rows, whoever waits for whom."""
    builder = GraphBuilder()
    for number, (stream, category, _, _) in enumerate(tasks):
        if number in steps:
            builder.end_step()
        builder.task(toys.compute(f"{category}{number}", category), stream)
    spans = np.array([task[2:] for task in tasks])
    return Trace(builder.build(), spans[:, 0], spans[:, 1])


def test_one_step_takes_until_its_last_end_and_the_last_of_several_between_two() -> None:
    trace = trace_of([("g/compute", "forward", 0, 2), ("g/nccl", "x", 1, 5)])
    assert (trace.end_s.max(), trace.step_time_s, trace.step_window_s) == (5.0, 5.0, (0.0, 5.0))
    rows = [("g/compute", "forward", 0, 4), ("g/compute", "forward", 4, 7)]
    trace = trace_of(rows, steps=(1,))
    assert (trace.step_end_s, trace.step_time_s, trace.step_window_s) == ((4.0, 7.0), 3.0, (4.0, 7.0))


def test_two_exposed_streams_are_charged_once_to_the_first_of_the_order() -> None:
    rows = [
        ("g/compute", "forward", 0, 1),
        ("g/send", "pipeline_communication", 1, 5),
        ("g/nccl", "tensor_communication", 1, 3),
    ]
    seconds = trace_of(rows).device_breakdowns()["g"]
    assert (seconds["tensor_communication"], seconds["pipeline_communication"]) == (2.0, 2.0)


def test_the_mean_is_over_computing_devices() -> None:
    rows = [
        ("g/compute", "forward", 0, 4),
        ("h/compute", "forward", 0, 2),
        ("memoryx/out", "weight_stream", 0, 0),
    ]
    mean = trace_of(rows).mean_breakdown()
    assert (mean["forward"], mean["bubble"]) == (3.0, 1.0)
    assert sum(mean.values()) == pytest.approx(4.0)


def test_a_span_names_task_stream_and_micro_batch() -> None:
    builder = GraphBuilder()
    builder.task(toys.compute("forward"), "g/compute", tag=2)
    span = Trace(builder.build(), np.zeros(1), np.ones(1)).span(0)
    assert span == ("forward[2]", "g/compute", "forward", 0.0, 1.0, 2)
