"""Answers all shipped studies, and writes a page with the question, the verdict and a picture of each.

python docs/gallery.py [NAME ...] [--out FOLDER] [--skip NAME,NAME] [--jobs N]
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import perfsim as ps
from perfsim.catalog import default_catalog
from perfsim.report.validation import write_comparison
from perfsim.studies.loading import kind_of_study

HEADINGS = {"study": "Studies", "sweep": "Sweeps", "comparison": "Comparisons"}
KINDS = {
    "study": "One model on a few machines: which is first, and why?",
    "sweep": "One question at every point of a grid.",
    "comparison": "Published figures next to a law or to equations.",
}
LOOKS = {
    (400, "dark"): "(max-width: 600px) and (prefers-color-scheme: dark)",
    (400, "light"): "(max-width: 600px)",
    (900, "dark"): "(prefers-color-scheme: dark)",
    (900, "light"): "all",
}
"""Widths and themes of pictures, and when a browser takes which: the first that fits."""
SHOWN = "figure.scale, .plot, main table"
"""What a picture shows: the first of these on a page."""
EDGE = 8
"""Pixels on both sides of it, into which the ends of a scale reach."""
STYLE = """
.cards { display: grid; gap: 1.2rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 33rem), 1fr)); }
article { min-width: 0; padding: 0.9rem 1.1rem; border: 1px solid var(--line); border-radius: 8px; }
article h3 { margin: 0 0 0.3rem; }
article .verdict { font-size: 1rem; font-weight: 500; }
article img { display: block; width: 100%; max-height: 26rem; margin: 0.6rem 0; object-fit: cover;
  object-position: top; }
"""


class Shown(NamedTuple):
    """A study on the page, or why it has no answer there."""

    name: str
    kind: str
    title: str
    question: str
    verdict: str
    reason: str = ""
    pictures: tuple[str, ...] = ()
    """Files, in the order of `LOOKS`."""


def answered(name: str, folder: Path, jobs: int | None) -> Shown:
    """The answer to a study, whose report is then in a folder of its name."""
    kind = kind_of_study(name)
    place = folder / name
    try:
        if kind == "study":
            answer = ps.study(name, jobs=jobs)
            answer.save(place)
            return Shown(name, kind, answer.title, answer.question, answer.verdict)
        if kind == "sweep":
            swept = ps.sweep(name, folder=place, jobs=jobs)
            swept.save(place)
            spec = swept.sweep.spec
            return Shown(name, kind, spec.title, spec.question, swept.verdict)
        compared = ps.comparison(name)
        write_comparison(compared, place)
        return Shown(name, kind, compared.title, compared.question, compared.verdict)
    except ps.PerfsimError as error:
        return Shown(name, kind, name, "", "", str(error))


def photographed(shown: list[Shown], folder: Path) -> list[Shown]:
    """The same with pictures, where Chromium and playwright are installed."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return shown
    if chromium is None:
        return shown
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        return [row._replace(pictures=tuple(pictures(browser, row, folder))) for row in shown]


def pictures(browser: Any, row: Shown, folder: Path) -> Iterator[str]:
    """The first figure of a report in every look; nothing of a study without a report."""
    for width, theme in LOOKS if not row.reason else ():
        page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=theme, device_scale_factor=2
        )
        page.goto((folder / row.name / "index.html").resolve().as_uri())
        page.wait_for_function("() => document.documentElement.dataset.fitted")
        path = f"{row.name}/{width}-{theme}.png"
        box = page.locator(SHOWN).first.bounding_box()
        clip = {
            "x": box["x"] - EDGE,
            "width": box["width"] + 2 * EDGE,
            "y": box["y"],
            "height": box["height"],
        }
        page.screenshot(path=folder / path, clip=clip, full_page=True)
        yield path
        page.close()


def card(row: Shown) -> str:
    """A study as HTML."""
    link = f"{row.name}/index.html"
    if row.reason:
        return f'<article id="{row.name}"><h3>{row.name}</h3><p>No answer: {escape(row.reason)}</p></article>'
    picture = ""
    if row.pictures:
        looks = zip(row.pictures, LOOKS.values(), strict=True)
        sources = "".join(f'<source srcset="{path}" media="{media}">' for path, media in looks)
        image = f'<img src="{row.pictures[-1]}" alt="Figure: {escape(row.title)}">'
        picture = f'<a href="{link}"><picture>{sources}{image}</picture></a>'
    return (
        f'<article id="{row.name}"><h3><a href="{link}">{escape(row.title)}</a></h3>'
        f'<p class="question">{escape(row.question)}</p>{picture}'
        f'<p class="verdict">{escape(row.verdict)}</p>'
        f'<p class="note"><code>perfsim study {row.name}</code></p></article>'
    )


def gallery(shown: list[Shown], left_out: list[str]) -> str:
    """The page."""
    style = (files("perfsim.report") / "templates" / "style.css").read_text("utf-8") + STYLE
    notes = [f"Left out: {', '.join(left_out)}."] if left_out else []
    if not any(row.pictures for row in shown):
        notes.append("Without pictures: these need Chromium, and pip install playwright.")
    parts = []
    for kind, heading in HEADINGS.items():
        cards = "\n".join(card(row) for row in shown if row.kind == kind)
        lead = f'<p class="lead">{KINDS[kind]}</p>'
        parts += [f'<h2>{heading}</h2>{lead}<div class="cards">\n{cards}\n</div>'] if cards else []
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Studies of perfsim</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">
<style>{style}</style></head><body>
<h1>Studies of perfsim</h1>
<p class="question">Each has its question, its verdict and the first figure or table of its report.
The title leads to the report.</p>
{"".join(f'<p class="note">{escape(note)}</p>' for note in notes)}
{"".join(parts)}
<footer>perfsim {ps.__version__} · <code>make gallery</code></footer>
</body></html>
"""


def main() -> None:
    """Write the page of all studies, or of those that are named; exit code 1 where one has no answer."""
    known = default_catalog().names("study")
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=[], metavar="NAME", help="studies [default: all shipped]")
    parser.add_argument("--out", type=Path, default=Path("reports/gallery"), help="folder [%(default)s]")
    parser.add_argument("--skip", default="", metavar="NAME,NAME", help="studies that are left out")
    parser.add_argument("--jobs", type=int, default=None, help="processes [default: all cores]")
    asked = parser.parse_args()
    left_out = [name for name in asked.skip.split(",") if name]
    if unknown := {*asked.names, *left_out} - {*known}:
        parser.error(f"no shipped study: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    shown = []
    for name in asked.names or known:
        if name not in left_out:
            sys.stderr.write(f"{name}\n")
            shown.append(answered(name, asked.out, asked.jobs))
    asked.out.mkdir(parents=True, exist_ok=True)
    page = asked.out / "index.html"
    page.write_text(gallery(photographed(shown, asked.out), left_out), encoding="utf-8")
    sys.stdout.write(f"Open in a browser: {page.resolve()}\n")
    sys.exit(any(row.reason for row in shown))


if __name__ == "__main__":
    main()
