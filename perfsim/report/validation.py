"""Predictions next to published figures: tables of errors, the accuracy page, and comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from perfsim.base.files import write_file
from perfsim.base.units import dimension_of, format_quantity
from perfsim.report import draw, text
from perfsim.report.page import Page, Section, slugify
from perfsim.report.table import Field, Table, document_text

if TYPE_CHECKING:
    from perfsim.evidence.ablation import Removed, StepAccuracy
    from perfsim.evidence.left_out import LeftOut
    from perfsim.studies.comparisons import Comparison

Scores = Mapping[str, Any]
"""The errors of some runs: `n`, `median_ape`, `p90_ape`, `mape`, `bias`, and more where they are known."""

COMMAND = "perfsim validate --record --leave-out --page reports"
"""What makes the files that the repository holds."""
MOST_INFERRED = 2
_HEADINGS = {
    "host_s_per_kernel": "host, a kernel",
    "host_blocking_s_per_kernel": "host blocking, a kernel",
    "collective_wait_s": "wait of a collective",
    "partial_node_rank_bytes_per_s": "bus of a partial node",
}
_ERRORS = {
    "median": (text.SHARE, "median_ape"),
    "p90": (text.SHARE, "p90_ape"),
    "mean": (text.SHARE, "mape"),
    "bias": (text.CHANGE, "bias"),
}
_OF_ERRORS = (
    "Median, p90 and mean are of the absolute error, bias is the mean with its sign; a failure counts 1. In "
    "band: the share of runs in their 90 % band, from constants and errors without their family (of a wafer: "
    "without its model). As asked: the median where only model, machine, sequence, precision and layout are "
    "given. Baseline: the median error of one efficiency for all runs."
)


def _of(score: str) -> dict[str, Field[Any]]:
    """The columns of the scores that an item holds under a name."""
    return {name: (unit, f"{score}.{key}") for name, (unit, key) in _ERRORS.items()}


# Tables that the page and the terminal share.


def _score_table(result: Mapping[str, Any], outside: Mapping[str, Any] | None) -> Table:
    """All runs and each family, next to one constant efficiency, and `outside` the fit of the constants."""
    without = outside or {"summary": None, "families": {}, "classes": {}}
    others = {
        "as asked": (result["summary_asked"], result["families_asked"]),
        "baseline": (result["baseline"], result["families_baseline"]),
        "left out": (without["summary"], without["families"]),
    }
    of_all = {name: scores for name, (scores, _) in others.items()}
    rows: list[dict[str, Any]] = [{"name": "all runs", "score": result["summary"], **of_all}]
    if result["failed"]:
        rows.append({"name": "all that were predicted", "score": result["summary_predicted"]})
    for name, scores in result["classes"].items():
        rows.append({"name": f"all: {name}", "score": scores, "left out": without["classes"].get(name)})
    for family, scores in result["families"].items():
        if scores["n"]:
            same = {name: known.get(family) for name, (_, known) in others.items()}
            rows.append({"name": family, "score": scores, **same})
    return Table.each(
        rows,
        {
            "family": (None, "name"),
            "runs": (text.COUNT, "score.n"),
            **_of("score"),
            "in band": (text.SHARE, "score.band_coverage"),
            "half-width": (text.SHARE, "score.band_width"),
            "interval score": (text.NUMBER, "score.interval_score"),
            "as asked": (text.SHARE, "as asked.median_ape"),
            "as asked, mean": (text.SHARE, "as asked.mape"),
            "as asked, in band": (text.SHARE, "as asked.band_coverage"),
            "left out": (text.SHARE, "left out.median_ape"),
            "left out, mean": (text.SHARE, "left out.mape"),
            "baseline": (text.SHARE, "baseline.median_ape"),
        },
        "Absolute errors of the step time; bias is the mean signed error. In band: the share of runs whose "
        "measured time lies in its 90 % band, which comes from constants and errors without the run's family "
        "(of a wafer: without its model). Half-width: the mean of the bands, in log time; interval "
        "score: the mean of twice that, and 20 times what lies outside; less is better. As asked: median and "
        "mean error, and the share in the wider bands, where only model, machine, sequence, precision and "
        "layout are given, and the default runtime runs them. "
        "Left out: median and mean error with constants that were fitted without the family (of a wafer: "
        "without the model). Baseline: the median of one efficiency for all runs.",
    )


def _predicted(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The predicted runs, the worst first; cases of convergence have errors of examples, and no times."""
    known = [case for case in result["cases"] if case.get("predicted_s") is not None]
    return sorted(known, key=lambda case: (-abs(math.log1p(max(case["error"], -0.999999))), case["id"]))


def _runs_table(cases: Iterable[Mapping[str, Any]]) -> Table:
    """Predicted runs, and what is inferred of them."""

    def evidence(case: Mapping[str, Any]) -> str:
        inferred = case.get("inferred") or []
        names = " and ".join(inferred) if len(inferred) <= MOST_INFERRED else f"{len(inferred)} fields"
        return f"{case['evidence']}, {names} inferred" if inferred else str(case["evidence"])

    def left_out(case: Mapping[str, Any]) -> float | None:
        return case["left_out_s"] / case["measured_s"] - 1.0 if case.get("left_out_s") else None

    columns: dict[str, Field[Any]] = {
        "run": (None, "id"),
        "family": (None, "family"),
        "evidence": (None, evidence),
        "measured": (text.TIME, "measured_s"),
        "predicted": (text.TIME, "predicted_s"),
        "error": (text.CHANGE, "error"),
        "left out": (text.CHANGE, left_out),
    }
    caption = "Worst first. Left out: the error with constants on record that were fitted without its family "
    return Table.each(cases, columns, caption + "(of a wafer: without its model).")


def _ablation_table(removed: Sequence[Removed]) -> Table:
    """The score without each mechanism, the largest mean error first."""
    complete, *ablated = removed
    ablated.sort(key=lambda row: (-(row.summary["mape"] or 0.0), row.mechanism))
    return Table.each(
        (complete, *ablated),
        {
            "without": (None, "mechanism"),
            "replaced by": (None, lambda row: row.instead or None),
            **_of("summary"),
            "mean, left out": (text.SHARE, "left_out.mape"),
        },
        "Fitted constants are kept, except in the column 'left out': there they are fitted again, to runs of "
        "other families, with the slopes of the complete model and without the constants of the mechanism. "
        "Step times are longest paths without contention for links, so the first row may differ slightly "
        "from the score above.",
    )


def _left_out_table(left_out: Sequence[LeftOut]) -> Table:
    """The errors of each family left out of the fit, and the constants fitted without it."""
    names = dict.fromkeys(name for row in left_out for name in row.constants)

    def constant(name: str, family: LeftOut) -> str | None:
        if name not in family.constants:
            return None
        value = _quantity(name, family.constants[name])
        if name in family.kept:
            return f"({value})"
        borrowed = family.borrowed and name == family.ceiling
        return f"{value} ({family.borrowed})" if borrowed else value

    return Table.each(
        left_out,
        {
            "left out": (None, "family"),
            "runs": (text.COUNT, "outside.n"),
            **_of("outside"),
            **{_heading(name): (text.NUMBER, partial(constant, name)) for name in names},
        },
        "A constant in parentheses is kept, because no run of another family determines it. A constant with "
        "a device's name is that device's, because no other run used the family's own device.",
    )


def _heading(name: str) -> str:
    """What a constant is called in a table, with its owner."""
    field, _, owner = name.partition(" of ")
    return _HEADINGS.get(field, text.human(field)) + (f", {owner}" if owner else "")


def _quantity(constant: str, value: float) -> str:
    """A fitted constant in the unit that the name of its field ends with."""
    name = constant.partition(" of ")[0]
    if dimension := dimension_of(name):
        return format_quantity(value, dimension, 3)
    return f"{value:,.0f}" if name.endswith("_length") else f"{value:.2f}"


def _refusals_table(subject: str, result: Mapping[str, Any]) -> Table:
    """The runs or benchmarks for which there is no prediction, and why."""
    rows = ((case["id"], case["error"].splitlines()[0]) for case in result["failed"])
    return Table.of((subject, "why there is no prediction"), rows)


def _scaling_sections(scaling: Mapping[str, Any]) -> list[Section]:
    """Published ratios of speeds on more systems than any log has."""
    four = text.Unit(digits="{:.4g}".format)

    def in_band(ratio: Mapping[str, Any]) -> str:
        low, high = ratio["band"]
        return "yes" if low <= ratio["measured"] <= high else "no"

    def in_unit(key: str, own: Mapping[str, Any]) -> str:
        whole = own["unit"] == "fraction"
        return text.percent(own[key]) if whole else format_quantity(own[key], own["unit"], 3)

    ratios = Table.each(
        ({**run, **base} for run in scaling["runs"] for base in run["against"]),
        {
            "run": (None, "name"),
            "systems": (text.COUNT, "systems"),
            "over": (None, "base"),
            "published": (four, "measured"),
            "predicted": (four, "predicted"),
            "error": (text.CHANGE, "error"),
            "in band": (None, in_band),
        },
        "Tokens a second and system of a run, over the same of one on one system. Not scored: no step time "
        "is published. The band belongs to the ratio of two runs of one machine.",
    )
    efficiencies = Table.each(
        scaling["efficiencies"],
        {
            "scaling of": (None, "name"),
            "systems": (None, lambda own: f"{own['fewer']} to {own['systems']}"),
            "published": (text.NUMBER, lambda own: f"{'at least ' * own['least']}{own['measured']:.3g}"),
            "predicted": (text.RATIO, "predicted"),
            "band from": (text.RATIO, "allowed"),
            "source": (None, "source"),
        },
    )
    runs = sorted({f"{own['run']} on {own['systems']} systems" for own in scaling["explanations"]})
    causes = Table.each(
        scaling["explanations"],
        {
            "a cause that alone explains it": (None, "cause"),
            "needed": (text.NUMBER, partial(in_unit, "needed")),
            "in the model": (text.NUMBER, partial(in_unit, "in_model")),
        },
        f"For {', '.join(runs)}. No figure of the network that is near the assumed one explains "
        "the lower bound; systems whose speeds differ do.",
    )
    source = f"Published ratios next to predicted ones. {scaling['source']}."
    many = (
        "Throughput of one of many systems over one of fewer; 'band from' is the least that the "
        "band of many systems allows."
    )
    alone = "Each cause is set so that it alone makes the step as slow as the published lower bound."
    return [
        Section("more systems", source, table=ratios, slug="scaling"),
        Section("published scaling", many, table=efficiencies, slug="efficiencies"),
        Section("what would explain the loss", alone, table=causes, slug="explanations"),
    ]


def _written(value: float | None, unit: text.Unit) -> str:
    return text.NONE if value is None else unit.text(value)


def _middles(scores: Scores) -> str:
    return ", ".join(f"{name} {_written(scores[name], text.SHARE)}" for name in ("median", "p90", "mean"))


# Errors of predictions of published runs, family by family.


def residuals(result: Mapping[str, Any]) -> tuple[Table, go.Figure | None]:
    """Predicted runs, worst first, and errors by family, closest first; marks tell band and evidence."""
    known = _predicted(result)
    table = _runs_table(known)
    if not known:
        return table, None
    families = table.by("family")
    ranked = sorted(families, key=lambda name: median(map(abs, families[name].values("error"))))
    labels = {name: f"{text.esc(name)} ({len(families[name].rows)})" for name in ranked}
    hovers = table.hovers("measured", "predicted", "error")

    def outside(case: Mapping[str, Any]) -> bool:
        low, high = case.get("band_s") or (0.0, math.inf)
        return not low <= case["measured_s"] <= high

    traces = []
    for name, symbol, colour, out in (
        ("a run", "circle", draw.BLUE, False),
        ("a run outside its band", "diamond", draw.VERMILLION, True),
    ):
        # The legend has the first mark: a scored run comes first.
        shown = [row for row, case in enumerate(known) if outside(case) is out]
        shown.sort(key=lambda row: known[row]["evidence"] == "C")
        look = {"color": colour, "size": 9, "line": {"color": colour, "width": 2}}
        look["symbol"] = [f"{symbol}{'-open' * (known[row]['evidence'] == 'C')}" for row in shown]
        x = [100.0 * known[row]["error"] for row in shown]
        y = [labels[known[row]["family"]] for row in shown]
        traces += [draw.marks(name, x, y, look, [hovers[row] for row in shown])] if shown else []
    title = "Predicted over measured, minus 1, by family (%)"
    errors = draw.axis("error of the step time (%)", zeroline=True, zerolinecolor=draw.INK)
    return table, draw.rows(title, list(labels.values()), traces, errors, 30)


def write_validation(
    steps: Sequence[StepAccuracy], convergence: Sequence[Mapping[str, Any]], folder: Path
) -> tuple[Path, Path]:
    """Write `index.html` and `validation.md` of step times and of convergence, with the same tables."""
    medians = [
        f"{_name(result)} {text.percent(result['summary']['median_ape'])}"
        for result in (*(step.result for step in steps), *convergence)
        if result["summary"]["median_ape"] is not None
    ]
    page = Page(
        "Accuracy: predictions of published runs",
        [
            *(own for step in steps for own in _of_file(step.result, _step_sections(step))),
            *(own for result in convergence for own in _of_file(result, _convergence_sections(result))),
        ],
        "How accurate are predictions of published runs?",
        f"Median errors: {', '.join(medians)}.",
        note="Absolute relative errors. Constants belong to a device, a link or the framework, never "
        "to a run; only a wafer's speed depends on the release of its software.",
        footer=f"Made by `{COMMAND}`."
        if any(step.leaving for step in steps)
        else "Made by `perfsim validate --page`; add --leave-out for errors on families left out of the fit.",
    )
    return page.write(folder), write_file(folder / "validation.md", page.markdown())


def _name(result: Mapping[str, Any]) -> str:
    return str(result["file"]).removesuffix(".yaml").replace("_", " ")


def _of_file(result: Mapping[str, Any], sections: Iterable[Section]) -> Iterator[Section]:
    """Sections under the name of their file; the first is at its head."""
    name = _name(result)
    for place, section in enumerate(sections):
        slug = f"{slugify(name)}-{section.anchor}"
        yield replace(section, heading=f"{name}: {section.heading}", slug=slug, level=3 if place else 2)


def _convergence_table(result: Mapping[str, Any]) -> Table:
    """Leave-one-out and larger batch, next to the baseline of a constant number of examples."""

    def row(name: str, key: str, score: str, baseline: str) -> dict[str, Any]:
        predictions = result["predictions"][key]
        return {"name": name, "n": predictions, "score": result[score], "baseline": result[baseline]}

    return Table.each(
        [
            row("leave-one-out", "leave_one_out", "summary", "baseline"),
            row("larger batch", "larger_batch", "larger_batch", "larger_batch_baseline"),
        ],
        {
            "protocol": (None, "name"),
            "predictions": (text.COUNT, "n"),
            **_of("score"),
            "baseline": (text.SHARE, "baseline.median_ape"),
            "baseline, mean": (text.SHARE, "baseline.mape"),
        },
        f"{result['refused']} predictions were refused, {result['refused_allowed']} of them for runs that "
        "fine-tune or start from a checkpoint; the others count as an error of 100 %. Baseline: examples do "
        "not depend on the batch.",
    )


def _convergence_sections(result: Mapping[str, Any]) -> Iterator[Section]:
    lead = "How well the law of the critical batch predicts one batch size of a benchmark from its others."
    yield Section("examples to the target by batch", lead, table=_convergence_table(result), slug="score")
    if result["failed"]:
        lead = "Benchmarks whose points do not determine a fit have no prediction."
        yield Section("refused", lead, table=_refusals_table("benchmark", result))


def _step_sections(accuracy: StepAccuracy) -> Iterator[Section]:
    result = accuracy.result
    runs, drawn = residuals(result)
    within = sum(abs(cell.number) <= 0.1 for cell in runs.column("error"))
    lead = (
        f"{len(runs.rows)} of {result['count']} runs are predicted, {within} of them within 10 %. Evidence "
        "A: exact configuration, direct measurement. B: one field is inferred. C: weak evidence, not scored, "
        "an open mark. A diamond is a run outside its 90 % band."
    )
    yield Section("errors by family", lead, drawn, runs, ("error",), slug="scatter")
    lead = "Shows where and by how much the model is better than one efficiency for all runs."
    scores = _score_table(result, accuracy.outside)
    yield Section("families next to a baseline", lead, table=scores, slug="families")
    if result["sweeps"]:
        table = Table.each(
            result["sweeps"],
            {
                "sweep": (None, "sweep"),
                "layouts": (text.COUNT, "layouts"),
                "Kendall's tau": (text.Unit(digits="{:.2f}".format), "kendall_tau"),
                "regret": (text.SHARE, "regret"),
                "predicted fastest": (None, "chosen"),
                "measured fastest": (
                    None,
                    lambda own: "the same" if own["best"] == own["chosen"] else own["best"],
                ),
            },
            "Regret: measured time of the layout predicted fastest, relative to the fastest, minus 1.",
        )
        lead = "One model on one number of devices in several layouts: does the prediction find the fastest?"
        fold = f"{len(table.rows)} sweeps"
        yield Section("choosing a layout", lead, table=table, fold=fold, slug="sweeps")
    if result["failed"]:
        refused = _refusals_table("run", result)
        fold = f"{len(refused.rows)} runs"
        yield Section("not predicted", "Runs that are refused.", table=refused, fold=fold, slug="refused")
    if accuracy.removed:
        lead = "The error of the model without each of its mechanisms."
        yield Section("ablation", lead, table=_ablation_table(accuracy.removed), fold="the table")
    if accuracy.left_out:
        lead = (
            "Errors on runs that the model was not fitted to: the constants fitted to whole steps are fitted "
            "again to all other families, then the family is predicted."
        )
        fold = "each family, and the constants without it"
        table = _left_out_table(accuracy.left_out)
        yield Section("leaving one family out", lead, table=table, fold=fold, slug="left-out")
    if result.get("scaling"):
        yield from _scaling_sections(result["scaling"])


# The errors of one file on a terminal.


def validation_lines(result: Mapping[str, Any], worst: int) -> list[str]:
    """The score of one file: all, by family, the baseline, what failed, and the worst cases."""
    outside = result.get("left_out") or {}
    if result["kind"] == "step_time":
        others = ["as asked", *(["left out"] if outside else []), "baseline"]
        columns = ["family", "runs", *_ERRORS, "in band", *others]
        score = replace(_score_table(result, outside).only(*columns), caption=_OF_ERRORS)
    else:
        score = _convergence_table(result)
    scaling = _scaling_sections(result["scaling"]) if result.get("scaling") else []
    known = _predicted(result)
    scored = [case for case in known if case["evidence"] != "C"]
    wrong = _runs_table(scored[:worst]).only("run", "measured", "predicted", "error", "evidence")
    heads = [wrong.columns[0]._replace(name=f"worst {len(wrong.rows)}"), *wrong.columns[1:]]
    weak = len(known) - len(scored)
    caption = f"{text.counted(weak, 'run')} with evidence C: not scored, not listed." if weak else ""
    wrong = replace(wrong, columns=heads, caption=caption)
    return [
        f"{result['file']}: {text.counted(result['count'], 'case')}, {len(result['failed'])} failed",
        *score.lines(),
        *text.paragraphs(*_summary_notes(result, outside)),
        *(["", *wrong.lines()] if wrong.rows else []),
        *(line for own in scaling if own.table and own.table.rows for line in ("", *own.table.lines())),
    ]


def _summary_notes(result: Mapping[str, Any], outside: Mapping[str, Any]) -> Iterator[str]:
    """What was left out together, memory, and why runs failed."""
    if families := sorted({name.rsplit(", ", 1)[0] for name in outside.get("groups", {})}):
        yield (
            "Left out by model and number of devices, for no other family has their framework or device: "
            f"{', '.join(families)}."
        )
    if "whole" in outside:
        whole = {name: outside["whole"]["summary"][key] for name, (_, key) in _ERRORS.items()}
        yield f"Left out whole, with the mean of others' constants: {_middles(whole)}."
    memory = result.get("memory", {})
    if memory.get("n"):
        bias = _written(memory["bias"], text.CHANGE)
        runs = text.counted(memory["n"], "case")
        yield f"Peak memory, {runs} that print theirs: {_middles(memory)}, bias {bias}."
    reasons: dict[str, list[str]] = {}
    for case in result["failed"]:
        reason = case["error"].splitlines()[0].removeprefix(f"case {case['id']}: ")
        line = f", line {case['line']}" if case.get("line") else ""
        reasons.setdefault(reason, []).append(f"{case['id']}{line}")
    for reason, places in reasons.items():
        yield f"failed: {text.counted(len(places), 'case')} (first {places[0]}): {reason}"


# A comparison of published figures with a law or equations.

_BILLIONS = text.Unit("billion", 1e9)
_GB = text.Unit("GB", 1e9)
_COMPARED = {
    "params": _BILLIONS,
    "tokens": _BILLIONS,
    "equation_bytes": _GB,
    "simulated_bytes": _GB,
    "loss": text.RATIO,
    "law_loss": text.RATIO,
    "error": text.Unit(digits="{:+.3f}".format),
    "relative_error": text.CHANGE,
    "devices": text.COUNT,
    "batch": text.Unit(digits="{:,.6g}".format),
    "flop": text.Unit(digits="{:.3g}".format),
}
"""How the values of a key are written; others have three digits."""


def _comparison_table(result: Comparison) -> Table:
    """The rows of a comparison, every column in its unit."""
    units = dict(_COMPARED)
    if "time_s" in result.columns:
        units["time_s"] = text.TIME.of([float(row["time_s"] or 0.0) for row in result.rows])
    columns: dict[str, text.Unit | None] = {}
    for key, name in result.columns.items():
        numeric = any(isinstance(row[key], (int, float)) for row in result.rows)
        columns[name] = units.get(key, text.NUMBER) if numeric else None
    return Table.of(
        columns, ([row[key] for key in result.columns] for row in result.rows), " ".join(result.notes)
    )


def comparison_lines(result: Comparison) -> list[str]:
    """The title, the table, and the answer in words."""
    table = _comparison_table(result).lines()
    return [*text.paragraphs(result.title), "", *table, "", *text.paragraphs(result.verdict)]


def write_comparison(result: Comparison, folder: Path) -> Path:
    """Write `index.html` and `summary.json`; returns the page."""
    section = Section("Side by side", "", table=_comparison_table(result), slug="comparison")
    page = Page(result.title, [section], result.question, verdict=result.verdict)
    return page.write(folder, document_text(result))
