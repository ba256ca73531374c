"""A drawn network, devices at the bottom: what repeats is drawn once, with what the step uses of links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfsim.prediction.network_map import Cables, NetworkMap, Place
from perfsim.prediction.result import LinkUse
from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.figures.network import KINDS
from perfsim.report.sections import Box, Drawing, Line, Words

PLACES = {
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
HOMES = {"node": "nodes", "cs": "systems"}
COLUMN_PX, ROW_PX, BOX_PX, LABEL_PX = 170, 104, (150, 42), 60
BUSY = (0.1, 0.3, 0.6)
"""Mean uses at which the colour of a link changes."""


def topology(name: str, noun: str, network: NetworkMap, use: Mapping[str, LinkUse]) -> Drawing:
    """The network of a candidate with devices `noun`; colours of links follow the mean use, widths the peak.

    Places at the end of a link that the step does not use are left out.
    """
    tree = _pruned(_tree(network), use)
    spots = _spots(tree, network.places[0].kind)
    meshed = [cable for cable in network.cables if cable.a == cable.b and cable.kind in use]
    own = [cable for cable in meshed if cable.kind not in {other.kind for other in tree.values()}]
    width = COLUMN_PX * (1 + max(column for column, _ in spots.values())) + LABEL_PX
    height = ROW_PX * max(row for _, row in spots.values()) + BOX_PX[1] + 2
    at = {
        kind: (COLUMN_PX * (column + 0.5), height - ROW_PX * row - BOX_PX[1] / 2 - 1)
        for kind, (column, row) in spots.items()
    }
    lines: list[Line] = []
    words: list[Words] = []
    for kind, cable in tree.items():
        parent = cable.a if cable.b == kind else cable.b
        (x, y), (_, below) = at[kind], at[parent]
        top, bottom = y + BOX_PX[1] / 2, below - BOX_PX[1] / 2
        turn = bottom - 9 if at[parent][0] != x else bottom
        points = [(x, top), (x, turn), (at[parent][0], turn), (at[parent][0], bottom)]
        lines.append(Line(points, *_look(use.get(cable.kind))))
        words += _link_words(cable, use.get(cable.kind), x + 9, top + 15)
    boxes = []
    for place in network.places:
        if place.kind in at:
            x, y = at[place.kind]
            boxes.append(Box(x - BOX_PX[0] / 2, y - BOX_PX[1] / 2, *BOX_PX))
            words += _place_words(place, noun, x, y)
    for cable in own:
        x, y = at[cable.a]
        words += _link_words(cable, use.get(cable.kind), x - BOX_PX[0] / 2, y + BOX_PX[1] / 2 + 16)
        height += 52
    return Drawing(name, _alt(name, use), width, height, lines, boxes, words)


def _tree(network: NetworkMap) -> dict[str, Cables]:
    """Every kind of place but the devices, nearest first, with the link that leads to it."""
    reached, tree = [network.places[0].kind], dict[str, Cables]()
    for kind in reached:
        for cable in network.cables:
            if kind in (cable.a, cable.b):
                far = cable.b if cable.a == kind else cable.a
                if far not in reached:
                    reached.append(far)
                    tree[far] = cable
    return tree


def _pruned(tree: Mapping[str, Cables], use: Mapping[str, LinkUse]) -> dict[str, Cables]:
    """The tree without the places that only unused links lead to."""
    kept = dict(tree)
    for kind, cable in reversed(list(tree.items())):
        is_end = not any(kind in (other.a, other.b) for far, other in kept.items() if far != kind)
        if is_end and cable.kind not in use:
            del kept[kind]
    return kept


def _spots(tree: Mapping[str, Cables], root: str) -> dict[str, tuple[float, int]]:
    """Column and row of every kind of place: branches side by side, what they share in the middle."""
    spots: dict[str, tuple[float, int]] = {}
    free = iter(range(len(tree) + 1))

    def put(kind: str, row: int) -> float:
        further = [far for far, cable in tree.items() if kind in (cable.a, cable.b) and far != kind]
        columns = [put(far, row + 1) for far in further if far not in spots and _is_beyond(tree, far, kind)]
        column = sum(columns) / len(columns) if columns else float(next(free))
        spots[kind] = column, row
        return column

    put(root, 0)
    return spots


def _is_beyond(tree: Mapping[str, Cables], far: str, kind: str) -> bool:
    cable = tree[far]
    return (cable.a if cable.b == far else cable.b) == kind


def _look(use: LinkUse | None) -> tuple[float, str]:
    """Width in pixels and the class of a link's colour."""
    if use is None:
        return 1.5, "unused"
    return 2.0 + 5.0 * min(use.peak, 1.0), f"use{sum(use.mean >= least for least in BUSY)}"


def _link_words(cable: Cables, use: LinkUse | None, x: float, y: float) -> Iterator[Words]:
    rows = [
        KINDS.get(cable.kind, text.human(cable.kind)),
        "not used" if use is None else f"{text.percent(use.mean, 0)}, peak {text.percent(use.peak, 0)}",
        f"{text.counted(cable.count, 'link')} of {base.si(cable.bytes_per_s, 'B/s')}",
    ]
    for row, (words, style) in enumerate(zip(rows, ("soft", "strong", "soft"), strict=True)):
        yield Words(x, y + 14 * row, words, "start", style)


def _place_words(place: Place, noun: str, x: float, y: float) -> Iterator[Words]:
    named = noun if place.kind == "device" else PLACES.get(place.kind, place.kind)
    in_a_home = place.count // place.homes
    repeats = place.home in HOMES and place.homes > 1 and (in_a_home > 1 or place.kind != "device")
    times = " " if place.kind == "device" else f" {text.TIMES} "
    yield Words(
        x, y + (-2 if repeats else 5), f"{text.integer(place.count)}{times}{named}", "middle", "strong"
    )
    if repeats:
        folded = f"{in_a_home} in each of {text.integer(place.homes)} {HOMES[place.home]}"
        yield Words(x, y + 14, folded, "middle", "soft")


def _alt(name: str, use: Mapping[str, LinkUse]) -> str:
    words = [
        f"{KINDS.get(kind, text.human(kind))} {text.percent(own.mean, 0)}, peak {text.percent(own.peak, 0)}"
        for kind, own in use.items()
    ]
    return f"Network of {name} with the use of its links: {'; '.join(words)}."
