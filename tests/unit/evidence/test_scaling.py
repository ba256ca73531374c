"""Published ratios of speeds on many wafers next to predicted ones, and what would explain a loss."""

from typing import Any

import pytest

import perfsim as ps
from perfsim.evidence.production import ScalingFile
from perfsim.machines.wafer_cluster import LOSS_RANGE

CATALOG = ps.Catalog()
SYSTEMS = 16
LEAST_EFFICIENCY = 0.91


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    return ScalingFile.compared(CATALOG)


@pytest.fixture(scope="module")
def published() -> ScalingFile:
    return ScalingFile.published(CATALOG)


MISSED = "13B"
"""Its published ratio is 14 to 23 % below the predicted one, which the university's log of a 13B meets."""


def test_ratios_lie_in_their_bands_and_but_for_the_largest_within_9_percent(compared: dict[str, Any]) -> None:
    for run in compared["runs"]:
        for base in run["against"]:
            low, high = base["band"]
            assert low < base["predicted"] < high
            assert low < base["measured"] < high
            assert abs(base["error"]) < (0.25 if run["name"] == MISSED else 0.09)


def test_sixteen_systems_reach_the_least_published(compared: dict[str, Any], published: ScalingFile) -> None:
    (bound,) = (claim for claim in published.efficiencies if claim.least)
    assert (bound.systems, bound.efficiency) == (SYSTEMS, LEAST_EFFICIENCY)
    least, press, _ = compared["efficiencies"]
    assert least["predicted"] == pytest.approx(0.983**4, rel=1e-3)
    assert least["allowed"] == pytest.approx((1 - LOSS_RANGE[1]) ** 4, rel=1e-3)
    assert press["allowed"] < press["measured"] < press["predicted"] < press["measured"] + 0.01


def test_each_cause_alone_slows_a_step_as_published(compared: dict[str, Any], published: ScalingFile) -> None:
    rows = {row["cause"]: row for row in compared["explanations"]}
    needed = {cause: row["needed"] for cause, row in rows.items()}
    run = next(run for run in published.runs if run.systems == SYSTEMS)
    alone_s = published.step(run, systems=1).step_time_s
    layout = published.step(run).plan.layout
    tree = published.system.with_(loss_per_doubling=0.0)
    limit_s = alone_s / LEAST_EFFICIENCY
    for field, cause in (
        ("swarmx.hop_latency", "a hop of the tree takes longer"),
        ("swarmx.bandwidth", "links of the tree are slower"),
    ):
        slowed = published.step(run, system=tree.with_(**{field: needed[cause]}), layout=layout)
        assert slowed.step_time_s == pytest.approx(limit_s, rel=0.01)
    assert (1 - needed["each doubling loses"]) ** 4 == pytest.approx(LEAST_EFFICIENCY)
    assert needed["gradients add up later"] == pytest.approx(limit_s - alone_s)
    assert 1 / (1 + needed["one system is slower"]) == pytest.approx(LEAST_EFFICIENCY)
    hop = rows["a hop of the tree takes longer"]
    link = rows["links of the tree are slower"]
    assert hop["needed"] > 500 * hop["in_model"], "only systems of different speeds are near what is assumed"
    assert link["needed"] < link["in_model"] / 5
    assert needed["speeds of systems differ (standard deviation)"] == pytest.approx(0.056, abs=0.001)
