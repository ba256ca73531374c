"""LLaMA-7B on eight A800 with DeepSpeed, with and without offload.

Source: chenyaofo, "Benchmark of LLaMA-7B models using DeepSpeed" (`llama-7b-offload-gist` of hardware/):
sequences of 4,096, 64 a step, full recompute, samples/s and the most memory of a GPU in GB.
"""

from __future__ import annotations

from functools import cache

import pytest

import perfsim as ps

OFF = "offload_optimizer=cpu"


@cache
def predicted(layout: str) -> ps.Prediction:
    catalog = ps.Catalog()
    recipe = catalog.recipes["gpt3_pretraining"].with_(
        seq_length=4096,
        dropout=False,
        precision="bf16",
        reduce_precision="bf16",
        **{"runtime.attention": "flash"},
    )
    model = catalog.models["llama_7b"].with_(max_position_embeddings=4096)
    layout = f"dp=8,recompute=full,{layout}"
    return ps.predict(model=model, recipe=recipe, system="dgx-a100-80gb", devices=8, batch=64, layout=layout)


@pytest.mark.parametrize(
    ("layout", "moved", "without", "offloaded"),
    [
        ("zero=2,mbs=1", OFF, 4.19, 1.81),
        ("zero=3,mbs=2", OFF, 4.45, 2.05),
        ("zero=3,mbs=2", f"{OFF},offload_param=cpu", 4.45, 2.06),
    ],
)
def test_offload_slows_a_step_by_three_quarters_or_more_of_what_was_measured(
    layout: str, moved: str, without: float, offloaded: float
) -> None:
    """The optimizer of this run, without bound cores, is slower than `optimizer_fraction` of the system."""
    slower = predicted(f"{layout},{moved}").step_time_s / predicted(layout).step_time_s
    assert 0.75 * without / offloaded < slower < without / offloaded


@pytest.mark.parametrize(("layout", "measured_gb"), [("zero=2,mbs=1", 16.9), ("zero=3,mbs=2", 9.4)])
def test_memory_of_a_gpu_with_offload_is_within_12_percent_of_the_measured(
    layout: str, measured_gb: float
) -> None:
    peak_gb = predicted(f"{layout},{OFF}").peak_memory_bytes / 1e9
    assert peak_gb == pytest.approx(measured_gb, rel=0.12)
