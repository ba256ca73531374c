"""How much newer software and more systems than were published widen the band of wafers."""

from __future__ import annotations

import math
from typing import Any

import pytest

import perfsim as ps
from perfsim.base.errors import CatalogError
from perfsim.machines import Unknown, machine_of
from perfsim.machines.wafer_cluster import LEAST_EFFICIENCY, SYSTEMS, WaferCluster
from perfsim.prediction.bands import Accuracy
from perfsim.specs.calibration import WaferCalibration
from perfsim.specs.recipe import Job

CATALOG = ps.Catalog()
MEASURED = WaferCalibration(name="w", efficiency={"r1.8": 0.2, "r2.0": 0.2 * 1.2**2}, link_s_per_element=1e-9)


def width(release: str = "peak", calibration: WaferCalibration = MEASURED, systems: int = 1) -> float:
    """Half-width of what no run shows of a plain model on wafers of this calibration."""
    system = CATALOG.systems["cs-2"]
    device = system.device.model_copy(update={"calibration": calibration})
    ran = job("gpt3_xl", 2048, release=release)
    unknowns = WaferCluster().unknowns(system.model_copy(update={"device": device}), ran, systems)
    return sum(unknown.log_width for unknown in unknowns)


RELEASES = {0: ("r1.8", "r2.0", "peak"), 1: ("r1.9", "r2.1", "r1.7"), 2: ("r2.2", "r2.2.1"), 4: ("r1.4",)}
"""By how many releases from a measured one."""


def test_every_release_from_a_measured_one_adds_what_one_release_changed_in_the_mean() -> None:
    for number, releases in RELEASES.items():
        for release in releases:
            assert width(release) == pytest.approx(number * math.log(1.2)), release
    alone = MEASURED.model_copy(update={"efficiency": {"r2.0": 0.4}})
    assert width("r2.5", alone) == 0.0, "one release says nothing of growth"
    with pytest.raises(CatalogError, match=r"not of the form r2\.0"):
        width("newest")


def test_many_systems_may_lose_what_published_scaling_leaves_open() -> None:
    widths = {count: width(systems=count) for count in (1, 4, SYSTEMS, 192)}
    assert widths[1] == 0.0
    assert math.exp(-widths[SYSTEMS]) == pytest.approx(LEAST_EFFICIENCY)
    assert widths[4] == pytest.approx(widths[SYSTEMS] / 2), "a level of the tree of two"
    assert widths[192] > widths[SYSTEMS]
    assert 0.941 < math.exp(widths[4] - widths[16]) < 0.986, "GenSLM from 4 to 16 systems, as it was rounded"


# ------------------------------------------------------------------------------------- predictions
def accuracy(system: str = "cs-2", devices: int = 1, release: str | None = None) -> Accuracy:
    recipe = CATALOG.recipes["gpt3_pretraining"].ran_with(software_release=release)
    question = {"model": "cerebras_gpt_111m", "recipe": recipe, "batch": 120 * devices}
    return Accuracy.of(ps.predict(**question, system=system, devices=devices).run.plan)


def test_bands_of_wafers_widen_with_releases_and_systems_that_nobody_measured() -> None:
    """The release cancels between two runs of one machine, and the number of systems does not."""
    releases = [accuracy(release=name) for name in ("r2.0", "r2.1", "r2.2")]
    systems = [accuracy(devices=count) for count in (1, 2, 16)]
    for known in (releases, systems):
        errors = [accuracy.step_time_error for accuracy in known]
        assert errors == sorted(set(errors))
    assert releases[2].unshared_error == pytest.approx(releases[0].unshared_error)
    assert systems[1].unshared_error > systems[0].unshared_error


def test_a_cs_3_runs_software_that_nobody_measured_and_says_so_in_its_band() -> None:
    system = CATALOG.systems["cs-3"]
    assert system.software_release == "r2.2"
    (unknown,) = machine_of(system).unknowns(system, job("gpt3_xl", 2048, release=None), 1)
    assert unknown.code == "release-borrowed"
    newest = accuracy("cs-3")
    assert "for 2 of them" in newest.likeness
    assert newest.step_time_error > 1.2 * accuracy("cs-3", release="r2.0").step_time_error
    prediction = ps.predict(model="cerebras_gpt_111m", system="cs-3", devices=1, batch=120)
    (caveat,) = (caveat for caveat in prediction.caveats if caveat.code == "release-borrowed")
    assert caveat.text == (
        "no measurement of software release r2.2: the efficiency of r2.0 is used; published releases differ "
        "in efficiency by 21 % each, so the band allows 46 % for 2 of them"
    )


def job(model: str, seq_length: int, *, release: str | None = "peak", **changes: object) -> Job:
    recipe = CATALOG.recipes["gpt3_pretraining"].with_(seq_length=seq_length)
    recipe = recipe.ran_with(software_release=release)
    return Job(CATALOG.models[model].with_(**changes), recipe, 16)


def unknowns_of(*described: Any, **changes: Any) -> list[Unknown]:
    return list(WaferCluster().unknowns(CATALOG.systems["cs-2"], job(*described, **changes), 1))


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("gpt3_xl", {}, []),
        ("gpt3_xl", {"num_query_groups": 4}, ["grouped queries"]),
        ("llama_7b", {}, ["a gated MLP"]),
        ("llama2_70b", {}, ["grouped queries", "a gated MLP"]),
    ],
)
def test_layers_that_no_log_has_are_said_and_do_not_widen_the_band(
    model: str, changes: dict[str, object], said: list[str]
) -> None:
    unknowns = unknowns_of(model, 2048, **changes)
    assert [unknown.log_width for unknown in unknowns] == [0.0] * bool(said)
    assert all(words in unknown.words for unknown in unknowns for words in said)


def test_longer_sequences_widen_the_band_by_the_share_of_attention() -> None:
    widths = [
        sum(unknown.log_width for unknown in unknowns_of("gpt3_xl", length))
        for length in (2048, 8192, 131072)
    ]
    assert widths[0] == 0.0 < widths[1] < widths[2] < math.log(2.0)
    assert len(unknowns_of("gpt3_175b", 4096)) == 1, "said even where attention takes little"
