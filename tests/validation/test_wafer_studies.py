"""The studies that answer what is said of wafer-scale clusters: they load, and ask what they claim to."""

from __future__ import annotations

import pytest

import perfsim as ps
from perfsim.catalog import default_catalog
from perfsim.specs.hardware import WaferClusterSpec
from perfsim.studies.axes import VARIANT, load_sweep
from perfsim.studies.batches import Target
from perfsim.studies.runner import answer_point
from perfsim.studies.spec import Point

# Model Zoo, Cerebras-GPT: batch in sequences of 2048, steps, tokens; 13B is written for its second phase.
CEREBRAS_GPT = {
    "111M": (120, 9037, 2.22e9),
    "256M": (264, 9468, 5.12e9),
    "590M": (264, 21836, 1.18e10),
    "1.3B": (528, 24334, 2.63e10),
    "2.7B": (528, 49041, 5.3e10),
    "6.7B": (1040, 62522, 1.33e11),
}


def points(name: str) -> tuple[Point, ...]:
    return load_sweep(name).points


def test_switching_models_changes_the_model_and_nothing_else() -> None:
    """The seller's article shows the difference of two configurations: the four numbers that define a model.

    That the family differs in them alone is tested with the catalogue.
    """
    switched = [point for point in points("model_switch") if point.candidate.strategy == "weight-streaming"]
    assert [point.study.model.name for point in switched] == ["gpt3_xl", "gpt3_6p7b", "gpt3_13b", "gpt3_20b"]
    first = switched[0]
    for point in switched[1:]:
        assert point.study.recipe == first.study.recipe
        assert point.study.batch_sizes == first.study.batch_sizes
        assert point.candidate == first.candidate


def test_cerebras_gpt_runs_with_the_batches_and_tokens_that_were_used() -> None:
    studies = {point.settings[VARIANT]: point.study for point in points("cerebras_gpt")}
    assert list(studies) == [*CEREBRAS_GPT, "13B"]
    for name, (batch, steps, tokens) in CEREBRAS_GPT.items():
        recipe = studies[name].recipe
        assert (recipe.global_batch_size, recipe.tokens) == (batch, tokens)
        assert abs(steps * batch * recipe.seq_length / tokens - 1) < 0.005
    assert all(study.convergence.law == "given_length" for study in studies.values())
    assert all(study.candidates[0].devices == (16,) for study in studies.values())


def test_scaling_asks_for_every_size_up_to_the_largest_cluster_twice() -> None:
    """With 50 sequences a system, and with 768 over all."""
    counts = [1, 2, 4, 8, 16, 32, 64, 128, 192]
    sizes = [(point.num_devices, point.study.recipe) for point in points("csx_scaling")]
    batches = [(devices, recipe.batch_over(devices)) for devices, recipe in sizes]
    assert batches == [*((n, 50 * n) for n in counts), *((n, 768) for n in counts)]


def test_a_cs_3_is_files_only_and_says_that_its_efficiency_is_another_wafers() -> None:
    """Of 2.12 times the peak no more can come; published logs of a CS-3 to calibrate with there are none."""
    device = default_catalog().device("wse-3")
    assert "calibration" in device.assumed
    assert device.calibration is not None
    assert device.calibration.name == "wse-2"
    old, new = (
        ps.predict(model="gpt3_20b", system=name, devices=16, strategy="weight-streaming", batch=768)
        for name in ("cs-2", "cs-3")
    )
    assert 1.2 < old.step_time_s / new.step_time_s < 15.84 / 7.48
    assert any("no measurement of wse-3" in caveat.text for caveat in new.caveats)


def test_every_ablation_is_one_line_and_changes_what_it_says() -> None:
    variants = {point.settings[VARIANT]: point for point in points("ablations_ws")}
    assert all(isinstance(point.candidate.system, WaferClusterSpec) for point in variants.values())
    base, doubled, sparse, gpus = (
        variants[name]
        for name in ("as it is", "twice the I/O", "75 % of the weights zero", "MemoryX feeding 64 A100s")
    )
    systems = [point.candidate.system for point in (base, doubled)]
    rates = [(system.io_bytes_per_s, system.memoryx.bandwidth) for system in systems]  # type: ignore[union-attr]
    assert rates[1] == tuple(2 * rate for rate in rates[0])
    assert sparse.study.recipe.weight_sparsity == 0.75
    assert (gpus.candidate.system.device.kind, gpus.num_devices) == ("gpu", 64)
    assert {point.study.recipe.global_batch_size for point in points("ablations_ws")} == {64, 768}


def test_doubling_the_link_changes_nothing_where_wafers_are_full_and_much_where_they_are_not() -> None:
    """The facts' property: step time is flat in weight bytes until tokens fall under the threshold."""
    steps = {}
    for point in points("ablations_ws"):
        name = point.settings[VARIANT]
        if name in ("as it is", "twice the I/O", "half the MemoryX bandwidth"):
            answer = answer_point(point, Target.of_study(point.study))
            steps[name, point.study.recipe.global_batch_size] = answer.step_time_s
    assert steps["twice the I/O", 768] == pytest.approx(steps["as it is", 768], rel=0.01)
    assert steps["half the MemoryX bandwidth", 768] == pytest.approx(steps["as it is", 768], rel=0.01)
    assert steps["twice the I/O", 64] < 0.95 * steps["as it is", 64]
    assert steps["half the MemoryX bandwidth", 64] > 1.2 * steps["as it is", 64]
