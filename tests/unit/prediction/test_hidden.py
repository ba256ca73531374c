"""The share of a step that hides communication, and what more of it than in published runs does to a band."""

from __future__ import annotations

import math

import numpy as np
import pytest

import perfsim as ps
from perfsim.engine.trace import Trace
from perfsim.prediction.bands import Accuracy, Hidden, recorded_errors
from perfsim.prediction.run import Evaluation
from perfsim.work import GraphBuilder, Kind, Work

CATALOG = ps.Catalog()
COMPUTE = Work("m", Kind.COMP, "gemm", "forward")
GATHER = Work("g", Kind.COMM_COLL, "all_gather", "data")


BOTH = [("gpu0/compute", COMPUTE, 0, 10), ("gpu0/nccl", GATHER, 0, 5)]
ONCE = [
    ("gpu0/compute", COMPUTE, 0, 6),
    ("gpu0/nccl", GATHER, 4, 8),
    ("gpu0/send-next", GATHER, 5, 7),
    ("gpu0/compute", GATHER, 8, 10),
    ("gpu0/nccl", GATHER, 9, 10),
]
"""From 4 to 6, once; a collective hides nothing."""
SHARED = [
    ("gpu0/compute", COMPUTE, 0, 10),
    ("gpu1/compute", COMPUTE, 0, 4),
    ("gpu0+gpu1/nccl", GATHER, 2, 10),
]
STREAMED = [("cs0/compute", COMPUTE, 0, 10), ("memoryx/out", GATHER, 0, 9)]
"""A store that streams to a device takes nothing from its compute."""


@pytest.mark.parametrize(
    ("tasks", "width", "share"),
    [(ONCE, 1, 0.2), (SHARED, 1, (8 + 2) / 2 / 10), (BOTH, 1, 0.5), (BOTH, 64, 0.5), (STREAMED, 1, 0.0)],
)
def test_communication_next_to_compute_of_its_own_device_is_hidden_in_the_mean_over_ranks(
    tasks: list[tuple[str, Work, float, float]], width: int, share: float
) -> None:
    """Rows are stream, work, start and end; a device counts as often as the ranks that it stands for."""
    builder = GraphBuilder()
    builder.fold(width)
    for stream, work, _, _ in tasks:
        builder.task(work, stream)
    spans = np.array([task[2:] for task in tasks])
    assert Trace(builder.build(), spans[:, 0], spans[:, 1]).hidden_share == pytest.approx(share)


# ------------------------------------------------------------------------------------------- bands
def run(layout: str = "dp=8,mbs=1", system: str = "dgx-a100-80gb") -> Evaluation:
    return ps.predict(model="gpt3_xl", system=system, devices=8, batch=16, layout=layout).run


def test_what_hides_beyond_published_runs_costs_the_multiprocessors_that_a_collective_takes() -> None:
    hidden = Hidden(share=0.52, published=0.12, slowdown=0.42)
    assert hidden.cost == pytest.approx(0.4 * 0.42)
    (unknown,) = hidden.unknown()
    assert unknown.log_width == pytest.approx(math.log1p(0.4 * 0.42))
    assert unknown.words == "52 % of the step hides communication, at most 12 % in any run"
    assert Hidden(0.12, 0.12, 0.42).unknown() == []


def test_a_band_widens_with_communication_beyond_that_of_published_runs_and_not_below() -> None:
    plan = run().plan
    most = Hidden.of(plan, 0.0).published
    inside, beyond, far = (Accuracy.of(plan, share) for share in (most, most + 0.1, most + 0.4))
    assert inside == Accuracy.of(plan)
    assert inside.step_time_error < beyond.step_time_error < far.step_time_error
    assert inside.unshared_error < beyond.unshared_error < far.unshared_error
    assert "hides communication" in far.likeness
    assert "hides communication" not in inside.likeness
    assert (far.family, far.unlikeness) == (inside.family, inside.unlikeness)
    # A sharded run gathers all the time, and a plain one does not.
    plain = run("tp=2,dp=4,mbs=1,zero=1")
    sharded = run("tp=2,dp=4,zero=3,mbs=1")
    assert plain.hidden_communication_fraction < 0.12 < 0.2 < sharded.hidden_communication_fraction
    assert sharded.accuracy.step_time_error > Accuracy.of(sharded.plan).step_time_error


def test_the_largest_share_is_that_of_scored_runs_on_such_a_device_without_the_family_left_out() -> None:
    """Of a device without runs it is that of all."""
    families = {
        family["family"]: family
        for entry in recorded_errors()
        if entry["system_kind"] == "gpu-cluster"
        for family in entry["families"]
    }
    shares = {name: family["hidden_communication"] for name, family in families.items()}
    alike = {name: share for name, share in shares.items() if "a100-sxm4" in families[name]["constants"]}
    most = max(alike, key=lambda name: alike[name])
    plan = run().plan
    assert Hidden.of(plan, 0.0).published == alike.pop(most)
    assert Hidden.of(plan, 0.0, without=most).published == max(alike.values())
    assert Hidden.of(run(system="mi355x-288gb").plan, 0.0).published == max(shares.values())
