"""Variants: several values changed at once under a name, next to the first one."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfsim.base.errors import CatalogError, InputError
from perfsim.studies.answers import PointResult
from perfsim.studies.loading import load_sweep
from perfsim.studies.runner import run_sweep
from perfsim.studies.variants import Change, SweepResult

HEAD = """\
title: Variants
study: {extends: gpt3_20b, model: gpt3_xl, sampling: {tasks: 0}}
grid:
  candidates:
    - {strategy: weight-streaming, system: cs-2, devices: [1, 32]}
"""
STEPS = """\
  recipe.global_batch_size: [32]
variants:
  as it is: {}
  twice the I/O: {system.io_ports: 24, system.swarmx.bandwidth: 300 GB/s, system.memoryx.servers: 24}
  a quarter of MemoryX: {system.memoryx.servers: 3}
"""


def written(folder: Path, text: str) -> str:
    path = folder / "variants.yaml"
    path.write_text(HEAD + text, encoding="utf-8")
    return str(path)


def answered(folder: Path, text: str) -> SweepResult:
    return run_sweep(load_sweep(written(folder, text)), folder / "points.sqlite", jobs=1)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    return answered(tmp_path_factory.mktemp("steps"), STEPS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{system.io_portz: 24}", "variants: a: .*io_portz"),
        ("{sistem.io_ports: 24}", "cannot be swept"),
        ("{system.swarmx.bandwidth: 300}", "variants: a: (system.)?swarmx.bandwidth"),
        ("{prices.machines.cs2.device_hour: 9}", "(?s)changes nothing on cs-2.*did you mean `cs-2`"),
        ("{prices.machines.cs-2.devicehour: 9}", "did you mean `device_hour`"),
        ("{perturbations.jitter: 0.1}", "(?s)is not set.*write perturbations as a whole"),
        ("{wall_clock: gpu-cluster}", "wall clock gpu-cluster is of a gpu-cluster; cs-2 is"),
        ("{model: gpt3_xxl}", "gpt3_xl"),
        ("{strategy: weight-steaming}", "weight-streaming"),
        ("{recipe.global_batch_size: 8, recipe.batch_size_per_device: 8}", "exclude each other"),
    ],
)
def test_what_is_wrong_in_a_variant_is_said_at_its_line(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(CatalogError, match=message) as caught:
        load_sweep(written(tmp_path, f"variants:\n  a: {change}\n"))
    assert "variants.yaml:" in str(caught.value)


def test_a_variant_of_what_a_machine_has_not_leaves_that_machine_out(tmp_path: Path) -> None:
    text = """\
    - {strategy: 3d, system: dgx-a100-80gb, devices: [8]}
variants:
  as it is: {recipe.global_batch_size: 32}
  half: {recipe.global_batch_size: 32, system.memoryx.servers: 6}
"""
    points = load_sweep(written(tmp_path, text)).points
    names = [(point.settings["variant"], point.candidate.system.name) for point in points]
    assert names.count(("as it is", "dgx-a100-80gb")) == 1
    assert ("half", "dgx-a100-80gb") not in names


def test_a_sweep_can_be_narrowed_to_strategies(tmp_path: Path) -> None:
    sweep = load_sweep(written(tmp_path, STEPS))
    assert sweep.only(["weight-streaming"]).points == sweep.points
    with pytest.raises(InputError, match="no point of strategy 3d"):
        sweep.only(["3d"])


def layout_of(result: SweepResult, devices: int = 8, **layout: object) -> PointResult:
    point = result.points[0]
    candidate = point.candidate.model_copy(update={"devices": (devices,)})
    study = point.study.model_copy(update={"candidates": (candidate,)})
    return replace(point, study=study, answer=replace(point.prediction, layout=layout))


def test_settings_that_a_planner_changed_are_told_as_text_of_a_layout(steps: SweepResult) -> None:
    before = layout_of(steps, tensor=1, pipeline=1, data=8, micro_batch_size=4, num_microbatches=4)
    after = layout_of(steps, tensor=8, pipeline=1, data=1, micro_batch_size=2, num_microbatches=64)
    assert Change(before, after).policy == "tp=1 dp=8 mbs=4 → tp=8 dp=1 mbs=2"
    many = layout_of(steps, 16, tensor=1, pipeline=1, data=16, micro_batch_size=4, num_microbatches=2)
    assert Change(before, many).policy == ""
    full = layout_of(steps, recompute="full", recompute_layers=2, spill=True)
    none = layout_of(steps, recompute="none", recompute_layers=0, spill=False)
    changed = "recompute=none recompute_layers=0 spill=false → recompute=full recompute_layers=2 spill=true"
    assert Change(none, full).policy == changed


SEVERAL_MACHINES = """\
    - {strategy: [data, 3d], system: dgx-a100-80gb, devices: [32]}
  recipe.global_batch_size: [32]
variants:
  as it is: {}
  slow NICs: {system.node.nic.bandwidth: 100 Gb/s}
  a quarter of MemoryX: {system.memoryx.servers: 3}
"""


def test_a_variant_is_compared_with_its_own_machine_and_strategy(tmp_path: Path) -> None:
    result = answered(tmp_path, SEVERAL_MACHINES)
    changes = result.changes
    machines = ["1 CS-2, weight-streaming", "32 CS-2, weight-streaming"]
    machines += [f"32 A100-80GB (4 DGX), {strategy}" for strategy in ("data", "3d")]
    assert [*changes] == [f"{machine}, batch 32" for machine in machines]
    assert all(len(own) == 2 and 0.9 < own[1].ratio < 3 for own in changes.values())
    assert {row.value for row in result.assumptions if row.name == "memoryx.servers"} == {"12", "3"}


OWN_MACHINES = """\
variants:
  one: {candidates: [{strategy: weight-streaming, system: cs-2, devices: [1]}]}
  eight:
    model: gpt3_6p7b
    candidates: [{strategy: 3d, system: dgx-a100-80gb, devices: [8], layout: "tp=8,mbs=1"}]
"""


def test_a_variant_may_have_candidates_of_its_own_and_a_mistake_in_them_has_its_line(tmp_path: Path) -> None:
    first, second = load_sweep(written(tmp_path, OWN_MACHINES)).points
    assert (first.candidate.system.name, first.num_devices) == ("cs-2", 1)
    assert (second.candidate.layout, second.study.model.name) == ("tp=8,mbs=1", "gpt3_6p7b")
    with pytest.raises(CatalogError, match="unknown strategy '4d'") as raised:
        load_sweep(written(tmp_path, OWN_MACHINES.replace("strategy: 3d", "strategy: 4d")))
    assert raised.value.problems[0].line == HEAD.count("\n") + 5


def test_variants_are_told_by_machine_in_their_order_with_those_without_a_plan(steps: SweepResult) -> None:
    assert [*steps.changes] == ["1 CS-2, batch 32", "32 CS-2, batch 32"]
    points = (one if one.num_devices == 32 else replace(one, answer=None) for one in steps.points)
    told, left = replace(steps, points=tuple(points)).sentences
    assert told.startswith("32 CS-2, batch 32: a step of 'as it is' takes ")
    assert told.index("twice the I/O") < told.index("a quarter of MemoryX")
    assert left.startswith("Without a feasible plan: 1 CS-2 with as it is; 1 CS-2 with twice the I/O; ")
    even = layout_of(steps, pipeline=1, layers_per_stage=None)
    uneven = layout_of(steps, pipeline=2, layers_per_stage=[1, 2])
    assert Change(uneven, even).policy == "pp=2 layers_per_stage=1-2 → pp=1"
