"""The accuracy page: how far predictions of published runs are off, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfsim.report import text
from perfsim.report.figures.validation import ValidationPoint, predicted_against_measured, validation_table
from perfsim.report.markdown import markdown
from perfsim.report.page import write_page
from perfsim.report.sections import Card, Head, Section, slugify
from perfsim.report.validation import tables
from perfsim.validation.accuracy_page import AccuracyPage, StepAccuracy

TITLE = "Accuracy: predictions of published runs"
COMMAND = "perfsim validate --record --leave-out --page reports"
"""What makes the files that the repository holds."""


def write_validation(page: AccuracyPage, folder: Path) -> tuple[Path, Path]:
    """Write `index.html` and `validation.md` with the same tables; the same input gives the same bytes."""
    sections = list(validation_sections(page))
    head = _head(page)
    html = write_page(TITLE, sections, folder / "index.html", head=head)
    text_path = folder / "validation.md"
    text_path.write_bytes(markdown(TITLE, sections, head).encode("utf-8"))
    return html, text_path


def validation_sections(page: AccuracyPage) -> Iterator[Section]:
    """A block of sections for each file of step times, then convergence."""
    for each in page.steps:
        yield from _step_sections(each, page.leaves_out)
    for result in page.convergence:
        yield from _convergence(result)


def _head(page: AccuracyPage) -> Head:
    cards = []
    for each in page.steps:
        summary = each.result["summary"]
        if summary["n"]:
            spread = f"p90 {text.percent(summary['p90_ape'])}, {summary['n']} runs"
            cards.append(Card(text.percent(summary["median_ape"]), spread, f"median, {_name(each.result)}"))
    for result in page.convergence:
        summary = result["summary"]
        if summary["median_ape"] is not None:
            spread = f"p90 {text.percent(summary['p90_ape'])}"
            cards.append(Card(text.percent(summary["median_ape"]), spread, f"median, {_name(result)}"))
    note = (
        "Absolute relative errors. Constants belong to a device, a link or the framework, never to a run; "
        "the only keyed one is a wafer's efficiency by release of its software."
    )
    footer = f"Made by `{COMMAND}`." if page.leaves_out else "Made by `perfsim validate --page`."
    return Head("How far off are predictions of runs that others measured?", "", cards, note, footer)


def _name(result: Mapping[str, Any]) -> str:
    return str(result["file"]).removesuffix(".yaml").replace("_", " ")


def _step_sections(each: StepAccuracy, leaves_out: bool) -> Iterator[Section]:
    result, name = each.result, _name(each.result)
    slug = slugify(name)
    yield _scatter(each, slug)
    yield Section(
        f"{name}: families beside one constant",
        "Tells how much the model knows beyond one efficiency for everything, and where.",
        table=tables.score_table(result),
        slug=f"{slug}-families",
    )
    if result["sweeps"]:
        yield Section(
            f"{name}: choosing a layout",
            "One model on one number of devices in several layouts: does the prediction choose the fastest?",
            table=tables.sweeps_table(result),
            slug=f"{slug}-sweeps",
        )
    yield from _far_off(each, slug)
    if each.removed:
        yield Section(
            f"{name}: ablation",
            "What each mechanism is worth: the error when it is taken out of the model.",
            table=tables.ablation_table(each.removed),
            slug=f"{slug}-ablation",
        )
        yield _left_out(each, slug, leaves_out)
    if result["without_release"]:
        yield _releases_left_out(each, slug)


def _scatter(each: StepAccuracy, slug: str) -> Section:
    result = each.result
    points = [
        ValidationPoint(case["id"], case["family"], case["measured_s"], case["predicted_s"], case["evidence"])
        for case in result["cases"]
        if case["predicted_s"] is not None
    ]
    within = sum(abs(point.error) <= 0.1 for point in points)
    lead = (
        f"{len(points)} of {result['count']} runs are predicted, {within} of them within 10 %. Evidence A is "
        "an exact configuration with a direct measurement; B has one field inferred; C is weak, and not "
        "scored."
    )
    return Section(
        f"{_name(result)}: predicted against measured",
        lead,
        figure=predicted_against_measured(points) if points else None,
        table=validation_table(points),
        alt=f"Predicted over measured step time of {len(points)} runs on logarithmic axes; {within} lie "
        "within 10 % of the diagonal.",
        slug=f"{slug}-scatter",
    )


def _far_off(each: StepAccuracy, slug: str) -> Iterator[Section]:
    name = _name(each.result)
    yield Section(
        f"{name}: the worst {tables.WORST}",
        "Scored runs furthest off. The cause is found by rules from what the predicted step is made of: "
        "'right at 0.80 times' means that this part alone would have to take 0.80 times as long.",
        table=tables.worst_table(each, scored=True),
        slug=f"{slug}-worst",
    )
    weak = tables.worst_table(each, scored=False)
    if weak.rows:
        lead = "Runs with weak evidence."
        yield Section(f"{name}: shown, not scored", lead, table=weak, slug=f"{slug}-weak")
    if each.result["failed"]:
        table = tables.refusals_table("run", each.result)
        yield Section(f"{name}: not predicted", "Runs that are refused.", table=table, slug=f"{slug}-refused")


def _left_out(each: StepAccuracy, slug: str, leaves_out: bool) -> Section:
    heading = f"{_name(each.result)}: leaving one family out"
    if not each.left_out:
        lead = "Not computed here: add --leave-out." if not leaves_out else "No family could be left out."
        return Section(heading, lead, slug=f"{slug}-left-out")
    return Section(
        heading,
        "How far off the model is on runs that had no part in it: the constants fitted to whole steps are "
        "fitted again to all other families, then the family is predicted.",
        table=tables.left_out_table(each.left_out),
        slug=f"{slug}-left-out",
    )


def _releases_left_out(each: StepAccuracy, slug: str) -> Section:
    heading = f"{_name(each.result)}: leaving one release out"
    if each.releases_left_out is None:
        return Section(heading, "Not computed here: add --leave-out.", slug=f"{slug}-left-out")
    lead = (
        "How far off the model is on a release that had no part in it: efficiencies are fitted to the "
        "logs of the other releases, then its logs are predicted."
    )
    table = tables.releases_left_out_table(each.releases_left_out, each.result)
    return Section(heading, lead, table=table, slug=f"{slug}-left-out")


def _convergence(result: Mapping[str, Any]) -> Iterator[Section]:
    name = _name(result)
    yield Section(
        f"{name}: examples to the target by batch",
        "How well the law of the critical batch predicts a batch size from the others of its benchmark.",
        table=tables.convergence_table(result),
        slug=f"{slugify(name)}-score",
    )
    if result["failed"]:
        yield Section(
            f"{name}: refused",
            "A fit that the points do not determine is refused, not guessed.",
            table=tables.refusals_table("benchmark", result),
            slug=f"{slugify(name)}-refused",
        )
