"""Classes of work: equality, sums over kernels, ranks of a group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfsim.work import Kind, RankGroup, TensorClass, Work
from perfsim.work.kernels import elementwise, gemm


def work() -> Work:
    kernels = (gemm("a", 4, 5, 6), elementwise("b", 100.0, launches=3))
    return Work("w", Kind.COMP, "op", "forward", kernels=kernels, writes=(TensorClass("t", 1.0),))


def test_equal_works_are_one_key() -> None:
    assert {work(): 1}[work()] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"name": "v"},
        {"kind": Kind.MEM_LOAD},
        {"op": "other"},
        {"category": "backward"},
        {"kernels": ()},
        {"comm_bytes": 2.0},
        {"group": RankGroup(0, 1, 2)},
        {"writes": ()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_tells_works_apart(change: dict[str, object]) -> None:
    other = replace(work(), **change)  # type: ignore[arg-type]
    assert other != work()
    assert len({other, work()}) == 2


def test_work_sums_over_its_kernels() -> None:
    assert work().flop == 2 * 4 * 5 * 6
    assert work().bytes_accessed == 2 * (4 * 6 + 6 * 5 + 4 * 5) + 100
    assert work().launches == 4


@pytest.mark.parametrize(
    ("group", "ranks"),
    [(RankGroup(8, 1, 3), [8, 9, 10]), (RankGroup(0, 16, 2), [0, 16]), (RankGroup(16, -16, 2), [16, 0])],
)
def test_a_group_lists_its_ranks_from_its_start(group: RankGroup, ranks: list[int]) -> None:
    assert list(group.ranks) == ranks


def test_only_sends_receives_and_collectives_communicate() -> None:
    assert [kind for kind in Kind if kind.is_communication] == [
        Kind.COMM_SEND,
        Kind.COMM_RECV,
        Kind.COMM_COLL,
    ]
