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


def test_switching_models_changes_the_four_numbers_that_define_them_and_nothing_else() -> None:
    """The seller's article shows the difference of two configurations: four lines, beside one of logging."""
    switched = [each for each in points("model_switch") if each.candidate.strategy == "weight-streaming"]
    assert [each.study.model.name for each in switched] == ["gpt3_xl", "gpt3_6p7b", "gpt3_13b", "gpt3_20b"]
    first = switched[0].study
    for each in switched[1:]:
        dumps = [
            one.model.model_dump(exclude={"name", "description", "sources"}) for one in (first, each.study)
        ]
        differing = {name for name in dumps[0] if dumps[0][name] != dumps[1][name]}
        assert differing == {"num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size"}
        assert each.study.recipe == first.recipe
        assert each.study.batch_sizes == first.batch_sizes
        assert each.candidate == switched[0].candidate


def test_cerebras_gpt_runs_with_the_batches_and_tokens_that_were_used() -> None:
    asked = {each.settings[VARIANT]: each.study for each in points("cerebras_gpt")}
    assert list(asked) == [*CEREBRAS_GPT, "13B"]
    for name, (batch, steps, tokens) in CEREBRAS_GPT.items():
        recipe = asked[name].recipe
        assert (recipe.global_batch_size, recipe.tokens) == (batch, tokens)
        assert abs(steps * batch * recipe.seq_length / tokens - 1) < 0.005
    assert all(study.convergence.law == "given_length" for study in asked.values())
    assert all(study.candidates[0].devices == (16,) for study in asked.values())


def test_scaling_asks_for_every_size_up_to_the_largest_cluster_twice() -> None:
    counts = [1, 2, 4, 8, 16, 32, 64, 128, 192]
    found = points("csx_scaling")
    assert [each.num_devices for each in found] == counts * 2
    weak = found[: len(counts)]
    strong = found[len(counts) :]
    assert {each.study.recipe.batch_over(each.num_devices) for each in strong} == {768}
    assert [each.study.recipe.batch_over(each.num_devices) for each in weak] == [50 * n for n in counts]


def test_a_cs_3_is_files_only_and_says_that_its_efficiency_is_another_wafers() -> None:
    """Of 2.12 times the peak no more can come; published logs of a CS-3 to calibrate with there are none."""
    device = default_catalog().device("wse-3")
    assert "calibration" in device.assumed
    assert device.calibration is not None
    assert device.calibration.name == "wse-2"
    runs = [
        ps.predict(model="gpt3_20b", system=name, devices=16, strategy="weight-streaming", batch=768)
        for name in ("cs-2", "cs-3")
    ]
    gain = runs[0].step_time_s / runs[1].step_time_s
    assert 1.2 < gain < 15.84 / 7.48
    assert any("no measurement of wse-3" in caveat.text for caveat in runs[1].caveats)


def test_every_ablation_is_one_line_and_changes_what_it_says() -> None:
    found = {each.settings[VARIANT]: each for each in points("ablations_ws")}
    systems = {name: each.candidate.system for name, each in found.items()}
    assert all(isinstance(system, WaferClusterSpec) for system in systems.values())
    base = systems["as it is"]
    assert isinstance(base, WaferClusterSpec)
    doubled, sparse, gpus = (
        found[name] for name in ("twice the I/O", "75 % of the weights zero", "MemoryX feeding 64 A100s")
    )
    assert isinstance(doubled.candidate.system, WaferClusterSpec)
    assert doubled.candidate.system.io_bytes_per_s == 2 * base.io_bytes_per_s
    assert doubled.candidate.system.memoryx.bandwidth == 2 * base.memoryx.bandwidth
    assert sparse.study.recipe.weight_sparsity == 0.75
    assert (gpus.candidate.system.device.kind, gpus.num_devices) == ("gpu", 64)
    assert {each.study.recipe.global_batch_size for each in points("ablations_ws")} == {64, 768}


def test_doubling_the_link_changes_nothing_where_wafers_are_full_and_much_where_they_are_not() -> None:
    """The facts' property: step time is flat in weight bytes until tokens fall under the threshold."""
    steps = {}
    for each in points("ablations_ws"):
        if each.settings[VARIANT] in ("as it is", "twice the I/O", "half the MemoryX bandwidth"):
            batch = each.study.recipe.global_batch_size
            steps[each.settings[VARIANT], batch] = answer_point(each, Target.of_study(each.study)).step_time_s
    assert steps["twice the I/O", 768] == pytest.approx(steps["as it is", 768], rel=0.01)
    assert steps["half the MemoryX bandwidth", 768] == pytest.approx(steps["as it is", 768], rel=0.01)
    assert steps["twice the I/O", 64] < 0.95 * steps["as it is", 64]
    assert steps["half the MemoryX bandwidth", 64] > 1.2 * steps["as it is", 64]
