"""Passes of weight streaming are recorded once and bound to the work of every plan that has the same."""

from __future__ import annotations

from types import ModuleType

import pytest

from perfsim.specs.streaming_layout import StreamingLayout
from perfsim.strategies.streaming.blocks import block_works, samples_work
from perfsim.strategies.streaming.passes import PassKind, PassRecorder, PassRules, PassWorks, recorded
from perfsim.work import GraphBuilder

FIRST = PassKind(updated=False, adds=False, follows=False, refilled=False, last=False)
LATER = PassKind(updated=True, adds=True, follows=True, refilled=True, last=True)


@pytest.mark.parametrize("kind", [FIRST, LATER])
@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("micro_batch_size", [4, 8])
@pytest.mark.parametrize("recompute_layers", [0, 2])
def test_a_bound_recording_is_the_recording_of_its_own_work(
    toys: ModuleType, kind: PassKind, chunks: int, micro_batch_size: int, recompute_layers: int
) -> None:
    layout = StreamingLayout(
        micro_batch_size=micro_batch_size, stream_chunks=chunks, recompute_layers=recompute_layers
    )
    plan = toys.plan("weight-streaming", toys.job(16), layout, toys.wafer_cluster())
    works = PassWorks(block_works(plan, chunks=chunks), samples_work(plan, micro_batch_size))
    rules = PassRules.of(plan)
    own = GraphBuilder()
    other = GraphBuilder()
    expected = PassRecorder(own.template(), works, rules, kind).record()
    bound = recorded(works, rules, kind, other)
    assert (other.works, other.streams) == (own.works, own.streams)
    assert vars(bound.columns) == vars(expected.columns)
    assert (bound.ports, bound.outputs) == (expected.ports, expected.outputs)
