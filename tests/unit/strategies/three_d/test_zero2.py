"""ZeRO 2: gradients are kept in shards, so every micro-batch's are scattered as they are made."""

from __future__ import annotations

import pytest

from perfsim.costs.price import price
from perfsim.engine import critical_path
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies.three_d.memory import stage_memory
from perfsim.testing import toys

LAYER_PARAMETERS = 12 * 2048**2 + 13 * 2048
TABLES = (51200 + 1024) * 2048


def test_scattering_that_overlaps_hides_behind_the_backward() -> None:
    job = toys.job(16, {"overlap_grad_reduce": True})
    graph = toys.graph_of(toys.plan("3d", job, ParallelLayout(data=4, zero_stage=2)))
    seconds = {"mlp.forward": 0.25, "mlp.backward": 1.0, "data.reduce_scatter": 0.5}
    step_s = critical_path(graph, price(graph, toys.TableCosts(seconds))).step_time_s
    assert step_s == 4 * 8 * 1.25 + 2 * 0.5, "the last layer's and that of the tables"


def test_memory_holds_a_shard_of_the_gradients_and_the_buckets_under_way() -> None:
    def parts(zero_stage: int, data: int = 8) -> dict[str, float]:
        layout = ParallelLayout(data=data, zero_stage=zero_stage)
        return dict(stage_memory(toys.job(), layout, toys.topology(8))[0].parts_bytes)

    whole = parts(1)
    shard = parts(2)
    assert shard["gradients"] == whole["gradients"] / 8
    assert shard["gradient buckets"] == pytest.approx(4 * (2 * LAYER_PARAMETERS + TABLES))
    assert shard["optimizer"] == whole["optimizer"]
    assert "gradient buckets" not in parts(2, data=1)
    assert parts(3)["gradient buckets"] == shard["gradient buckets"]
    assert parts(3)["gathered parameters"] == pytest.approx(2 * (2 * LAYER_PARAMETERS + TABLES))
    assert "gradient buckets" not in parts(3, data=1)
