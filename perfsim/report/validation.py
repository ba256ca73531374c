"""The accuracy page: how far predictions of published runs are off, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from perfsim.base.files import write_file
from perfsim.base.units import Dimension, format_quantity
from perfsim.evidence.accuracy_page import AccuracyPage, FittedConstant, Removed, StepAccuracy
from perfsim.evidence.left_out import LeftOut
from perfsim.evidence.step_fit import OF_DEVICE
from perfsim.report import text
from perfsim.report.figures.scaling import ValidationPoint, residuals, validation_table
from perfsim.report.page import Card, Head, Section, markdown, slugify, write_page
from perfsim.report.table import Table

# The tables of the accuracy page.

WORST = 10
_HEADINGS = {
    "host_s_per_kernel": "host, a kernel",
    "host_blocking_s_per_kernel": "host blocking, a kernel",
    "partial_node_rank_bytes_per_s": "bus of a partial node",
}
_FIGURES = ("median_ape", "p90_ape", "mape")


def _score_table(result: Mapping[str, Any], outside: Mapping[str, Any] | None = None) -> Table:
    """All runs and each family, beside the baseline of one constant efficiency.

    With `outside`, also the errors of each family under constants that were fitted without it.
    """
    left_out = (outside or {}).get("families", {})
    without = (outside or {}).get("summary", {})
    rows = [_score_row("all runs", result["summary"], without, result["baseline"])]
    rows += [
        _score_row(f"all runs, {kind}", result[kind], (outside or {}).get(kind, {}), {})
        for kind in ("dense", "experts")
        if kind in result
    ]
    for family, figures in result["families"].items():
        if figures["n"]:
            baseline = result["families_baseline"].get(family, {})
            rows.append(_score_row(family, figures, left_out.get(family, {}), baseline))
    for release, figures in result["without_release"].items():
        rows.append(_score_row(f"all runs without {release}", figures, {}, {}))
    figures = ("median", "p90", "mean", "bias", "tau", "regret", "in band")
    beside = ("left out", "left out, mean", "baseline", "baseline, mean")
    columns = ("family", "runs", *figures, *beside)
    caption = (
        "Absolute errors of the step time; bias is the mean signed error. Tau (mean) and regret (largest) "
        "are over the family's sweeps. In band: the share of runs whose measured time lies in its 90 % band, "
        "which comes from constants and errors without the run's family (of a wafer: without its release). "
        "Left out: median and mean error with constants that were fitted without the family (of a wafer: "
        "without the release). Baseline: one efficiency for all runs, with its median and its mean error."
    )
    return Table(columns, rows, caption, frozenset(range(1, len(columns))))


def _score_row(
    name: str, figures: Mapping[str, Any], left_out: Mapping[str, Any], baseline: Mapping[str, Any]
) -> list[str]:
    tau = figures.get("kendall_tau")
    return [
        name,
        str(figures["n"]),
        *(_percent(figures[key]) for key in _FIGURES),
        _tables_signed(figures["bias"]),
        text.NONE if tau is None else f"{tau:.2f}",
        _percent(figures.get("regret")),
        _percent(figures.get("band_coverage")),
        *(_percent(other.get(key)) for other in (left_out, baseline) for key in ("median_ape", "mape")),
    ]


def _percent(value: float | None) -> str:
    return text.NONE if value is None else text.percent(value)


def _tables_signed(value: float | None) -> str:
    if value is None:
        return text.NONE
    return f"{100 * value:+.1f} %".replace("-0.0 %", "+0.0 %")


def _sweeps_table(result: Mapping[str, Any]) -> Table:
    """Each sweep: how well its layouts are ranked, and the cost of choosing by prediction."""
    rows = [
        [
            sweep["sweep"],
            str(sweep["layouts"]),
            f"{sweep['kendall_tau']:.2f}",
            _percent(sweep["regret"]),
            sweep["chosen"],
            sweep["best"] if sweep["best"] != sweep["chosen"] else "the same",
        ]
        for sweep in result["sweeps"]
    ]
    columns = ("sweep", "layouts", "Kendall's tau", "regret", "predicted fastest", "measured fastest")
    caption = "Regret: measured time of the layout predicted fastest, relative to the fastest, minus 1."
    return Table(columns, rows, caption, frozenset({1, 2, 3}))


def _worst_table(accuracy: StepAccuracy, *, scored: bool) -> Table:
    """The scored runs with the largest errors, or all that are not scored, with the likely cause."""
    known = [
        case
        for case in accuracy.result["cases"]
        if case["error"] is not None and (case["evidence"] != "C") == scored
    ]
    known.sort(key=lambda case: (-abs(case["error"]), case["id"]))
    rows = [
        [
            case["id"],
            text.evidence(case),
            text.duration(case["measured_s"]),
            text.duration(case["predicted_s"]),
            _tables_signed(case["error"]),
            accuracy.causes.get(case["id"], text.NONE),
        ]
        for case in (known[:WORST] if scored else known)
    ]
    columns = ("run", "evidence", "measured", "predicted", "error", "likely cause")
    return Table(columns, rows, "", frozenset({2, 3, 4}))


def _ablation_table(removed: Sequence[Removed]) -> Table:
    """The score without each mechanism, the largest mean error first; then with each that was dropped."""
    complete, *ablated = removed
    ablated.sort(key=lambda row: (row.tried, -(row.summary["mape"] or 0.0), row.mechanism))
    rows = []
    for removal in (complete, *ablated):
        figures = removal.summary
        worst = f"{removal.most_hurt}: {_percent(removal.most_hurt_mape)}" if removal.most_hurt else text.NONE
        rows.append(
            [
                f"{removal.mechanism} (tried, dropped)" if removal.tried else removal.mechanism,
                removal.instead or text.NONE,
                *(_percent(figures[key]) for key in _FIGURES),
                _tables_signed(figures["bias"]),
                text.NONE if removal is complete else _points(figures["mape"], complete.summary["mape"]),
                _percent(removal.refitted["mape"]) if removal.refitted else text.NONE,
                _percent(removal.left_out["mape"]) if removal.left_out else text.NONE,
                worst,
            ]
        )
    columns = (
        "without", "replaced by", "median", "p90", "mean", "bias", "mean, change", "mean, refitted",
        "mean, left out", "most affected family, mean",
    )  # fmt: skip
    caption = (
        "Fitted constants are kept, except in the columns 'refitted' and 'left out': there they are fitted "
        "again, to all runs or to those of other families, with the slopes of the complete model and without "
        "the constants of the mechanism. Rows 'tried, dropped' are with the mechanism, not without it. Step "
        "times are longest paths without contention for links, so the first row may differ slightly from the "
        "score above."
    )
    return Table(columns, rows, caption, frozenset(range(2, 9)))


def _points(value: float | None, before: float | None) -> str:
    return (
        text.NONE
        if value is None or before is None
        else _tables_signed(value - before).replace(" %", " points")
    )


def _left_out_table(left_out: Sequence[LeftOut]) -> Table:
    """Each family with itself in the fit and left out of it, and the constants fitted without it."""
    names = list(dict.fromkeys(name for row in left_out for name in row.constants))
    rows = []
    for family in left_out:
        inside = family.inside
        outside = family.outside
        rows.append(
            [
                family.family,
                str(inside["n"]),
                *(f"{_percent(inside[key])} / {_percent(outside[key])}" for key in _FIGURES),
                f"{_tables_signed(inside['bias'])} / {_tables_signed(outside['bias'])}",
                *(_constant(family, name) for name in names),
            ]
        )
    headings = [_heading(name) for name in names]
    columns = ("left out", "runs", "median", "p90", "mean", "bias", *headings)
    caption = (
        "Each pair: with the family in the fit / without it. A constant in parentheses is kept, because no "
        "run of another family determines it. A constant with a device's name is that device's, because no "
        "other run used the family's own device."
    )
    return Table(columns, rows, caption, frozenset(range(1, 6 + len(names))))


def constants_table(constants: Sequence[FittedConstant]) -> Table:
    """The constants that whole steps decide, each with its standard error."""
    rows = [
        [
            _heading(constant.name),
            _tables_quantity(constant.name, constant.value),
            _percent(constant.standard_error),
            text.integer(constant.runs),
        ]
        for constant in constants
    ]
    columns = ("constant", "value", "standard error", "runs of the fit")
    caption = "Standard errors are relative, by the sandwich, which allows for runs of unequal spread."
    return Table(columns, rows, caption, frozenset({1, 2, 3}))


def _constant(family: LeftOut, name: str) -> str:
    if name not in family.constants:
        return text.NONE
    value = _tables_quantity(name, family.constants[name])
    if name in family.kept:
        return f"({value})"
    borrowed = family.borrowed and name == f"{OF_DEVICE[0]} of {family.calibration}"
    return f"{value} ({family.borrowed})" if borrowed else value


def _heading(name: str) -> str:
    """What a constant is called in a table, with its owner."""
    field, _, owner = name.partition(" of ")
    return _HEADINGS.get(field, text.human(field)) + (f", {owner}" if owner else "")


def _tables_quantity(constant: str, value: float) -> str:
    """A constant in the unit that the name of its field ends with."""
    name = constant.partition(" of ")[0]
    if name.endswith("_bytes_per_s"):
        return format_quantity(value, "bytes_per_s", 3)
    if "_s_per_" in name or name.endswith("_s"):
        return text.duration(value, 2)
    return f"{value:,.0f}" if name.endswith("_length") else f"{value:.2f}"


def _releases_left_out_table(left_out: Mapping[str, Any], result: Mapping[str, Any]) -> Table:
    """Each scored log with its release in the fit and left out of it, then all logs together."""
    inside = {case["id"]: case["error"] for case in result["cases"]}
    rows = [
        [
            case["id"],
            text.duration(case["measured_s"]),
            _tables_signed(inside[case["id"]]),
            _tables_signed(case["error"]),
        ]
        for case in left_out["cases"]
    ]
    fitted = result["summary"]
    without = left_out["summary"]
    for name, key in (("median of all", "median_ape"), ("mean of all", "mape")):
        rows.append([name, text.NONE, _percent(fitted[key]), _percent(without[key])])
    rows.append(["half-width of a 90 % band", text.NONE, text.NONE, _percent(without["p90_ape"])])
    columns = ("log", "measured", "release in the fit", "release left out")
    caption = (
        "Errors of the step time. The efficiency of a release that is left out follows from the growth over "
        "the other releases. The band of so few logs is Student's, from their root mean square error."
    )
    return Table(columns, rows, caption, frozenset({1, 2, 3}))


def _convergence_table(result: Mapping[str, Any]) -> Table:
    """Leave-one-out and larger batch, beside the baseline of a constant number of examples."""
    counts = result["predictions"]
    pairs = (
        ("leave-one-out", "leave_one_out", "summary", "baseline"),
        ("larger batch", "larger_batch", "larger_batch", "larger_batch_baseline"),
    )
    rows = [
        [
            name,
            str(counts[key]),
            *(_percent(result[score][figure]) for figure in _FIGURES),
            _tables_signed(result[score]["bias"]),
            _percent(result[baseline]["median_ape"]),
            _percent(result[baseline]["mape"]),
        ]
        for name, key, score, baseline in pairs
    ]
    columns = ("protocol", "predictions", "median", "p90", "mean", "bias", "baseline", "baseline, mean")
    caption = (
        f"{result['refused']} predictions were refused, {result['refused_allowed']} of them for runs that "
        "fine-tune or start from a checkpoint; the others count as an error of 100 %. Baseline: examples do "
        "not depend on the batch."
    )
    return Table(columns, rows, caption, frozenset(range(1, 8)))


def _refusals_table(subject: str, result: Mapping[str, Any]) -> Table:
    """The runs or benchmarks for which there is no prediction, and why."""
    rows = [[case["id"], case["error"].splitlines()[0]] for case in result["failed"]]
    return Table((subject, "why there is no prediction"), rows)


# Tables of published ratios of speeds on many wafers beside predicted ones.


def ratios_table(scaling: Mapping[str, Any]) -> Table:
    """Tokens a second and system over those of each run on one system."""
    rows = [
        [
            run["name"],
            str(run["systems"]),
            base["base"],
            f"{base['measured']:.4g}",
            f"{base['predicted']:.4g}",
            _signed(base["error"]),
            "yes" if base["band"][0] <= base["measured"] <= base["band"][1] else "no",
        ]
        for run in scaling["runs"]
        for base in run["against"]
    ]
    columns = ("run", "systems", "over", "published", "predicted", "error", "in band")
    caption = (
        "Tokens a second and system of a run over those of one on one system. Not scored: no step time is "
        "published. The band is that of the ratio of two runs of one machine."
    )
    return Table(columns, rows, caption, frozenset({1, 3, 4, 5}))


def efficiencies_table(scaling: Mapping[str, Any]) -> Table:
    """Throughput of many systems over as many times that of fewer."""
    rows = [
        [
            claim["name"],
            f"{claim['fewer']} to {claim['systems']}",
            f"{'at least ' if claim['least'] else ''}{claim['measured']:.3g}",
            f"{claim['predicted']:.3f}",
            f"{claim['allowed']:.3f}",
            claim["source"],
        ]
        for claim in scaling["efficiencies"]
    ]
    columns = ("scaling of", "systems", "published", "predicted", "band from", "source")
    return Table(columns, rows, "", frozenset({2, 3, 4}))


def explanations_table(scaling: Mapping[str, Any]) -> Table:
    """What each cause alone would have to be to explain the least efficiency that is published."""
    rows = [
        [row["cause"], _quantity(row["needed"], row["unit"]), _quantity(row["in_model"], row["unit"])]
        for row in scaling["explanations"]
    ]
    runs = {f"{row['run']} on {row['systems']} systems" for row in scaling["explanations"]}
    caption = (
        f"For {', '.join(sorted(runs))}. No figure of the network that is near the assumed one explains the "
        "lower bound; systems whose speeds differ do."
    )
    return Table(
        ("a cause that alone explains it", "needed", "in the model"), rows, caption, frozenset({1, 2})
    )


def _quantity(value: float, unit: Dimension | Literal["fraction"]) -> str:
    return text.percent(value) if unit == "fraction" else format_quantity(value, unit, 3)


def _signed(value: float) -> str:
    return f"{100 * value:+.1f} %"


TITLE = "Accuracy: predictions of published runs"
COMMAND = "perfsim validate --record --leave-out --page reports"
"""What makes the files that the repository holds."""

_POINT = ("id", "family", "measured_s", "predicted_s", "error", "evidence")


def write_validation(page: AccuracyPage, folder: Path) -> tuple[Path, Path]:
    """Write `index.html` and `validation.md` with the same tables; the same input gives the same bytes."""
    sections = list(_validation_sections(page))
    head = _head(page)
    html = write_page(TITLE, sections, folder / "index.html", head=head)
    return html, write_file(folder / "validation.md", markdown(TITLE, sections, head))


def _validation_sections(page: AccuracyPage) -> Iterator[Section]:
    """Sections for each file of step times, then for each file of convergence."""
    for accuracy in page.steps:
        yield from _step_sections(accuracy, page.leaves_out)
    if page.constants:
        yield Section(
            "Constants that whole steps decide",
            "No micro-benchmark shows them, so they are fitted to all published runs on GPUs at once.",
            table=constants_table(page.constants),
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
    result = accuracy.result
    name = _name(accuracy.result)
    slug = slugify(name)
    yield _scatter(accuracy, slug)
    yield Section(
        f"{name}: families beside a baseline",
        "Shows where and by how much the model is better than one efficiency for all runs.",
        table=_score_table(result, accuracy.outside),
        slug=f"{slug}-families",
        level=3,
    )
    if result["sweeps"]:
        yield Section(
            f"{name}: choosing a layout",
            "One model on one number of devices in several layouts: does the prediction find the fastest?",
            topics=[(f"{len(result['sweeps'])} sweeps", _sweeps_table(result))],
            slug=f"{slug}-sweeps",
            level=3,
        )
    yield from _far_off(accuracy, slug)
    if accuracy.removed:
        yield Section(
            f"{name}: ablation",
            "The error of the model without each of its mechanisms.",
            topics=[("without each mechanism", _ablation_table(accuracy.removed))],
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
        f"{name}: the worst {WORST}",
        "The scored runs with the largest errors. Rules find the likely cause from the parts of the "
        "predicted step: 'right at 0.80 times' means that this part alone would have to take 0.80 times as "
        "long.",
        table=_worst_table(accuracy, scored=True),
        slug=f"{slug}-worst",
        level=3,
    )
    weak = _worst_table(accuracy, scored=False)
    if weak.rows:
        lead = "Runs with weak evidence."
        topics = [(f"{len(weak.rows)} runs", weak)]
        yield Section(f"{name}: shown, not scored", lead, topics=topics, slug=f"{slug}-weak", level=3)
    if accuracy.result["failed"]:
        table = _refusals_table("run", accuracy.result)
        topics = [(f"{len(table.rows)} runs", table)]
        lead = "Runs that are refused."
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
        topics=[("each family, and the constants without it", _left_out_table(accuracy.left_out))],
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
    table = _releases_left_out_table(accuracy.releases_left_out, accuracy.result)
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
        table=_convergence_table(result),
        slug=f"{slugify(name)}-score",
    )
    if result["failed"]:
        yield Section(
            f"{name}: refused",
            "Benchmarks whose points do not determine a fit have no prediction.",
            table=_refusals_table("benchmark", result),
            slug=f"{slugify(name)}-refused",
            level=3,
        )
