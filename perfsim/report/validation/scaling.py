"""Tables of published ratios of speeds on many wafers beside predicted ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from perfsim.report import text
from perfsim.report.table import Table
from perfsim.units import Dimension, format_quantity


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
