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


def trace_of(*tasks: tuple[str, Work, float, float], steps: tuple[int, ...] = (), width: int = 1) -> Trace:
    """A trace of (stream, work, start, end) rows."""
    builder = GraphBuilder()
    builder.fold(width)
    for number, (stream, work, _, _) in enumerate(tasks):
        if number in steps:
            builder.end_step()
        builder.task(work, stream)
    spans = np.array([task[2:] for task in tasks])
    return Trace(builder.build(), spans[:, 0], spans[:, 1])


def test_only_communication_beside_compute_of_its_own_device_is_hidden() -> None:
    trace = trace_of(
        ("gpu0/compute", COMPUTE, 0, 6),
        ("gpu0/nccl", GATHER, 4, 8),
        ("gpu0/send-next", GATHER, 5, 7),
        ("gpu0/compute", GATHER, 8, 10),
        ("gpu0/nccl", GATHER, 9, 10),
    )
    assert trace.hidden_share == pytest.approx(2 / 10), "from 4 to 6, once; a collective hides nothing"


def test_the_share_is_the_mean_over_devices_and_a_shared_stream_is_each_devices_own() -> None:
    trace = trace_of(
        ("gpu0/compute", COMPUTE, 0, 10), ("gpu1/compute", COMPUTE, 0, 4), ("gpu0+gpu1/nccl", GATHER, 2, 10)
    )
    assert trace.hidden_share == pytest.approx((8 + 2) / 2 / 10)


def test_a_device_counts_as_often_as_the_ranks_that_it_stands_for() -> None:
    tasks = (("gpu0/compute", COMPUTE, 0, 10), ("gpu0/nccl", GATHER, 0, 5))
    assert trace_of(*tasks, width=64).hidden_share == trace_of(*tasks).hidden_share == pytest.approx(0.5)


def test_a_store_that_streams_to_a_device_takes_nothing_from_its_compute() -> None:
    trace = trace_of(("cs0/compute", COMPUTE, 0, 10), ("memoryx/out", GATHER, 0, 9))
    assert trace.hidden_share == 0.0


# ------------------------------------------------------------------------------------------- bands
def run(layout: str = "dp=8,mbs=1") -> Evaluation:
    system = "dgx-a100-80gb"
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


def test_the_largest_share_is_that_of_scored_runs_on_such_a_device_without_the_family_left_out() -> None:
    plan = run().plan
    shares = {
        family["family"]: family["hidden_communication"]
        for entry in recorded_errors()
        if entry["system_kind"] == "gpu-cluster"
        for family in entry["families"]
        if "a100-sxm4" in family["constants"]
    }
    most = max(shares, key=lambda family: shares[family])
    assert Hidden.of(plan, 0.0).published == shares[most]
    assert Hidden.of(plan, 0.0, without=most).published == max(
        share for family, share in shares.items() if family != most
    )


def test_of_a_device_without_runs_the_largest_share_is_that_of_all() -> None:
    asked = {"model": "gpt3_xl", "system": "mi355x-288gb", "devices": 8, "batch": 16}
    plan = ps.predict(**asked, layout="dp=8,mbs=1").run.plan
    shares = [
        family["hidden_communication"]
        for entry in recorded_errors()
        if entry["system_kind"] == "gpu-cluster"
        for family in entry["families"]
    ]
    assert Hidden.of(plan, 0.0).published == max(shares)


def test_a_sharded_run_that_gathers_all_the_time_is_wider_than_a_plain_one() -> None:
    plain = run("tp=2,dp=4,mbs=1,zero=1")
    sharded = run("tp=2,dp=4,zero=3,mbs=1")
    assert plain.hidden_communication_fraction < 0.12 < 0.2 < sharded.hidden_communication_fraction
    blind = Accuracy.of(sharded.plan).step_time_error
    assert Accuracy.of(sharded.plan, sharded.hidden_communication_fraction).step_time_error > blind
