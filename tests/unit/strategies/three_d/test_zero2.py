"""ZeRO 2: gradients are kept in shards, so every micro-batch's are scattered as they are made."""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

import pytest

from perfsim.costs.price import price
from perfsim.engine import critical_path
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies.three_d.emission import stages_of
from perfsim.strategies.three_d.memory import stage_memory
from perfsim.work import TaskGraph

LAYER_PARAMETERS = 12 * 2048**2 + 13 * 2048
TABLES = (51200 + 1024) * 2048


def graph(toys: ModuleType, zero_stage: int, overlap: bool = False, **changes: Any) -> TaskGraph:
    job = toys.job(16, {"overlap_grad_reduce": overlap})
    layout = ParallelLayout(**({"data": 4, "zero_stage": zero_stage} | changes))
    return toys.graph_of(toys.plan("3d", job, layout))


def scattered(written: TaskGraph) -> list[float]:
    works = [written.works[number] for number in written.work.tolist()]
    return [work.comm_bytes for work in works if work.op == "reduce_scatter"]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "zb1p"])
@pytest.mark.parametrize("pipeline", [1, 2])
def test_every_micro_batch_scatters_every_gradient(
    toys: ModuleType, schedule: str, overlap: bool, pipeline: int
) -> None:
    microbatches = 4
    layout = {"schedule": schedule, "pipeline": pipeline}
    held = sum(each.num_parameters for each in stages_of(toys.job(), ParallelLayout(**layout)).replicas)  # type: ignore[arg-type]
    moved = scattered(graph(toys, 2, overlap, **layout))
    assert len(moved) == microbatches * (8 + pipeline), "layers and tables"
    assert sum(moved) == pytest.approx(4 * held * microbatches)
    assert sum(scattered(graph(toys, 1, overlap, **layout))) == pytest.approx(4 * held)


def test_parameters_are_gathered_and_updated_as_under_zero_1(toys: ModuleType) -> None:
    names = [
        Counter(written.works[work].name for work in written.work.tolist())
        for written in (graph(toys, 1), graph(toys, 2))
    ]
    for name in ("data.all_gather", "optimizer"):
        assert names[0][name] == names[1][name] == 1


def test_scattering_hides_behind_the_backward_only_where_it_overlaps(toys: ModuleType) -> None:
    seconds = {"mlp.forward": 0.25, "mlp.backward": 1.0, "data.reduce_scatter": 0.5}
    step = {
        overlap: critical_path(
            written := graph(toys, 2, overlap), price(written, toys.TableCosts(seconds))
        ).step_time_s
        for overlap in (False, True)
    }
    microbatches = 4
    layers = 8
    assert step[False] == microbatches * (layers * 1.75 + 0.5)
    assert step[True] == microbatches * layers * 1.25 + 2 * 0.5, "the last layer's and that of the tables"


def test_the_next_micro_batch_waits_for_the_buffers_that_the_last_one_fills(toys: ModuleType) -> None:
    seconds = {"mlp.backward": 1.0, "data.reduce_scatter": 5.0}
    written = graph(toys, 2, overlap=True)
    trace = critical_path(written, price(written, toys.TableCosts(seconds)))
    tasks = {task.id: task for task in written.tasks()}
    reductions = [task for task in tasks if tasks[task].work.name == "data.reduce_scatter"]
    made = [task for task in tasks if tasks[task].work.name == "mlp.backward"]
    layers = [task for task in reductions if tasks[task].block >= 0]
    assert all(trace.start_s[a] >= trace.end_s[b] for a, b in zip(made[2:], layers, strict=False))
    heads = [task for task in tasks if tasks[task].work.name == "head.backward"]
    tables = [task for task in reductions if tasks[task].block < 0]
    assert all(trace.start_s[a] >= trace.end_s[b] for a, b in zip(heads[1:], tables, strict=False))


def test_no_more_than_two_layers_gradients_are_whole_at_once(toys: ModuleType) -> None:
    written = graph(toys, 2, overlap=True)
    seconds = {"mlp.backward": 1.0, "data.reduce_scatter": 5.0}
    trace = critical_path(written, price(written, toys.TableCosts(seconds)))
    tasks = [task for task in written.tasks() if task.tag == 0]
    made = [float(trace.start_s[task.id]) for task in tasks if task.work.name == "mlp.backward"]
    freed = [float(trace.end_s[task.id]) for task in tasks if task.work.name == "data.reduce_scatter"]
    assert all(start >= end for start, end in zip(made[2:], freed, strict=False))


def test_memory_holds_a_shard_of_the_gradients_and_the_buckets_under_way(toys: ModuleType) -> None:
    def parts(zero_stage: int, data: int = 8) -> dict[str, float]:
        layout = ParallelLayout(data=data, zero_stage=zero_stage)
        return dict(stage_memory(toys.job(), layout, toys.topology(8))[0].parts_bytes)

    whole = parts(1)
    shard = parts(2)
    assert shard["gradients"] == whole["gradients"] / 8
    assert shard["gradient buckets"] == pytest.approx(4 * (2 * LAYER_PARAMETERS + TABLES))
    assert shard["optimizer"] == whole["optimizer"]
    assert "gradient buckets" not in parts(2, data=1)


def test_memory_of_zero_3_holds_the_gradients_under_way_as_zero_2_does(toys: ModuleType) -> None:
    def parts(data: int) -> dict[str, float]:
        layout = ParallelLayout(data=data, zero_stage=3)
        return dict(stage_memory(toys.job(), layout, toys.topology(8))[0].parts_bytes)

    assert parts(8)["gradient buckets"] == pytest.approx(4 * (2 * LAYER_PARAMETERS + TABLES))
    assert parts(8)["gathered parameters"] == pytest.approx(2 * (2 * LAYER_PARAMETERS + TABLES))
    assert "gradient buckets" not in parts(1)
