"""Constants of a wafer from training logs: found again where they are known, refused where they cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from perfsim.base.errors import InputError
from perfsim.catalog import default_catalog
from perfsim.evidence.cases import CaseRows, StepCase
from perfsim.evidence.left_out import LeavingOut
from perfsim.evidence.step_fit import fit_wafer
from perfsim.specs.calibration import WaferCalibration
from perfsim.testing.toys import published_run

pytest.importorskip("scipy")

RELEASES = ("r1.7", "r1.8", "r2.0", "r2.0")
WIDTHS = (1024, 1024, 768, 1024)
LAYERS = (3, 3, 8, 2)


def case(number: int, measured_s: float = 1.0, evidence: str = "A") -> dict[str, Any]:
    width = WIDTHS[number]
    shape = {"hidden_size": width, "ffn_hidden_size": 4 * width, "num_attention_heads": width // 64}
    return published_run(
        id=f"log{number}",
        family="logs",
        evidence=evidence,
        system={"device": "cs-2", "software_release": RELEASES[number]},
        model={"num_layers": LAYERS[number], **shape},
        strategy="weight-streaming",
        measured={"step_time_s": measured_s},
    )


def write(folder: Path, cases: Sequence[dict[str, Any]]) -> Path:
    path = folder / "logs.yaml"
    path.write_text(yaml.safe_dump({"schema": 1, "cases": list(cases)}), encoding="utf-8")
    return path


KNOWN = cast(WaferCalibration, default_catalog().device("wse-2").calibration)


@pytest.fixture(scope="module")
def truth() -> WaferCalibration:
    """Efficiencies that grow by a quarter a release; r1.9 lies between the last two."""
    return KNOWN.model_copy(update={"efficiency": {"r1.7": 0.16, "r1.8": 0.2, "r2.0": 0.3125}})


def measured(truth: WaferCalibration, *numbers: int) -> list[dict[str, Any]]:
    catalog = default_catalog()
    seconds = [StepCase.model_validate(case(i)).evaluated(catalog, truth).step_time_s for i in numbers]
    return [case(i, each) for i, each in zip(numbers, seconds, strict=True)]


@pytest.fixture(scope="module")
def logs(truth: WaferCalibration, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cases = [*measured(truth, *range(len(RELEASES))), {**case(0, 99.0, evidence="C"), "id": "hearsay"}]
    return write(tmp_path_factory.mktemp("logs"), cases)


def test_known_constants_are_found_again_and_the_record_says_how_well_and_how_to_repeat_it(
    logs: Path, truth: WaferCalibration
) -> None:
    fitted = fit_wafer(logs, "wse-2")
    assert fitted.efficiency == pytest.approx(truth.efficiency, rel=5e-3)
    assert fitted.link_s_per_element == truth.link_s_per_element
    record = fitted.fit["efficiency"]
    assert record.points == len(RELEASES), "evidence C does not count"
    assert record.median_ape < 1e-3
    assert record.command == "perfsim calibrate wafer logs.yaml --device wse-2"
    assert set(record.standard_errors) == {
        *(f"efficiency.{release}" for release in RELEASES),
        "growth_per_release",
    }
    note = record.note
    assert note.startswith("2 residual degree(s) of freedom; efficiency grows 25.0% a release; errors log0 ")
    assert "a link's time, left free, becomes 1.18 ns" in note


@pytest.mark.slow
def test_a_release_left_out_is_predicted_from_the_growth_of_the_others(logs: Path) -> None:
    (found,) = LeavingOut.by_kind(CaseRows.read(logs, StepCase).cases, default_catalog())
    errors = [run.error for run in found.runs]
    assert errors == pytest.approx([0.0] * len(RELEASES), abs=0.01)
    assert {row.family for row in found.groups} == set(RELEASES)


def test_logs_of_one_release_move_the_level_and_keep_the_growth(
    truth: WaferCalibration, tmp_path: Path
) -> None:
    found = fit_wafer(write(tmp_path, measured(truth, 2, 3)), "wse-2")
    assert found.efficiency["r2.0"] == pytest.approx(0.3125, rel=5e-3)
    growth = [wafer.efficiency["r2.0"] / wafer.efficiency["r1.7"] for wafer in (found, KNOWN)]
    assert growth[0] == pytest.approx(growth[1], rel=1e-3)
    assert set(found.fit["efficiency"].standard_errors) == {f"efficiency.{name}" for name in KNOWN.efficiency}


@pytest.mark.parametrize(
    ("cases", "device", "message"),
    [
        ([], "wse-2", r"logs\.yaml:1: there is no scored case"),
        ([case(0, evidence="C")], "wse-2", r"logs\.yaml:1: there is no scored case"),
        ([case(0)], "a100-sxm4-80gb", "a100-sxm4-80gb is no wafer"),
    ],
)
def test_a_file_without_a_scored_case_and_a_gpu_are_refused(
    tmp_path: Path, cases: list[dict[str, Any]], device: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fit_wafer(write(tmp_path, cases), device)
