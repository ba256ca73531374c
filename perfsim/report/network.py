"""The network of a machine: how much of it each candidate's step uses, and a drawing of the first two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from markupsafe import Markup

from perfsim.network.export import Cables, NetworkMap, Place
from perfsim.prediction.why import LinkUse
from perfsim.report import draw, text
from perfsim.report.page import Section
from perfsim.report.study_figures import leaders
from perfsim.report.table import Table
from perfsim.studies.answers import StudyResult

_KINDS = {
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
_PLACES = {
    "nvswitch": "NVSwitch",
    "nic": "NIC",
    "leaf": "leaf switch",
    "spine": "spine switch",
    "cpu": "CPU",
    "dram": "DRAM",
    "nvme": "drives",
    "port": "ports",
    "memoryx": "MemoryX",
    "swarmx": "SwarmX",
    "server": "weight server",
}
_HOMES = {"node": "nodes", "cs": "systems"}
_COLUMN_PX = 170
_ROW_PX = 104
_BOX_PX = (150, 42)
_LABEL_PX = 60
_BUSY = (0.1, 0.3, 0.6)
"""Mean uses at which the colour of a link changes."""


def network(result: StudyResult, *, drawn: bool = True) -> Section:
    """Mean and peak use of every candidate's links; with `drawn`, the networks of the first two are drawn."""
    order = [*_KINDS, *(kind for own in result.candidates for kind in own.utilisation)]
    table = Table.of(
        {"candidate": None, "kind of link": None, "mean": text.SHARE, "peak": text.SHARE},
        (
            (name, _kind(kind), use.mean, use.peak)
            for name, own in text.named(result.candidates)
            for kind, use in sorted(own.utilisation.items(), key=lambda item: order.index(item[0]))
        ),
        "Mean: bytes of the step over what all links of the kind could carry in it, in both directions. "
        "Peak: the most that the busiest link carries at once.",
    )
    drawings = [
        Drawing.of(name, own.devices_noun, own.network, own.utilisation)
        for name, own in leaders(result)
        if drawn and own.network is not None and own.utilisation
    ]
    labels = [[draw.in_lines(row[0].value) for row in table.rows], table.texts("kind of link")]
    means, peaks = ([100 * share for share in table.values(name)] for name in ("mean", "peak"))
    hover = table.hovers("kind of link", "mean", "peak")
    bars = draw.figure(
        "Use of the network by kind of link (% of capacity)",
        [
            draw.bars("mean over the step", labels, means, {"color": draw.BLUE}, hover),
            draw.limits("peak of the busiest link", peaks, labels, hover),
        ],
        draw.axis("share of capacity (%)", range=[0, 1.01 * max([100.0, *peaks])]),
        draw.axis("", autorange="reversed", type="multicategory"),
        150 + 26 * len(peaks),
        bargap=0.35,
    )
    lead = (
        "Shows which links a faster network would have to improve: one that is busy all the time limits the "
        "step, one that is full only at its peak makes communication wait for other communication."
    )
    if drawings:
        lead += (
            " Drawn for the first two: per cent are the mean over the step and the peak of the busiest link; "
            "a line's colour follows the mean (it changes at 10, 30 and 60 %), its width the peak."
        )
    note = ""
    if (peak := max(table.values("peak"), default=0.0)) > 1.0:
        note = (
            f"A peak of {text.percent(peak, 0)} is more than a link carries: samples, or updates in a weight "
            "server's memory, run at the same time as streamed weights, and in the simulation neither waits "
            f"for the other. While both run they would take up to {text.percent(peak - 1, 0)} longer."
        )
    section = Section(
        "Use of the network", lead, bars, table, ("mean", "peak"), slug="network", short="Network"
    )
    return replace(section, figure=None if drawings else bars, drawings=drawings, note=note)


def _kind(kind: str) -> str:
    return _KINDS.get(kind, text.human(kind))


# A drawn network, devices at the bottom: what repeats is drawn once, with what the step uses of links.

_LINE = Markup('<polyline class="{}" stroke-width="{:.1f}" points="{}"/>')
_BOX = Markup('<rect x="{}" y="{}" width="{}" height="{}" rx="6"/>')
_WORDS = Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>')
_Tree = dict[str, tuple[str, Cables]]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A small drawing with its name and a description; places and sizes are in pixels."""

    name: str
    alt: str
    width: float
    height: float
    shapes: Markup
    """Elements of SVG."""

    @classmethod
    def of(cls, name: str, noun: str, network: NetworkMap, use: Mapping[str, LinkUse]) -> Drawing:
        """A candidate's network with devices `noun`; colours of links follow mean use, widths the peak."""
        tree = _tree(network, use)
        spots = _spots(tree, network.places[0].kind)
        width = _COLUMN_PX * (1 + max(column for column, _ in spots.values())) + _LABEL_PX
        height = _ROW_PX * max(row for _, row in spots.values()) + _BOX_PX[1] + 2
        at = {
            kind: (_COLUMN_PX * (column + 0.5), height - _ROW_PX * row - _BOX_PX[1] / 2 - 1)
            for kind, (column, row) in spots.items()
        }
        drawn: list[Markup] = []
        words: list[Markup] = []
        for kind, (parent, cable) in tree.items():
            (x, y), (end, below) = at[kind], at[parent]
            top = y + _BOX_PX[1] / 2
            bottom = below - _BOX_PX[1] / 2
            turn = bottom - 9 if end != x else bottom
            points = " ".join(f"{x},{y}" for x, y in ((x, top), (x, turn), (end, turn), (end, bottom)))
            used = use.get(cable.kind)
            busy = 0 if used is None else sum(used.mean >= least for least in _BUSY)
            look = ("unused", 1.5) if used is None else (f"use{busy}", 2.0 + 5.0 * min(used.peak, 1.0))
            drawn.append(_LINE.format(*look, points))
            words += _link_words(cable, used, x + 9, top + 15)
        for place in network.places:
            if place.kind in at:
                x, y = at[place.kind]
                drawn.append(_BOX.format(x - _BOX_PX[0] / 2, y - _BOX_PX[1] / 2, *_BOX_PX))
                words += _place_words(place, noun, x, y)
        led = {cable.kind for _, cable in tree.values()}
        for cable in network.cables:
            if cable.a == cable.b and cable.kind in use and cable.kind not in led:  # a mesh of equals
                x, y = at[cable.a]
                words += _link_words(cable, use[cable.kind], x - _BOX_PX[0] / 2, y + _BOX_PX[1] / 2 + 16)
                height += 52
        told = [
            f"{_kind(kind)} {text.percent(own.mean, 0)}, peak {text.percent(own.peak, 0)}"
            for kind, own in use.items()
        ]
        alt = f"Network of {name} with the use of its links: {'; '.join(told)}."
        return cls(name, alt, width, height, Markup("\n").join([*drawn, *words]))


def _tree(network: NetworkMap, use: Mapping[str, LinkUse]) -> _Tree:
    """Every kind of place that used links lead to, nearest first, with the place and the link before it."""
    reached = [network.places[0].kind]
    tree: _Tree = {}
    for near in reached:
        for cable in network.cables:
            far = cable.b if cable.a == near else cable.a
            if near in (cable.a, cable.b) and far not in reached:
                reached.append(far)
                tree[far] = near, cable
    for far, (_, cable) in reversed(list(tree.items())):
        if cable.kind not in use and all(near != far for near, _ in tree.values()):
            del tree[far]
    return tree


def _spots(tree: _Tree, root: str) -> dict[str, tuple[float, int]]:
    """Column and row of every kind of place: branches side by side, what they share in the middle."""
    spots: dict[str, tuple[float, int]] = {}
    free = iter(range(len(tree) + 1))

    def put(kind: str, row: int) -> float:
        columns = [put(far, row + 1) for far, (near, _) in tree.items() if near == kind]
        column = sum(columns) / len(columns) if columns else float(next(free))
        spots[kind] = column, row
        return column

    put(root, 0)
    return spots


def _link_words(cable: Cables, use: LinkUse | None, x: float, y: float) -> list[Markup]:
    used = "not used" if use is None else f"{text.percent(use.mean, 0)}, peak {text.percent(use.peak, 0)}"
    links = f"{text.counted(cable.count, 'link')} of {text.si(cable.bytes_per_s, 'B/s')}"
    rows = (("soft", _kind(cable.kind)), ("strong", used), ("soft", links))
    return [_WORDS.format(look, x, y + 14 * row, "start", words) for row, (look, words) in enumerate(rows)]


def _place_words(place: Place, noun: str, x: float, y: float) -> list[Markup]:
    named = noun if place.kind == "device" else _PLACES.get(place.kind, place.kind)
    in_a_home = place.count // place.homes
    repeats = place.home in _HOMES and place.homes > 1 and (in_a_home > 1 or place.kind != "device")
    times = " " if place.kind == "device" else f" {text.TIMES} "
    many = f"{text.integer(place.count)}{times}{named}"
    words = [_WORDS.format("strong", x, y + (-2 if repeats else 5), "middle", many)]
    if repeats:
        folded = f"{in_a_home} in each of {text.integer(place.homes)} {_HOMES[place.home]}"
        words.append(_WORDS.format("soft", x, y + 14, "middle", folded))
    return words
