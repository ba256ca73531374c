"""One point from question to metrics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import perfsim as ps
from perfsim.catalog import default_catalog
from perfsim.prediction.question import question_of

WAFERS = {"model": "gpt3_xl", "system": "cs-2", "devices": 2, "strategy": "weight-streaming", "batch": 64}


def test_a_point_answers_with_the_metrics_of_the_interface(point_keys: frozenset[str]) -> None:
    prediction = ps.predict(**WAFERS)
    metrics = prediction.document()
    evaluation = prediction.run
    assert set(metrics) >= point_keys
    assert metrics["num_devices"] == 2
    assert metrics["tokens_per_s"] == pytest.approx(64 * 2048 / metrics["step_time_s"])
    assert metrics["step_time_s"] == evaluation.step_time_s


def test_a_given_layout_is_taken_as_it_is() -> None:
    plain, chunked = (
        ps.predict(**{**WAFERS, "layout": f"dp=2,mbs=16,recompute_layers=1{more}"}).layout
        for more in ("", ",stream_chunks=4")
    )
    assert (plain["micro_batch_size"], plain["num_microbatches"], plain["recompute_layers"]) == (16, 2, 1)
    assert "stream_chunks" not in plain
    assert chunked["stream_chunks"] == 4


THIN = """\
name: thin
description: a leaf for each node, with so many NICs to an uplink
extends: dgx-a100-80gb
fabric:
  nodes_per_leaf: 1
  oversubscription: {ratio}
assumed:
  fabric.nodes_per_leaf: a test
  fabric.oversubscription: a test
"""


def test_oversubscription_in_a_systems_file_slows_a_step_by_what_crosses_leaves(tmp_path: Path) -> None:
    """Eight messages on two uplinks: the bytes of two sends and of two sums take 4 times as long."""
    runs = []
    for ratio in (1.0, 4.0):
        path = tmp_path / f"thin{ratio:g}.yaml"
        path.write_text(THIN.format(ratio=ratio), encoding="utf-8")
        layout = "tp=8,pp=2,dp=1,mbs=1"
        runs.append(ps.predict(model="gpt3_xl", system=path, devices=16, layout=layout, batch=1).run)
    works = runs[1].graph.works
    across = [work for work in works if work.group is not None and abs(work.group.stride) == 8]
    assert len(across) == 4
    costs = runs[1].step.costs
    bytes_s = sum(costs.duration_s(work) - costs.latency_s(work) for work in across)
    assert runs[1].step_time_s - runs[0].step_time_s == pytest.approx(3 * bytes_s, rel=1e-6)


def test_the_default_runtime_is_the_recipes_and_names_the_tool_that_takes_its_plans() -> None:
    asked = question_of({"model": "gpt3_xl", "system": "dgx-h100", "devices": 8, "recipe": "llm_2024"})
    assert asked.job.runtime == asked.recipe.runtime
    assert asked.job.runtime.takes_plans == "megatron"
    other = replace(asked, runtime=default_catalog().load("runtime", "csoft_1p7"))
    assert other.job.runtime.name == "csoft_1p7"
    assert other.job.runtime.takes_plans == "modelzoo"
