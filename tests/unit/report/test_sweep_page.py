"""A sweep's answer on a terminal, on a page and as JSON."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from markupsafe import escape

from perfsim.report.page import Page, Section, caveats_section
from perfsim.report.sweep import MAX_ON_TERMINAL, sweep_document, sweep_lines, sweep_page, write_sweep
from perfsim.studies.answers import PointResult
from perfsim.studies.loading import load_sweep
from perfsim.studies.runner import run_sweep
from perfsim.studies.variants import SweepResult

SWEEP = """\
title: A <b>grid</b>
question: How many?
study: {extends: gpt3_20b, model: gpt3_xl, sampling: {tasks: 0}, runtime: {software_release: r2.5}}
grid:
  candidates:
    - {strategy: weight-streaming, system: cs-2, devices: [1, 2, 4]}
    - strategy: weight-streaming
      system: {extends: cs-2, name: slow, memoryx: {server: {bandwidth: 3.3 GB/s}}}
      devices: [1, 4]
"""


def answer(folder: Path, grid: str, sweep: str = SWEEP) -> SweepResult:
    path = folder / "a grid.yaml"
    path.write_text(sweep + grid, encoding="utf-8")
    return run_sweep(load_sweep(str(path)), folder / "points.sqlite", jobs=1)


def sections_of(result: SweepResult) -> dict[str, Section]:
    return {section.anchor: section for section in sweep_page(result).sections}


def page_of(result: SweepResult, kept: Callable[[PointResult], bool]) -> Page:
    """The page of some of the points."""
    return sweep_page(replace(result, points=tuple(filter(kept, result.points))))


def repeated(result: SweepResult, times: int) -> SweepResult:
    """With every point at so many values of one more field."""
    points = [
        replace(point, settings={**point.settings, "system.x": number})
        for number in range(times)
        for point in result.points
    ]
    return replace(result, points=tuple(points))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    return answer(tmp_path_factory.mktemp("sweep"), "  recipe.global_batch_size: [2, 96]\n")


def test_the_terminal_shows_each_machine_at_its_best_batch_the_verdict_and_the_worst_caveats(
    result: SweepResult,
) -> None:
    lines = sweep_lines(result)
    assert lines[0] == "A <b>grid</b> (10 points, 2 without a feasible plan)"
    rows = [line for line in lines if re.match(r"  \d", line)]
    assert [row.split()[0] for row in rows] == ["1", "2", "4", "1", "4"]
    assert [lines.index(name) for name in ("CS-2, weight-streaming", "slow, weight-streaming")]
    text = " ".join(lines)
    document = sweep_document(result)
    before, after = text.split(document["verdict"][:40])
    assert after.endswith("as in published production runs.")
    assert "1, 2 and 4 CS-2; 1 and 4 devices of slow: no measurement of software release r2.5" in before
    assert "release-borrowed" in {caveat["code"] for caveat in document["caveats"]}


def test_the_terminal_counts_the_points_that_it_has_no_row_for(result: SweepResult) -> None:
    spec = result.sweep.spec.model_copy(update={"title": "T" * 200})
    lines = sweep_lines(replace(repeated(result, 20), sweep=replace(result.sweep, spec=spec)))
    assert sum("CS-2" in line and "%" in line for line in lines) <= MAX_ON_TERMINAL
    assert max(map(len, lines)) <= 100
    assert "more points are in the report" in " ".join(lines)


def test_the_document_is_strict_json_and_says_who_matches_whom_and_how_to_ask_again(
    result: SweepResult,
) -> None:
    document = json.loads(json.dumps(sweep_document(result), allow_nan=False))
    *verb, path = shlex.split(document["command"])
    assert verb == ["perfsim", "sweep"]
    assert load_sweep(path).name == result.sweep.name
    assert [point["feasible"] for point in document["points"]].count(False) == 2
    assert {match["as_fast_as"]["system"] for match in document["equals"]} == {"slow"}
    assert document["equals"][0]["system"] == "cs-2"


def test_the_report_is_the_same_bytes_each_time_and_has_every_caveat_once(
    result: SweepResult, tmp_path: Path
) -> None:
    pages = [write_sweep(result, tmp_path / name) for name in ("one", "two")]
    for name in ("index.html", "summary.json"):
        first, second = (page.with_name(name).read_bytes() for page in pages)
        assert first == second
    page = pages[0].read_text("utf-8")
    assert "<b>grid</b>" not in page
    assert str(escape(result.command)) in page
    assert result.caveats
    assert {page.count(caveat.text) for caveat in result.caveats} == {1}
    (section,) = caveats_section(result.caveats, "More", "Why.")
    assert len(section.table.rows) == len(result.caveats)
    assert not list(caveats_section([], "More", "Why."))


def test_the_page_has_curves_bounded_equals_every_point_with_its_reason_and_the_inputs(
    result: SweepResult,
) -> None:
    sections = sections_of(result)
    shown = ["scaling", "equals", "cost", "step-time", "points", "assumptions"]
    assert list(sections) == shown, "the verdict says the only caveat"
    equals = sections["equals"].table.shown()
    assert equals[0][2] == "\u2264 1 (\u2264 1 to 2.01) CS-2"
    assert [row[0] for row in equals[1:3]] == ["4 devices of slow", "1 CS-2"], "and the other way"
    table = sections["points"].table
    rows = [dict(zip(table.heads(), row, strict=True)) for row in table.shown()]
    assert len(rows) == 10
    without = {(row["reason"], row["batch"]) for row in rows if row["reason"]}
    assert without == {("global_batch_size 2 gives some of 4 systems nothing", "2")}


def test_a_grid_without_any_plan_has_a_page_of_reasons(result: SweepResult) -> None:
    alone = replace(result, points=tuple(point for point in result.points if not point.feasible))
    assert list(sections_of(alone)) == ["points", "assumptions"]
    assert "No point of the grid has a feasible plan" in " ".join(sweep_lines(alone))


VARIANTS = """\
  recipe.global_batch_size: [64]
variants:
  as it is: {}
  half the servers: {system.memoryx.servers: 6}
"""


def test_variants_of_one_work_are_drawn_as_changes_and_listed_with_what_they_change(tmp_path: Path) -> None:
    swept = answer(tmp_path, VARIANTS)
    sections = sections_of(swept)
    shown = "variants scaling cost step-time differences caveats points assumptions"
    assert list(sections) == shown.split()
    bars = sections["variants"].figure
    assert {name for trace in bars.data for name in trace.y} == {"half the servers"}
    assert any("memoryx.servers" in cell for row in sections["differences"].table.shown() for cell in row)
    lines = sweep_lines(swept)
    assert any("change" in line for line in lines)
    assert sum("half the servers" in line for line in lines) >= 2, "a row for each variant"


def test_the_head_says_the_answer_once_marks_the_fastest_and_says_what_it_leaves_out(
    result: SweepResult,
) -> None:
    page = sweep_page(result)
    scale = page.scale
    times = {row[0].value: row[1].number for row in scale.rows}
    assert [row[0].value for row in scale.rows if row[1].mark] == [min(times, key=times.__getitem__)]
    assert "Marked: the fastest." in page.note
    many = sweep_page(repeated(result, 6))
    assert len(many.scale.rows) == 8
    assert "the fastest 8 of 12" in many.note
    assert sum(row[1].mark for row in many.scale.rows) == 1
    assert page.headline.startswith("4 CS-2 reach the target first, in ")
    assert "the target first" not in page.verdict
    assert page.trust
    assert page.trust not in page.verdict, "nothing is said twice"


def test_no_machine_wins_across_models_and_the_page_tells_what_the_planner_changed(tmp_path: Path) -> None:
    variants = "variants:\n  small: {model: gpt3_xl}\n  large: {model: gpt3_6p7b}\n"
    swept = answer(tmp_path, variants, SWEEP.replace("[1, 4]", "[1]").replace(", 4]", "]"))
    page = sweep_page(swept)
    assert [row[1].mark for row in page.scale.rows] == [True, False, True, False]
    assert "Targets differ" in page.note
    ones = page_of(swept, lambda point: point.num_devices == 1)
    assert ones.headline == ""
    assert ones.verdict.startswith("1 CS-2: small ")
    assert "What the planner changed from small to large: " in ones.verdict
    alone = page_of(swept, lambda point: point.system == "cs-2")
    assert not any(row[1].mark for row in alone.scale.rows)
    assert "Marked" not in alone.note


def test_time_against_cost_is_money_only_where_every_machine_has_a_price(
    result: SweepResult, tmp_path: Path
) -> None:
    assert sections_of(result)["cost"].heading == "Time against device-days"
    sweep = SWEEP.replace("system: cs-2, devices", "system: cs-2, price: {device_hour: 100}, devices")
    sweep = sweep.replace("      devices: [1, 4]", "      price: {device_hour: 50}\n      devices: [1, 4]")
    priced = answer(tmp_path, "  batch_sizes: [[8]]\n", sweep)
    section = sections_of(priced)["cost"]
    assert section.heading == "Time against cost"
    first = priced.feasible[0]
    money = first.prediction.wall_s / 3600 * first.num_devices * 100
    assert section.table.values("cost")[0] == pytest.approx(money, rel=1e-5)
    times = section.table.values("time to the target")
    by_time = sorted(zip(times, section.table.column("cost"), strict=True), key=lambda point: point[0])
    least = math.inf
    for _, cell in by_time:
        assert cell.mark == (cell.number < least), "worth taking where it is cheaper than all faster ones"
        least = min(least, cell.number)
