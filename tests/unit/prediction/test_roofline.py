"""Kernels on a roofline: their sums are those of the step."""

from __future__ import annotations

import pytest

import perfsim as ps
from perfsim.prediction.why import ATTENTION, ELEMENTWISE, PRODUCT, Roofline

GPUS = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 2, "strategy": "3d", "batch": 8}
WAFERS = {"model": "gpt3_xl", "system": "cs-2", "devices": 2, "strategy": "weight-streaming", "batch": 64}


@pytest.mark.parametrize("asked", [GPUS, WAFERS])
def test_the_work_of_all_kernels_is_the_steps_and_no_product_is_above_its_ceiling(asked: dict) -> None:
    run = ps.predict(**asked).run
    own = Roofline.of(run)
    assert own is not None
    device = run.plan.system.device
    graph = run.trace.graph
    assert own.memory_bytes_per_s == device.memory.bandwidth
    assert own.peaks_flop_per_s == {"bf16": device.peak_flop_per_s("bf16")}
    streams = [place for place, name in enumerate(graph.streams) if name.endswith("/compute")]
    assert len({graph.stands_for[place] for place in streams}) == 1, "every device counts alike"
    flop = sum(
        graph.works[work].flop
        for work, stream in zip(graph.work, graph.stream, strict=True)
        if stream in streams
    )
    whole = flop / len(streams) / len(graph.step_ends)
    assert sum(kernel.flop for kernel in own.kernels) == pytest.approx(whole)
    times = [kernel.time_s for kernel in own.kernels]
    assert times == sorted(times, reverse=True)
    assert sum(times) <= run.step_time_s
    assert {PRODUCT, ELEMENTWISE} <= {kernel.kind for kernel in own.kernels} | {ATTENTION}
    for kernel in own.kernels:
        if kernel.precision and kernel.flop:
            assert kernel.flop / kernel.time_s <= own.peaks_flop_per_s[kernel.precision]
