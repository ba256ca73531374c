"""The wall clock of a run: its steps and what it waits for besides, each part in closed form.

Failing runs are compared with published estimates, and with simulations of months of a run.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from perfsim.base.units import DAY_S
from perfsim.catalog import default_catalog
from perfsim.convergence import wall_clock
from perfsim.convergence.uncertain import Draws, Spread, typical
from perfsim.engine.failures import exponential_failures, run_with_failures, simulated
from perfsim.specs.wall_clock import FailureDomain, NumberRange, SecondsRange, SlowingRange, WallClockSpec

MINUTE = 60.0
HOUR = 3600.0
RUN = wall_clock.HealthyRun(steps=50_000, step_time_s=4.0, num_parameters=6.05e9, num_nodes=2)


def tier_of(interval_s: float, write_s: float, rate: float, *costs: float) -> wall_clock.Tier:
    """Copies for the failures of one domain, with its restart and repair."""
    return wall_clock.Tier(interval_s, write_s, (wall_clock.Failing(rate, *costs),))


def parts_of(spec: WallClockSpec, run: wall_clock.HealthyRun = RUN) -> dict[str, wall_clock.RunPart]:
    return {part.name: part for part in run.parts(spec)}


def clock(name: str = "cs-2", **changes: Any) -> WallClockSpec:
    spec: WallClockSpec = default_catalog().load("wall_clock", name)
    return spec.model_copy(update=changes)


def test_a_run_that_waits_for_nothing_is_its_steps() -> None:
    parts = parts_of(WallClockSpec(name="none"))
    assert list(parts) == ["steps", "whole run"]
    assert parts["whole run"].low_s == parts["whole run"].high_s == RUN.time_s == 200_000.0


@pytest.mark.parametrize("name", default_catalog().names("wall_clock"))
@pytest.mark.parametrize("nodes", [1, 16, 128])
def test_parts_add_up_and_every_range_is_in_order(name: str, nodes: int) -> None:
    run = wall_clock.HealthyRun(steps=5e5, step_time_s=3.5, num_parameters=2e10, num_nodes=nodes)
    *parts, total = run.parts(clock(name))
    for end in ("low_s", "typical_s", "high_s"):
        assert getattr(total, end) == pytest.approx(sum(getattr(part, end) for part in parts))
    assert all(part.low_s <= part.typical_s <= part.high_s for part in (*parts, total))
    assert total.low_s >= run.time_s
    read_again = WallClockSpec.model_validate(clock(name).model_dump())
    assert read_again == clock(name)


def test_checkpoints_and_first_weights_of_a_cs_2_take_what_its_logs_say() -> None:
    """GPT-J: checkpoints of 4 to 11 minutes, at 4 s a step 6 to 16 % of the time; weights sent in 129.3 s."""
    parts = parts_of(clock(checkpoint_every=1000, stragglers=None))
    checkpoints = parts["checkpoints"]
    assert 0.05 < checkpoints.low_s / RUN.time_s < 0.07
    assert 0.09 < checkpoints.typical_s / RUN.time_s < 0.13
    assert checkpoints.high_s / RUN.time_s < 0.25
    assert checkpoints.how.startswith("73 GB every "), "12 bytes of each of 6.05 billion parameters"
    assert checkpoints.how.endswith(" min"), "a thousand steps of 4 s"
    rare = NumberRange(low=0.001, typical=0.002, high=0.01)
    assert parts_of(clock(failures_per_node_day=rare))["failures"].how == "one every 250 days", "not 2.5e+02"
    assert parts["first weights"].high_s == pytest.approx(129.3, rel=0.01)


def test_failures_cost_what_the_failing_run_does_and_without_them_only_the_writing_is_lost() -> None:
    mttf_s = DAY_S / (RUN.num_nodes * 0.0065)
    sent_s = 4 * RUN.num_parameters / 240e6
    write_s = 12 * RUN.num_parameters / 170e6
    interval_s = wall_clock.young_interval_s(write_s, mttf_s)
    failing_s = wall_clock.failing_time_s(RUN.time_s, interval_s, write_s, 600.0 + 247.0 + sent_s, 1 / mttf_s)
    parts = parts_of(clock(stragglers=None))
    assert parts["checkpoints"].typical_s == pytest.approx(RUN.time_s * write_s / interval_s)
    lost_s = failing_s - RUN.time_s - parts["checkpoints"].typical_s
    assert parts["failures"].typical_s == pytest.approx(float(lost_s))
    without = parts_of(clock(failures_per_node_day=None, checkpoint_every=1000))
    assert "failures" not in without
    assert without["checkpoints"].typical_s > 0
    often = NumberRange(low=1.0, typical=4.0, high=10.0)
    hardly = parts_of(clock(failures_per_node_day=often, checkpoint_every=20_000))
    assert "hardly advances" in hardly["failures"].how


def test_a_machine_without_spares_waits_for_repairs() -> None:
    repair = SecondsRange(low=3600.0, typical=86_400.0, high=7 * 86_400.0)
    without = parts_of(clock())
    waiting, less = (
        parts_of(clock(spares=spares, repair=repair))["waiting for repairs"].typical_s for spares in (0, 2)
    )
    assert "waiting for repairs" not in without
    running_s = sum(without[name].typical_s for name in ("steps", "stragglers", "checkpoints", "failures"))
    stopped = float(wall_clock.stopped_share(0, [(1, 2 * 0.0065)]))
    assert waiting == pytest.approx(running_s * stopped / (1 - stopped))
    assert less < waiting


def test_draws_of_the_wall_clock_hold_its_typical_value_between_its_ends() -> None:
    time_s = np.asarray(RUN.time_s)
    *_, total = RUN.parts(clock())
    assert float(RUN.wall_s(clock(), time_s, typical)) == pytest.approx(total.typical_s)
    low, high = Spread.of(RUN.wall_s(clock(), time_s, Draws(seed=0, count=2000)), 0.0).band
    assert total.low_s < low < total.typical_s < high < total.high_s


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"queue": {"low": 2.0, "typical": 1.0, "high": 3.0}}, "in this order"),
        ({"checkpoint_rate": {"low": 1e8, "typical": 1e8, "high": 1e8}}, "young needs failures_per_node_day"),
        ({"spares": 1}, "write repair and failures_per_node_day"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"weight_bytes": 2}, "weight_bytes has no effect without weight_rate"),
        ({"system_kind": "gpu"}, "gpu-cluster"),
        ({"stragglers": {"low": 0.0, "typical": 1.0, "high": 3.0}}, "greater than or equal to 1"),
        ({"tiers": [{"name": "x"}]}, "takes no time: write every"),
        ({"compile_time": {"low": 1.0, "typical": 1.0, "high": 3.0}}, "compile_time"),
    ],
)
def test_what_makes_no_sense_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        WallClockSpec.model_validate({"name": "x", **values})


def test_evaluations_take_their_share_of_the_steps_with_their_stragglers() -> None:
    evaluation = NumberRange(low=0.01, typical=0.02, high=0.03)
    stragglers = SlowingRange(low=1.0, typical=1.5, high=1.5)
    spec = WallClockSpec(name="evaluated", evaluation=evaluation, stragglers=stragglers)
    parts = parts_of(spec)
    assert parts["evaluation"].typical_s == pytest.approx(0.02 * 1.5 * RUN.time_s)
    assert parts["evaluation"].low_s == pytest.approx(0.01 * RUN.time_s)
    assert parts["evaluation"].how == "2 % of the steps"
    assert RUN.wall_s(spec, np.array(RUN.time_s), typical) == pytest.approx(parts["whole run"].typical_s)


@pytest.fixture(scope="module")
def rate() -> NumberRange:
    """Failures of a node and day: RSC-2, RSC-1 [2410.21680] and OPT-175B [2205.01068]."""
    return clock("gpu-cluster").failures_per_node_day


def test_rates_follow_from_the_counts_they_cite(rate: NumberRange) -> None:
    """105 restarts of OPT-175B in 60 days on 124 nodes; 419 of Llama 3 [2407.21783] lie in between."""
    assert rate.high == pytest.approx(105 / 60 / 124, rel=5e-3)
    assert rate.low < 419 / 54 / 2048 < rate.typical
    for nodes, hours in ((2048, 1.80), (128, 28.8)):
        assert 24 / (nodes * rate.typical) == pytest.approx(hours, rel=5e-3)


def test_goodput_at_the_published_points(rate: NumberRange) -> None:
    """Kokolis et al. print 0.7 and 0.93 for 2,000 nodes; then a checkpoint is as rare as a failure."""
    for nodes, interval_min, node_rate, goodput, error in (
        (2000, 60, 6.5e-3, 0.720, 6e-4),
        (2000, 5, 6.5e-3, 0.934, 6e-4),
        (12500, 21, rate.low, 0.724, 1e-3),
    ):
        failing_s = wall_clock.failing_time_s(
            1e8, interval_min * MINUTE, 0.0, 5 * MINUTE, nodes * node_rate / DAY_S
        )
        assert 1e8 / float(failing_s) == pytest.approx(goodput, abs=error)


@pytest.mark.parametrize(
    ("mttf_s", "interval_s", "write_s", "restart_s", "background_s"),
    [
        (6 * HOUR, HOUR, MINUTE, 10 * MINUTE, 0.0),
        (4 * HOUR, HOUR, 5 * MINUTE, 20 * MINUTE, HOUR / 4),
        (6 * HOUR, HOUR, MINUTE, 10 * MINUTE, HOUR),
    ],
)
def test_failing_time_is_that_of_a_simulated_run_within_a_hundredth(
    mttf_s: float, interval_s: float, write_s: float, restart_s: float, background_s: float
) -> None:
    """4,000 failures and more; what is done while a copy is written is lost as if a restart took as long."""
    work_s = 4000 * mttf_s
    tier = replace(tier_of(interval_s, write_s, 1 / mttf_s, restart_s), background_s=background_s)
    failing = wall_clock.FailingRun(work_s, (tier,))
    simulated_s = run_with_failures(failing, exponential_failures(failing, seed=1))
    again_s = restart_s + background_s
    expected_s = float(wall_clock.failing_time_s(work_s, interval_s, write_s, again_s, 1 / mttf_s))
    assert float(failing.expected_s) == expected_s == pytest.approx(simulated_s, rel=0.01)
    blocking = replace(failing, tiers=(tier_of(interval_s, write_s + background_s, 1 / mttf_s, restart_s),))
    assert expected_s <= float(blocking.expected_s)


def test_a_run_takes_its_work_and_its_checkpoints_and_never_for_ever() -> None:
    for work_s, ran_s in ((0.0, 0.0), (1000.0, 1050.0)):
        for failures_per_s in (0.0, 1e-12):
            failing_s = wall_clock.failing_time_s(work_s, 100.0, 5.0, 60.0, failures_per_s)
            assert float(failing_s) == pytest.approx(ran_s)
    assert 1e20 < float(wall_clock.failing_time_s(1e6, 1e6, 0.0, 1e6, 1.0)) < math.inf


ONE = tier_of(2 * HOUR, 5 * MINUTE, 1 / (8 * HOUR), 10 * MINUTE, 12 * HOUR)


@pytest.mark.parametrize("spares", [None, 0, 1])
def test_of_one_domain_and_one_tier_simulated_runs_take_what_is_expected(spares: int | None) -> None:
    run = wall_clock.FailingRun(8 * DAY_S, (ONE,), spares)
    mean_s, error_s, runs = simulated(run)
    assert runs == 2000
    assert mean_s == pytest.approx(float(run.expected_s + run.stopped_s), abs=2.5 * error_s)


def test_what_a_nearer_copy_survives_costs_less_and_simulated_runs_agree() -> None:
    near = tier_of(HOUR / 10, 5.0, 1 / (3 * HOUR), 10 * MINUTE)
    tiers = wall_clock.FailingRun(30 * DAY_S, (near, ONE))
    often = float(ONE.failures_per_s + near.failures_per_s)
    far = replace(ONE, domains=(replace(ONE.domains[0], failures_per_s=often),))
    assert float(tiers.expected_s) < 0.9 * float(wall_clock.FailingRun(30 * DAY_S, (far,)).expected_s)
    assert simulated(tiers)[0] == pytest.approx(float(tiers.expected_s), rel=0.01)


def test_a_domain_of_eight_gpus_fails_as_a_node_does() -> None:
    rate = NumberRange(low=0.01, typical=0.02, high=0.03)
    restart = SecondsRange(low=600.0, typical=600.0, high=600.0)
    run = replace(RUN, num_nodes=16, num_devices=128)
    nodes = parts_of(clock("gpu-cluster", failures_per_node_day=rate, restart=restart), run)
    eight = FailureDomain(name="eight", devices=8, failures_per_day=rate, restart=restart)
    domains = clock("gpu-cluster", failures_per_node_day=None, restart=None, domains=(eight,))
    assert parts_of(domains, run)["failures"] == nodes["failures"]


def test_the_domains_of_llama_3_fail_419_times_in_54_days_on_16384_gpus() -> None:
    run = replace(RUN, num_nodes=2048, num_devices=16384)
    rates = [float(tier.failures_per_s) for tier in run.failing(clock("gpu-cluster-domains")).tiers]
    assert [rate * 54 * DAY_S for rate in rates] == pytest.approx([268 + 63, 53 + 35], rel=0.01)


def test_a_lost_wafer_costs_its_restart_while_the_weights_are_at_memoryx() -> None:
    near, far = (failing := RUN.failing(clock("cs-2-memoryx"))).tiers
    assert float(near.failures_per_s) == pytest.approx(2 * 0.0065 / DAY_S)
    assert (float(near.write_s), float(far.failures_per_s)) == (0.0, 0.0)
    lost_s = float(failing.expected_s - failing.work_s - failing.writing_s)
    expected_s = float(failing.work_s * near.failures_per_s * near.restart_s)
    assert lost_s == pytest.approx(expected_s, rel=0.02)


@pytest.mark.parametrize("spares", [0, 3, 18, 36])
def test_a_rack_takes_its_spares_together_and_simulated_runs_agree(spares: int) -> None:
    """Nodes that fail every two days and racks of 18 every 20, each repaired in days."""
    node = wall_clock.Failing(0.5 / DAY_S, 0.0, 2 * DAY_S)
    rack = wall_clock.Failing(0.05 / DAY_S, 0.0, DAY_S, nodes=18)
    run = wall_clock.FailingRun(50_000 * DAY_S, (wall_clock.Tier(1.0, 0.0, (node, rack)),), spares)
    stopped_s = run_with_failures(run, exponential_failures(run, seed=1)) - float(run.expected_s)
    assert float(run.stopped_s) == pytest.approx(stopped_s, rel=0.08, abs=1e-5 * float(run.work_s))


def test_the_background_copies_of_a_cluster_stop_it_less_than_those_that_it_waits_for() -> None:
    run = replace(RUN, num_nodes=128, num_devices=1024)
    waiting, going_on = (parts_of(clock(name), run) for name in ("gpu-cluster", "gpu-cluster-background"))
    assert going_on["checkpoints"].typical_s < waiting["checkpoints"].typical_s
    assert "written in the background in" in going_on["checkpoints"].how
    domains = (
        FailureDomain(name="rack", devices=72, failures_per_day=NumberRange(low=0, typical=1, high=2)),
    )
    four = replace(run, num_nodes=18, num_devices=72)
    (checkpoints,) = four.failing(clock("gpu-cluster", failures_per_node_day=None, domains=domains)).tiers
    assert [domain.nodes for domain in checkpoints.domains] == [18]


def test_spare_nodes_of_one_domain_are_erlangs() -> None:
    shares = [float(wall_clock.stopped_share(spares, [(1, 2.0)])) for spares in range(8)]
    assert shares == sorted(shares, reverse=True)
    assert shares[:2] == pytest.approx([2 / 3, 2 / 5])
    assert float(wall_clock.stopped_share(3, [(1, 0.0)])) == 0.0
    assert float(wall_clock.stopped_share(7, [(4, 2.0)])) == pytest.approx(shares[1])


def test_young_interval_is_that_of_the_worked_examples_and_beats_its_neighbours() -> None:
    assert wall_clock.young_interval_s(0.1 * HOUR, 5 * HOUR) == pytest.approx(HOUR)
    best_s = wall_clock.young_interval_s(MINUTE, 12 * HOUR)
    assert best_s / MINUTE == pytest.approx(37.9, rel=5e-3)
    failing_s = float(wall_clock.failing_time_s(HOUR, best_s, MINUTE, 0.0, 1 / (12 * HOUR)))
    assert 1 - HOUR / failing_s == pytest.approx(0.053, rel=0.03)
    intervals_s = np.array([0.8, 1.0, 1.25]) * best_s
    assert wall_clock.failing_time_s(1e6, intervals_s, MINUTE, 60.0, 1 / (12 * HOUR)).argmin() == 1
