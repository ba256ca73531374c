"""The maps of a sweep over models: who is first, and published runs."""

from pathlib import Path

import pytest

from perfsim.report.atlas import maps
from perfsim.studies.loading import load_sweep
from perfsim.studies.runner import run_sweep
from perfsim.studies.variants import SweepResult

SWEEP = """\
title: Maps
question: Who?
study: {extends: gpt3_20b, recipe: chinchilla, sampling: {tasks: 0}, batch_sizes: [96]}
grid:
  candidates:
    - {strategy: weight-streaming, system: cs-2, devices: [1, 2]}
    - strategy: weight-streaming
      system: {extends: cs-2, name: hungry, power: {low: 90 kW, typical: 92 kW, high: 94 kW}}
      devices: [2]
"""


def swept(folder: Path, grid: str, study: str = "") -> SweepResult:
    path = folder / "maps.yaml"
    path.write_text(SWEEP.replace("sampling:", f"{study}sampling:") + grid, encoding="utf-8")
    return run_sweep(load_sweep(str(path)), folder / "points.sqlite", jobs=1)


def test_a_map_colours_the_machine_of_least_power_and_marks_published_runs(tmp_path: Path) -> None:
    result = swept(tmp_path, "  model: [gpt3_xl, gpt3_6p7b]\n")
    atlas = result.atlas
    assert "CS-2 at 18 of 18 places (all sure)" in atlas.sentence
    assert result.sentences[1].endswith(" on the wall; with as much power: the same.")
    assert {place.first for place in atlas.places} == {"CS-2"}
    assert {place.sure for place in atlas.places} == {True}
    # As large a machine with the same speed and four times the power: as long with four times as much.
    ratios = [place.ratio for place in atlas.places if place.level >= 46 and place.reading == "power"]
    assert ratios == pytest.approx([4.0] * len(ratios), rel=0.05)
    power, in_time = maps(atlas)
    assert len(power.table.rows) == len(in_time.table.rows) == 18
    assert "usc_gpt3_2p7b_1xcs2_b256" in str(power.figure)


def test_a_map_by_critical_batch_also_has_the_sizes_of_the_grid(tmp_path: Path) -> None:
    grid = "  model: [gpt3_xl, gpt3_6p7b]\n  convergence.critical_batch_tokens: [1000000, 4000000]\n"
    atlas = swept(tmp_path, grid.replace("  conv", "  convergence.law: [constant]\n  conv")).atlas
    assert atlas.sentence.startswith("First with the devices of the grid: ")


@pytest.mark.parametrize("more", ["", "gpt3_6p7b]\n  recipe.precision: [bf16, fp16"])
def test_one_model_or_a_setting_without_numbers_has_no_map(tmp_path: Path, more: str) -> None:
    assert swept(tmp_path, f"  model: [gpt3_xl, {more}]\n").atlas is None


ONE_NOUN = """\
    - {strategy: 3d, system: dgx-a100-80gb, devices: [8]}
    - {strategy: data, system: dgx-a100-80gb, devices: [8]}
"""


def test_machines_of_one_name_are_told_apart_where_one_has_no_plan_for_a_model(tmp_path: Path) -> None:
    atlas = swept(tmp_path, f"{ONE_NOUN}  model: [gpt3_13b, gpt3_xl]\n").atlas
    assert {"A100-80GB (dgx-a100-80gb, 3d)", "A100-80GB (dgx-a100-80gb, data)"} < atlas.machines.keys()
    assert len([*maps(atlas)]) == 2
    assert "3d) at 18 of 18 places (9 sure)" in atlas.sentence


def test_a_model_that_only_one_machine_can_train_is_named_and_the_others_have_a_map(tmp_path: Path) -> None:
    gpus = "    - {strategy: tensor, system: dgx-a100-80gb, devices: [8]}\n"
    wafers = SWEEP[: SWEEP.index("    - strategy")]
    path = tmp_path / "maps.yaml"
    path.write_text(f"{wafers}{gpus}  model: [gpt3_xl, gpt3_175b]\n", encoding="utf-8")
    result = run_sweep(load_sweep(str(path)), tmp_path / "points.sqlite", jobs=1)
    atlas = result.atlas
    assert {place.model for place in atlas.places} == {"gpt3_xl"}
    assert result.sentences[0].endswith(" Only CS-2 has a plan for gpt3_175b.")


SLOW = """\
    - strategy: data
      system: {extends: dgx-a100-80gb, name: a, node: {nic: {name: slow, bandwidth: 0.2 GB/s, latency: 1 us}}}
      devices: [8, 16]
"""


def test_devices_that_make_a_machine_slower_stand_idle(tmp_path: Path) -> None:
    usd = {"a": 2, "cs-2": 2, "hungry": 200}
    prices = str({"machines": {name: {"device_hour": price} for name, price in usd.items()}})
    result = swept(tmp_path, f"{SLOW}  model: [gpt3_xl, gpt3_6p7b]\n", f"prices: {prices}, ")
    (last,) = [place.ratio for place in result.atlas.places[-2:] if place.reading == "money an hour"]
    assert last < 20
