"""The tables of the accuracy page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfsim.fitting.step_fit import OF_DEVICE
from perfsim.report import text
from perfsim.report.table import Table
from perfsim.units import format_quantity
from perfsim.validation.accuracy_page import Removed, StepAccuracy
from perfsim.validation.leave_out import LeftOut

WORST = 10
_HEADINGS = {
    "host_s_per_kernel": "host, a kernel",
    "host_blocking_s_per_kernel": "host blocking, a kernel",
    "partial_node_bytes_per_s": "bus of a partial node",
}
_FIGURES = ("median_ape", "p90_ape", "mape")


def score_table(result: Mapping[str, Any]) -> Table:
    """All runs, each family, and for each the baseline of one constant efficiency beside it."""
    rows = [_score_row("all runs", result["summary"], result["baseline"])]
    for family, figures in result["families"].items():
        if figures["n"]:
            rows.append(_score_row(family, figures, result["families_baseline"].get(family, {})))
    for release, figures in result["without_release"].items():
        rows.append(_score_row(f"all runs without {release}", figures, {}))
    columns = ("family", "runs", "median", "p90", "mean", "bias", "tau", "regret", "baseline", "its mean")
    caption = (
        "Absolute errors of the step time; bias is their signed mean. Tau (mean) and regret (largest) are "
        "over the family's sweeps. Baseline: one efficiency for all runs; its median, then its mean error."
    )
    return Table(columns, rows, caption, frozenset(range(1, 10)))


def _score_row(name: str, figures: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[str]:
    tau = figures.get("kendall_tau")
    return [
        name,
        str(figures["n"]),
        *(_percent(figures[key]) for key in _FIGURES),
        _signed(figures["bias"]),
        text.NONE if tau is None else f"{tau:.2f}",
        _percent(figures.get("regret")),
        _percent(baseline.get("median_ape")),
        _percent(baseline.get("mape")),
    ]


def _percent(value: float | None) -> str:
    return text.NONE if value is None else text.percent(value)


def _signed(value: float | None) -> str:
    if value is None:
        return text.NONE
    return f"{100 * value:+.1f} %".replace("-0.0 %", "+0.0 %")


def sweeps_table(result: Mapping[str, Any]) -> Table:
    """Each sweep: how well its layouts are ranked, and what choosing by prediction costs."""
    rows = [
        [
            each["sweep"],
            str(each["layouts"]),
            f"{each['kendall_tau']:.2f}",
            _percent(each["regret"]),
            each["chosen"],
            each["best"] if each["best"] != each["chosen"] else "the same",
        ]
        for each in result["sweeps"]
    ]
    columns = ("sweep", "layouts", "Kendall's tau", "regret", "predicted fastest", "measured fastest")
    caption = "Regret: measured time of the layout predicted fastest, over that of the fastest, less 1."
    return Table(columns, rows, caption, frozenset({1, 2, 3}))


def worst_table(each: StepAccuracy, *, scored: bool) -> Table:
    """The scored runs that are furthest off, or all that are shown and not scored, with the likely cause."""
    known = [
        case
        for case in each.result["cases"]
        if case["error"] is not None and (case["evidence"] != "C") == scored
    ]
    known.sort(key=lambda case: (-abs(case["error"]), case["id"]))
    rows = [
        [
            case["id"],
            text.evidence(case),
            text.duration(case["measured_s"]),
            text.duration(case["predicted_s"]),
            _signed(case["error"]),
            each.causes.get(case["id"], text.NONE),
        ]
        for case in (known[:WORST] if scored else known)
    ]
    columns = ("run", "evidence", "measured", "predicted", "error", "likely cause")
    return Table(columns, rows, "", frozenset({2, 3, 4}))


def ablation_table(removed: Sequence[Removed]) -> Table:
    """The score without each mechanism; what matters most stands first."""
    whole, *others = removed
    others.sort(key=lambda each: (-(each.summary["mape"] or 0.0), each.what))
    rows = []
    for each in (whole, *others):
        figures = each.summary
        hurt = f"{each.most_hurt}: {_percent(each.most_hurt_mape)}" if each.most_hurt else text.NONE
        rows.append(
            [
                each.what,
                each.instead or text.NONE,
                *(_percent(figures[key]) for key in _FIGURES),
                _signed(figures["bias"]),
                text.NONE if each is whole else _points(figures["mape"], whole.summary["mape"]),
                _percent(each.refitted["mape"]) if each.refitted else text.NONE,
                hurt,
            ]
        )
    columns = (
        "without", "in its place", "median", "p90", "mean", "bias", "mean, change", "mean, refitted",
        "most hurt, its mean",
    )  # fmt: skip
    caption = (
        "Fitted constants stay as they are but in the column 'refitted': there they are fitted again, by "
        "the slopes of the whole model, without those that belong to the mechanism. Step times by their "
        "longest path, without contention for links, which is why the first row may differ a little from "
        "the score above."
    )
    return Table(columns, rows, caption, frozenset(range(2, 8)))


def _points(value: float | None, before: float | None) -> str:
    return text.NONE if value is None or before is None else _signed(value - before).replace(" %", " points")


def left_out_table(left_out: Sequence[LeftOut]) -> Table:
    """Each family with itself in the fit and left out of it, and the constants found without it."""
    names = list(left_out[0].constants)
    rows = []
    for each in left_out:
        inside, outside = each.inside, each.outside
        rows.append(
            [
                each.family,
                str(inside["n"]),
                *(f"{_percent(inside[key])} / {_percent(outside[key])}" for key in _FIGURES),
                f"{_signed(inside['bias'])} / {_signed(outside['bias'])}",
                *(_constant(each, name) for name in names),
            ]
        )
    headings = [_HEADINGS.get(name, text.human(name)) for name in names]
    columns = ("left out", "runs", "median", "p90", "mean", "bias", *headings)
    caption = (
        "Each pair: with the family in the fit / without it. A constant in brackets is not found without "
        "the family, because no other run tells of it, and is kept; with a device's name it is that "
        "device's, because there is no other run on the family's own."
    )
    return Table(columns, rows, caption, frozenset(range(1, 6 + len(names))))


def _constant(each: LeftOut, name: str) -> str:
    if name not in each.constants:
        return text.NONE
    value = each.constants[name]
    shown = _of_constant(name, value)
    if name in each.kept:
        return f"({shown})"
    return f"{shown} ({each.borrowed})" if each.borrowed and name in OF_DEVICE else shown


def _of_constant(name: str, value: float) -> str:
    """A constant in the unit that its name ends with."""
    if name.endswith("_bytes_per_s"):
        return format_quantity(value, "bytes_per_s", 3)
    if "_s_per_" in name or name.endswith("_s"):
        return text.duration(value, 2)
    return f"{value:,.0f}" if name.endswith("_length") else f"{value:.2f}"


def releases_left_out_table(left_out: Mapping[str, Any], result: Mapping[str, Any]) -> Table:
    """Each scored log with its release in the fit and left out of it, then all together."""
    inside = {case["id"]: case["error"] for case in result["cases"]}
    rows = [
        [case["id"], text.duration(case["measured_s"]), _signed(inside[case["id"]]), _signed(case["error"])]
        for case in left_out["cases"]
    ]
    whole, without = result["summary"], left_out["summary"]
    for name, key in (("median of all", "median_ape"), ("mean of all", "mape")):
        rows.append([name, text.NONE, _percent(whole[key]), _percent(without[key])])
    rows.append(["half-width of a 90 % band", text.NONE, text.NONE, _percent(without["p90_ape"])])
    columns = ("log", "measured", "release in the fit", "release left out")
    caption = (
        "Errors of the step time. With a release left out its efficiency is what the growth over the other "
        "releases gives. The band of so few logs is Student's, from their root mean square error."
    )
    return Table(columns, rows, caption, frozenset({1, 2, 3}))


def convergence_table(result: Mapping[str, Any]) -> Table:
    """Leave one out and larger batch, beside the baseline of a constant number of examples."""
    counts = result["predictions"]
    pairs = (
        ("leave one out", "leave_one_out", "summary", "baseline"),
        ("larger batch", "larger_batch", "larger_batch", "larger_batch_baseline"),
    )
    rows = [
        [
            name,
            str(counts[key]),
            *(_percent(result[score][figure]) for figure in _FIGURES),
            _signed(result[score]["bias"]),
            _percent(result[baseline]["median_ape"]),
            _percent(result[baseline]["mape"]),
        ]
        for name, key, score, baseline in pairs
    ]
    columns = ("protocol", "predictions", "median", "p90", "mean", "bias", "baseline", "its mean")
    caption = (
        f"{result['refused']} predictions were refused, {result['refused_allowed']} of them for runs that "
        "fine-tune or start warm; the others count as an error of 100 %. Baseline: examples do not depend "
        "on the batch."
    )
    return Table(columns, rows, caption, frozenset(range(1, 8)))


def refusals_table(subject: str, result: Mapping[str, Any]) -> Table:
    """The runs or benchmarks for which there is no prediction, and why."""
    rows = [[each["id"], each["error"].splitlines()[0]] for each in result["failed"]]
    return Table((subject, "why there is no prediction"), rows)
