"""What limits a streamed step: the named remedy shortens the simulated step by as much as it says."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from perfsim.catalog import default_catalog
from perfsim.machines import build_topology, costs_for
from perfsim.prediction.perturbed import perturbed
from perfsim.prediction.planner import best_plan
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.run import Evaluation, evaluate
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.perturbations import parse_perturbations
from perfsim.specs.recipe import Job
from perfsim.strategies import strategy
from perfsim.testing import toys

STREAMING = strategy("weight-streaming")


class Bound(NamedTuple):
    """A question whose step one part of the machine limits, and that part twice as fast."""

    model: str
    sequences: int
    changes: Mapping[str, Any]
    cause: str
    named: str
    faster: Mapping[str, Any]


CS_2 = default_catalog().system("cs-2", **{"device.calibration.row_s": "0 s"})
"""Rows of weights take longer than their way to the wafer; without, streams can limit a step."""
WAY = {"io_ports": 24, "swarmx.bandwidth": "300 GB/s", "memoryx.server.bandwidth": "25 GB/s"}
"""Twice the way between MemoryX and the wafer."""
FAST_FLASH = {"memoryx.server.flash.bandwidth": "25 GB/s"}
SAMPLES = "activation_servers.bandwidth"
UPDATES = "memoryx.server.arithmetic"
ARITHMETIC = "the arithmetic of MemoryX's servers"
BOUND = {
    "flash": Bound("gpt_1t", 9, {}, "flash", "MemoryX's flash", FAST_FLASH),
    "input": Bound(
        "gpt3_20b", 4, {SAMPLES: "10 kB/s"}, "input", "the activation servers", {SAMPLES: "20 kB/s"}
    ),
    "ports": Bound("gpt3_20b", 4, {"io_ports": 6}, "exposed streaming", "the I/O ports", {"io_ports": 12}),
    "way": Bound("gpt3_20b", 4, {}, "exposed streaming", "the I/O ports, SwarmX and MemoryX's servers", WAY),
    "updates": Bound(
        "gpt3_20b", 4, {UPDATES: "30 GFLOP/s"}, "update bubble", ARITHMETIC, {UPDATES: "60 GFLOP/s"}
    ),
}
bounds = pytest.mark.parametrize("bound", BOUND.values(), ids=BOUND)


def run(
    bound: Bound, changes: Mapping[str, Any], sequences: int = 0, layout: ParallelLayout | None = None
) -> Evaluation:
    """One system with those changes; in the layout given, or the planner's."""
    catalog = default_catalog()
    system = catalog.override(CS_2, {**bound.changes, **changes})
    topology = build_topology(system, 1)
    job = Job(catalog.model(bound.model), catalog.recipe("gpt3_pretraining"), sequences or bound.sequences)
    costs = costs_for(topology, job.recipe)
    if layout is None:
        return best_plan(toys.question(STREAMING, job, topology, costs))
    return evaluate(STREAMING.plan(job, topology, layout), costs)


@bounds
def test_the_part_that_limits_is_the_cause_and_its_remedies_do_what_they_say(bound: Bound) -> None:
    """Twice as fast it saves the share that is named; more sequences make each of them cheaper.

    Above the tokens that hide streams nothing streamed decides. So many tokens of the largest model are split
    on a wafer, and every micro-batch reads its weights again.
    """
    before = run(bound, {})
    why = Prediction.of(before).why
    assert why.cause == bound.cause
    said = re.match(rf"{bound.named} twice as fast \((\d+) % off the step\)", why.remedy)
    assert said is not None, why.remedy
    after = run(bound, bound.faster, layout=before.plan.layout)
    saved = 100 * (1 - after.step_time_s / before.step_time_s)
    assert saved >= 1
    assert int(said[1]) == pytest.approx(saved, abs=1.0)
    sequences = re.search(r"([\d,]+) sequences per system and micro-batch instead of ([\d,]+)", why.remedy)
    assert (sequences is None) == (bound.cause == "input"), "samples grow with the batch"
    if sequences is None:
        return
    more, now = (int(number.replace(",", "")) for number in sequences.groups())
    assert more > now == before.plan.layout.micro_batch_size
    assert run(bound, {}, more).step_time_s / more < 0.99 * before.step_time_s / now
    roof = why.streaming_roof
    assert roof.tokens < roof.hidden_from_tokens
    if bound.model != "gpt_1t":
        enough = int(1.5 * roof.hidden_from_tokens / before.plan.job.seq_length) + 1
        assert Prediction.of(run(bound, {}, enough)).why.cause == "compute"


def test_more_dram_is_a_remedy_for_flash_and_a_faster_way_is_none() -> None:
    bound = BOUND["flash"]
    before = run(bound, {})
    said = re.search(r"([\d.]+) TB more DRAM", Prediction.of(before).why.remedy)
    capacity = (float(said[1]) / 12 + 0.128) * 1e12 * 1.01
    after = run(bound, {"memoryx.server.dram.capacity": capacity}, layout=before.plan.layout)
    assert after.step_time_s < 0.6 * before.step_time_s
    after = run(bound, WAY, layout=before.plan.layout)
    assert after.step_time_s == pytest.approx(before.step_time_s, rel=0.03)


def test_a_slow_wafer_changes_no_share_that_a_faster_part_saves() -> None:
    before = run(BOUND["ports"], {})
    after = perturbed(before, parse_perturbations("straggler=1.5@0"))
    assert after.step_time_s > 1.002 * before.step_time_s
    assert Prediction.of(after).why.remedy == Prediction.of(before).why.remedy


def test_muon_waits_for_the_arithmetic_of_memoryx_not_for_its_dram() -> None:
    recipe = default_catalog().recipe("gpt3_pretraining").model_copy(update={"optimizer": "muon"})
    topology = build_topology(CS_2, 1)
    job = Job(default_catalog().model("gpt3_xl"), recipe, 16)
    best = best_plan(toys.question(STREAMING, job, topology, costs_for(topology, recipe)))
    assert Prediction.of(best).why.remedy.startswith("the arithmetic of MemoryX's servers twice as fast (")
