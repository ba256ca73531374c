"""Leaving families out of a fit, on step times that are powers of the constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfsim.catalog import Catalog
from perfsim.fitting.step_fit import CONSTANTS, predict_with, recorded_constants
from perfsim.published.cases import StepCase
from perfsim.published.placed_cases import place_case
from perfsim.validation import leave_out as module
from perfsim.validation.leave_out import ALL, LeftOut, Tangent, leave_out, tangent
from perfsim.validation.score import Scored
from perfsim.validation.validate import scored_case

AT = (4e-5, 1e-4, 9e9, 1500.0, 0.3, 0.8)
TRUE = np.array([5e-5, 1e-4, 9e9, 1500.0, 0.3, 0.7])
SLOPES = {
    "host": [
        (0.6, 0.0, 0.0, 0.0, 0.0, -0.3),
        (0.4, 0.0, 0.0, 0.0, 0.0, -0.5),
        (0.5, 0.0, 0.0, 0.0, 0.0, -0.2),
    ],
    "long": [(0.0, 0.0, 0.0, 0.0, 0.0, -0.9), (0.1, 0.0, 0.0, 0.0, 0.0, -0.8)],
    "flash": [(0.1, 0.0, 0.0, 0.0, -0.5, -0.3), (0.0, 0.0, 0.0, 0.0, -0.4, -0.4)],
}


def tangents(calibration: str = "gpu") -> list[Tangent]:
    """Runs whose step times are exact at TRUE."""
    found = []
    for family, runs in SLOPES.items():
        for number, slopes in enumerate(runs):
            measured_s = float(np.exp(np.dot(slopes, np.log(TRUE / np.array(AT)))))
            scored = Scored(f"{family}{number}", family, "A", None, "", measured_s, 1.0)
            found.append(Tangent(scored, calibration, AT, slopes))
    return found


def by_family(found: list[LeftOut]) -> dict[str, LeftOut]:
    return {each.family: each for each in found}


def test_constants_are_found_again_without_each_family() -> None:
    found = by_family(leave_out(tangents(), [], Catalog()))
    assert list(found) == ["host", "long", "flash", ALL]
    assert found["long"].constants["sustained_fraction"] == pytest.approx(0.7, rel=1e-3)
    assert found["long"].constants["host_s_per_kernel"] == pytest.approx(5e-5, rel=1e-3)


def test_a_constant_that_no_other_family_shows_is_kept_and_said_to_be() -> None:
    found = by_family(leave_out(tangents(), [], Catalog()))
    unseen = {"host_blocking_s_per_kernel", "partial_node_rank_bytes_per_s", "attention_half_length"}
    assert set(found["flash"].kept) == {"attention_fraction", *unseen}
    assert found["flash"].constants["attention_fraction"] == 0.3
    assert set(found["host"].kept) == unseen


def run_on(calibration: str, ceiling: float, benchmark: float) -> Tangent:
    """A run whose step time follows the ceiling of its device alone, measured as predicted."""
    slopes = (0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
    scored = Scored(calibration, f"on {calibration}", "A", None, "", 1.0, 1.0)
    return Tangent(scored, calibration, (*AT[:-1], ceiling), slopes, benchmark)


def test_the_ceiling_of_a_device_without_other_runs_follows_its_benchmark_as_those_of_others() -> None:
    others = [run_on("old", 0.8, 0.8), run_on("older", 0.4, 0.5)]
    found = by_family(leave_out([*others, run_on("new", 0.3, 0.6)], [], Catalog()))["on new"]
    assert found.constants["sustained_fraction"] == pytest.approx(0.6 * np.sqrt(1.0 * 0.8), rel=1e-3)
    assert found.borrowed == "old, older"
    assert by_family(leave_out(tangents(), [], Catalog()))["host"].borrowed == ""


def test_a_shared_constant_is_fitted_to_the_runs_of_all_devices() -> None:
    flash = [replace(run, calibration="other") for run in tangents() if run.scored.family == "flash"]
    rest = [run for run in tangents() if run.scored.family != "flash"]
    found = by_family(leave_out([*rest, *flash], [], Catalog()))
    assert found["long"].constants["host_s_per_kernel"] == pytest.approx(5e-5, rel=1e-3)
    assert found["host"].constants["host_s_per_kernel"] == pytest.approx(5e-5, rel=0.1)


def test_the_last_row_is_over_all_runs() -> None:
    rows = leave_out(tangents(), [], Catalog())
    assert rows[-1].inside["n"] == sum(len(runs) for runs in SLOPES.values())


def test_slopes_are_those_of_the_priced_step() -> None:
    fields = {
        "id": "a",
        "family": "f",
        "evidence": "A",
        "system": {"device": "a100-sxm4-80gb", "num_devices": 1},
        "model": {
            "num_layers": 2,
            "hidden_size": 512,
            "ffn_hidden_size": 2048,
            "num_attention_heads": 8,
            "vocab_size": 1024,
            "seq_length": 256,
        },
        "strategy": "3d",
        "parallel": {},
        "training": {"global_batch_size": 2, "micro_batch_size": 1},
        "measured": {"step_time_s": 1.0},
    }
    case = StepCase.model_validate(fields)
    written = place_case(case, Catalog())
    found = tangent(written, scored_case(case, None))
    slopes = dict(zip(CONSTANTS, found.slopes, strict=True))
    assert slopes["host_s_per_kernel"] == pytest.approx(1.0, abs=0.05), "so small a model waits for the host"
    assert slopes["host_blocking_s_per_kernel"] == 0.0
    assert slopes["attention_fraction"] == 0.0, "standard attention"
    assert slopes["partial_node_rank_bytes_per_s"] == 0.0, "one device"
    at = recorded_constants(written)
    assert found.scored.predicted_s == predict_with(written, at)
    assert module._predict((case, tuple(at.tolist())), Catalog()) == predict_with(written, at)
