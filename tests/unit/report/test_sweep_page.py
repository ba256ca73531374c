"""A sweep's answer on a terminal, on a page and as JSON."""

from dataclasses import replace
from pathlib import Path

import pytest
from markupsafe import escape

from perfsim.report.page import caveats_section
from perfsim.report.sweep import MAX_ON_TERMINAL, sweep_lines, sweep_page, write_sweep
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


def repeated(result: SweepResult, times: int) -> SweepResult:
    """With every point at so many values of one more field."""
    points = []
    for number in range(times):
        points += [replace(point, settings={**point.settings, "system.x": number}) for point in result.points]
    return replace(result, points=tuple(points))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    return answer(tmp_path_factory.mktemp("sweep"), "  recipe.global_batch_size: [2, 96]\n")


def test_the_terminal_counts_the_points_that_it_has_no_row_for(result: SweepResult) -> None:
    spec = result.sweep.spec.model_copy(update={"title": "T" * 200})
    lines = sweep_lines(replace(repeated(result, 20), sweep=replace(result.sweep, spec=spec)))
    assert sum("CS-2" in line and "%" in line for line in lines) <= MAX_ON_TERMINAL
    assert max(map(len, lines)) <= 100
    assert "more points are in the report" in " ".join(lines)


def test_the_report_has_the_same_bytes_and_every_caveat_once(result: SweepResult, tmp_path: Path) -> None:
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


def test_the_head_answers_once_marks_the_fastest_and_says_what_it_leaves_out(result: SweepResult) -> None:
    page = sweep_page(result)
    scale = page.scale
    times = {row[0].value: row[1].number for row in scale.rows}
    assert [row[0].value for row in scale.rows if row[1].mark] == [min(times, key=times.__getitem__)]
    assert "Marked: the fastest." in page.note
    many = sweep_page(repeated(result, 6))
    assert len(many.scale.rows) == 8
    assert "the fastest 8 of 12" in many.note
    assert sum(row[1].mark for row in many.scale.rows) == 1
    assert page.headline.startswith("4 CS-2 reach the target first, after ")
    assert "the target first" not in page.verdict
    assert page.trust
    assert page.trust not in page.verdict, "nothing is said twice"


MACHINES = """\
title: Machines
study: {extends: gpt3_20b, model: gpt3_xl, sampling: {tasks: 0}}
grid:
  recipe.global_batch_size: [64]
variants:
"""


def test_a_sweep_of_many_machines_tells_the_fastest_but_no_efficiency_of_one_point(tmp_path: Path) -> None:
    counts = (1, 2, 3, 4, 5, 6, 8)
    variants = "".join(
        f"  at {count}: {{model.num_layers: {4 * count}, "
        f"candidates: [{{strategy: weight-streaming, system: cs-2, devices: [{count}]}}]}}\n"
        for count in counts
    )
    own = answer(tmp_path, variants, MACHINES)
    slowest = max(own.feasible, key=lambda point: point.prediction.wall_s)
    told = [count for count in counts if f"{count} CS-2, on the wall: at {count} " in own.verdict]
    assert told == [count for count in counts if count != slowest.num_devices]
    assert "1 more in the tables, slower." in own.verdict
    assert "fficiency" not in " ".join(sweep_lines(own))
    alone = replace(own, points=tuple(replace(point, settings={}) for point in own.points[:1]))
    (scaling,) = (part for part in sweep_page(alone).sections if part.heading == "Scaling")
    heads = ["series", "devices", "batch", "on the wall (days)", "layout", "limited by"]
    assert scaling.table.heads() == heads
    assert scaling.figure is None, "points on one number of devices lie on one another"
