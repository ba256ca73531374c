"""Fits of global constants to whole steps find again the constants that made the steps."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from perfsim.base.errors import InputError
from perfsim.catalog import Catalog
from perfsim.evidence.cases import StepCase, published_cases
from perfsim.evidence.step_fit import GpuRun, fit_steps
from perfsim.testing.toys import published_run

CEILING = "sustained_fraction"
HOST = "host_s_per_kernel"


def row_of(name: str, batch: int, device: str = "a100-sxm4-80gb", **training: Any) -> dict[str, Any]:
    return published_run(
        id=name,
        family=name,
        system={"device": device, "num_devices": 8, "devices_per_node": 8},
        model={"num_layers": 2, "hidden_size": 2048, "ffn_hidden_size": 8192, "seq_length": 2048},
        parallel={"tensor": 2, "data": 4},
        training={"global_batch_size": batch, "micro_batch_size": 2, "attention": "standard", **training},
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps of two devices whose ceilings are a tenth and a fifth below the recorded ones."""
    newer = {"device": "h100-sxm5-80gb", "precision": "bf16", "attention": "flash"}
    rows = [row_of(name, batch) for name, batch in (("a", 8), ("b", 16), ("c", 32))]
    rows += [row_of(name, batch, **newer) for name, batch in (("d", 8), ("e", 16))]
    for row in rows:
        run = GpuRun.of(StepCase.model_validate(row).placed(Catalog()))
        share = 0.8 if row["id"] in "de" else 0.9
        truth = {
            name: value * (share if name.startswith(CEILING) else 1.0) for name, value in run.recorded.items()
        }
        row["measured"] = {"step_time_s": run.step_s(truth)}
    path = tmp_path_factory.mktemp("steps") / "mine.yaml"
    path.write_text(yaml.safe_dump({"schema": 1, "cases": rows}))
    return path


def test_ceilings_of_devices_are_found_again_each_from_its_own_runs(measured: Path) -> None:
    fitted = fit_steps([measured], only=[CEILING])
    assert [calibration.name for calibration in fitted] == ["a100-sxm4", "h100-sxm5"]
    for calibration, share in zip(fitted, (0.9, 0.8), strict=True):
        known = getattr(Catalog().load("calibration", calibration.name), CEILING)
        assert getattr(calibration, CEILING) == pytest.approx(share * known, rel=0.01)
        record = calibration.fit[CEILING]
        assert (record.points, record.table) == (5, "mine.yaml")
        assert record.command == f"perfsim calibrate framework mine.yaml --only {CEILING}"
        assert set(record.standard_errors) == {CEILING}


def test_host_times_are_of_the_framework_and_more_constants_than_runs_are_refused(measured: Path) -> None:
    (fitted,) = fit_steps([measured], "a100-sxm4-80gb", only=[HOST])
    assert fitted.name == "megatron-2021"
    known = getattr(Catalog().framework(fitted.name), HOST)
    assert known < getattr(fitted, HOST) < 2 * known
    with pytest.raises(InputError, match="3 different runs on GPUs"):
        fit_steps([measured], "a100-sxm4-80gb")
    with pytest.raises(InputError, match="speed is no constant of a fit"):
        fit_steps([measured], only=["speed"])
    with pytest.raises(InputError, match="no scored case runs on a device with calibration h200-sxm5"):
        fit_steps([measured], "mi300x-192gb")


@pytest.mark.slow
def test_recorded_constants_are_those_that_their_command_gives() -> None:
    files = [path for path in published_cases() if path.name in ("gpu.yaml", "modern.yaml")]
    for fitted in fit_steps(files):
        kind = "framework" if fitted.kind == "framework" else "calibration"
        recorded = Catalog().load(kind, fitted.name)
        for name in fitted.fit.keys() & recorded.fit.keys() & type(fitted).model_fields.keys() - {"gemm"}:
            assert getattr(fitted, name) == pytest.approx(getattr(recorded, name), rel=0.01), name
            assert fitted.fit[name].points == recorded.fit[name].points, name
