"""The error table of `perfsim validate` on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfsim.report import text
from perfsim.report.table import Table
from perfsim.report.terminal.layout import paragraph, table_lines, terminal_width
from perfsim.report.validation.scaling import efficiencies_table, explanations_table, ratios_table

_COLUMNS = ("", "n", "median", "p90", "mean", "bias", "tau", "regret", "in band")


_CAPTION = (
    "n: cases that are scored. Median, p90, mean: of the absolute relative error; bias: mean with its sign. "
    "Tau: Kendall's, of layouts ranked by step time; regret: time lost by the layout that is predicted to be "
    "the fastest."
)


def validation_lines(result: Mapping[str, Any], worst: int) -> list[str]:
    """The score of one file: all, by family, the baseline, what failed, and the worst cases."""
    failed, width = result["failed"], terminal_width()
    rows = [_row("all (a failure counts 1)", result["summary"])]
    if "summary_predicted" in result and failed:
        rows.append(_row("all that were predicted", result["summary_predicted"]))
    rows += _kinds(result)
    rows.append(_row("baseline", result["baseline"]))
    if "larger_batch" in result:
        rows.append(_row("larger batch", result["larger_batch"]))
    rows += [_row(f"  {name}", figures) for name, figures in result["families"].items()]
    for release, figures in result.get("without_release", {}).items():
        rows.append(_row(f"all without {release}", figures))
    if outside := result.get("left_out"):
        rows.append(_row(f"each {outside['by']} left out", outside["summary"]))
        rows += _kinds(outside)
    lines = [f"{result['file']}: {text.counted(result['count'], 'case')}, {len(failed)} failed"]
    lines += table_lines(Table(_COLUMNS, rows, _CAPTION, frozenset(range(1, len(_COLUMNS)))), width)
    if outside:
        lines += _parts(outside, width)
    lines += [*_coverage(result["summary"], width), *_memory(result.get("memory", {}), width)]
    lines += [*_failures(failed, width), *_worst(result["cases"], worst, width)]
    return [*lines, *_scaling(result["scaling"], width)] if result.get("scaling") else lines


def _kinds(scores: Mapping[str, Any]) -> list[list[str]]:
    """Runs without experts and with them, where a file has both."""
    return [_row(f"  {name}", scores[name]) for name in ("dense", "experts") if name in scores]


def _parts(outside: Mapping[str, Any], width: int) -> list[str]:
    """What was left out together with each run."""
    families = {name.rsplit(", ", 1)[0] for name in outside.get("groups", {})}
    if not families:
        return []
    return paragraph(
        f"Left out by model and number of devices, for no other family has their framework or device: "
        f"{', '.join(sorted(families))}.",
        width,
    )


def _row(name: str, figures: Mapping[str, Any]) -> list[str]:
    tau, regret = figures.get("kendall_tau"), figures.get("regret")
    covered = figures.get("band_coverage")
    return [
        name,
        str(figures.get("n", "")),
        *(_percent(figures.get(key)) for key in ("median_ape", "p90_ape", "mape")),
        _percent(figures.get("bias"), signed=True),
        "" if tau is None else f"{tau:.2f}",
        "" if regret is None else _percent(regret),
        "" if covered is None else _percent(covered),
    ]


def _coverage(summary: Mapping[str, Any], width: int) -> list[str]:
    """How many runs lie in their bands."""
    share = summary.get("band_coverage")
    if share is None:
        return []
    return paragraph(
        f"{text.percent(share)} of the scored runs lie in their 90 % band. A run's band comes from constants "
        "and errors without its family (of a wafer: without its release).",
        width,
    )


def _scaling(scaling: Mapping[str, Any], width: int) -> list[str]:
    """Published ratios of speeds on more systems than any log has."""
    tables = (ratios_table(scaling), efficiencies_table(scaling), explanations_table(scaling))
    return [line for table in tables if table.rows for line in ("", *table_lines(table, width))]


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return text.NONE
    return f"{100 * value:+.1f} %" if signed else text.percent(value)


def _memory(memory: Mapping[str, Any], width: int) -> list[str]:
    """Errors of the predicted peak memory."""
    if not memory.get("n"):
        return []
    return paragraph(
        f"Peak memory, {text.counted(memory['n'], 'case')} that print theirs: median "
        f"{_percent(memory['median'])}, p90 {_percent(memory['p90'])}, mean {_percent(memory['mean'])}, bias "
        f"{_percent(memory['bias'], signed=True)}.",
        width,
    )


def _failures(failed: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Each reason once, with the place of the first case that has it."""
    reasons: dict[str, list[str]] = {}
    for case in failed:
        reason = case["error"].splitlines()[0].removeprefix(f"case {case['id']}: ")
        line = f", line {case['line']}" if case.get("line") else ""
        reasons.setdefault(reason, []).append(f"{case['id']}{line}")
    return [
        line
        for reason, places in reasons.items()
        for line in paragraph(
            f"failed: {text.counted(len(places), 'case')} (first {places[0]}): {reason}", width
        )
    ]


def _worst(cases: Sequence[Mapping[str, Any]], worst: int, width: int) -> list[str]:
    known = [case for case in cases if case.get("error") is not None and case.get("predicted_s") is not None]
    shown = sorted(known, key=lambda case: -abs(case["error"]))[:worst]
    if not shown:
        return []
    unit, times = text.in_one_unit([case[key] for case in shown for key in ("measured_s", "predicted_s")])
    rows = [
        [case["id"], measured, predicted, _percent(case["error"], signed=True), text.evidence(case)]
        for case, measured, predicted in zip(shown, times[::2], times[1::2], strict=True)
    ]
    columns = (f"worst {len(rows)}", f"measured\n{unit}", f"predicted\n{unit}", "error", "evidence")
    return ["", *table_lines(Table(columns, rows, "Evidence C is not scored.", frozenset({1, 2, 3})), width)]
