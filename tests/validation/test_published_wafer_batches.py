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
from perfsim.specs.hardware import SystemSpec, WaferClusterSpec
from perfsim.specs.layout import StreamingLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import Plan, strategy
from perfsim.strategies.streaming.memory import Store
from perfsim.testing import toys
from perfsim.work.counts import parameters

CATALOG = Catalog([data_root()])
STREAMING = strategy("weight-streaming")


class Batch(NamedTuple):
    """A model and the sequences that a system took at once."""

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
batches = pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: f"{batch.model}@{batch.per_system}")


def asked(batch: Batch) -> Job:
    recipe = CATALOG.recipe("gpt3_pretraining")
    return Job(CATALOG.model(batch.model), recipe, batch.per_system * batch.systems)


def question(job: Job, system: SystemSpec, systems: int = 1) -> Question:
    topology = build_topology(system, systems)
    return toys.question(STREAMING, job, topology, costs_for(topology, job.recipe))


def at_once(plan: Plan) -> bool:
    return plan.num_microbatches == 1 and not plan.layout.recompute_layers and not plan.layout.spill


@batches
def test_a_published_batch_is_feasible_and_never_resident_where_the_wafer_is_too_small(batch: Batch) -> None:
    """One fp16 tensor a layer is more than 40 GB for most of them, and a layer keeps sixteen."""
    searched = Search(question(asked(batch), CATALOG.system("cs-2"), batch.systems))
    plan = confirmed(searched)[0].plan
    assert all(use.fits for use in plan.memory)
    assert any(note.startswith("wafer memory policy: ") for note in plan.notes)
    layout = StreamingLayout(data=batch.systems, micro_batch_size=batch.per_system)
    held = Store(asked(batch), toys.wafer_cluster()).activations(layout)
    assert held.kept + held.working > plan.system.device.memory.capacity
    assert not any(at_once(each.plan) for each in searched.best(100))
    with pytest.raises(MemoryCapacityError, match="does not fit: wafer needs"):
        STREAMING.plan(asked(batch), plan.topology, layout)


def test_the_policy_is_chosen_by_time() -> None:
    """The fastest of all that fit; with faster activation servers that is to spill."""
    batch = Batch("gpt3_20b", 50)
    job = asked(batch)
    quick = CATALOG.system("cs-2", **{"activation_servers.per_system": 12})
    times = {}
    for name, system in (("as it is", CATALOG.system("cs-2")), ("quick", quick)):
        found = Search(question(job, system))
        screened = found.best(found.screening.feasible)
        assert [each.estimate_s for each in screened] == sorted(each.estimate_s for each in screened)
        spilling = [each.estimate_s for each in screened if each.plan.layout.spill]
        times[name] = min(spilling) / screened[0].estimate_s
    assert times["quick"] <= times["as it is"]


# ---------------------------------------------------------------------------------------- MemoryX
def trillion(systems: int = 1, batch: int = 16, **changes: object) -> Evaluation:
    system = CATALOG.system("cs-2", **changes)
    job = Job(CATALOG.model("gpt_1t"), CATALOG.recipe("gpt3_pretraining"), batch * systems)
    return best_plan(question(job, system, systems))


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
    words = model.vocab_size * model.hidden_size
    read_s = (16 * count + 4 * words) / 150e9
    write_s = 14 * count / 150e9
    turns, duplex = (trillion(batch=1, **{"memoryx.server.flash.duplex": each}) for each in (False, True))
    assert read_s + write_s <= turns.step_time_s < 1.05 * (read_s + write_s)
    assert read_s <= duplex.step_time_s < 1.1 * read_s


def test_memoryx_bounds_the_model_and_the_refusal_says_so() -> None:
    with pytest.raises(PlanError, match=r"MemoryX flash needs 18\.1 TB of 12\.0 TB; try more weight servers"):
        trillion(**{"memoryx.server.flash.capacity": "1 TB"})
    enough = trillion(**{"memoryx.server.flash.capacity": "1 TB", "memoryx.servers": 24})
    assert enough.step_time_s > 0


def test_memoryx_without_flash_holds_what_its_dram_holds() -> None:
    system = CATALOG.system("cs-2")
    assert isinstance(system, WaferClusterSpec)
    server = system.memoryx.server.model_copy(update={"flash": None})
    bare = system.model_copy(update={"memoryx": system.memoryx.model_copy(update={"server": server})})
    job = Job(CATALOG.model("gpt3_175b"), CATALOG.recipe("gpt3_pretraining"), 16)
    with pytest.raises(MemoryCapacityError, match=r"MemoryX DRAM needs 3\.1 TB of 1\.5 TB"):
        STREAMING.plan(job, build_topology(bare, 1), StreamingLayout(recompute_layers=1, recompute="full"))
