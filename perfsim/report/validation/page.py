"""The accuracy page: how far predictions of published runs are off, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfsim.files import write_file
from perfsim.report import text
from perfsim.report.figures.validation import ValidationPoint, residuals, validation_table
from perfsim.report.markdown import markdown
from perfsim.report.page import write_page
from perfsim.report.sections import Card, Head, Section, slugify
from perfsim.report.validation import tables
from perfsim.report.validation.scaling import efficiencies_table, explanations_table, ratios_table
from perfsim.validation.accuracy_page import AccuracyPage, StepAccuracy

TITLE = "Accuracy: predictions of published runs"
COMMAND = "perfsim validate --record --leave-out --page reports"
"""What makes the files that the repository holds."""

_POINT = ("id", "family", "measured_s", "predicted_s", "error", "evidence")


def write_validation(page: AccuracyPage, folder: Path) -> tuple[Path, Path]:
    """Write `index.html` and `validation.md` with the same tables; the same input gives the same bytes."""
    sections = list(validation_sections(page))
    head = _head(page)
    html = write_page(TITLE, sections, folder / "index.html", head=head)
    return html, write_file(folder / "validation.md", markdown(TITLE, sections, head))


def validation_sections(page: AccuracyPage) -> Iterator[Section]:
    """Sections for each file of step times, then for each file of convergence."""
    for accuracy in page.steps:
        yield from _step_sections(accuracy, page.leaves_out)
    if page.constants:
        yield Section(
            "Constants that whole steps decide",
            "No micro-benchmark shows them, so they are fitted to all published runs on GPUs at once.",
            table=tables.constants_table(page.constants),
            slug="constants",
        )
    for result in page.convergence:
        yield from _convergence(result)


def _head(page: AccuracyPage) -> Head:
    cards = []
    for accuracy in page.steps:
        summary = accuracy.result["summary"]
        if summary["n"]:
            spread = f"p90 {text.percent(summary['p90_ape'])}, {summary['n']} runs"
            if accuracy.outside is not None:
                spread += f"; left out of the fit {text.percent(accuracy.outside['summary']['median_ape'])}"
            if accuracy.result["baseline"].get("median_ape") is not None:
                spread += f"; one constant {text.percent(accuracy.result['baseline']['median_ape'])}"
            if summary["band_coverage"] is not None:
                spread += f"; {text.percent(summary['band_coverage'])} in their 90 % bands"
            name = f"median, {_name(accuracy.result)}"
            cards.append(Card(text.percent(summary["median_ape"]), spread, name))
    for result in page.convergence:
        summary = result["summary"]
        if summary["median_ape"] is not None:
            spread = f"p90 {text.percent(summary['p90_ape'])}"
            cards.append(Card(text.percent(summary["median_ape"]), spread, f"median, {_name(result)}"))
    note = (
        "Absolute relative errors. Constants belong to a device, a link or the framework, never to a run; "
        "only a wafer's efficiency depends on the release of its software."
    )
    footer = f"Made by `{COMMAND}`." if page.leaves_out else "Made by `perfsim validate --page`."
    question = "How accurate are predictions of published runs?"
    return Head(question, cards=cards, cards_note=note, footer=footer)


def _name(result: Mapping[str, Any]) -> str:
    return str(result["file"]).removesuffix(".yaml").replace("_", " ")


def _step_sections(accuracy: StepAccuracy, leaves_out: bool) -> Iterator[Section]:
    result, name = accuracy.result, _name(accuracy.result)
    slug = slugify(name)
    yield _scatter(accuracy, slug)
    yield Section(
        f"{name}: families beside a baseline",
        "Shows where and by how much the model is better than one efficiency for all runs.",
        table=tables.score_table(result, accuracy.outside),
        slug=f"{slug}-families",
        level=3,
    )
    if result["sweeps"]:
        yield Section(
            f"{name}: choosing a layout",
            "One model on one number of devices in several layouts: does the prediction find the fastest?",
            topics=[(f"{len(result['sweeps'])} sweeps", tables.sweeps_table(result))],
            slug=f"{slug}-sweeps",
            level=3,
        )
    yield from _far_off(accuracy, slug)
    if accuracy.removed:
        yield Section(
            f"{name}: ablation",
            "The error of the model without each of its mechanisms.",
            topics=[("without each mechanism", tables.ablation_table(accuracy.removed))],
            slug=f"{slug}-ablation",
            level=3,
        )
        yield _left_out(accuracy, slug, leaves_out)
    if result["without_release"]:
        yield _releases_left_out(accuracy, slug)
    if result.get("scaling"):
        yield from _scaling(result["scaling"], name, slug)


def _scatter(accuracy: StepAccuracy, slug: str) -> Section:
    result = accuracy.result
    points = [
        ValidationPoint(**{name: case[name] for name in _POINT}, band_s=case.get("band_s"))
        for case in result["cases"]
        if case["predicted_s"] is not None
    ]
    within = sum(abs(point.error) <= 0.1 for point in points)
    lead = (
        f"{len(points)} of {result['count']} runs are predicted, {within} of them within 10 %. Evidence A: "
        "exact configuration, direct measurement. B: one field is inferred. C: weak evidence, not scored, an "
        "open mark. A diamond is a run outside its 90 % band; the pale bar of a family spans what its bands "
        "allow."
    )
    return Section(
        f"{_name(result)}: errors by family",
        lead,
        figure=residuals(points) if points else None,
        table=validation_table(points),
        alt=f"Errors of the step time of {len(points)} runs by family; {within} are within 10 %.",
        slug=f"{slug}-scatter",
    )


def _far_off(accuracy: StepAccuracy, slug: str) -> Iterator[Section]:
    name = _name(accuracy.result)
    yield Section(
        f"{name}: the worst {tables.WORST}",
        "The scored runs with the largest errors. Rules find the likely cause from the parts of the "
        "predicted step: 'right at 0.80 times' means that this part alone would have to take 0.80 times as "
        "long.",
        table=tables.worst_table(accuracy, scored=True),
        slug=f"{slug}-worst",
        level=3,
    )
    weak = tables.worst_table(accuracy, scored=False)
    if weak.rows:
        lead = "Runs with weak evidence."
        topics = [(f"{len(weak.rows)} runs", weak)]
        yield Section(f"{name}: shown, not scored", lead, topics=topics, slug=f"{slug}-weak", level=3)
    if accuracy.result["failed"]:
        table = tables.refusals_table("run", accuracy.result)
        topics, lead = [(f"{len(table.rows)} runs", table)], "Runs that are refused."
        yield Section(f"{name}: not predicted", lead, topics=topics, slug=f"{slug}-refused", level=3)


def _left_out(accuracy: StepAccuracy, slug: str, leaves_out: bool) -> Section:
    heading = f"{_name(accuracy.result)}: leaving one family out"
    if not accuracy.left_out:
        lead = "Not computed; add --leave-out." if not leaves_out else "No family could be left out."
        return Section(heading, lead, slug=f"{slug}-left-out", level=3)
    return Section(
        heading,
        "Errors on runs that the model was not fitted to: the constants fitted to whole steps are fitted "
        "again to all other families, then the family is predicted.",
        topics=[("each family, and the constants without it", tables.left_out_table(accuracy.left_out))],
        slug=f"{slug}-left-out",
        level=3,
    )


def _releases_left_out(accuracy: StepAccuracy, slug: str) -> Section:
    heading = f"{_name(accuracy.result)}: leaving one release out"
    if accuracy.releases_left_out is None:
        return Section(heading, "Not computed; add --leave-out.", slug=f"{slug}-left-out", level=3)
    lead = (
        "Errors on a release that the model was not fitted to: efficiencies are fitted to the logs of the "
        "other releases, then its logs are predicted."
    )
    table = tables.releases_left_out_table(accuracy.releases_left_out, accuracy.result)
    return Section(heading, lead, table=table, slug=f"{slug}-left-out", level=3)


def _scaling(scaling: Mapping[str, Any], name: str, slug: str) -> Iterator[Section]:
    """Published ratios of speeds on more systems than any log has."""
    lead = f"Published ratios beside predicted ones. {scaling['source']}."
    yield Section(f"{name}: more systems", lead, table=ratios_table(scaling), slug=f"{slug}-scaling", level=3)
    yield Section(
        f"{name}: published scaling",
        "Throughput of many systems over as many times that of fewer; 'band from' is the least that the band "
        "of many systems allows.",
        table=efficiencies_table(scaling),
        slug=f"{slug}-efficiencies",
        level=3,
    )
    yield Section(
        f"{name}: what would explain the loss",
        "Each cause is set so that it alone makes the step as slow as the published lower bound.",
        table=explanations_table(scaling),
        slug=f"{slug}-explanations",
        level=3,
    )


def _convergence(result: Mapping[str, Any]) -> Iterator[Section]:
    name = _name(result)
    yield Section(
        f"{name}: examples to the target by batch",
        "How well the law of the critical batch predicts one batch size from the other sizes of its "
        "benchmark.",
        table=tables.convergence_table(result),
        slug=f"{slugify(name)}-score",
    )
    if result["failed"]:
        yield Section(
            f"{name}: refused",
            "Benchmarks whose points do not determine a fit have no prediction.",
            table=tables.refusals_table("benchmark", result),
            slug=f"{slugify(name)}-refused",
            level=3,
        )
