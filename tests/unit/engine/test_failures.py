"""Failures, reckoned by hand and held against closed forms."""

import itertools
import math

import pytest

from perfsim.base.errors import InputError, LimitError
from perfsim.base.limits import Limits, limited
from perfsim.convergence.wall_clock import Failing, FailingRun, Tier
from perfsim.engine.failures import exponential_failures, run_with_failures

REST = Tier(30.0, 0.0, (Failing(0.0, 5.0),))
RUNS: dict[str, tuple[float, Tier, list[float], float]] = {
    "without failures only checkpoints are added": (100.0, Tier(30.0, 2.0), [], 106.0),
    "0..30 kept, 30..45 lost, restart until 50, then 70 more": (100.0, REST, [45.0], 120.0),
    "a failure while a checkpoint is written loses that checkpoint": (
        *(60.0, Tier(30.0, 4.0, (Failing(0.0, 5.0),)), [32.0]),
        32.0 + 5.0 + 30.0 + 4.0 + 30.0,
    ),
    "a failure during a restart begins it anew": (40.0, REST, [10.0, 13.0], 58.0),
    "a failure after the end is none": (40.0, REST, [41.0], 40.0),
}


@pytest.mark.parametrize(("useful_s", "tier", "failures", "wall_s"), RUNS.values(), ids=RUNS)
def test_a_failure_loses_what_was_done_since_the_last_checkpoint(
    useful_s: float, tier: Tier, failures: list[float], wall_s: float
) -> None:
    times = ((at_s, 0, domain) for at_s in failures for domain in tier.domains)
    assert run_with_failures(FailingRun(useful_s, (tier,)), times) == wall_s


def test_a_failure_begins_again_from_the_nearest_copy_that_survives_it() -> None:
    domains = (Failing(0.0, 1.0), Failing(0.0, 5.0))
    run = FailingRun(100.0, (Tier(10.0), Tier(50.0)))
    walls_s = []
    for place in (0, 1):
        failures = ((at_s, at, domains[at]) for at_s, at in ((58.0, 0), (75.0, place)))
        walls_s.append(run_with_failures(run, failures))
    # 8 s are lost and restarted in 1 s; at 75 s the run is at 66 s: back to 60 s, or to 50 s.
    assert walls_s == [100.0 + (8 + 1) + (6 + 1), 100.0 + (8 + 1) + (16 + 5)]


def test_a_restart_reads_the_newest_copy_that_is_written_to_the_end() -> None:
    """Copies at 30 s and 60 s are complete at 42 s and 72 s; one from which a run began again stays so."""
    failing = Failing(0.0, 5.0)
    run = FailingRun(100.0, (Tier(30.0, 0.0, (failing,), background_s=12.0),))
    for times_s, kept_s in (((40.0,), 0.0), ((45.0,), 30.0), ((70.0,), 30.0), ((75.0, 85.0), 60.0)):
        wall_s = run_with_failures(run, ((at_s, 0, failing) for at_s in times_s))
        assert wall_s == times_s[-1] + 5.0 + 100.0 - kept_s


def test_a_rack_waits_for_its_spares_together() -> None:
    node, rack = Failing(0.0, 0.0, 20.0), Failing(0.0, 0.0, 30.0, nodes=4)
    run = FailingRun(100.0, (Tier(1.0, 0.0, (node, rack)),), spares=4)
    # At 10 s a node takes a spare; at 20 s the rack needs four, and the fourth is ready at 30 s.
    assert run_with_failures(run, iter([(10.0, 0, node), (20.0, 0, rack)])) == 110.0


def test_the_same_seed_gives_the_same_failures() -> None:
    run = FailingRun(1.0, tuple(Tier(1.0, 0.0, (Failing(rate),)) for rate in (1.0, 0.5)))
    first, again, other = (list(itertools.islice(exponential_failures(run, seed), 5)) for seed in (1, 1, 2))
    assert first == again != other


def test_a_run_with_failures_ends_at_the_limit_of_time() -> None:
    with limited(Limits(max_seconds=0.0)), pytest.raises(LimitError, match="with failures was being"):
        run_with_failures(FailingRun(1e5, (Tier(1.0, 1.0),)), iter([]))


def test_a_run_that_does_not_end_is_refused() -> None:
    run = FailingRun(math.inf, (Tier(100.0, 0.0, (Failing(1.0, 5.0),)),))
    with pytest.raises(InputError, match="failures come faster than checkpoints"):
        run_with_failures(run, exponential_failures(run, seed=0))
