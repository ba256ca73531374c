"""The page of `perfsim explorer` in a real browser: driven by the keyboard, without a network."""

import gzip
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfsim.report.explorer import write_explorer
from perfsim.studies.loading import Sweep, load_study, load_sweep
from perfsim.studies.runner import run_sweep
from perfsim.studies.variants import SweepResult

pytestmark = pytest.mark.browser

AXE = gzip.decompress((Path(__file__).parent / "vendor" / "axe-4.14.1.min.js.gz").read_bytes()).decode()
GRID = """\
title: A small </script><b>grid</b>
question: How many?
study: {extends: gpt3_20b, recipe: chinchilla, sampling: {mode: 'off'}}
grid:
  candidates:
    - {strategy: 3d, system: dgx-a100-80gb, devices: [8, 16, 32], price: {device_hour: 1.5}}
    - {strategy: weight-streaming, system: cs-2, devices: [1, 2, 4]}
  model: [gpt3_xl, gpt3_6p7b]
  recipe.global_batch_size: [2, 128, 256]
"""
A100 = "A100-80GB, 3d"
CS2 = "CS-2, weight-streaming"
DAY_S = 86400.0


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    folder = tmp_path_factory.mktemp("explorer")
    path = folder / "small.yaml"
    path.write_text(GRID, encoding="utf-8")
    return run_sweep(load_sweep(str(path)), folder / "points.sqlite", jobs=1)


@pytest.fixture(scope="module")
def path(result: SweepResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_explorer(result, tmp_path_factory.mktemp("page"))


@pytest.fixture
def visit(browser: Any, path: Path) -> Iterator[Callable[..., Any]]:
    """Opens the page at a width, offline; at the end nothing was asked elsewhere and nothing failed."""
    contexts = []
    wrong: list[str] = []

    def opened(width: int = 1400, scheme: str = "light", page: Path = path) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
        )
        contexts.append(context)
        shown = context.new_page()
        shown.on("pageerror", lambda error: wrong.append(str(error)))
        shown.on("console", lambda message: wrong.append(message.text))
        shown.on(
            "request", lambda request: None if request.url == page.as_uri() else wrong.append(request.url)
        )
        shown.goto(page.as_uri())
        return shown

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


def wall_s(result: SweepResult, model: str, system: str, devices: int, batch: int = 0) -> float:
    """The time on the wall at a batch, or at the best of all."""
    return min(
        point.outcome.wall_s.typical
        for point in result.feasible
        if (point.settings["model"], point.system, point.num_devices) == (model, system, devices)
        and batch in (0, point.prediction.global_batch_size)
    )


def words(page: Any, place: str) -> str:
    return " ".join(page.locator(place).inner_text().split())


def days_said(page: Any) -> float:
    """The time on the wall that the answer says, in days."""
    value, unit = re.search(r": ([\d.,]+) (days|hours)", words(page, "#answer")).groups()
    return float(value.replace(",", "")) / (24 if unit == "hours" else 1)


def rows(page: Any, section: str) -> dict[str, list[str]]:
    """The cells of a table by the head of their row."""
    cells = "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
    return {name: rest for name, *rest in page.locator(f"#{section} tbody tr").evaluate_all(cells)}


def test_the_keyboard_reaches_every_point_and_figure(visit: Callable[..., Any], result: SweepResult) -> None:
    page = visit()
    assert days_said(page) == pytest.approx(wall_s(result, "gpt3_xl", "dgx-a100-80gb", 16) / DAY_S, rel=0.01)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-valuetext')") == "gpt3_xl"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-valuetext')") == "gpt3_6p7b"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    assert page.locator("#machine").input_value() == CS2
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.locator("#batch").get_attribute("aria-valuetext") == "256"
    expected = wall_s(result, "gpt3_6p7b", "cs-2", 4, 256)
    assert days_said(page) == pytest.approx(expected / DAY_S, rel=0.01)
    assert rows(page, "point")["batch, sequences"] == ["256"]
    assert re.fullmatch(r"[\d.]+ s \([\d.]+ to [\d.]+\)", rows(page, "point")["step"][0])


def test_devices_of_equal_time_are_those_of_the_sweep(visit: Callable[..., Any], result: SweepResult) -> None:
    page = visit()
    known = [point for point in result.points if point.settings["model"] == "gpt3_xl"]
    of_one_model = replace(result, points=tuple(known))
    match = next(
        match
        for _, backward in of_one_model.equal_times
        for match in backward
        if (match.rival.system, match.rival.num_devices) == ("dgx-a100-80gb", 16)
    )
    devices, *_ = rows(page, "time")[CS2]
    assert 1 < match.equal.typical < 4
    assert float(devices) == pytest.approx(match.equal.typical, rel=0.01)


def test_prices_say_who_is_first_for_as_much_money(visit: Callable[..., Any], result: SweepResult) -> None:
    page = visit()
    assert page.locator("#price-0").input_value() == "1.5", "that of the sweep"
    assert "Give prices" in words(page, "#compared")
    for price, first in (("24", A100), ("6", CS2)):
        page.locator("#price-1").fill(price)
        devices = 16 * 1.5 / float(price)
        row = rows(page, "money")[CS2]
        assert float(row[0]) == pytest.approx(devices)
        expected = wall_s(result, "gpt3_xl", "cs-2", int(devices))
        assert float(row[1].split()[0]) == pytest.approx(
            expected / (DAY_S if "days" in row[1] else 3600), rel=0.01
        )
        soonest = min(wall_s(result, "gpt3_xl", "dgx-a100-80gb", 16), expected)
        assert (soonest == expected) == (first == CS2), "this test needs prices between which the order turns"
        assert f"24 USD an hour {first} is first" in words(page, "#compared")
        assert f"As early, {first} costs least" in words(page, "#compared")
    page.locator("#price-1").fill("1")
    assert rows(page, "money")[CS2] == ["24", "beyond what was tried, or no price"]


def test_a_point_without_a_plan_has_its_reason(visit: Callable[..., Any], result: SweepResult) -> None:
    page = visit()
    refused = next(point for point in result.points if not point.feasible)
    assert (refused.system, refused.num_devices, refused.settings["model"]) == ("cs-2", 4, "gpt3_xl")
    page.locator("#machine").select_option(CS2)
    page.locator("#devices").press("End")
    page.locator("#batch").press("ArrowRight")
    assert words(page, "#answer") == f"4 {CS2}: no plan"
    assert not page.locator("#point").is_visible()
    assert " ".join(refused.reasons[0].split()) in words(page, "#tried")
    page.locator("#batch").press("ArrowRight")
    assert page.locator("#point").is_visible()


@pytest.mark.parametrize(
    ("width", "scheme"), [(1400, "light"), (1400, "dark"), (400, "light"), (400, "dark")]
)
def test_every_look_is_readable_and_labelled(visit: Callable[..., Any], width: int, scheme: str) -> None:
    page = visit(width, scheme)
    page.locator("#price-1").fill("12")
    page.evaluate(AXE)
    found = """async () => (await axe.run({ resultTypes: ['violations'] })).violations
      .filter((rule) => ['serious', 'critical'].includes(rule.impact)).map((rule) => rule.id)"""
    assert page.evaluate(found) == []
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert page.locator("#answer").bounding_box()["y"] < 200
    assert page.locator("b").count() == 0, "the title is text"


def test_a_study_is_explored_as_its_candidates(visit: Callable[..., Any], tmp_path: Path) -> None:
    study = load_study("gpt_neox_20b")
    spec = study.model_copy(update={"batch_sizes": (1536,), "candidates": study.candidates[-1:]})
    answered = run_sweep(Sweep.of(spec), tmp_path / "points.sqlite", jobs=1)
    page = visit(page=write_explorer(answered, tmp_path))
    assert page.locator("#tried li").count() == len(spec.points)
    assert page.locator("#batch").count() == 0
