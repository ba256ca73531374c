"""The page of a shortlist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import perfsim as ps
from perfsim.base.errors import PerfsimError


def test_a_shortlist_is_saved_as_a_page_with_every_layout_and_as_json(tmp_path: Path) -> None:
    answer = ps.plan(model="gpt3_xl", system="dgx-a100-80gb", devices=8, batch=16)
    page = answer.save(tmp_path / "out").read_text("utf-8")
    assert "On 8 A100-80GB (1 DGX), dp8" in page
    assert 'aria-label="Step time with 90 % ranges"' in page
    assert all(entry.layout_text in page for entry in answer.shortlist)
    assert "The model&#39;s error between two layouts of one machine is" in page
    summary = json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))
    assert summary == json.loads(json.dumps(answer.document()))
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(PerfsimError, match="file"):
        answer.save(tmp_path / "file")
