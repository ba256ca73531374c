"""Layouts at random: what the planner lists is legal, what is illegal is refused in full."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.base.errors import LayoutError, MemoryCapacityError
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies import STRATEGIES, strategy
from perfsim.strategies.three_d.legal import refusals_of
from perfsim.testing import toys

GPU_STRATEGIES = sorted(name for name in STRATEGIES if STRATEGIES[name].system_kind == "gpu-cluster")

models = st.fixed_dictionaries(
    {
        "num_layers": st.sampled_from([4, 6, 12]),
        "hidden_size": st.just(1536),
        "num_attention_heads": st.sampled_from([12, 16, 24]),
        "ffn_hidden_size": st.sampled_from([4096, 6144]),
    }
)
devices = st.sampled_from([1, 4, 8, 16, 24])
degrees = st.sampled_from([1, 2, 3, 4, 8])
DEVICES = 16
batches = st.sampled_from([192, 192, 192, 7])
whole = st.sampled_from(
    [(t, p, DEVICES // t // p) for t in (1, 2, 4, 8, 16) for p in (1, 2, 4, 8, 16) if DEVICES % (t * p) == 0]
)


@st.composite
def layouts(draw: st.DrawFn) -> ParallelLayout:
    """Mostly legal on 16 devices, wrong in any field now and then."""

    def mostly(usual: object, *others: object) -> Any:
        return draw(st.sampled_from([usual] * 10 + list(others)))

    tensor, pipeline, data = draw(st.one_of(whole, whole, st.tuples(degrees, degrees, degrees)))
    return ParallelLayout(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        virtual_pipeline=mostly(1, 2),
        schedule=mostly("1f1b", "gpipe", "interleaved", "zb1p"),
        sequence_parallel=draw(st.booleans()),
        zero_stage=mostly(1, 0, 2),
        micro_batch_size=draw(st.integers(1, 4)),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        layers_per_stage=mostly(None, (), (4,), (3, 3), (1, 5), (7, -1)),
    )


@given(models, layouts(), batches)
@settings(max_examples=200)
def test_a_layout_has_all_reasons_or_plan(model: dict[str, int], layout: ParallelLayout, batch: int) -> None:
    job = toys.job(batch, **model)
    capacity = 12 * toys.GIB
    topology = toys.topology(DEVICES, toys.gpu_cluster(capacity=capacity))
    wrong = refusals_of(job, topology, layout, "3d", ("tensor", "pipeline", "data"))
    if wrong:
        with pytest.raises(LayoutError) as caught:
            strategy("3d").plan(job, topology, layout, check_memory=False)
        assert [problem.message for problem in caught.value.problems] == [refusal.words for refusal in wrong]
        return
    plan = strategy("3d").plan(job, topology, layout, check_memory=False)
    assert plan.num_microbatches * layout.data * layout.micro_batch_size == batch
    if plan.peak_memory_bytes <= capacity:
        assert strategy("3d").plan(job, topology, layout) == plan
    else:
        with pytest.raises(MemoryCapacityError):
            strategy("3d").plan(job, topology, layout)
