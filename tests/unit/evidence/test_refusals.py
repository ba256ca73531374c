"""Fits refuse what cannot determine them, and record what was really measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from perfsim.base.errors import InputError
from perfsim.catalog import data_root, default_catalog
from perfsim.evidence import calibrate, step_fit
from perfsim.evidence.tables import need_more_than, source_of


def test_fewer_rows_than_constants_are_refused_with_the_number_needed(tmp_path: Path) -> None:
    table = tmp_path / "g.csv"
    table.write_text("m,n,k,time_us\n" + "".join(f"{m},1024,1024,9\n" for m in range(256, 260)))
    with pytest.raises(InputError, match=r"g\.csv(:1)?: holds 4 GEMM shapes(.|\n)*at least 68 are needed"):
        calibrate.calibrate_gemm(table, "a100-sxm4-80gb")
    table.write_text("collective,num_gpus,bytes,time_us\n" + "all_reduce,8,1024,9\n" * 30)
    with pytest.raises(InputError, match=r"holds 1 sizes of all_reduce(.|\n)*at least 17 are needed"):
        calibrate.calibrate_collectives([table], "nvlink3")


def test_one_more_than_the_constants_is_enough() -> None:
    need_more_than(6, 7, Path("a.yaml"), "runs")
    with pytest.raises(InputError, match="at least 7 are needed"):
        need_more_than(6, 6, Path("a.yaml"), "runs")


def test_a_wafer_has_no_gemm_table_and_a_link_between_nodes_no_table_of_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="wse-2 is a wafer; GEMM tables are of GPUs"):
        calibrate.calibrate_gemm(tmp_path / "g.csv", "wse-2")
    with pytest.raises(InputError, match=r"hdr-200 joins nodes; .* nvlink3, nvlink4"):
        calibrate.calibrate_collectives([tmp_path / "c.csv"], "hdr-200")


def test_a_table_of_ones_own_is_recorded_by_its_name() -> None:
    assert source_of(Path("mine.yaml"), "public-gpu-runs") == "mine.yaml"
    bundled = data_root() / "studies" / "validation" / "gpu.yaml"
    assert source_of(bundled, "public-gpu-runs") == "public-gpu-runs"


def test_a_folder_that_is_not_there_is_made(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder" / "mine.yaml"
    calibrate.write_yaml(default_catalog().calibration("nvlink3"), out)
    assert out.is_file()


def test_a_constant_that_no_run_depends_on_has_no_standard_error() -> None:
    jacobian = np.random.default_rng(0).normal(1, 0.1, (20, len(step_fit.FIELDS)))
    jacobian[:, 2] = 0.0
    found = SimpleNamespace(jac=jacobian, fun=np.full(20, 0.01))
    record = step_fit.record_of_fit(found, np.ones(20), step_fit.FIELDS, "perfsim calibrate framework")
    assert set(record.standard_errors) == set(step_fit.FIELDS) - {step_fit.FIELDS[2]}
    assert record.note.endswith(f"kept, for no run depends on them: {step_fit.FIELDS[2]}")
