"""The tables of names: every row is taken by a description and priced on both machines, and no other is."""

from __future__ import annotations

from types import ModuleType

import pytest
from pydantic import ValidationError

from perfsim.specs.layout import AXES, ParallelLayout
from perfsim.specs.optimizers import OPTIMIZERS
from perfsim.specs.precisions import PRECISIONS
from perfsim.strategies.plan import Layout, Plan


def optimizer_plan(toys: ModuleType, name: str, strategy: str, layout: Layout) -> Plan:
    system = toys.wafer_cluster() if strategy == "weight-streaming" else None
    plan: Plan = toys.plan(strategy, toys.job(8, {"optimizer": name}), layout, system)
    return plan


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_has_states_and_an_update_on_every_machine(toys: ModuleType, name: str) -> None:
    from perfsim.specs.layout import StreamingLayout

    for strategy, layout in (("data", ParallelLayout()), ("weight-streaming", StreamingLayout())):
        graph = toys.graph_of(optimizer_plan(toys, name, strategy, layout))
        assert {task.work.op for task in graph.tasks()} & {"optimizer", "memoryx_update"}


def test_an_optimizer_that_is_not_in_the_table_is_refused(toys: ModuleType) -> None:
    with pytest.raises(ValidationError, match="unheard-of"):
        toys.recipe(optimizer="unheard-of")


def test_precisions_name_precisions() -> None:
    for name, row in PRECISIONS.items():
        assert row.peak_of is None or row.peak_of in PRECISIONS
        assert row.is_narrow == bool(row.stand_ins), name
        assert all(PRECISIONS[other].is_narrow for other in row.stand_ins)


@pytest.mark.parametrize("name", [name for name, axis in AXES.items() if axis.degree])
def test_a_degree_divides_what_its_row_says(toys: ModuleType, name: str) -> None:
    """Twice the degree halves the parameters, optimizer states and activations that its row names."""
    experts = {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 8192}
    changes = {"experts": experts} if name.startswith("expert") else {}
    recipe = {"attention": "flash", "routing": "balanced"}
    job = toys.job(32, recipe, **changes)
    ranks = {"data": 4, "sequence_parallel": True, "micro_batch_size": 1}
    parts = []
    for degree in (2, 4):
        layout = ParallelLayout(**{**ranks, "tensor": 2, name: degree})
        memory = max(toys.plan("3d", job, layout).memory, key=lambda place: place.on_device)
        parts.append(memory.parts_bytes)
    few, many = parts
    divides = AXES[name].divides
    whole = {"expert", "expert_tensor"} & {name}
    assert (many["parameters"] < 0.8 * few["parameters"]) == ("parameters" in divides or bool(whole))
    assert (many["optimizer"] < 0.8 * few["optimizer"]) == ("states" in divides or bool(whole))
    assert (many["activations"] < 0.8 * few["activations"]) == ("activations" in divides)
