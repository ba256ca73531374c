"""No constant without a source, a reason, or a fit that determines it."""

from __future__ import annotations

import pytest

from perfsim.catalog import Catalog, data_root
from perfsim.specs.calibration import (
    MOST_STANDARD_ERROR,
    Calibration,
    CollectiveCalibration,
    FitRecord,
    GpuCalibration,
)

CATALOG = Catalog([data_root()])
CALIBRATIONS = [
    CATALOG.load(kind, name) for kind in ("calibration", "framework") for name in CATALOG.names(kind)
]
PLAIN_VERBS = ("gemm", "collective", "framework", "wafer")


@pytest.mark.parametrize("calibration", CALIBRATIONS, ids=lambda fitted: fitted.name)
def test_every_constant_has_a_source_or_a_reason_or_a_standard_error_under_a_third(
    calibration: Calibration,
) -> None:
    assert calibration.constants()
    assert calibration.unaccounted() == []


@pytest.mark.parametrize("calibration", CALIBRATIONS, ids=lambda fitted: fitted.name)
def test_every_reason_and_error_belongs_to_a_constant(calibration: Calibration) -> None:
    paths = [*calibration.constants(), *calibration.model_fields_set]
    for key in (*calibration.sources, *calibration.assumed):
        assert any(path == key or path.startswith(f"{key}.") for path in paths), key
    for record in calibration.fit.values():
        assert all(error >= 0 for error in record.standard_errors.values())


@pytest.mark.parametrize("calibration", CALIBRATIONS, ids=lambda fitted: fitted.name)
def test_every_fit_names_the_command_that_makes_it(calibration: Calibration) -> None:
    for record in calibration.fit.values():
        assert record.command.startswith(tuple(f"perfsim calibrate {verb} " for verb in PLAIN_VERBS))


@pytest.mark.parametrize(("link", "rate"), [("nvlink3", 300e9), ("nvlink4", 450e9)])
def test_a_bandwidth_at_the_line_rate_is_said_to_be_the_links(link: str, rate: float) -> None:
    calibration = CATALOG.calibration(link)
    fitted = {path for path in calibration.constants() if path.startswith(tuple(calibration.fit))}
    at_rate = [path for path in fitted if calibration.constants()[path] == rate]
    assert at_rate
    assert all("line rate" in calibration.assumed[path] for path in at_rate)


def test_a_constant_known_worse_than_to_a_third_is_found() -> None:
    calibration = CATALOG.calibration("a100-sxm4")
    assert isinstance(calibration, GpuCalibration)
    record = calibration.fit["gemm"]
    worse = {**record.standard_errors, "launch_s": MOST_STANDARD_ERROR}
    fits = {**calibration.fit, "gemm": record.model_copy(update={"standard_errors": worse})}
    assert calibration.model_copy(update={"fit": fits}).unaccounted() == ["gemm.launch_s"]


def test_a_source_of_the_whole_group_does_not_excuse_a_fitted_constant() -> None:
    calibration = CATALOG.calibration("nvlink3")
    assert isinstance(calibration, CollectiveCalibration)
    key = "collectives.all_reduce"
    assert key in calibration.sources
    without = FitRecord(command="", table="", points=1, median_ape=0.0, p90_ape=0.0)
    missing = calibration.model_copy(update={"fit": {**calibration.fit, key: without}}).unaccounted()
    assert f"{key}.long.local_bytes_per_s" in missing
