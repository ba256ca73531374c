"""The gallery of shipped studies, made of two small ones."""

import re
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest

import perfsim as ps

NAMES = ("chinchilla_against_gpt3", "pile_law")


@pytest.mark.slow
def test_the_gallery_has_question_verdict_and_report_of_each_study_and_names_what_it_leaves_out(
    must_run: Callable, repository: Path, tmp_path: Path
) -> None:
    asked = (*NAMES, "--out", tmp_path, "--skip", "atlas,explorer")
    must_run(sys.executable, "docs/gallery.py", *asked, cwd=repository, PYTHONPATH=repository)
    page = (tmp_path / "index.html").read_text("utf-8")
    linked = re.findall(r'href="(\w+/index\.html)"', page)
    for name in NAMES:
        answer = ps.comparison(name)
        assert answer.question in unescape(page)
        assert answer.verdict in unescape(page)
        assert f"{name}/index.html" in linked
    pictured = re.findall(r'(?:srcset|src)="([^"]+)"', page)
    assert all((tmp_path / path).is_file() for path in [*linked, *pictured])
    assert pictured or "Without pictures" in page
    assert "atlas, explorer" in page
