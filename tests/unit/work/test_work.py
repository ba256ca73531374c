"""Classes of work: equality, sums over kernels, ranks of a group."""

from __future__ import annotations

from dataclasses import replace

from perfsim.work import Kind, RankGroup, TensorClass, Work
from perfsim.work.kernels import elementwise, gemm


def work() -> Work:
    kernels = (gemm("a", 4, 5, 6), elementwise("b", 100.0, launches=3))
    return Work("w", Kind.COMP, "op", "forward", kernels=kernels, writes=(TensorClass("t", 1.0),))


def test_every_field_tells_works_apart() -> None:
    works = {
        work(),
        replace(work(), name="v"),
        replace(work(), kind=Kind.MEM_LOAD),
        replace(work(), op="other"),
        replace(work(), category="backward"),
        replace(work(), kernels=()),
        replace(work(), comm_bytes=2.0),
        replace(work(), group=RankGroup(0, 1, 2)),
        replace(work(), writes=()),
    }
    assert len(works) == 9


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
