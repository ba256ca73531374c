"""A sweep's page in a real browser that has no network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfsim.report.sweep import write_sweep
from perfsim.studies.axes import load_sweep
from perfsim.studies.runner import run_sweep

pytestmark = pytest.mark.browser

SWEEP = """\
title: A small grid
question: How many systems?
study: {extends: gpt3_20b, model: gpt3_xl}
grid:
  candidates:
    - {strategy: weight-streaming, system: cs-2, devices: [1, 2, 4]}
    - strategy: weight-streaming
      system: {extends: cs-2, name: slow, memoryx: {server: {bandwidth: 3.3 GB/s}}}
      devices: [2, 4]
  recipe.global_batch_size: [2, 96]
"""

TYPES = """() => Object.fromEntries([...document.querySelectorAll('.plotly-graph-div')].map(
  (plot) => [plot.id, plot._fullData.map((trace) => trace.type)]))"""
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    path = folder / "small.yaml"
    path.write_text(SWEEP, encoding="utf-8")
    result = run_sweep(load_sweep(str(path)), folder / "points.sqlite", jobs=1)
    return write_sweep(result, folder / "out")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_the_page_opens_without_errors_requests_or_sideways_scrolling(
    open_page: Callable, report: Path, width: int, scheme: str
) -> None:
    opened = open_page(report, width=width, scheme=scheme)
    assert opened.page.evaluate(OVERFLOW) <= 0
    assert opened.errors == []
    assert opened.requests == [report.as_uri()]


@pytest.mark.slow
def test_curve_maps_and_reasons_are_drawn_as_what_they_are(open_page: Callable, report: Path) -> None:
    page = open_page(report).page
    assert page.evaluate(TYPES) == {
        "figure-scaling": ["scatter"] * 6,
        "figure-cost": ["scatter"] * 2,
        "figure-efficiency": ["scatter"] * len(page.evaluate(TYPES)["figure-efficiency"]),
        "figure-equals": ["scatter"] * 3,
        "figure-step-time": ["bar"] * len(page.evaluate(TYPES)["figure-step-time"]),
        "figure-map-cs-2-weight-streaming": ["heatmap"],
        "figure-map-slow-weight-streaming": ["heatmap"],
    }
    cells = page.locator("#figure-map-cs-2-weight-streaming .heatmaplayer image").bounding_box()
    assert cells["width"] > 300
    assert page.locator("#figure-scaling .scatterlayer .point").count() == 5
    reason = page.get_by_text("global_batch_size 2 gives some of 4 systems nothing").first
    reason.scroll_into_view_if_needed()
    assert reason.is_visible()


@pytest.mark.slow
def test_printed_figures_fit_the_paper(open_page: Callable, report: Path) -> None:
    page = open_page(report).page
    widths = (
        "() => [...document.querySelectorAll('.main-svg')].map((svg) => svg.getBoundingClientRect().width)"
    )
    assert max(page.evaluate(widths)) > 1000
    page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    assert max(page.evaluate(widths)) <= 690
    page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    assert max(page.evaluate(widths)) > 1000


VARIANTS = """\
title: Variants
study: {extends: gpt3_20b, model: gpt3_xl}
grid:
  candidates:
    - {strategy: weight-streaming, system: cs-2, devices: [8]}
  recipe.global_batch_size: [8, 96]
variants:
  as it is: {}
  half the servers: {system.memoryx.servers: 6}
  a wafer at its peak: {runtime.software_release: peak}
"""


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("variants")
    path = folder / "variants.yaml"
    path.write_text(VARIANTS, encoding="utf-8")
    result = run_sweep(load_sweep(str(path)), folder / "points.sqlite", jobs=1)
    return write_sweep(result, folder / "out")


@pytest.mark.parametrize("width", [pytest.param(1400, marks=pytest.mark.slow), 400])
def test_variants_are_drawn_as_bars_without_errors_or_sideways_scrolling(
    open_page: Callable, variants: Path, width: int
) -> None:
    opened = open_page(variants, width=width)
    assert opened.page.evaluate(OVERFLOW) <= 0
    assert opened.errors == []
    types = opened.page.evaluate(TYPES)
    assert set(types) == {"figure-variants", "figure-step-time"}
    assert types["figure-variants"] == ["bar", "bar"]
