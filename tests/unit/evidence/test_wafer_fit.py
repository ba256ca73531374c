"""Constants of a wafer from training logs: found again where they are known, refused where they cannot be."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfsim.base.errors import InputError
from perfsim.catalog import default_catalog
from perfsim.evidence.cases import CaseRows, StepCase
from perfsim.evidence.left_out import LeavingOut
from perfsim.evidence.step_fit import fit_wafer, wafer_step_s
from perfsim.specs.calibration import WaferCalibration
from perfsim.testing.toys import published_run

pytest.importorskip("scipy")

SEQUENCES = (16, 16, 16, 16, 2, 64)
RELEASES = ("r1.7", "r1.8", "r2.0", "r2.3", "r2.3", "r2.3")
WIDTHS = (1024, 1024, 768, 1024, 1024, 512)
LAYERS = (3, 3, 8, 2, 3, 4)
LENGTHS = (2048, 2048, 2048, 2048, 128, 512)


def case(number: int, measured_s: float = 1.0, evidence: str = "A") -> dict[str, Any]:
    width = WIDTHS[number]
    shape = {"hidden_size": width, "ffn_hidden_size": 4 * width, "num_attention_heads": width // 64}
    return published_run(
        id=f"log{number}",
        family="logs",
        evidence=evidence,
        system={"device": "cs-2", "software_release": RELEASES[number]},
        model={"num_layers": LAYERS[number], "seq_length": LENGTHS[number], **shape},
        strategy="weight-streaming",
        training={"global_batch_size": SEQUENCES[number]},
        measured={"step_time_s": measured_s},
    )


def write(path: Path, cases: Sequence[dict[str, Any]]) -> Path:
    path.write_text(yaml.safe_dump({"schema": 1, "cases": list(cases)}), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def truth() -> WaferCalibration:
    known = default_catalog().device("wse-2").calibration
    constants = {"product_efficiency": 0.4, "attention_efficiency": 0.15, "row_s": 2e-7}
    return known.model_copy(update=constants | {"growth_per_release": 0.2})


def measured(truth: WaferCalibration, *numbers: int) -> list[dict[str, Any]]:
    catalog = default_catalog()
    runs = [StepCase.model_validate(case(i)).placed(catalog) for i in numbers]
    return [case(i, wafer_step_s(run, truth)) for i, run in zip(numbers, runs, strict=True)]


@pytest.fixture(scope="module")
def logs(truth: WaferCalibration, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cases = measured(truth, *range(len(RELEASES)))
    cases[-1]["evidence"] = "C"
    return write(tmp_path_factory.mktemp("logs") / "logs.yaml", cases)


def test_known_constants_are_found_and_how_well_is_recorded(logs: Path, truth: WaferCalibration) -> None:
    fitted = fit_wafer(logs, "wse-2")
    for name in (names := ("product_efficiency", "attention_efficiency", "row_s", "growth_per_release")):
        assert getattr(fitted, name) == pytest.approx(getattr(truth, name), rel=5e-3), name
    record = fitted.fit["product_efficiency"]
    assert record.points == len(RELEASES), "evidence C counts"
    assert record.median_ape < 1e-3
    assert record.command == "perfsim calibrate wafer logs.yaml --device wse-2"
    assert set(fitted.fit) == set(names)
    assert all(set(fitted.fit[name].standard_errors) == {name} for name in names)
    assert record.note.startswith(
        "2 residual degree(s) of freedom; a release shortens steps by 18.1%; errors log0 "
    )


def test_a_model_left_out_is_predicted_by_the_logs_of_the_others(logs: Path) -> None:
    rows = CaseRows.read(logs, StepCase).cases
    (found,) = LeavingOut.by_kind(rows, default_catalog())
    measured_s = [row.measured.step_time_s for row in rows]
    assert [run.predicted_s for run in found.runs] == pytest.approx(measured_s, rel=0.01)
    assert {row.family for row in found.groups} == {row.trained for row in rows}


def test_logs_of_one_release_keep_the_growth(truth: WaferCalibration, tmp_path: Path) -> None:
    rows = [*measured(truth, 3, 4, 5), {**measured(truth, 3)[0], "id": "again"}]
    found = fit_wafer(write(tmp_path / "logs.yaml", rows), "wse-2")
    known = default_catalog().device("wse-2").calibration
    assert found.row_s == pytest.approx(truth.row_s, rel=0.02)
    assert found.growth_per_release == known.growth_per_release


@pytest.mark.parametrize(
    ("cases", "device", "message"),
    [
        ([], "wse-2", r"logs\.yaml:\d+:\d+: cases: needs at least 1 items"),
        ([case(0)], "wse-2", "logs"),
        ([case(0)], "a100-sxm4-80gb", "a100-sxm4-80gb is no wafer"),
    ],
)
def test_a_file_with_too_few_logs_and_a_gpu_are_refused(
    tmp_path: Path, cases: list[dict[str, Any]], device: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fit_wafer(write(tmp_path / "logs.yaml", cases), device)
