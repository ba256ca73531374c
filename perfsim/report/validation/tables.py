"""The tables of the accuracy page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfsim.fitting.step_fit import OF_DEVICE
from perfsim.report import text
from perfsim.report.table import Table
from perfsim.units import format_quantity
from perfsim.validation.accuracy_page import FittedConstant, Removed, StepAccuracy
from perfsim.validation.leave_out import LeftOut

WORST = 10
_HEADINGS = {
    "host_s_per_kernel": "host, a kernel",
    "host_blocking_s_per_kernel": "host blocking, a kernel",
    "partial_node_rank_bytes_per_s": "bus of a partial node",
}
_FIGURES = ("median_ape", "p90_ape", "mape")


def score_table(result: Mapping[str, Any], outside: Mapping[str, Any] | None = None) -> Table:
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
        _signed(figures["bias"]),
        text.NONE if tau is None else f"{tau:.2f}",
        _percent(figures.get("regret")),
        _percent(figures.get("band_coverage")),
        *(_percent(other.get(key)) for other in (left_out, baseline) for key in ("median_ape", "mape")),
    ]


def _percent(value: float | None) -> str:
    return text.NONE if value is None else text.percent(value)


def _signed(value: float | None) -> str:
    if value is None:
        return text.NONE
    return f"{100 * value:+.1f} %".replace("-0.0 %", "+0.0 %")


def sweeps_table(result: Mapping[str, Any]) -> Table:
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


def worst_table(accuracy: StepAccuracy, *, scored: bool) -> Table:
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
            _signed(case["error"]),
            accuracy.causes.get(case["id"], text.NONE),
        ]
        for case in (known[:WORST] if scored else known)
    ]
    columns = ("run", "evidence", "measured", "predicted", "error", "likely cause")
    return Table(columns, rows, "", frozenset({2, 3, 4}))


def ablation_table(removed: Sequence[Removed]) -> Table:
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
                _signed(figures["bias"]),
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
    return text.NONE if value is None or before is None else _signed(value - before).replace(" %", " points")


def left_out_table(left_out: Sequence[LeftOut]) -> Table:
    """Each family with itself in the fit and left out of it, and the constants fitted without it."""
    names = list(dict.fromkeys(name for row in left_out for name in row.constants))
    rows = []
    for family in left_out:
        inside, outside = family.inside, family.outside
        rows.append(
            [
                family.family,
                str(inside["n"]),
                *(f"{_percent(inside[key])} / {_percent(outside[key])}" for key in _FIGURES),
                f"{_signed(inside['bias'])} / {_signed(outside['bias'])}",
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
            _quantity(constant.name, constant.value),
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
    value = _quantity(name, family.constants[name])
    if name in family.kept:
        return f"({value})"
    borrowed = family.borrowed and name == f"{OF_DEVICE[0]} of {family.calibration}"
    return f"{value} ({family.borrowed})" if borrowed else value


def _heading(name: str) -> str:
    """What a constant is called in a table, with its owner."""
    field, _, owner = name.partition(" of ")
    return _HEADINGS.get(field, text.human(field)) + (f", {owner}" if owner else "")


def _quantity(constant: str, value: float) -> str:
    """A constant in the unit that the name of its field ends with."""
    name = constant.partition(" of ")[0]
    if name.endswith("_bytes_per_s"):
        return format_quantity(value, "bytes_per_s", 3)
    if "_s_per_" in name or name.endswith("_s"):
        return text.duration(value, 2)
    return f"{value:,.0f}" if name.endswith("_length") else f"{value:.2f}"


def releases_left_out_table(left_out: Mapping[str, Any], result: Mapping[str, Any]) -> Table:
    """Each scored log with its release in the fit and left out of it, then all logs together."""
    inside = {case["id"]: case["error"] for case in result["cases"]}
    rows = [
        [case["id"], text.duration(case["measured_s"]), _signed(inside[case["id"]]), _signed(case["error"])]
        for case in left_out["cases"]
    ]
    fitted, without = result["summary"], left_out["summary"]
    for name, key in (("median of all", "median_ape"), ("mean of all", "mape")):
        rows.append([name, text.NONE, _percent(fitted[key]), _percent(without[key])])
    rows.append(["half-width of a 90 % band", text.NONE, text.NONE, _percent(without["p90_ape"])])
    columns = ("log", "measured", "release in the fit", "release left out")
    caption = (
        "Errors of the step time. The efficiency of a release that is left out follows from the growth over "
        "the other releases. The band of so few logs is Student's, from their root mean square error."
    )
    return Table(columns, rows, caption, frozenset({1, 2, 3}))


def convergence_table(result: Mapping[str, Any]) -> Table:
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
            _signed(result[score]["bias"]),
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


def refusals_table(subject: str, result: Mapping[str, Any]) -> Table:
    """The runs or benchmarks for which there is no prediction, and why."""
    rows = [[case["id"], case["error"].splitlines()[0]] for case in result["failed"]]
    return Table((subject, "why there is no prediction"), rows)
