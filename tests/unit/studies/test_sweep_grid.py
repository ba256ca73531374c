"""A grid in YAML becomes resolved points, or an error at its line."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from perfsim.base.errors import CatalogError
from perfsim.studies.answers import setting_text, settings_text
from perfsim.studies.loading import load_sweep

MACHINES = """\
  candidates:
    - {strategy: 3d, system: dgx-a100-80gb, devices: [8, 16]}
    - {strategy: weight-streaming, system: cs-2, devices: [1, 2]}
"""

Write = Callable[[str], Path]


def test_points_are_the_product_in_the_order_of_the_grid(write_sweep: Write) -> None:
    grid = MACHINES + "  model: [gpt3_xl, gpt3_6p7b]\n  recipe.global_batch_size: [16, 32]"
    points = load_sweep(str(write_sweep(grid))).points
    studies = [(point.candidate.strategy, point.num_devices, point.study) for point in points]
    asked = [(*machine, study.model.name, study.recipe.global_batch_size) for *machine, study in studies]
    machines = [("3d", 8), ("3d", 16), ("weight-streaming", 1), ("weight-streaming", 2)]
    others = product(("gpt3_xl", "gpt3_6p7b"), (16, 32))
    assert asked == [(*machine, *other) for machine, other in product(machines, others)]


def test_a_field_that_a_system_does_not_have_leaves_its_points_alone(write_sweep: Write) -> None:
    rates = "  system.node.nic.bandwidth: [100 Gb/s, 200 Gb/s]\n  system.memoryx.server.bandwidth: [1 TB/s]"
    grid = MACHINES + rates
    points = load_sweep(str(write_sweep(grid))).points
    assert [(point.num_devices, dict(point.settings)) for point in points] == [
        (8, {"system.node.nic.bandwidth": "100 Gb/s"}),
        (8, {"system.node.nic.bandwidth": "200 Gb/s"}),
        (16, {"system.node.nic.bandwidth": "100 Gb/s"}),
        (16, {"system.node.nic.bandwidth": "200 Gb/s"}),
        (1, {"system.memoryx.server.bandwidth": "1 TB/s"}),
        (2, {"system.memoryx.server.bandwidth": "1 TB/s"}),
    ]
    nics = [point.candidate.system.node.nic.bandwidth for point in points[:2]]
    assert nics == [12.5e9, 25e9]
    assert points[4].candidate.system.memoryx.server.bandwidth == 1e12


def test_whole_descriptions_change_first_and_machines_where_they_suit(write_sweep: Write) -> None:
    grid = "  model.num_layers: [7]\n  model: [gpt3_6p7b]"
    (point,) = load_sweep(str(write_sweep(grid))).points
    assert (point.study.model.hidden_size, point.study.model.num_layers) == (4096, 7)
    grid = MACHINES + "  strategy: [data, tensor, weight-streaming]\n  devices: [8, 16]"
    points = load_sweep(str(write_sweep(grid))).points
    machines = [(point.candidate.strategy, point.num_devices) for point in points]
    assert machines == [(name, count) for name in ("data", "tensor", "weight-streaming") for count in (8, 16)]


def test_too_many_points_are_refused(write_sweep: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write_sweep(MACHINES + "  recipe.global_batch_size: [16, 32]"))
    monkeypatch.setattr("perfsim.studies.loading.MOST_POINTS", 4)
    assert len(load_sweep(path).points) == 8
    monkeypatch.setattr("perfsim.studies.loading.MOST_POINTS", 3)
    with pytest.raises(CatalogError, match="4 points for one candidate; at most 3 are answered"):
        load_sweep(path)


def test_a_sweep_may_change_its_study_in_place(tmp_path: Path) -> None:
    path = tmp_path / "inline.yaml"
    path.write_text(
        "title: t\nstudy: {extends: gpt3_20b, model: gpt3_xl}\n"
        "grid:\n  candidates:\n    - strategy: weight-streaming\n      devices: [3]\n"
        "      system: {extends: cs-2, io_ports: 6}\n"
    )
    (point,) = load_sweep(str(path)).points
    assert (point.study.model.name, point.num_devices) == ("gpt3_xl", 3)
    assert point.candidate.system.io_ports == 6


@pytest.mark.parametrize(
    ("line", "place", "message"),
    [
        ("  devices: [1, 193]", "3:1", "193 CS-2.*at most 192 systems"),
        ("  model.num_attention_heads: [7]", "3:1", "num_attention_heads 7.*not a multiple"),
        ("  strategy: [3d]", "3:1", "no strategy of the grid runs on any of its systems"),
        ("  convergence.law: [kaplan_law_of_nobody]", "4:21", "unknown critical-batch law"),
        ("  recipe.global_batch_sise: [512]", "4:3", "did you mean `global_batch_size`"),
        ("  recipe.global_batch_size: [512, many]", "4:35", "`many` is text, a number is expected"),
        ("  recipe.global_batch_size: 512", "4:29", "stands where a list is expected"),
        ("  recpe.global_batch_size: [512]", "4:3", "did you mean `recipe`"),
        ("  system.memoryx.server.bandwith: [1 GB/s]", "4:3", "did you mean `bandwidth`"),
        ("  system.memoryx.server.bandwidth: [100]", "4:37", "100 has no unit"),
        ("  system.memoryx.server.bandwidth: [1 TB/s, 100 GB]", "4:45", "is a number of bytes"),
        ("  system.device.peak.fp16: [312]", "4:29", "312 has no unit"),
        ("  model: [gpt3_xll]", "4:11", "did you mean `gpt3_xl`"),
        ("  system: [cs-22]", "4:12", "did you mean `cs-2`"),
        ("  strategy: [weight-steaming]", "4:14", "did you mean `weight-streaming`"),
        ("  devices: [0]", "4:13", "greater than or equal to 1"),
        ("  candidates: [{strategy: 3d, sistem: cs-2, devices: [8]}]", "4:31", "did you mean `system`"),
    ],
)
def test_what_is_wrong_is_said_at_its_place(write_sweep: Write, line: str, place: str, message: str) -> None:
    path = write_sweep(line)
    with pytest.raises(CatalogError, match=rf"(?s)tiny\.yaml:{place}: .*{message}"):
        load_sweep(str(path))


@pytest.mark.parametrize(("value", "said"), [(1.5e9, "1.5 billion"), (0.75, "0.75"), (4096, "4,096")])
def test_values_of_a_grid_are_told_with_the_word_of_their_size(value: float, said: str) -> None:
    assert settings_text((("recipe.tokens", setting_text(value)),)) == f"tokens {said}"


def test_a_runtime_tells_points_of_one_kind_of_machine_apart_and_no_two_kinds(tmp_path: Path) -> None:
    path = tmp_path / "kinds.yaml"
    recipe = "{extends: llm_2024, name: short, tokens: 1.0e+8}"
    kinds = ["h200-sxm5-141gb", "mi300x-192gb", "mi300x-192gb, runtime: megatron_core"]
    for count in (2, 3):
        rows = "".join(f"    - {{strategy: 3d, devices: 8, system: {kind}}}\n" for kind in kinds[:count])
        study = f"study: {{extends: gpt3_20b, model: llama32_1b, recipe: {recipe}}}"
        path.write_text(f"title: t\n{study}\ngrid:\n  candidates:\n{rows}")
        told = [point.settings.get("runtime") for point in load_sweep(str(path)).points]
        assert told == [None, *(["primus", "megatron_core"] if count == 3 else [None])]


def test_all_that_is_wrong_is_said_at_once(write_sweep: Write) -> None:
    path = write_sweep("  recpe: [1]\n  system.memoryx.server.bandwidth: [100, 1 GB]\n  model: [gpt3_xll]")
    with pytest.raises(CatalogError) as caught:
        load_sweep(str(path))
    assert [problem.line for problem in caught.value.problems] == [4, 5, 5, 6]


def test_an_unknown_study_is_refused_with_the_nearest_name_and_a_study_is_no_sweep(tmp_path: Path) -> None:
    path = tmp_path / "lost.yaml"
    path.write_text("title: t\nstudy: gpt3_20\ngrid: {}\n")
    with pytest.raises(CatalogError, match=r"(?s)lost\.yaml:2:8: unknown study.*did you mean `gpt3_20b`"):
        load_sweep(str(path))
    with pytest.raises(CatalogError, match="this is a study; a sweep is expected"):
        load_sweep("gpt3_20b")


def test_the_capacity_sweep_covers_the_machines_that_its_title_promises() -> None:
    points = load_sweep("capacity_20b").points
    machines = [(point.candidate.system.name, point.num_devices) for point in points]
    gpus = [("dgx-a100-80gb", 2**power) for power in range(3, 11)]
    assert machines == [*gpus, *(("cs-2", 2**power) for power in range(7))]
