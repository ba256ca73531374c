"""Bands of published runs from a record that knows nothing of their family."""

import math
from typing import Any

import pytest

from perfsim.catalog import Catalog
from perfsim.evidence.cases import CaseRows, StepCase
from perfsim.evidence.score import CaseBand, validate_cases
from perfsim.prediction.bands import Accuracy, BandWidths, Traits, left_out_of, recorded_errors
from perfsim.testing.toys import SMALLEST, published_run


def case(name: str = "a", family: str = "mine", measured_s: float = 0.1, **changes: Any) -> StepCase:
    row = published_run(
        id=name,
        family=family,
        model=SMALLEST,
        parallel={"tensor": 2},
        training={"global_batch_size": 4, "micro_batch_size": 1, "attention": "standard"},
        measured={"step_time_s": measured_s},
        **{"system": {"num_devices": 2, "devices_per_node": 2}, **changes},
    )
    return StepCase.model_validate(row)


def band_of(run: StepCase) -> CaseBand:
    return CaseBand.of(run.placed(Catalog()))


def test_a_run_of_a_users_own_family_has_its_prediction_and_the_widths_of_all_runs() -> None:
    run = case().placed(Catalog()).evaluation
    band = band_of(case())
    accuracy = Accuracy.nearest("gpu-cluster", Traits.of(run.plan))
    assert band.left_out_s is None
    assert band.unlikeness == accuracy.unlikeness > 0.0
    assert math.sqrt(band.low_s * band.high_s) == pytest.approx(run.step_time_s)
    assert band.high_s / run.step_time_s == pytest.approx(1 + accuracy.step_time_error)


def test_a_run_of_a_recorded_family_is_predicted_and_bounded_without_that_family() -> None:
    band = band_of(case(family="vtrain_single"))
    record = left_out_of("gpu-cluster", "vtrain_single")
    assert band.left_out_s == pytest.approx(math.sqrt(band.low_s * band.high_s))
    assert band.left_out_s != pytest.approx(case().placed(Catalog()).evaluation.step_time_s, rel=1e-3)
    traits = Traits.of(case().placed(Catalog()).evaluation.plan)
    widths = BandWidths(**record["band"]).of_class(traits)
    assert band.high_s / band.left_out_s == pytest.approx(1 + widths.error(band.unlikeness))
    assert band.unlikeness > band_of(case()).unlikeness, "its own family is not compared with"
    h100 = {"device": "h100-sxm5-80gb", "num_devices": 2, "devices_per_node": 2}
    other = band_of(case(family="vtrain_single", system=h100))
    assert other.left_out_s is None, "constants of one device are not used on another"


def test_coverage_counts_scored_runs_inside_their_bands_which_no_measurement_moves() -> None:
    band = band_of(case())
    low, high = band.low_s, band.high_s
    cases = [case("inside", measured_s=low * 1.01), case("outside", measured_s=high * 1.01)]
    cases.append(case("weak", measured_s=2 * high, evidence="C"))
    result = validate_cases(CaseRows(cases), Catalog())
    assert [row["band_s"] for row in result["cases"]] == [[low, high]] * 3
    assert result["summary"]["band_coverage"] == 0.5
    assert result["families"]["mine"]["band_coverage"] == 0.5


def test_every_recorded_group_is_left_out_with_the_constants_of_a_known_device() -> None:
    devices = {name for entry in recorded_errors() for row in entry["families"] for name in row["constants"]}
    rows = [row for entry in recorded_errors() for row in entry["left_out"]]
    fitted = [Catalog().load("calibration", row["calibration"]) for row in rows]
    assert {getattr(calibration, "chip", "") or calibration.name for calibration in fitted} <= devices
