"""Widths of bands from errors of runs left out of the fit, on samples whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from perfsim.evidence.left_out import LeavingOut, _points
from perfsim.evidence.score import Scored
from perfsim.prediction.bands import BandWidths, Traits

CHIP = {"peak_flop_per_s": 3e14, "memory_bytes_per_s": 2e12, "precision": "16-bit"}
SPLIT = {"sharded": False, "tensor": True, "pipeline": True, "shards": 1, "micro_batch_size": 1}
HERE = Traits("chip", **CHIP, **SPLIT, parameters=1e10, num_devices=64)
RUNS = 12


def left_out_run(group: str, family: str, log_error: float, traits: Traits = HERE) -> Scored:
    predicted_s = float(np.exp(log_error))
    return Scored("", family, "A", None, "", 1.0, predicted_s, traits=traits, left_out=group)


def fitted_widths(runs: list[Scored], others: BandWidths | None = None) -> BandWidths:
    return LeavingOut("family", (), tuple(runs)).widths(others)


def sample(
    generator: np.random.Generator, families: int, between: float, within: float, growth: float = 0.0
) -> list[Scored]:
    """Families with an effect of their own; every second one is of models far larger than all others."""
    runs = []
    for number in range(families):
        points = (2.0 if number == 1 else 4.0) if growth and number % 2 else 0.0
        traits = replace(HERE, parameters=1e10 * 10 ** (2.0 * number)) if points else HERE
        effect = generator.normal(0.0, between) + growth * points * generator.normal()
        for error in generator.normal(0.0, within, RUNS):
            runs.append(left_out_run(f"f{number}", f"f{number}", effect + error, traits))
    return runs


def test_bands_of_simulated_families_hold_90_percent_of_the_families_left_out() -> None:
    generator = np.random.default_rng(10)
    held = []
    for _ in range(12):
        runs = sample(generator, 10, between=0.04, within=0.055)
        for left_out in {run.family for run in runs}:
            widths = fitted_widths([run for run in runs if run.family != left_out])
            held += [abs(run.log_error) <= widths.log_width(0.0) for run in runs if run.family == left_out]
    assert 0.88 <= np.mean(held) <= 0.93


def test_a_class_with_enough_families_has_its_own_width_else_that_of_the_class_above() -> None:
    dense = sample(np.random.default_rng(3), 10, between=0.02, within=0.03)
    experts = replace(HERE, experts=True, generation="new")
    doubled = [replace(run, family=f"e{run.family}", traits=experts) for run in dense]
    doubled = [replace(run, left_out=run.family, predicted_s=(run.predicted_s or 1) ** 2) for run in doubled]
    widths = fitted_widths([*dense, *doubled])
    alone = fitted_widths(dense)
    assert (widths.base, widths.slope, widths.unshared) == (alone.base, alone.slope, alone.unshared)
    assert widths.classes["experts"] == pytest.approx(2.0, rel=0.05)
    held = [abs(run.log_error) <= widths.of_class(experts).log_width(0.0) for run in doubled]
    assert 0.88 <= np.mean(held) <= 0.93
    unseen = replace(experts, precision="fp8")
    assert widths.of_class(unseen).base == pytest.approx(widths.classes["experts"] * widths.base)
    for families, low, high in ((1, 1.0, 1.0), (3, 0.15, 0.35)):
        exact = [replace(run, traits=replace(HERE, generation="exact")) for run in dense[: families * RUNS]]
        exact = [replace(run, predicted_s=(run.predicted_s or 1) ** 0.1) for run in exact]
        factor = fitted_widths([*dense[families * RUNS :], *exact]).classes["exact, 16 bits, dense"]
        assert low <= factor <= high, (
            "a class of few families is not narrower, one of three is by 3/5 in logs"
        )


def test_the_growth_of_errors_with_unlikeness_is_seen() -> None:
    flat = sample(np.random.default_rng(1), 12, between=0.03, within=0.03)
    growing = sample(np.random.default_rng(1), 12, between=0.03, within=0.03, growth=0.1)
    assert fitted_widths(flat).slope < 0.02
    widths = fitted_widths(growing)
    assert 0.08 < widths.slope < 0.5
    assert widths.log_width(0.0) < widths.log_width(1.0) < widths.log_width(3.0)


def test_a_part_of_a_family_is_as_unlike_as_what_remains_of_the_family_and_a_whole_one_as_others() -> None:
    far = replace(HERE, parameters=1e12)
    runs = [left_out_run("a, small", "a", 0.0), left_out_run("a, large", "a", 0.0, far)]
    runs.append(left_out_run("b", "b", 0.0, replace(far, num_devices=640)))
    assert _points(runs) == pytest.approx([2.0, 1.0, 1.0])
    assert _points([replace(run, left_out=run.family) for run in runs]) == pytest.approx([3.0, 1.0, 1.0])


@pytest.mark.parametrize("families", [1, 8])
def test_where_3_of_20_runs_are_far_off_the_band_is_as_wide_as_their_errors(families: int) -> None:
    """Student's band of the same runs is narrower and holds 85 % of them instead of 90."""
    errors = [0.01] * 17 + [0.3] * 3
    names = [f"f{number}" for number in range(families)]
    widths = fitted_widths([left_out_run(name, name, error) for name in names for error in errors])
    assert widths.base == pytest.approx(0.3)
    assert all(widths.log_width(points) >= widths.base for points in (0.0, 0.5, 4.0))


def test_what_families_share_cancels_in_a_ratio_and_the_rest_does_not() -> None:
    shared, alone = (
        fitted_widths(sample(np.random.default_rng(3), 12, between=between, within=within)).unshared
        for between, within in ((0.1, 0.01), (0.01, 0.1))
    )
    assert 0.0 < shared < 0.3
    assert alone > 0.7


def test_a_few_runs_of_one_family_have_students_band_and_the_growth_of_others() -> None:
    errors = [-0.08, 0.05, -0.14, -0.09, -0.08]
    runs = [left_out_run(f"r{error}", "logs", error) for error in errors]
    others = BandWidths(0.1, 0.05, 0.6)
    widths = fitted_widths(runs, others)
    expected = stats.t.ppf(0.95, 5) * np.sqrt(1.2) * np.sqrt(np.mean(np.square(errors)))
    assert widths.base == pytest.approx(expected)
    assert widths.slope == others.slope
    apart = [0.13, 0.03, 0.06, 0.01, 0.0, 0.19, 0.14, 0.13, 0.05, 0.06]
    assert widths.unshared * widths.base * np.sqrt(2) == pytest.approx(np.quantile(apart, 0.9), rel=0.1)


def test_what_does_not_cancel_between_runs_of_which_no_two_are_alike_is_that_of_another_machine() -> None:
    runs = [left_out_run(name, name, error) for name, error in (("one", 0.2), ("other", -0.1))]
    others = BandWidths(0.1, 0.05, 0.6)
    widths = fitted_widths(runs, others)
    assert widths.unshared * widths.base == pytest.approx(others.unshared * others.base)
    assert fitted_widths(runs).unshared == 1.0, "with nothing known, nothing cancels"
