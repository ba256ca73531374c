"""What every pipeline schedule promises, whatever its size, and some written out."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.base.errors import DeadlockError
from perfsim.strategies.schedules import SCHEDULES, Placement, RankOrder, Slot, in_flight, schedule_called

Shape = tuple[str, int, int, int]
"""Name, pipeline, virtual, micro-batches."""

SPLIT = sorted(name for name, known in SCHEDULES.items() if known.has("splits_backward"))
ZERO_BUBBLE = ("zb1p", "zb2p", "zbv")
V_SHAPED = ("v-half", "v-min")
JOINS = tuple(name for name, known in SCHEDULES.items() if known.has("joins"))


def orders_of(name: str, *shape: int) -> list[RankOrder]:
    return schedule_called(name).orders(*shape)


@st.composite
def shapes(draw: st.DrawFn, names: tuple[str, ...] = tuple(sorted(SCHEDULES))) -> Shape:
    name = draw(st.sampled_from(names))
    pipeline = draw(st.integers(1, 6))
    if SCHEDULES[name].has("in_groups"):
        return name, pipeline, draw(st.integers(2, 4)), pipeline * draw(st.integers(1, 4))
    return name, pipeline, SCHEDULES[name].chunks or 1, draw(st.integers(1, 20))


def passes(name: str) -> tuple[str, ...]:
    return ("F", "B", "W") if SCHEDULES[name].has("splits_backward") else ("F", "B")


@given(shapes(JOINS))
def test_joined_passes_are_of_two_micro_batches_and_begin_together_without_a_deadlock(shape: Shape) -> None:
    orders = orders_of(*shape)
    name, pipeline, virtual, microbatches = shape
    merged = SCHEDULES[name].placement(pipeline, virtual).merged(orders)
    pairs = [(slot, after) for slot, after in pairwise(merged) if slot.joined]
    for forward, backward in pairs:
        assert (forward.which, backward.which, forward.rank) == ("F", "B", backward.rank)
        assert forward.microbatch != backward.microbatch
    assert len(pairs) == sum(slot.joined for order in orders for slot in order)
    if microbatches >= 4 * pipeline:
        assert len(pairs) >= sum(map(len, orders)) / len(passes(name)) / 4


@given(shapes())
def test_merging_keeps_every_stages_order_and_respects_what_each_slot_reads(shape: Shape) -> None:
    name, pipeline, virtual, _ = shape
    orders = orders_of(*shape)
    placed = SCHEDULES[name].placement(pipeline, virtual)
    merged = placed.merged(orders)
    assert [[slot for slot in merged if slot.rank == stage] for stage in range(pipeline)] == orders
    done = set()
    for slot in merged:
        stage = placed.stages[slot.rank][slot.chunk]
        assert done.issuperset(reads(slot, stage, pipeline * virtual))
        done.add((slot.which, stage, slot.microbatch))


def reads(slot: Slot, stage: int, stages: int) -> list[tuple[str, int, int]]:
    """The pass, virtual stage and micro-batch that a pass on a virtual stage waits for, but for the first."""
    gradient = ("B", stage + 1) if stage + 1 < stages else ("F", stage)
    before = {"F": ("F", stage - 1), "B": gradient, "W": ("B", stage)}[slot.which]
    return [(*before, slot.microbatch)] if before[1] >= 0 else []


@given(st.integers(2, 6), st.integers(1, 12))
def test_a_schedule_in_which_nobody_can_go_on_is_refused(pipeline: int, microbatches: int) -> None:
    backward_first = [
        [Slot(which, stage, 0, number) for which in ("B", "F") for number in range(microbatches)]
        for stage in range(pipeline)
    ]
    with pytest.raises(DeadlockError, match="deadlocks") as caught:
        Placement(pipeline).merged(backward_first)
    head, *stages = str(caught.value).split("\n")
    assert f"{2 * pipeline * microbatches} of {2 * pipeline * microbatches} slots" in head
    assert stages[0] == "  stage 0: backward of micro-batch 0 waits for backward of micro-batch 0 of stage 1"
    assert stages[-1].endswith("waits for forward of micro-batch 0 of itself"), "the last makes its own loss"
    assert len(stages) == pipeline
    assert caught.value.exit_code == 1


def test_a_deadlock_names_chunks_and_only_the_stages_that_are_stuck() -> None:
    """Rank 1 of a V has its last forward (virtual stage 2, chunk 1) before the one that stage 2 reads."""
    rank_0 = [Slot("F", 0, 0, 0), Slot("F", 0, 1, 0)]
    rank_1 = [Slot("F", 1, 1, 0), Slot("F", 1, 0, 0)]
    with pytest.raises(DeadlockError) as caught:
        Placement(2, 2, v_shaped=True).merged([rank_0, rank_1])
    assert str(caught.value).split("\n") == [
        "the schedule deadlocks: 3 of 4 slots can never run",
        "  stage 0: forward of micro-batch 0, chunk 1 waits for forward of micro-batch 0, chunk 1 of stage 1",
        "  stage 1: forward of micro-batch 0, chunk 1 waits for forward of micro-batch 0, chunk 0 of itself",
    ]


@given(st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_virtual_stages_are_evenly_spread_each_on_a_rank(pipeline: int, virtual: int, v_shaped: bool) -> None:
    placed = Placement(pipeline, virtual, v_shaped)
    held = [placed.stages[rank] for rank in range(pipeline)]
    assert sorted(number for numbers in held for number in numbers) == list(range(pipeline * virtual))
    assert all(placed.rank(number) == rank for rank, numbers in enumerate(held) for number in numbers)


def peak(order: RankOrder, activations: float, weight_inputs: float, *, split: bool) -> float:
    """Most bytes a stage holds where a chunk keeps so many after F and, where W follows, after B."""
    held = most = 0.0
    backward = weight_inputs - activations if split else -activations
    after = {"F": activations, "B": backward, "W": -weight_inputs}
    for slot in order:
        held += after[slot.which]
        most = max(most, held)
    return most


@given(shapes(), st.integers(0, 9), st.integers(0, 9))
@settings(max_examples=300)
def test_planned_memory_is_what_a_schedule_holds(shape: Shape, activations: int, weight_inputs: int) -> None:
    name, pipeline, virtual, microbatches = shape
    split = SCHEDULES[name].has("splits_backward")
    fills = SCHEDULES[name].fills
    enough = microbatches if fills is None else min(microbatches, fills * pipeline)
    for stage, order in enumerate(orders_of(*shape)):
        moments = in_flight(SCHEDULES[name], stage, pipeline, (1,) * virtual, enough)
        planned = max(held.activations * activations + held.weight_inputs * weight_inputs for held in moments)
        assert planned * virtual == pytest.approx(peak(order, activations, weight_inputs, split=split))


@given(shapes(tuple(SPLIT)))
def test_where_weight_inputs_are_as_large_as_activations_zero_bubble_holds_as_promised(shape: Shape) -> None:
    name, pipeline, virtual, microbatches = shape
    v_shaped = {"zbv": pipeline, "v-half": (pipeline + 2) // 2, "v-min": (pipeline + 4) // 3}
    promised = {"zb1p": pipeline, "zb2p": 2 * pipeline - 1, "dualpipev": pipeline + 0.5, **v_shaped}[name]
    promised = min(promised, pipeline) if name in V_SHAPED else promised
    held = [peak(order, 1, 1, split=True) / virtual for order in orders_of(*shape)]
    assert max(held) == min(promised, microbatches)
    if microbatches >= 2 * pipeline and name not in V_SHAPED:
        assert set(held) == {promised}, "the same on every stage"


Times = tuple[float, float, float]
"""Seconds of F, B and W of one micro-batch through all chunks of a rank."""


def units(merged: list[Slot]) -> list[list[Slot]]:
    """Slots that run as one."""
    behind = [False, *(slot.joined for slot in merged)]
    return [merged[at : at + 1 + merged[at].joined] for at in range(len(merged)) if not behind[at]]


def step_s(shape: Shape, times: Times, steps: int = 3) -> tuple[float, float]:
    """The first step's end, and the time between the ends of the last two, ranks never waiting between.

    Sending takes no time. Joined passes begin and end together.
    """
    name, pipeline, virtual, _ = shape
    placed = SCHEDULES[name].placement(pipeline, virtual)
    merged = placed.merged(orders_of(*shape))
    takes = dict(zip("FBW", (seconds / virtual for seconds in times), strict=True))
    free = [0.0] * pipeline
    ends = []
    for _step in range(steps):
        done: dict[tuple[str, int, int], float] = {}
        for together in units(merged):
            rank = together[0].rank
            at = [(slot, placed.stages[rank][slot.chunk]) for slot in together]
            ready = [done[before] for slot, stage in at for before in reads(slot, stage, placed.num_stages)]
            free[rank] = max([free[rank], *ready]) + sum(takes[slot.which] for slot in together)
            done |= {(slot.which, stage, slot.microbatch): free[rank] for slot, stage in at}
        ends.append(max(free))
    return ends[0], ends[-1] - ends[-2]


def idle_s(shape: Shape, times: Times) -> float:
    """Seconds of a step in which a rank idles, by running its order."""
    together, apart = step_s(shape, times)
    return (apart if SCHEDULES[shape[0]].has("skewed") else together) - shape[3] * sum(times)


@given(shapes(("1f1b", "gpipe", "interleaved")), st.integers(1, 9), st.integers(1, 9))
def test_without_split_one_micro_batch_is_the_bubble(shape: Shape, forward_s: int, backward_s: int) -> None:
    name, pipeline, virtual, _ = shape
    one = (pipeline - 1) * (forward_s + backward_s) / virtual
    assert idle_s(shape, (forward_s, backward_s, 0.0)) == pytest.approx(SCHEDULES[name].bubble * one)


@given(shapes(ZERO_BUBBLE))
@settings(max_examples=300)
def test_zero_bubble_with_equal_passes_is_as_published(shape: Shape) -> None:
    name, pipeline, virtual, microbatches = shape
    unfilled = 2 * pipeline - 1 - microbatches
    filled = SCHEDULES[name].bubble * 3 * (pipeline - 1) / virtual
    assert filled == pytest.approx(pipeline - 1 if name == "zb1p" else 0)
    assert idle_s(shape, (1, 1, 1)) == pytest.approx(max(filled, unfilled))


@given(st.integers(1, 9), st.integers(18, 30))
def test_dualpipev_idles_as_published(pipeline: int, microbatches: int) -> None:
    """(P / 2 - 1) (F&B + B - 3 W) with P chunks [DualPipe, README]; W follows a pair."""
    published = (pipeline - 1) * ((1 + 1) + 2 - 3)
    assert idle_s(("dualpipev", pipeline, 2, microbatches), (2, 2, 2)) == pytest.approx(published)
    assert SCHEDULES["dualpipev"].bubble * 6 * (pipeline - 1) / 2 == pytest.approx(published)


@given(st.integers(1, 9), st.integers(18, 30))
def test_the_last_rank_of_dualpipev_joins_all_but_its_first_pair(pipeline: int, microbatches: int) -> None:
    """Where its backward reads the forward before it (`dualpipev.py` of DualPipe)."""
    for rank in range(pipeline):
        order = SCHEDULES["dualpipev"].order(rank, pipeline, 2, microbatches)
        pairs = [
            (slot.joined, slot.chunk)
            for slot, after in pairwise(order)
            if (slot.which, after.which) == ("F", "B")
        ]
        first = [chunk for _, chunk in pairs].index(0)
        assert pairs[first][0] is (rank < pipeline - 1)
        assert all(joined for joined, _ in pairs[first + 1 :])


@given(st.integers(2, 9), st.integers(9, 20))
def test_half_and_a_third_of_the_memory_cost_the_published_bubbles(pipeline: int, microbatches: int) -> None:
    """Of m micro-batches p / 2 m and 2 p / 3 m of the step, with equal passes [2405.15362 table 1]."""
    usual_s = idle_s(("1f1b", pipeline, 1, microbatches), (1, 2, 0))
    for name, share in (("v-half", 1 / 2), ("v-min", 2 / 3)):
        idle = idle_s((name, pipeline, 2, microbatches), (2, 2, 2))
        published = share * pipeline * 6
        assert published - 5 <= idle <= published
        assert idle <= 2 * usual_s
        assert abs(idle - SCHEDULES[name].bubble * 6 * (pipeline - 1) / 2) <= 2


@given(shapes(ZERO_BUBBLE), st.floats(0.5, 3.0), st.floats(0.2, 2.0))
def test_no_zero_bubble_schedule_idles_above_1f1b(shape: Shape, backward_s: float, weights_s: float) -> None:
    _, pipeline, _, microbatches = shape
    usual_s = idle_s(("1f1b", pipeline, 1, microbatches), (1.0, backward_s + weights_s, 0.0))
    assert idle_s(shape, (1.0, backward_s, weights_s)) <= usual_s + 1e-9


@pytest.mark.parametrize(
    ("name", "sizes", "written"),
    [
        (
            "1f1b",
            (3, 1, 4),
            ["F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"],
        ),
        (
            "interleaved",
            (2, 2, 4),
            [
                "Fa0 Fa1 Fb0 Fb1 Fa2 Bb0 Fa3 Bb1 Fb2 Ba0 Fb3 Ba1 Bb2 Bb3 Ba2 Ba3",
                "Fa0 Fa1 Fb0 Bb0 Fb1 Bb1 Fa2 Ba0 Fa3 Ba1 Fb2 Bb2 Fb3 Bb3 Ba2 Ba3",
            ],
        ),
    ],
)
def test_schedules_are_in_the_order_below(name: str, sizes: tuple[int, int, int], written: list[str]) -> None:
    """Each stage as `F0 F1 B0 ...`, chunks as letters where there are several."""
    letters = "ab" if sizes[1] > 1 else ["", ""]
    for order, expected in zip(schedule_called(name).orders(*sizes), written, strict=True):
        slots = [f"{slot.which}{letters[slot.chunk]}{slot.microbatch}" for slot in order]
        assert " ".join(slots) == expected
