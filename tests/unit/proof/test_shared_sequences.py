"""Attention in parts equals serial training for every kind of attention that a model may have."""

from collections.abc import Callable
from typing import Any

import pytest

from perfsim.proof.prove import Subject
from perfsim.proof.ranks import _positions_of
from perfsim.specs.layout import ParallelLayout

KINDS = ["grouped queries, gated", "attention next to the MLP", "norms of queries and keys"]
KINDS += ["ALiBi", "encoder", "latents", "windows"]


@pytest.mark.parametrize("exchange", ["ring", "all_to_all"])
@pytest.mark.parametrize("architecture", KINDS, indirect=True)
def test_ranks_that_share_sequences_compute_what_one_does(
    toy_subject: Callable[..., Subject], architecture: dict[str, Any], exchange: Any
) -> None:
    for layout in (
        ParallelLayout(tensor=2, context=2, context_exchange=exchange),
        ParallelLayout(context=4, context_exchange=exchange, recompute="full"),
    ):
        assert toy_subject(layout, **architecture).faults() == []


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_gives_every_rank_as_many_earlier_positions(ranks: int) -> None:
    length = 4 * ranks
    places = [_positions_of(length, ranks, rank, "ring") for rank in range(ranks)]
    assert sorted(position for part in places for position in part) == list(range(length))
    assert len({sum(part) for part in places}) == 1
