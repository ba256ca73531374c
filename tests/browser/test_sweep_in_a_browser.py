"""A sweep's page in a real browser that has no network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfsim.report.sweep import write_sweep
from perfsim.studies.axes import load_sweep
from perfsim.studies.runner import run_sweep

pytestmark = pytest.mark.browser

TYPES = """() => Object.fromEntries([...document.querySelectorAll('.plotly-graph-div')].map(
  (plot) => [plot.id, plot._fullData.map((trace) => trace.type)]))"""
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
STUDY = "study: {extends: gpt3_20b, model: gpt3_xl}"
GRID = f"""\
title: A small grid
question: How many systems?
{STUDY}
grid:
  candidates: [{{strategy: weight-streaming, system: cs-2, devices: [1, 2, 4]}}]
  recipe.global_batch_size: [2, 96]
"""
VARIANTS = f"""\
title: Variants
{STUDY}
grid:
  candidates: [{{strategy: weight-streaming, system: cs-2, devices: [8]}}]
  recipe.global_batch_size: [8, 96]
variants:
  as it is: {{}}
  half the servers: {{system.memoryx.servers: 6}}
  a wafer at its peak: {{runtime.software_release: peak}}
"""


def report(folder: Path, text: str) -> Path:
    path = folder / "small.yaml"
    path.write_text(text, encoding="utf-8")
    return write_sweep(run_sweep(load_sweep(str(path)), folder / "points.sqlite", jobs=1), folder / "out")


@pytest.mark.slow
def test_a_map_is_a_picture_and_a_point_without_a_plan_has_a_reason(
    open_page: Callable, tmp_path: Path
) -> None:
    page = open_page(report(tmp_path, GRID)).page
    cells = page.locator("#figure-map-cs-2-weight-streaming .heatmaplayer image").bounding_box()
    assert cells["width"] > 300
    assert page.locator("#figure-scaling .scatterlayer .point").count() == 3
    reason = page.get_by_text("global_batch_size 2 gives some of 4 systems nothing").first
    reason.scroll_into_view_if_needed()
    assert reason.is_visible()


def test_variants_are_drawn_as_bars_without_errors_or_sideways_scrolling(
    open_page: Callable, tmp_path: Path
) -> None:
    opened = open_page(report(tmp_path, VARIANTS), width=400)
    assert opened.page.evaluate(OVERFLOW) <= 0
    assert opened.errors == []
    types = opened.page.evaluate(TYPES)
    assert set(types) == {"figure-variants", "figure-step-time"}
    assert types["figure-variants"] == ["bar", "bar"]
