"""What every pipeline schedule promises, whatever its size."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.errors import LayoutError
from perfsim.strategies.schedules import SCHEDULES, Slot, StageOrder, in_flight, merged_order, schedule

Shape = tuple[str, int, int, int]
"""Name, pipeline, virtual, micro-batches."""


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    pipeline = draw(st.integers(1, 6))
    if name == "interleaved":
        return name, pipeline, draw(st.integers(1, 4)), pipeline * draw(st.integers(1, 4))
    return name, pipeline, 1, draw(st.integers(1, 20))


@given(shapes())
def test_every_stage_runs_each_pass_of_each_micro_batch_and_chunk_once(shape: Shape) -> None:
    _, pipeline, virtual, microbatches = shape
    orders = schedule(*shape)
    assert len(orders) == pipeline
    for stage, order in enumerate(orders):
        expected = {
            Slot(which, stage, chunk, number)
            for which in ("F", "B")
            for chunk in range(virtual)
            for number in range(microbatches)
        }
        assert Counter(order) == Counter(expected)


@given(shapes())
def test_a_backward_follows_its_own_forward(shape: Shape) -> None:
    for order in schedule(*shape):
        place = {slot: number for number, slot in enumerate(order)}
        assert all(place[slot._replace(which="F")] < place[slot] for slot in order if slot.which == "B")


@given(shapes())
def test_the_last_backward_of_every_chunk_is_that_of_the_last_micro_batch(shape: Shape) -> None:
    _, _, virtual, microbatches = shape
    for order in schedule(*shape):
        last = {slot.chunk: slot.microbatch for slot in order if slot.which == "B"}
        assert last == dict.fromkeys(range(virtual), microbatches - 1)


def peak(order: StageOrder) -> int:
    """Most chunks of micro-batches whose activations a stage holds."""
    held = most = 0
    for slot in order:
        held += 1 if slot.which == "F" else -1
        most = max(most, held)
    return most


@given(shapes())
@settings(max_examples=200)
def test_what_memory_is_planned_for_is_what_the_schedule_holds(shape: Shape) -> None:
    _, pipeline, virtual, _ = shape
    for stage, order in enumerate(schedule(*shape)):
        planned = in_flight(shape[0], stage, pipeline, virtual, shape[3])
        assert planned * virtual == pytest.approx(peak(order))


@given(shapes())
def test_merging_keeps_every_stages_order_and_respects_what_each_slot_reads(shape: Shape) -> None:
    _, pipeline, virtual, _ = shape
    orders = schedule(*shape)
    merged = merged_order(orders, virtual)
    assert [[slot for slot in merged if slot.stage == stage] for stage in range(pipeline)] == orders
    done = set()
    last = pipeline * virtual - 1
    for slot in merged:
        place = slot.chunk * pipeline + slot.stage
        if slot.which == "F" and place:
            assert ("F", place - 1, slot.microbatch) in done
        if slot.which == "B":
            reads = ("B", place + 1) if place < last else ("F", last)
            assert (*reads, slot.microbatch) in done
        done.add((slot.which, place, slot.microbatch))


@given(st.integers(2, 6), st.integers(1, 12))
def test_1f1b_never_holds_more_than_gpipe(pipeline: int, microbatches: int) -> None:
    lean, full = (schedule(name, pipeline, 1, microbatches) for name in ("1f1b", "gpipe"))
    assert all(peak(a) <= peak(b) for a, b in zip(lean, full, strict=True))


@given(st.integers(2, 6), st.integers(1, 4))
def test_a_schedule_in_which_nobody_can_go_on_is_refused(pipeline: int, microbatches: int) -> None:
    backward_first = [
        [Slot(which, stage, 0, number) for which in ("B", "F") for number in range(microbatches)]
        for stage in range(pipeline)
    ]
    with pytest.raises(LayoutError, match="deadlocks"):
        merged_order(backward_first, 1)
