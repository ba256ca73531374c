"""A shortlist on a terminal, on its page and as JSON: every part of the answer in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import perfsim as ps
from perfsim.base.errors import PerfsimError
from perfsim.report.plan import plan_lines


def test_by_cost_prices_are_not_known_and_all_is_on_a_page_and_in_json(tmp_path: Path) -> None:
    answer = ps.plan(model="gpt3_xl", system="dgx-a100-80gb", devices=8, batch=16, objective="cost")
    assert "Prices in money are not known" in " ".join(plan_lines(answer))
    page = answer.save(tmp_path / "out").read_text("utf-8")
    assert "On 8 A100-80GB (1 DGX), dp8" in page
    assert 'aria-label="Step time with 90 % ranges"' in page
    assert all(entry.layout_text in page for entry in answer.shortlist)
    assert "A step takes " in page
    assert plan_lines(answer)[-1].endswith("notes, with --out FOLDER.")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))
    assert summary == json.loads(json.dumps(answer.document()))
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(PerfsimError, match="file"):
        answer.save(tmp_path / "file")
