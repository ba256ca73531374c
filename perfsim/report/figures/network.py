"""How much of the network each candidate's step uses, by kind of link."""

from __future__ import annotations

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Table
from perfsim.studies.result import StudyResult

KINDS = {
    "scale_up": "NVLink port",
    "host": "GPU to NIC",
    "nic": "NIC",
    "uplink": "leaf to spine",
    "io": "ports of a system",
    "swarmx": "SwarmX",
    "memoryx": "MemoryX to SwarmX",
    "server": "weight server",
    "dram": "DRAM of a server",
    "flash": "flash of a server",
    "feed": "activation server",
    "pcie": "PCIe",
    "nvme": "drives of a host",
}
"""Kinds of links in words, from the devices outwards."""


def network_use(result: StudyResult) -> go.Figure:
    """A bar for each candidate and kind of link: its mean use; a line marks the peak of its busiest link."""
    rows = _rows(result)
    names = [[base.in_lines(name) for name, *_ in rows], [base.esc(kind) for _, kind, *_ in rows]]
    columns = {"mean over the step": [mean for *_, mean, _ in rows]}
    columns["peak of the busiest link"] = [peak for *_, peak in rows]
    bar, line = (
        {
            "y": names,
            "x": [100 * share for share in shares],
            "name": name,
            "hovertemplate": f"%{{x:.1f}} % {name}<extra>%{{y}}</extra>",
        }
        for name, shares in columns.items()
    )
    peaks = {
        "mode": "markers",
        "marker": {"symbol": "line-ns", "size": 14, "line": {"width": 3, "color": base.VERMILLION}},
    }
    style = base.layout(
        "Use of the network by kind of link (% of capacity)",
        height=150 + 26 * len(rows),
        bargap=0.35,
        xaxis=base.axis(
            "share of capacity (%)", range=[0, 101 * max([1.0, *columns["peak of the busiest link"]])]
        ),
        yaxis=base.axis("", autorange="reversed", type="multicategory"),
    )
    bars = go.Bar(orientation="h", marker={"color": base.BLUE}, **bar)
    return base.figure([bars, go.Scatter(**line, **peaks)], style)


def network_use_table(result: StudyResult) -> Table:
    """Mean and peak of every candidate and kind of link."""
    rows = [[name, kind, text.percent(mean), text.percent(peak)] for name, kind, mean, peak in _rows(result)]
    caption = (
        "Mean: bytes of the step over what all links of the kind could carry in it, in both directions. "
        "Peak: the most that the busiest link carries at once."
    )
    return Table(["candidate", "kind of link", "mean", "peak"], rows, caption, frozenset({2, 3}))


def overload_note(result: StudyResult) -> str:
    """What a peak above the capacity means; empty where there is none."""
    peaks = [peak for *_, peak in _rows(result)]
    if max(peaks, default=0.0) <= 1.0:
        return ""
    return (
        f"A peak of {text.percent(max(peaks), 0)} is more than a link carries: samples, or updates in the "
        "memory of a weight server, run beside streamed weights, and in the simulation neither waits for "
        f"the other. While both run they would take up to {text.percent(max(peaks) - 1, 0)} longer."
    )


def network_use_alt(result: StudyResult) -> str:
    """The busiest kind of link of each candidate in words."""
    busiest: dict[str, tuple[str, float, float]] = {}
    for name, kind, mean, peak in _rows(result):
        if name not in busiest or mean > busiest[name][1]:
            busiest[name] = (kind, mean, peak)
    sentences = [
        f"{name}: {kind} {text.percent(mean)} on average, {text.percent(peak)} at most"
        for name, (kind, mean, peak) in busiest.items()
    ]
    return f"Bars of the use of the network, the busiest kind of link first. {'; '.join(sentences)}."


def _rows(result: StudyResult) -> list[tuple[str, str, float, float]]:
    """Candidate, kind of link, mean and peak, in the order of `KINDS`; other kinds by their name."""
    return [
        (name, KINDS.get(kind, text.human(kind)), use.mean, use.peak)
        for name, candidate in zip(text.labels(result.candidates), result.candidates, strict=True)
        for kind, use in sorted(candidate.utilisation.items(), key=lambda item: _order(item[0]))
    ]


def _order(kind: str) -> int:
    return list(KINDS).index(kind) if kind in KINDS else len(KINDS)
