"""Kernels on a roofline: their sums are those of the step."""

from __future__ import annotations

import pytest

import perfsim as ps
from perfsim.prediction.why import ATTENTION, ELEMENTWISE, PRODUCT, Roofline

GPUS = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 2, "strategy": "3d", "batch": 8}
WAFERS = {"model": "gpt3_xl", "system": "cs-2", "devices": 2, "strategy": "weight-streaming", "batch": 64}


@pytest.mark.parametrize("question", [GPUS, WAFERS])
def test_the_work_of_all_kernels_is_the_steps_and_no_product_is_above_its_ceiling(question: dict) -> None:
    run = ps.predict(**question).run
    roofline = Roofline.of(run)
    assert roofline is not None
    device = run.plan.system.device
    graph = run.trace.graph
    assert roofline.memory_bytes_per_s == device.memory.bandwidth
    assert roofline.peaks_flop_per_s == {"bf16": device.peak_flop_per_s("bf16")}
    streams = [number for number, name in enumerate(graph.streams) if name.endswith("/compute")]
    assert len({graph.stands_for[number] for number in streams}) == 1, "every device counts alike"
    flop = sum(
        graph.works[work].flop
        for work, stream in zip(graph.work, graph.stream, strict=True)
        if stream in streams
    )
    whole = flop / len(streams) / len(graph.step_ends)
    assert sum(kernel.flop for kernel in roofline.kernels) == pytest.approx(whole)
    times = [kernel.time_s for kernel in roofline.kernels]
    assert times == sorted(times, reverse=True)
    assert sum(times) <= run.step_time_s
    assert {PRODUCT, ELEMENTWISE} <= {kernel.kind for kernel in roofline.kernels} | {ATTENTION}
    for kernel in roofline.kernels:
        if kernel.precision and kernel.flop:
            assert kernel.flop / kernel.time_s <= roofline.peaks_flop_per_s[kernel.precision]
