"""Classes of work: equality, sums over kernels, ranks of a group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfsim.work import Kind, RankGroup, TensorClass, Work
from perfsim.work.kernels import elementwise, gemm


def work() -> Work:
    kernels = (gemm("a", 4, 5, 6), elementwise("b", 100.0, launches=3))
    return Work("w", Kind.COMP, "op", "forward", kernels=kernels, writes=(TensorClass("t", 1.0),))


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


def test_only_sends_receives_and_collectives_communicate() -> None:
    assert [kind for kind in Kind if kind.is_communication] == [
        Kind.COMM_SEND,
        Kind.COMM_RECV,
        Kind.COMM_COLL,
    ]
