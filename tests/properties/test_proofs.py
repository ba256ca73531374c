"""Whatever the layout: if it is legal, its schedule computes what serial training does."""

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from perfsim.base.errors import LayoutError
from perfsim.proof.program import Precedence, dependencies, random_order
from perfsim.proof.prove import Subject
from perfsim.proof.provers import small_plan, training_of
from perfsim.specs.layout import ParallelLayout, StreamingLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import Plan, strategy
from perfsim.strategies.schedules import SCHEDULES, least_chunks

FEW = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def layouts(draw: st.DrawFn) -> ParallelLayout:
    schedule = draw(st.sampled_from(sorted(SCHEDULES)))
    pipeline = draw(st.integers(1, 3))
    tensor = draw(st.sampled_from([1, 2]))
    layout = ParallelLayout(
        tensor=tensor,
        pipeline=pipeline,
        data=draw(st.integers(1, 2)),
        virtual_pipeline=least_chunks(schedule),
        schedule=schedule,
        sequence_parallel=draw(st.booleans()) and tensor > 1,
        zero_stage=draw(st.sampled_from([0, 1, 2, 3])),
        recompute=draw(st.sampled_from(["none", "selective", "mlp", "full"])),
        context=draw(st.sampled_from([1, 1, 2, 3])),
        context_exchange=draw(st.sampled_from(["ring", "all_to_all"])),
    )
    if layout.zero_stage and draw(st.booleans()):
        layout = replace(layout, data=4, context=1, tensor=1, sequence_parallel=False, shard_group=2)
    if draw(st.booleans()):
        stages = layout.num_stages
        uneven = draw(st.lists(st.integers(0, 2), min_size=stages, max_size=stages).filter(any))
        layout = replace(layout, layers_per_stage=tuple(uneven))
    return layout


@FEW
@given(
    layout=layouts(),
    microbatches=st.integers(1, 3),
    overlap=st.booleans(),
    ahead=st.booleans(),
    bucket=st.sampled_from([None, 1e12]),
    seed=st.integers(0, 99),
)
def test_every_legal_layout_is_proven(
    toys: ModuleType,
    layout: ParallelLayout,
    microbatches: int,
    overlap: bool,
    ahead: bool,
    bucket: float | None,
    seed: int,
) -> None:
    recipe = {"overlap_grad_reduce": overlap, "overlap_param_gather": ahead, "grad_bucket": bucket}
    job = toys.job(8, recipe, tied_embeddings=bool(seed % 2))
    plan = planned(toys, job, layout, microbatches)
    assert subject_of_toys(toys, plan, seed).faults() == []


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("context", [1, 2])
def test_buckets_of_zero_2_take_turns_over_one_layer_too(toys: ModuleType, layers: int, context: int) -> None:
    layout = ParallelLayout(data=2, context=context, zero_stage=2, layers_per_stage=(layers,))
    plan = planned(toys, toys.job(8), layout, 1)
    assert subject_of_toys(toys, plan, 0).faults() == []


def planned(toys: ModuleType, job: Job, layout: ParallelLayout, microbatches: int) -> Plan:
    """The small plan of a layout; layouts that the rules refuse are not asked for."""
    topology = toys.topology(layout.num_devices, toys.gpu_cluster(gpus=max(16, layout.num_devices), nics=16))
    try:
        return small_plan(strategy("3d"), job, topology, layout, microbatches)
    except LayoutError:
        reject()


def subject_of_toys(toys: ModuleType, plan: Plan, seed: int) -> Subject:
    return Subject(plan.graph(), plan, training_of(plan, seed))


@FEW
@given(
    systems=st.integers(1, 4),
    group=st.sampled_from([0, 1, 2, 3]),
    microbatches=st.integers(1, 3),
    tied=st.booleans(),
    batch_less=st.integers(0, 1),
)
def test_weight_streaming_is_proven_with_uneven_batches_as_well(
    toys: ModuleType, systems: int, group: int, microbatches: int, tied: bool, batch_less: int
) -> None:
    recompute = "full" if group else "none"
    layout = StreamingLayout(data=systems, micro_batch_size=2, recompute=recompute, recompute_layers=group)
    system = toys.wafer_cluster()
    job = toys.job(8 * systems, num_layers=4, tied_embeddings=tied)
    plan = small_plan(strategy("weight-streaming"), job, toys.topology(systems, system), layout, microbatches)
    less = replace(plan.job, global_batch_size=plan.job.global_batch_size - batch_less)
    plan = replace(plan, job=less)
    assert subject_of_toys(toys, plan, 0).faults() == []


@FEW
@given(layout=layouts(), seed=st.integers(0, 999))
def test_orders_and_clocks_keep_dependencies(toys: ModuleType, layout: ParallelLayout, seed: int) -> None:
    plan = planned(toys, toys.job(8), layout, 2)
    graph = plan.graph()
    deps = dependencies(graph)
    order = random_order(deps, np.random.default_rng(seed))
    place = np.argsort(order)
    assert sorted(order) == list(range(len(graph)))
    assert (place[deps.values] < place[deps.row_of_value]).all()
    precedence = Precedence(graph, deps)
    for first, second in np.random.default_rng(seed).integers(0, len(graph), (50, 2)).tolist():
        if precedence.before(first, second):
            assert place[first] < place[second]
