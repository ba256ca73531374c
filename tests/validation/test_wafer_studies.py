"""Wafers: batches published for CS-2 are feasible, and studies of what is said of them ask what they claim.

No batch is called resident where it is not: sequences of 2,048 tokens a system and step, of the Model Zoo.
"""

from itertools import pairwise
from typing import NamedTuple

import pytest

import perfsim as ps
from perfsim.base.errors import MemoryCapacityError, PlanError
from perfsim.catalog import default_catalog
from perfsim.prediction.planner import Search, best_plan, confirmed
from perfsim.prediction.question import Question, question_of
from perfsim.prediction.run import Evaluation
from perfsim.specs.layout import StreamingLayout
from perfsim.strategies import strategy
from perfsim.strategies.streaming.memory import Store
from perfsim.studies.loading import VARIANT, load_study, load_sweep
from perfsim.studies.runner import answer_point
from perfsim.studies.spec import Point
from perfsim.testing import toys
from perfsim.work.counts import parameters

STREAMING = strategy("weight-streaming")


class Batch(NamedTuple):
    """A model and the sequences that a system takes at once."""

    model: str
    per_system: int
    systems: int = 1


BATCHES = [
    Batch("gpt3_xl", 121),
    Batch("gpt3_6p7b", 85),
    Batch("gpt3_6p7b", 65, 8),
    Batch("gpt3_13b", 60),
    Batch("gpt3_13b", 90, 12),
    Batch("gpt3_20b", 50),
    Batch("gpt3_20b", 77),
    Batch("gptj_6b", 65, 2),
    Batch("gpt_neox_20b", 50),
    Batch("llama_7b", 99),
    Batch("llama_33b", 66),
]


def question(batch: Batch, **changes: object) -> Question:
    """How systems with these changes train the batch."""
    given = {"model": batch.model, "recipe": "gpt3_pretraining", "devices": batch.systems}
    system = default_catalog().system("cs-2", **changes)
    return question_of({**given, "system": system, "batch": batch.per_system * batch.systems})


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: f"{batch.model}@{batch.per_system}")
def test_a_published_batch_is_feasible_and_never_resident_where_the_wafer_is_too_small(batch: Batch) -> None:
    """One fp16 tensor a layer is more than 40 GB for most of them, and a layer keeps sixteen."""
    searched = Search(question(batch))
    plan = [*confirmed(searched)][-1].plan
    assert all(use.fits for use in plan.memory)
    assert any(note.startswith("wafer memory policy: ") for note in plan.notes)
    layout = StreamingLayout(data=batch.systems, micro_batch_size=batch.per_system)
    held = Store(searched.question.job, toys.wafer_cluster()).activations(layout)
    assert held.kept + held.working > plan.system.device.memory.capacity
    plans = [searched.plan(index) for index in searched.order[:100].tolist()]
    assert all(
        plan.num_microbatches > 1 or plan.layout.recompute_layers or plan.layout.spill for plan in plans
    )
    with pytest.raises(MemoryCapacityError, match="does not fit: wafer needs"):
        STREAMING.plan(plan.job, plan.topology, layout)


def trillion(batch: int = 16, **changes: object) -> Evaluation:
    return best_plan(question(Batch("gpt_1t", batch), **changes))


def test_a_trillion_parameters_train_on_one_system_slowly_and_the_plan_says_what_they_need() -> None:
    one = trillion()
    assert one.plan.topology.num_devices == 1
    assert one.step_time_s > 60
    (needs,) = [note for note in one.plan.notes if note.startswith("MemoryX holds")]
    assert needs == (
        "MemoryX holds 2.02 TB of weights 23.8 % in flash, 4.03 TB of master copy in flash, "
        "8.06 TB of moments in flash"
    )
    wafer = next(use for use in one.plan.memory if use.place == "wafer")
    assert wafer.total_bytes < 40e9, "the wafer bounds no parameters"


def test_what_flash_reads_and_writes_shares_its_bandwidth_unless_it_is_duplex() -> None:
    """A parameter is read twice with 2 B and once with 12 B, and written with 14 B, at 12 times 12.5 GB/s.

    Of the 2 B, DRAM holds three quarters. Tied words are read once more for the head, forward and backward.
    """
    model = default_catalog().model("gpt_1t")
    count = parameters(model).total
    share = 1 - 12 * 128e9 / (2 * count)
    read_s = ((12 + 4 * share) * count + 4 * share * model.vocab_size * model.hidden_size) / 150e9
    write_s = (12 + 2 * share) * count / 150e9
    turns, duplex = (trillion(1, **{"memoryx.server.flash.duplex": both}) for both in (False, True))
    assert read_s + write_s <= turns.step_time_s < 1.1 * (read_s + write_s)
    assert read_s <= duplex.step_time_s < 1.25 * read_s


def test_memoryx_bounds_the_model_and_the_refusal_says_so() -> None:
    with pytest.raises(PlanError, match=r"MemoryX flash needs 12\.6 TB of 12\.0 TB; try more weight servers"):
        trillion(**{"memoryx.server.flash.capacity": "1 TB"})
    enough = trillion(**{"memoryx.server.flash.capacity": "1 TB", "memoryx.servers": 24})
    assert enough.step_time_s > 0


def test_the_published_sizes_of_memoryx_order_the_steps_of_a_trillion_parameters_on_one_cs_3() -> None:
    """About 350 s at batch 120 where 55 TB hold all; 14.5 TB hold most, and 1.3 TB little."""
    steps = {}
    for candidate in load_study("trillion_on_wafers").candidates:
        run = ps.predict(model="gpt_1t", system=candidate.system, devices=1, batch=120)
        steps[candidate.system.name] = run.step_time_s
        (placed,) = [note for note in run.notes if note.startswith("MemoryX holds")]
        assert ("in flash" in placed) == ("55tb" not in candidate.system.name)
    little, most, everything = steps.values()
    assert everything == pytest.approx(350, rel=0.05)
    assert everything < most < 1.1 * everything
    assert little > 1.5 * most


# Model Zoo, Cerebras-GPT: batch in sequences of 2048, steps, tokens; 13B is written for its second phase.
CEREBRAS_GPT = {
    "111M": (120, 9037, 2.22e9),
    "256M": (264, 9468, 5.12e9),
    "590M": (264, 21836, 1.18e10),
    "1.3B": (528, 24334, 2.63e10),
    "2.7B": (528, 49041, 5.3e10),
    "6.7B": (1040, 62522, 1.33e11),
}


TOLD = {"name", "description", "sources", "assumed"}
MODEL_NUMBERS = {"num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size"}


def points(name: str) -> tuple[Point, ...]:
    return load_sweep(name).points


def test_switching_models_changes_the_model_and_nothing_else() -> None:
    """The seller's article shows two configurations, which differ in the four numbers of a model."""
    switched = [point for point in points("model_switch") if point.candidate.strategy == "weight-streaming"]
    assert [point.study.model.name for point in switched] == ["gpt3_xl", "gpt3_6p7b", "gpt3_13b", "gpt3_20b"]
    first = switched[0]
    models = [point.study.model for point in switched] + [default_catalog().model("gpt3_175b")]
    for smaller, larger in pairwise(model.model_dump(exclude=TOLD) for model in models):
        assert {key for key in smaller if smaller[key] != larger[key]} == MODEL_NUMBERS
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


def test_a_cs_3_is_files_only_and_says_that_its_efficiency_is_another_wafers() -> None:
    """Of 2.12 times the peak no more can come; published logs of a CS-3 to calibrate with there are none."""
    device = default_catalog().device("wse-3")
    assert "calibration" in device.assumed
    assert device.calibration.name == "wse-2"
    asked = {"model": "gpt3_20b", "devices": 16, "strategy": "weight-streaming", "batch": 768}
    old, new = (ps.predict(**asked, system=name) for name in ("cs-2", "cs-3"))
    assert 1.2 < old.step_time_s / new.step_time_s < 15.84 / 7.48
    assert any("no measurement of wse-3" in caveat.text for caveat in new.caveats)


def test_the_link_changes_nothing_where_wafers_are_full_and_a_little_where_rows_of_weights_decide() -> None:
    """The facts' property: step time is flat in weight bytes until tokens fall under the threshold."""
    steps = {}
    for point in points("ablations_ws"):
        name = point.settings[VARIANT]
        if name in ("as it is", "twice the I/O", "half the MemoryX bandwidth"):
            answer = answer_point(point)
            steps[name, point.study.recipe.global_batch_size] = answer.step_time_s
    assert steps["twice the I/O", 768] == pytest.approx(steps["as it is", 768], rel=0.01)
    assert steps["half the MemoryX bandwidth", 768] == pytest.approx(steps["as it is", 768], rel=0.01)
    assert steps["twice the I/O", 64] < 0.992 * steps["as it is", 64]
    assert steps["half the MemoryX bandwidth", 64] > 1.05 * steps["as it is", 64]
