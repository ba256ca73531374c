"""How much newer software and more systems than were published widen the band of wafers."""

import math
from typing import Any

import pytest

import perfsim as ps
from perfsim.base.errors import CatalogError
from perfsim.machines import Unknown
from perfsim.machines.wafer_cluster import WaferCluster
from perfsim.prediction.bands import Accuracy
from perfsim.specs.calibration import WaferCalibration
from perfsim.specs.recipe import Job
from perfsim.testing import toys

CATALOG = ps.Catalog()
MEASURED = toys.wafer_calibration(
    product_efficiency=0.3, growth_per_release=math.log(1.2), measured_releases=("r1.8", "r2.0")
)


def width(release: str = "peak", calibration: WaferCalibration = MEASURED, systems: int = 1) -> float:
    """Half-width of what no run shows of a plain model on wafers of this calibration."""
    system = CATALOG.system("cs-2")
    device = system.device.model_copy(update={"calibration": calibration})
    ran = job("gpt3_xl", 2048, release=release)
    unknowns = WaferCluster().unknowns(system.model_copy(update={"device": device}), ran, systems)
    return sum(unknown.log_width for unknown in unknowns)


GROWTH = {"r2.1": 1.35, "r2.2": 1.2**2, "r2.2.1": 1.2**2, "r1.7": 1.35, "r1.4": 1.2**4, "r1.0": 1 / 0.3}
RELEASES = GROWTH | dict.fromkeys(("r1.8", "r2.0", "r1.9", "r2.0.3", "peak"), 0)


def test_an_unmeasured_release_may_differ_as_releases_did_but_not_exceed_the_peak() -> None:
    for release, factor in RELEASES.items():
        assert width(release) == pytest.approx(math.log(factor or 1)), release
    with pytest.raises(CatalogError, match=r"not of the form r2\.0"):
        width("newest")


def test_many_systems_may_lose_what_published_scaling_leaves_open() -> None:
    """1.1 to 2.3 % a doubling around the 1.7 % that the system describes: 0.84 to 0.92 at 192."""
    widths = {count: width(systems=count) for count in (1, 4, 16, 192)}
    assert widths[1] == 0.0
    assert widths[4] == pytest.approx(widths[16] / 2), "two doublings of four"
    kept = 0.983 ** math.log2(192)
    assert kept * math.exp(-widths[192]) == pytest.approx(0.84, abs=0.005)
    assert kept * math.exp(widths[192]) == pytest.approx(0.92, abs=0.005)
    assert 0.983**2 * math.exp(-widths[4]) < 0.963 < 0.983**2 * math.exp(widths[4]), "GenSLM, 4 to 16 systems"


def accuracy(system: str = "cs-2", devices: int = 1, release: str | None = None) -> Accuracy:
    recipe = CATALOG.recipe("gpt3_pretraining").ran_with(software_release=release)
    question: dict[str, Any] = {"model": "cerebras_gpt_111m", "recipe": recipe, "batch": 120 * devices}
    return Accuracy.of(ps.predict(**question, system=system, devices=devices).run.plan)


def test_bands_of_wafers_widen_with_releases_and_systems_that_nobody_measured() -> None:
    """The release cancels between two runs of one machine, and the number of systems does not."""
    releases = [accuracy(release=name) for name in ("r2.3", "r2.4", "r2.9")]
    systems = [accuracy(devices=count) for count in (1, 2, 16)]
    for known in (releases, systems):
        errors = [accuracy.step_time_error for accuracy in known]
        assert errors == sorted(set(errors))
    assert releases[2].unshared_error == pytest.approx(releases[0].unshared_error)
    assert systems[1].unshared_error > systems[0].unshared_error


def job(model: str, seq_length: int, *, release: str | None = "peak", **changes: object) -> Job:
    recipe = CATALOG.recipe("gpt3_pretraining").with_(seq_length=seq_length)
    recipe = recipe.ran_with(software_release=release)
    return Job(CATALOG.model(model).with_(**changes), recipe, 16)


def unknowns_of(asked: Job) -> list[Unknown]:
    return list(WaferCluster().unknowns(CATALOG.system("cs-2"), asked, 1))


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("gpt3_xl", {}, []),
        ("gpt3_xl", {"num_query_groups": 4}, ["grouped queries"]),
        ("llama_7b", {}, ["a gated MLP"]),
        ("llama2_70b", {}, ["grouped queries", "a gated MLP"]),
    ],
)
def test_new_layers_widen_a_band_to_a_third(model: str, changes: dict[str, object], said: list[str]) -> None:
    unknowns = unknowns_of(job(model, 2048, **changes))
    total = [math.hypot(unknown.log_width, 0.19) for unknown in unknowns]
    assert total == [pytest.approx(math.log(1.35), abs=0.01)] * bool(said)
    assert all(words in unknown.words for unknown in unknowns for words in said)


def test_longer_sequences_widen_the_band_by_the_share_of_attention() -> None:
    of_lengths = [unknowns_of(job("gpt3_xl", length)) for length in (2048, 8192, 131072)]
    widths = [sum(unknown.log_width for unknown in unknowns) for unknowns in of_lengths]
    assert widths[0] == 0.0 < widths[1] < widths[2] < math.log(2.0)
    assert len(unknowns_of(job("gpt3_175b", 4096))) == 1, "said even where attention takes little"
