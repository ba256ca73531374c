"""Batches that were published for CS-2: each is feasible, and none is called resident where it is not.

Sequences a system and step from the Model Zoo's configurations; sequences have 2,048 tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from perfsim.base.errors import MemoryCapacityError, PlanError
from perfsim.catalog import Catalog, data_root
from perfsim.machines import build_topology, costs_for
from perfsim.prediction.planner import Search, best_plan, confirmed
from perfsim.prediction.question import Question
from perfsim.prediction.run import Evaluation
from perfsim.specs.layout import StreamingLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import strategy
from perfsim.strategies.streaming.memory import Store
from perfsim.testing import toys
from perfsim.work.counts import parameters

CATALOG = Catalog([data_root()])
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


def job_of(batch: Batch) -> Job:
    recipe = CATALOG.recipe("gpt3_pretraining")
    return Job(CATALOG.model(batch.model), recipe, batch.per_system * batch.systems)


def question(batch: Batch, **changes: object) -> Question:
    """How systems with these changes train the batch."""
    topology = build_topology(CATALOG.system("cs-2", **changes), batch.systems)
    job = job_of(batch)
    return toys.question(STREAMING, job, topology, costs_for(topology, job.recipe))


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: f"{batch.model}@{batch.per_system}")
def test_a_published_batch_is_feasible_and_never_resident_where_the_wafer_is_too_small(batch: Batch) -> None:
    """One fp16 tensor a layer is more than 40 GB for most of them, and a layer keeps sixteen."""
    searched = Search(question(batch))
    plan = confirmed(searched)[0].plan
    assert all(use.fits for use in plan.memory)
    assert any(note.startswith("wafer memory policy: ") for note in plan.notes)
    layout = StreamingLayout(data=batch.systems, micro_batch_size=batch.per_system)
    held = Store(job_of(batch), toys.wafer_cluster()).activations(layout)
    assert held.kept + held.working > plan.system.device.memory.capacity
    plans = [choice.plan for choice in searched.best(100)]
    assert all(
        plan.num_microbatches > 1 or plan.layout.recompute_layers or plan.layout.spill for plan in plans
    )
    with pytest.raises(MemoryCapacityError, match="does not fit: wafer needs"):
        STREAMING.plan(job_of(batch), plan.topology, layout)


def test_the_policy_is_chosen_by_time() -> None:
    """The fastest of all that fit; with faster activation servers that is to spill."""
    slower = []
    for changes in ({}, {"activation_servers.per_system": 12}):
        searched = Search(question(Batch("gpt3_20b", 50), **changes))
        screened = searched.best(searched.screening.feasible)
        assert [row.estimate_s for row in screened] == sorted(row.estimate_s for row in screened)
        spilling_s = min(row.estimate_s for row in screened if row.plan.layout.spill)
        slower.append(spilling_s / screened[0].estimate_s)
    assert slower[1] <= slower[0]


# ---------------------------------------------------------------------------------------- MemoryX
def trillion(batch: int = 16, **changes: object) -> Evaluation:
    return best_plan(question(Batch("gpt_1t", batch), **changes))


def test_a_trillion_parameters_train_on_one_system_slowly_and_the_plan_says_what_they_need() -> None:
    one = trillion()
    assert one.plan.topology.num_devices == 1
    assert one.step_time_s > 60
    (needs,) = [note for note in one.plan.notes if note.startswith("MemoryX holds")]
    assert needs == "MemoryX holds 2.02 TB of weights in flash and 16.1 TB of optimizer state in flash"
    wafer = next(use for use in one.plan.memory if use.place == "wafer")
    assert wafer.total_bytes < 40e9, "the wafer bounds no parameters"


def test_what_flash_reads_and_writes_shares_its_bandwidth_unless_it_is_duplex() -> None:
    """A parameter is read twice with 2 B and once with 12 B, and written with 14 B, at 12 times 12.5 GB/s.

    Tied words are read once more for the head, forward and backward.
    """
    model = CATALOG.model("gpt_1t")
    count = parameters(model).total
    read_s = (16 * count + 4 * model.vocab_size * model.hidden_size) / 150e9
    write_s = 14 * count / 150e9
    turns, duplex = (trillion(1, **{"memoryx.server.flash.duplex": both}) for both in (False, True))
    assert read_s + write_s <= turns.step_time_s < 1.05 * (read_s + write_s)
    assert read_s <= duplex.step_time_s < 1.1 * read_s


def test_memoryx_bounds_the_model_and_the_refusal_says_so() -> None:
    with pytest.raises(PlanError, match=r"MemoryX flash needs 18\.1 TB of 12\.0 TB; try more weight servers"):
        trillion(**{"memoryx.server.flash.capacity": "1 TB"})
    enough = trillion(**{"memoryx.server.flash.capacity": "1 TB", "memoryx.servers": 24})
    assert enough.step_time_s > 0


def test_memoryx_without_flash_holds_what_its_dram_holds() -> None:
    bare = build_topology(CATALOG.system("cs-2", **{"memoryx.server.flash": None}), 1)
    layout = StreamingLayout(recompute_layers=1, recompute="full")
    with pytest.raises(MemoryCapacityError, match=r"MemoryX DRAM needs 3\.1 TB of 1\.5 TB"):
        STREAMING.plan(job_of(Batch("gpt3_175b", 16)), bare, layout)
