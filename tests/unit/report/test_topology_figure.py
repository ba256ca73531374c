"""A drawn network: its places and the use of its links are those of the prediction."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfsim.api.questions import predict
from perfsim.network.export import Cables, NetworkMap, Place, network_map
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.why import LinkUse
from perfsim.report.figures.machine import Drawing, network_table, network_use, topology
from perfsim.report.page import render_page
from perfsim.report.study_page import study_page
from perfsim.report.text import percent
from perfsim.studies.answers import StudyResult


@pytest.fixture(scope="module")
def gpus() -> Prediction:
    return predict(model="gpt3_xl", system="dgx-a100-80gb", devices=16, strategy="3d", batch=16)


@pytest.fixture(scope="module")
def wafers() -> Prediction:
    return predict(model="gpt3_xl", system="cs-2", devices=4, strategy="weight-streaming", batch=64)


def _drawn(own: Prediction) -> Drawing:
    return topology("it", own.devices_noun, network_map(own.run.placed.topology), own.utilisation)


def test_places_are_folded_and_say_how_often_they_repeat(gpus: Prediction, wafers: Prediction) -> None:
    words = [own.text for own in _drawn(gpus).words]
    assert words.count("8 in each of 2 nodes") == 2, "devices and NICs"
    assert {"16 A100-80GB", "16 \u00d7 NIC", "2 \u00d7 NVSwitch", "1 in each of 2 nodes"} <= set(words)
    words = [own.text for own in _drawn(wafers).words]
    assert {"4 CS-2", "1 \u00d7 SwarmX", "1 \u00d7 MemoryX", "12 \u00d7 weight server"} <= set(words)


def test_every_used_link_has_its_mean_and_peak(gpus: Prediction, wafers: Prediction) -> None:
    for own in (gpus, wafers):
        drawing = _drawn(own)
        words = {entry.text for entry in drawing.words}
        for use in own.utilisation.values():
            assert f"{percent(use.mean, 0)}, peak {percent(use.peak, 0)}" in words
        assert len(drawing.lines) == len(drawing.boxes) - 1, "a tree"


def test_nothing_is_drawn_outside_the_drawing_or_on_another_box(wafers: Prediction) -> None:
    drawing = _drawn(wafers)
    for box in drawing.boxes:
        assert 0 <= box.x <= box.x + box.width <= drawing.width
        assert 0 <= box.y <= box.y + box.height <= drawing.height
        others = [other for other in drawing.boxes if other is not box]
        assert all(abs(box.x - other.x) >= box.width or abs(box.y - other.y) > box.height for other in others)


def test_a_full_mesh_has_its_links_below_the_devices() -> None:
    own = NetworkMap((Place("device", 8, 1, "node"),), (Cables("scale_up", "device", "device", 28, 64e9),))
    drawing = topology("mesh", "MI300X", own, {"scale_up": LinkUse(0.2, 0.5)})
    assert [entry.text for entry in drawing.words] == [
        "8 MI300X",
        "NVLink port",
        "20 %, peak 50 %",
        "28 links of 64 GB/s",
    ]


def test_a_page_draws_the_first_two_and_keeps_the_table_of_all(
    result: StudyResult, gpus: Prediction, wafers: Prediction
) -> None:
    maps = [network_map(own.run.placed.topology) for own in (gpus, wafers, wafers, wafers)]
    candidates = [replace(own, network=known) for own, known in zip(result.candidates, maps, strict=True)]
    _, sections, _ = study_page(replace(result, candidates=tuple(candidates)))
    (section,) = (own for own in sections if own.slug == "network")
    assert [drawing.name for drawing in section.drawings] == ["128 A100-80GB (16 DGX)", "16 CS-2"]
    assert section.figure is None
    assert section.table is not None
    page = render_page("Networks", [section])
    assert page.count("<svg") == 2
    assert "<details><summary>The figures as a table" in page


def test_a_peak_above_the_capacity_is_inside_the_figure(result: StudyResult) -> None:
    first, *others = result.candidates
    over = replace(first, utilisation={"nic": LinkUse(0.1, 1.08)})
    figure = network_use(network_table(replace(result, candidates=(over, *others))))
    assert figure.layout.xaxis.range[1] > 108
