"""The use of the network in bars, and the drawn networks: places and links are those of the prediction."""

from __future__ import annotations

import re
from dataclasses import replace
from types import ModuleType

import pytest

from perfsim.api.questions import predict
from perfsim.network.export import Cables, NetworkMap, Place
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.why import LinkUse
from perfsim.report.network import Drawing, network
from perfsim.report.page import Page
from perfsim.report.text import percent
from perfsim.studies.answers import StudyResult


@pytest.fixture(scope="module")
def gpus() -> Prediction:
    return predict(model="gpt3_xl", system="dgx-a100-80gb", devices=16, strategy="3d", batch=16)


@pytest.fixture(scope="module")
def wafers() -> Prediction:
    return predict(model="gpt3_xl", system="cs-2", devices=4, strategy="weight-streaming", batch=64)


def _map(prediction: Prediction) -> NetworkMap:
    return NetworkMap.of(prediction.run.placed.network.topology)


def _drawn(prediction: Prediction) -> Drawing:
    return Drawing.of("it", prediction.devices_noun, _map(prediction), prediction.utilisation)


def _words(drawing: Drawing) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawing.shapes)


def test_places_are_folded_and_every_used_link_has_its_mean_and_peak(
    gpus: Prediction, wafers: Prediction
) -> None:
    words = _words(_drawn(gpus))
    assert words.count("8 in each of 2 nodes") == 2, "devices and NICs"
    assert {"16 A100-80GB", "16 \u00d7 NIC", "2 \u00d7 NVSwitch", "1 in each of 2 nodes"} <= set(words)
    words = _words(_drawn(wafers))
    assert {"4 CS-2", "1 \u00d7 SwarmX", "1 \u00d7 MemoryX", "12 \u00d7 weight server"} <= set(words)
    for prediction in (gpus, wafers):
        drawing = _drawn(prediction)
        for use in prediction.utilisation.values():
            assert f"{percent(use.mean, 0)}, peak {percent(use.peak, 0)}" in _words(drawing)
        assert drawing.shapes.count("<polyline") == drawing.shapes.count("<rect") - 1, "a tree"


def test_nothing_is_drawn_outside_the_drawing_or_on_another_box(wafers: Prediction) -> None:
    drawing = _drawn(wafers)
    rectangles = re.findall(r'<rect x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)"', drawing.shapes)
    boxes = [tuple(map(float, box)) for box in rectangles]
    for index, (x, y, width, height) in enumerate(boxes):
        assert 0 <= x <= x + width <= drawing.width
        assert 0 <= y <= y + height <= drawing.height
        others = boxes[:index] + boxes[index + 1 :]
        assert all(abs(x - other[0]) >= width or abs(y - other[1]) > height for other in others)


def test_a_full_mesh_has_its_links_below_the_devices() -> None:
    mesh = NetworkMap((Place("device", 8, 1, "node"),), (Cables("scale_up", "device", "device", 28, 64e9),))
    drawing = Drawing.of("mesh", "MI300X", mesh, {"scale_up": LinkUse(0.2, 0.5)})
    assert _words(drawing) == ["8 MI300X", "NVLink port", "20 %, peak 50 %", "28 links of 64 GB/s"]


def test_a_page_draws_the_first_two_and_keeps_the_table_of_all(
    result: StudyResult, gpus: Prediction, wafers: Prediction
) -> None:
    maps = zip(result.candidates, (gpus, wafers, wafers, wafers), strict=True)
    candidates = tuple(replace(candidate, network=_map(prediction)) for candidate, prediction in maps)
    section = network(replace(result, candidates=candidates))
    assert [drawing.name for drawing in section.drawings] == ["128 A100-80GB (16 DGX)", "16 CS-2"]
    assert section.figure is None
    page = Page("Networks", [section]).html()
    assert page.count("<svg") == 2
    assert "<details><summary>The figures as a table" in page


def test_every_candidate_and_kind_of_link_has_its_mean_and_its_peak(result: StudyResult) -> None:
    bars, peaks = network(result).figure.data
    uses = [use for candidate in result.candidates for use in candidate.utilisation.values()]
    assert sorted(bars.x) == pytest.approx(sorted(100 * use.mean for use in uses))
    assert sorted(peaks.x) == pytest.approx(sorted(100 * use.peak for use in uses))
    names, kinds = bars.y
    assert list(kinds[:2]) == ["NVLink port", "NIC"], "from the device outwards"
    assert list(kinds[2:4]) == ["ports of a system", "MemoryX to SwarmX"]
    assert len(set(names)) == len(result.candidates)


def test_a_study_whose_network_is_unknown_has_no_such_section(
    sparse: StudyResult, factory: ModuleType
) -> None:
    known = factory.sections(sparse)["network"]
    assert "128 A100-80GB (16 DGX), NVLink port: mean 21.0 %, peak 78.0 %" in known.alt
    assert "network" not in factory.sections(replace(sparse, candidates=sparse.candidates[1:]))


def test_a_peak_above_the_capacity_is_inside_the_figure_and_explained_only_there(result: StudyResult) -> None:
    assert network(result).note == ""
    busy = replace(result.candidates[1], utilisation={"dram": LinkUse(0.1, 1.083)})
    over = network(replace(result, candidates=(result.candidates[0], busy)))
    assert over.figure.layout.xaxis.range[1] > 108.3
    assert over.note.startswith("A peak of 108 % is more than a link carries: ")
    assert over.note.endswith("up to 8 % longer.")
