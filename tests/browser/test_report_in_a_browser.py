"""The report of a study, and of a sweep, in a real browser that has no network."""

import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perfsim.report.study import study_page
from perfsim.report.sweep import write_sweep
from perfsim.report.text import duration
from perfsim.studies.loading import load_sweep
from perfsim.studies.runner import run_sweep

pytestmark = pytest.mark.browser


@pytest.fixture(scope="session")
def report(factory: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = study_page(factory.study_result(), trace_names=["trace.json.gz"])
    return page.write(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def opened(opener: Callable, report: Path) -> Iterator[Any]:
    """The report on a wide screen, opened once for the tests that leave it as it is."""
    opened = opener(report)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def desktop(opened: Any) -> Any:
    return opened.page


@pytest.fixture(scope="module")
def phone(opener: Callable, report: Path) -> Iterator[Any]:
    """The same on a phone."""
    opened = opener(report, width=400)
    yield opened.page
    opened.close()


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_the_report_opens_without_errors_requests_or_sideways_scrolling(
    open_page: Callable, report: Path, width: int, scheme: str
) -> None:
    opened = open_page(report, width=width, scheme=scheme)
    opened.page.evaluate("() => document.querySelectorAll('details').forEach((part) => (part.open = true))")
    assert opened.sideways_px() <= 0
    assert opened.errors == []
    assert opened.asked_elsewhere() == []
    assert opened.requests == [report.as_uri()]


@pytest.mark.slow
def test_every_plot_shows_marks_inside_its_frame(open_page: Callable, report: Path) -> None:
    opened = open_page(report)
    for tab in opened.page.locator("[role=tab]").all():
        tab.click()
        assert opened.page.locator("section[data-tab]:visible").count() == 1
        assert opened.page.locator("section[data-tab]:visible .points path").count() > 0
    empty = opened.page.evaluate(
        """() => [...document.querySelectorAll('section:not([hidden]) .plotly-graph-div')].filter((plot) => {
          const marks = [...plot.querySelectorAll('.point path, .points path, .lines path')];
          const box = plot.getBoundingClientRect();
          return box.height < 150 || !marks.some((mark) => mark.getBoundingClientRect().width > 1);
        }).map((plot) => plot.id)"""
    )
    assert empty == []


@pytest.mark.slow
def test_a_click_on_the_legend_hides_a_part_of_the_step(open_page: Callable, report: Path) -> None:
    page = open_page(report).page
    drawn = "document.getElementById('figure-step-time')._fullData"
    hidden = f"{drawn}.filter((trace) => trace.visible === 'legendonly')"
    assert page.evaluate(f"{hidden}.length") == 0
    page.locator("#figure-step-time .legendtoggle").first.click()
    page.wait_for_function(f"() => {hidden}.length === 1")
    assert page.evaluate(f"{hidden}[0].name") == "backward"


@pytest.mark.slow
def test_dark_and_light_pages_write_figures_in_their_own_ink(open_page: Callable, report: Path) -> None:
    def ink(scheme: str) -> list[str]:
        page = open_page(report, scheme=scheme).page
        return page.evaluate(
            """() => ['.xtick text', '.legendtext', '.annotation-text', '.gtitle'].map((what) =>
              getComputedStyle(document.querySelector(`.js-plotly-plot ${what}`)).fill)"""
        )

    assert set(ink("light")) == {"rgb(69, 77, 87)"}
    assert set(ink("dark")) == {"rgb(196, 203, 212)"}


@pytest.mark.slow
def test_a_phones_tall_legend_takes_no_room_from_the_bars(phone: Any) -> None:
    bars, legend = phone.evaluate(
        """() => {
          const plot = document.getElementById('figure-step-time');
          const height = (what) => plot.querySelector(what).getBoundingClientRect().height;
          return [height('.barlayer'), height('.legend')];
        }"""
    )
    assert legend > 100, "this test needs a legend of many lines"
    assert bars > 4 * 40
    scrolls = "[...document.querySelectorAll('.legend .scrollbar')].map((bar) => +bar.getAttribute('height'))"
    assert max(phone.evaluate(scrolls)) == 0, "no legend is so short that it scrolls"


@pytest.mark.slow
def test_a_phone_shows_a_long_table_whole_on_demand(open_page: Callable, report: Path, desktop: Any) -> None:
    page = open_page(report, width=400).page
    rest = page.locator("#verdict tr.rest")
    button = page.locator("#verdict .all")
    assert rest.count() > 5
    assert not rest.first.is_visible()
    page.emulate_media(media="print")
    assert rest.first.is_visible()
    page.emulate_media(media="screen")
    assert button.text_content() == f"Show all {page.locator('#verdict tbody tr').count()} rows"
    button.click()
    assert rest.count() == button.count() == 0
    assert desktop.locator("#verdict tr.rest").count() == 0


@pytest.mark.slow
def test_print_fits_tall_plots_to_the_paper_and_the_screen_gets_them_back(desktop: Any) -> None:
    sizes = """() => [...document.querySelectorAll('.js-plotly-plot')].map((plot) =>
      [plot._fullLayout.height, plot.querySelector('.main-svg').getBoundingClientRect().width])"""
    before = desktop.evaluate(sizes)
    desktop.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    for (height, width), (was, wide) in zip(desktop.evaluate(sizes), before, strict=True):
        assert height < was if was > 440 else height == was
        assert width <= 690 < 1000 < wide or wide == 0
    desktop.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    assert desktop.evaluate(sizes) == before


def test_hostile_names_run_nothing(open_page: Callable, factory: ModuleType, tmp_path: Path) -> None:
    opened = open_page(study_page(factory.hostile_result()).write(tmp_path))
    assert opened.page.evaluate("() => window.stolen === undefined")
    assert opened.page.locator("img").count() == 0
    assert opened.errors == []
    assert opened.asked_elsewhere() == []


def test_tooltips_say_the_time_of_a_task_and_the_layout_of_a_curve(opened: Any, factory: ModuleType) -> None:
    plots = ("#figure-timeline-0", "#figure-time-to-accuracy")
    bars, points = (opened.page.locator(f"{plot} .trace .point") for plot in plots)
    said = opened.tooltip(plots[0], bars.nth(5))
    takes = {duration(bar.end_s - bar.start_s) for bar in factory.study_result().candidates[0].timeline}
    assert said.partition("takes ")[2] in takes
    assert "dp128 mbs1" in opened.tooltip(plots[1], points.first)


@pytest.mark.slow
def test_a_table_is_saved_as_csv(desktop: Any, tmp_path: Path) -> None:
    with desktop.expect_download() as waiting:
        desktop.locator("#verdict .csv").click()
    waiting.value.save_as(tmp_path / "saved.csv")
    rows = list(csv.reader((tmp_path / "saved.csv").read_text("utf-8").splitlines()))
    assert waiting.value.suggested_filename == "verdict.csv"
    assert rows[0][1] == "128 A100-80GB (16 DGX)"
    assert rows[1][0] == "on the wall"
    assert re.fullmatch(r"[\d.]+ days \([\d.]+ to [\d.]+\)", rows[1][1])


@pytest.mark.parametrize(("look", "width"), [("phone", 400), ("desktop", 1400)])
def test_answer_and_contents_stay_in_sight(request: pytest.FixtureRequest, look: str, width: int) -> None:
    page = request.getfixturevalue(look)
    page.evaluate("() => window.scrollTo(0, 0)")
    box = page.locator(".answer").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    page.evaluate("() => document.querySelector('#memory').scrollIntoView()")
    assert page.locator("nav").bounding_box()["y"] <= 1


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


def swept(folder: Path, text: str) -> Path:
    path = folder / "small.yaml"
    path.write_text(text, encoding="utf-8")
    return write_sweep(run_sweep(load_sweep(str(path)), folder / "points.sqlite", jobs=1), folder / "out")


@pytest.mark.slow
def test_a_curve_has_points_and_one_without_a_plan_its_reason(open_page: Callable, tmp_path: Path) -> None:
    page = open_page(swept(tmp_path, GRID)).page
    assert page.locator("#figure-scaling .scatterlayer .point").count() == 3
    page.get_by_text("points, 1 without a plan").click()
    reason = page.get_by_text("global_batch_size 2 gives some of 4 systems nothing").first
    reason.scroll_into_view_if_needed()
    assert reason.is_visible()


def test_variants_are_bars_without_errors_or_sideways_scrolling(open_page: Callable, tmp_path: Path) -> None:
    opened = open_page(swept(tmp_path, VARIANTS), width=400)
    assert opened.sideways_px() <= 0
    assert opened.errors == []
    types = opened.page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('.plotly-graph-div')].map(
          (plot) => [plot.id, plot._fullData.map((trace) => trace.type)]))"""
    )
    assert set(types) == {"figure-variants", "figure-step-time"}
    assert types["figure-variants"] == ["bar", "bar"]
