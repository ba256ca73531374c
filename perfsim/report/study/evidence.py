"""The basis of an answer, as tables: assumptions, sampled arithmetic, errors against published runs."""

from __future__ import annotations

from perfsim.prediction.result import SamplingSummary
from perfsim.report import text
from perfsim.report.table import Table
from perfsim.studies.result import StudyResult


def assumptions_tables(result: StudyResult) -> list[tuple[str, Table]]:
    """For each topic its inputs, with their sources and whether they were read, fitted or assumed.

    Inputs of one topic from one source share a row.
    """
    topics: dict[str, dict[tuple[str, str], list[str]]] = {}
    for item in result.assumptions:
        rows = topics.setdefault(item.topic, {})
        rows.setdefault((item.source, item.kind), []).append(f"{item.name}: {item.value}")
    return [
        (
            f"{topic} ({sum(map(len, rows.values()))})",
            Table(
                ("input", "kind", "source"),
                [["; ".join(inputs), kind, source] for (source, kind), inputs in rows.items()],
            ),
        )
        for topic, rows in topics.items()
    ]


def sampling_table(result: StudyResult) -> Table:
    """How many tasks were executed, what they represent, and their errors."""
    rows = [[name, *_sampling(summary)] for name, summary in result.sampling.items()]
    columns = (
        "candidate", "products", "share of FLOPs", "largest error", "bound", "where", "result",
        "partitions",
    )  # fmt: skip
    caption = (
        "Products executed out of all in the step, and the share of its matrix FLOPs that their classes "
        "represent. Errors are relative to the product of absolute values; the bound holds for any order of "
        "summation. Every product is also executed on integers, which must be exact."
    )
    return Table(columns, rows, caption, frozenset({1, 2, 3, 4}))


def _sampling(summary: SamplingSummary) -> list[str]:
    partitions = ", ".join(f"{text.human(name)} {count}" for name, count in summary.by_partition.items())
    return [
        f"{text.integer(summary.tasks_sampled)} of {text.integer(summary.tasks_total)}",
        text.percent(summary.flop_share),
        f"{summary.worst_relative_error:.1e}",
        f"{summary.bound:.1e}",
        summary.worst or text.NONE,
        "passed" if summary.passed else f"FAILED: {'; '.join(summary.failed)}",
        partitions or text.NONE,
    ]


def accuracy_table(result: StudyResult) -> Table:
    """Median and 90th percentile of the absolute relative error, beside the baseline's median."""
    rows = [
        [
            item.family,
            item.strategy,
            text.integer(item.n),
            text.percent(item.median_ape),
            text.percent(item.p90_ape),
            text.percent(item.held_out_p90_ape),
            text.percent(item.baseline_median_ape),
        ]
        for item in result.accuracy
    ]
    columns = (
        "most similar family", "strategy", "runs", "median error", "90th percentile",
        "90th percentile, left out", "baseline's median",
    )  # fmt: skip
    caption = (
        "Absolute errors of the predicted step time on published runs. A few global constants were fitted to "
        "these runs too; 'left out' is for constants fitted without them. A band comes from the errors of "
        "all runs that were left out, and widens where a plan is unlike them."
    )
    return Table(columns, rows, caption, frozenset({2, 3, 4, 5, 6}))
