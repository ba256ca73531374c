"""The pages of all shipped studies and sweeps in a real browser: both widths, both themes, offline.

Each page is made once, with fewer points and batches than its file asks for, and opened once.
"""

import gzip
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfsim.base.units import parse_quantity
from perfsim.report import text
from perfsim.report.study import write_study
from perfsim.report.sweep import write_sweep
from perfsim.studies.loading import load_study, load_sweep
from perfsim.studies.runner import run_study, run_sweep

pytestmark = [pytest.mark.browser, pytest.mark.slow]

FILES = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in Path("studies").glob("*.yaml")}
SWEEPS = sorted(name for name, file in FILES.items() if "study" in file)
STUDIES = sorted(
    name for name, file in FILES.items() if "study" not in file and {"candidates", "extends"} & set(file)
)
LOOKS = [(1400, "light"), (1400, "dark"), (400, "light"), (400, "dark")]
SEEN = [LOOKS[0], LOOKS[-1]]
"""Looks in which every page is seen; in the first axe checks everything, in the others colours."""
MOST_LOOKED_AT = ("gpt3_20b", "transformer_scaling")
"""Pages that are seen in all looks, and that axe checks wholly in both of `SEEN`."""
COLOURS = {"runOnly": ["color-contrast"]}
MOST_BYTES = 2_000_000
AXE = gzip.decompress((Path(__file__).parent / "vendor" / "axe-4.14.1.min.js.gz").read_bytes()).decode()
"""The npm package axe-core, as published; LICENSE.axe-core next to it."""

BATCHES: dict[str, tuple[int, ...]] = {
    "deepseek_v3": (3840,),
    "gpt3_20b": (768, 1536),
    "llama31_70b_2026": (512,),
    "offload_against_streaming": (48, 64),
    "opt_175b": (992,),
    "trillion_on_wafers": (120,),
}
"""Batches of a study that are tried here; of the others 768."""
PARTS = {
    "experts_or_dense": ("dense", "8 experts"),
    "hybrid_parallelism": ("1.2B", "20B", "175B"),
    "long_context": ("8k", "32k"),
}
"""Variants of a sweep that are answered here; of the others all."""


Page = tuple[Path, Mapping[str, float]]
"""A page that was written, and the seconds that its first bar of step times may say."""


def thinned_study(name: str, folder: Path) -> Page:
    """The page of a study with each candidate at its last number of devices and at a few batches."""
    spec = load_study(name)
    last = tuple(row.model_copy(update={"devices": row.devices[-1:]}) for row in spec.candidates)
    batches = BATCHES.get(name, (768,))
    run = run_study(spec.model_copy(update={"candidates": last, "batch_sizes": batches}))
    named = {text.human(part): seconds for part, seconds in run.candidates[0].breakdown_s.items()}
    return write_study(run, folder), named


def thinned_sweep(name: str, folder: Path) -> Page:
    """The page of a sweep with some of its points, and at one batch where it tries many."""
    sweep = load_sweep(name)
    variants = PARTS.get(name)
    points = [point for point in sweep.points if not variants or point.settings["variant"] in variants]
    if name == "capacity_20b":
        study = {"batch_sizes": (768,)}
        overlapping = [point for point in points if point.num_devices in {1, 4, 16, 32, 128, 512}]
        points = [replace(point, study=point.study.model_copy(update=study)) for point in overlapping]
    if name == "explorer":
        points = [point for point in points if point.settings["recipe.global_batch_size"] == 1024]
    result = run_sweep(replace(sweep, points=tuple(points)), folder / "points.sqlite", jobs=1)
    changes = [change.point for changed in result.changes.values() for change in changed]
    first = (changes or result.series[0].points)[0]
    return write_sweep(result, folder), first.prediction.why.parts_s


TYPES = """() => [...document.querySelectorAll('.plotly-graph-div')].map((plot) => ({
  id: plot.id,
  given: plot.data.map((trace) => trace.type || 'scatter'),
  drawn: plot._fullData.map((trace) => trace.type),
  marks: plot.querySelectorAll('.point path, .points path, .lines path, .heatmaplayer image').length,
}))"""
CLIPPED = """() => {
  const cut = [];
  const inside = (part, box) => part.left >= box.left - 1.5 && part.right <= box.right + 1.5;
  const page = { left: 0, right: document.documentElement.clientWidth };
  const whole = 'h1, h2, h3, .answer, .sub, .verdict, .badge, .value, #ranks .scroll, #whole-run .scroll';
  for (const part of document.querySelectorAll(whole)) {
    const box = part.getBoundingClientRect();
    if (box.width > 1 && (!inside(box, page) || part.scrollWidth > part.clientWidth + 1 && box.height > 1
        && getComputedStyle(part).display !== 'inline')) cut.push(part.textContent);
  }
  const written = '.gtitle, .xtitle, .ytitle, .xtick text, .ytick text, .legendtext, .annotation-text';
  for (const plot of document.querySelectorAll('.js-plotly-plot')) {
    const box = plot.getBoundingClientRect();
    for (const part of plot.querySelectorAll(written)) {
      const inner = part.getBoundingClientRect();
      if (inner.width > 1 && !inside(inner, box)) cut.push(`${plot.id}: ${part.textContent}`);
    }
  }
  return cut;
}"""
VIOLATIONS = """async (rules) => (await axe.run({ resultTypes: ['violations'], ...rules })).violations
  .filter((rule) => ['serious', 'critical'].includes(rule.impact))
  .map((rule) => `${rule.id}: ${rule.nodes.map((node) => node.target.join(' ')).join(', ')}`)"""
LARGEST_PART = """() => {
  const parts = document.getElementById('figure-step-time').data.map((trace) => trace.x[0] || 0);
  return parts.indexOf(Math.max(...parts));
}"""


def wrong_in_a_look(opened: Any, width: int, scheme: str, rules: dict[str, Any]) -> list[str]:
    """What scrolls sideways, is cut off, or breaks one of these rules of axe at a width and in a theme."""
    page = opened.page
    page.emulate_media(color_scheme=scheme)
    if page.viewport_size["width"] != width:
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(f"() => document.documentElement.dataset.fitted == {width}")
    sideways = ["it scrolls sideways"] if opened.sideways_px() > 0 else []
    return [*sideways, *page.evaluate(CLIPPED), *page.evaluate(VIOLATIONS, rules)]


def test_all_shipped_studies_and_sweeps_are_visited() -> None:
    assert len(STUDIES) >= 7
    assert len(SWEEPS) >= 10


@pytest.mark.parametrize("name", [*SWEEPS, *STUDIES])
def test_a_page_is_small_asks_for_nothing_and_shows_everything_in_every_look(
    opener: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    path, parts = (thinned_sweep if name in SWEEPS else thinned_study)(name, tmp_path)
    assert path.stat().st_size <= MOST_BYTES
    opened = opener(path)
    plots = opened.page.evaluate(TYPES)
    assert plots
    for plot in plots:
        assert plot["given"] == plot["drawn"], plot["id"]
        assert plot["marks"] > 0, plot["id"]
    largest = opened.page.locator("#figure-step-time .barlayer .trace").nth(
        opened.page.evaluate(LARGEST_PART)
    )
    tooltip = opened.tooltip("#figure-step-time", largest.locator(".point").first)
    said = re.search(rf"({'|'.join(map(re.escape, parts))}): ([\d.]+ \w+) \([\d.]+ %\)$", tooltip)
    assert said is not None, tooltip
    assert parse_quantity(said[2], "seconds") == pytest.approx(parts[said[1]], rel=0.01)
    opened.page.evaluate(AXE)
    most = name in MOST_LOOKED_AT
    for look in LOOKS if most else SEEN:
        whole = look == SEEN[0] or (look in SEEN and most)
        assert wrong_in_a_look(opened, *look, {} if whole else COLOURS) == [], look
    opened.close()
    assert opened.errors == []
    assert opened.requests == [path.as_uri()]
