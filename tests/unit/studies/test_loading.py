"""Studies read from files: what is wrong has its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsim.api.explaining import diff, why
from perfsim.errors import CatalogError, InputError
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
    assert problem.message == "energy.pue: input should be greater than or equal to 1, not 0.5"
    (other,) = refusal(tmp_path, ENERGY.replace("{pue: 0.5}", "{pue: [1]}")).problems
    assert "expected" in other.message or "valid" in other.message


@pytest.mark.parametrize("ask", [why, lambda name: diff(name, "gpt3_20b")], ids=["why", "diff"])
def test_a_sweep_is_no_study_to_explain(ask: object) -> None:
    with pytest.raises(InputError) as raised:
        ask("capacity_20b")  # type: ignore[operator]
    (problem,) = raised.value.problems
    assert problem.message == "capacity_20b is a sweep, and why and diff take a study of candidates"
