"""The roofline, read back from what Plotly would draw."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from perfsim.prediction.why import ELEMENTWISE, PRODUCT, KernelUse, Roofline
from perfsim.report.page import Section
from perfsim.report.study_figures import rooflines
from perfsim.studies.answers import StudyResult

OWN = Roofline(
    2e12,
    {"bf16": 3e14},
    (
        KernelUse("MLP", PRODUCT, "bf16", 4e14, 1.5e11, 2.0),
        KernelUse("projections", PRODUCT, "bf16", 2e14, 8e10, 1.0),
        KernelUse("element-wise", ELEMENTWISE, None, 0.0, 1.5e12, 0.8),
        KernelUse("router", PRODUCT, "bf16", 1e10, 1e8, 1e-4),
    ),
)


@pytest.fixture
def section(result: StudyResult) -> Section:
    """The section of the first candidate with these kernels."""
    _, first = rooflines([("gpus", replace(result.candidates[0], roofline=OWN))])
    return first


def test_points_lie_at_flops_per_byte_and_second_and_without_flops_below_the_slope(section: Section) -> None:
    products = next(trace for trace in section.figure.data if trace.name == PRODUCT)
    assert products.x == pytest.approx([4e14 / 1.5e11, 2e14 / 8e10], rel=1e-4)
    assert products.y == pytest.approx([2e14, 2e14], rel=1e-4)
    big, small = products.marker.size
    assert (big / small) ** 2 == pytest.approx(2.0, rel=0.01), "the area follows the time"
    (point,) = (trace for trace in section.figure.data if trace.name == ELEMENTWISE)
    reach = 1.5e12 / 0.8 / 2e12
    assert point.y[0] / (point.x[0] * OWN.memory_bytes_per_s) == pytest.approx(reach), "of the bandwidth"


def test_ceilings_and_the_largest_kernel_of_each_kind_are_named(section: Section) -> None:
    slope, level, *kinds = section.figure.data
    assert [slope.name, level.name] == ["memory 2 TB/s", "bf16 peak 300 TFLOP/s"]
    assert [list(trace.text) for trace in kinds] == [["MLP: 53 %", ""], ["element-wise: 21 %"]]
    assert (slope.x[1], slope.y[1]) == pytest.approx((150.0, 3e14))
    assert set(level.y) == {3e14}


def test_the_table_has_every_kernel_also_those_too_short_to_draw(section: Section) -> None:
    rows = section.table.shown()
    assert [row[0] for row in rows] == ["MLP", "projections", "element-wise", "router"]
    assert rows[0][-1] == "67 % of bf16 peak"
    assert rows[2][-1] == "94 % of memory"
    assert "MLP, matrix product: share 52.6 %, reach 67 % of bf16 peak" in section.alt


def test_a_page_has_a_roofline_for_each_machine_with_one(result: StudyResult, factory: ModuleType) -> None:
    first, *others = result.candidates
    known = replace(result, candidates=(replace(first, roofline=OWN), *others))
    new = [anchor for anchor in factory.sections(known) if anchor not in factory.sections(result)]
    assert new == ["roofline", "roofline-0"]
