"""Studies read from files: what is wrong has its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsim.api.tools import diff, why
from perfsim.base.errors import CatalogError, InputError
from perfsim.studies.loading import load_study

LOSS = """\
extends: gpt3_20b
model: cerebras_gpt_13b
recipe:
  extends: cerebras_gpt
  tokens: null
  target_loss: 1.2
convergence: {law: data_law, loss_law: cerebras_gpt}
"""
ENERGY = """\
extends: gpt3_20b
energy: {pue: 0.5}
"""


def refusal(folder: Path, text: str) -> CatalogError:
    path = folder / "study.yaml"
    path.write_text(text)
    with pytest.raises(CatalogError) as raised:
        load_study(str(path))
    return raised.value


def test_a_loss_outside_its_law_is_refused_at_its_line(tmp_path: Path) -> None:
    (problem,) = refusal(tmp_path, LOSS).problems
    assert (problem.line, problem.column) == (6, 16)
    assert "is used outside its runs for a loss of 1.2" in problem.message


def test_a_wrong_number_where_a_range_may_stand_is_one_problem(tmp_path: Path) -> None:
    (problem,) = refusal(tmp_path, ENERGY).problems
    assert problem.message == "energy.pue: must be greater than or equal to 1, not 0.5"
    (other,) = refusal(tmp_path, ENERGY.replace("{pue: 0.5}", "{pue: [1]}")).problems
    assert "expected" in other.message or "valid" in other.message


@pytest.mark.parametrize("ask", [why, lambda name: diff(name, "gpt3_20b")], ids=["why", "diff"])
def test_a_sweep_is_no_study_to_explain(ask: object) -> None:
    with pytest.raises(InputError) as raised:
        ask("capacity_20b")  # type: ignore[operator]
    (problem,) = raised.value.problems
    assert problem.message == "capacity_20b is a sweep, and why and diff take a study of candidates"


MACHINES = """\
name: own
title: t
question: q
model: gpt3_xl
recipe: gpt3_20b_chinchilla
batch_sizes: [16]
candidates:
"""
A100 = "- {{strategy: {strategy}, system: dgx-a100-80gb, devices: {devices}, layout: {layout}}}\n"


def candidate(devices: str = "[8]", layout: str = "null", strategy: str = "3d") -> str:
    return A100.format(strategy=strategy, devices=devices, layout=layout)


def lines_of(error: CatalogError) -> list[tuple[int, str]]:
    return [(problem.line, problem.message.split(";")[0]) for problem in error.problems]


def test_numbers_of_devices_that_a_system_cannot_have_are_refused_together_at_their_lines(
    tmp_path: Path,
) -> None:
    text = MACHINES + candidate("[8, 12]", strategy="[3d, data]") + candidate() + candidate("20")
    of_node = "dgx-a100-80gb has 8 devices a node, so {} would leave the last node partly empty"
    assert lines_of(refusal(tmp_path, text)) == [(8, of_node.format(12)), (10, of_node.format(20))]


def test_illegal_layouts_are_refused_together_at_their_lines_where_none_can_be_run(tmp_path: Path) -> None:
    text = MACHINES + candidate(layout='"tp=2,mbs=5"') + candidate(layout='"tp=16"')
    said = lines_of(refusal(tmp_path, text))
    assert said[0] == (8, "global_batch_size 16 is not a multiple of data 4 × micro_batch_size 5")
    assert {line for line, _ in said} == {8, 9}
    path = tmp_path / "study.yaml"
    path.write_text(text + candidate(layout='"tp=2"'))
    assert len(load_study(str(path)).candidates) == 3


def test_one_number_of_devices_needs_no_list(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(MACHINES + candidate("16"))
    assert load_study(str(path)).candidates[0].devices == (16,)


def test_every_mistake_of_a_file_is_said_at_once_and_once(tmp_path: Path) -> None:
    text = MACHINES.replace("[16]", "[16, -4, x]").replace("gpt3_xl", "gpt3_xx")
    text += candidate('"8"', '"tp=3q"') + candidate(layout='"schedule=ZB-H1"') + candidate(strategy="fsdp")
    said = refusal(tmp_path, text + "convergence: {law: cst}\n").problems
    assert [(problem.line, problem.column) for problem in said] == [
        (4, 8),
        (6, 19),
        (6, 23),
        (8, 50),
        (9, 63),
        (10, 14),
        (11, 20),
    ]
    assert said[3].message == "candidates[0].devices: `8` stands where a list is expected"
    assert said[4].help.startswith("ZB-H1 is called `zb1p` here")
    assert said[5].help.startswith("fsdp is called `zero3` here")
