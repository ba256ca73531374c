"""The wall clock of a run: its steps and what it waits for besides, each part in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from perfsim.base.units import DAY_S
from perfsim.catalog import default_catalog
from perfsim.convergence.uncertain import Draws, interval, typical
from perfsim.convergence.wall_clock import (
    HealthyRun,
    RunPart,
    failing_time_s,
    stopped_share,
    young_interval_s,
)
from perfsim.specs.wall_clock import NumberRange, SecondsRange, WallClockSpec

RUN = HealthyRun(steps=50_000, step_time_s=4.0, num_parameters=6.05e9, num_nodes=2)


def parts_of(spec: WallClockSpec, run: HealthyRun = RUN) -> dict[str, RunPart]:
    return {part.name: part for part in run.parts(spec)}


def clock(name: str = "cs-2") -> WallClockSpec:
    clock = default_catalog().load("wall_clock", name)
    assert isinstance(clock, WallClockSpec)
    return clock


def test_a_run_that_waits_for_nothing_is_its_steps() -> None:
    parts = parts_of(WallClockSpec(name="none"))
    assert list(parts) == ["steps", "whole run"]
    assert parts["whole run"].low_s == parts["whole run"].high_s == RUN.time_s == 200_000.0


@pytest.mark.parametrize("name", default_catalog().names("wall_clock"))
@pytest.mark.parametrize("nodes", [1, 16, 128])
def test_parts_add_up_and_every_range_is_in_order(name: str, nodes: int) -> None:
    run = HealthyRun(steps=5e5, step_time_s=3.5, num_parameters=2e10, num_nodes=nodes)
    *parts, total = run.parts(clock(name))
    for end in ("low_s", "typical_s", "high_s"):
        assert getattr(total, end) == pytest.approx(sum(getattr(part, end) for part in parts))
    assert all(part.low_s <= part.typical_s <= part.high_s for part in (*parts, total))
    assert total.low_s >= run.time_s


def test_checkpoints_and_first_weights_of_a_cs_2_take_what_its_logs_say() -> None:
    """GPT-J: checkpoints of 4 to 11 minutes, at 4 s a step 6 to 16 % of the time; weights sent in 129.3 s."""
    parts = parts_of(clock().model_copy(update={"checkpoint_every": 1000, "stragglers": None}))
    checkpoints = parts["checkpoints"]
    assert 0.05 < checkpoints.low_s / RUN.time_s < 0.07
    assert 0.09 < checkpoints.typical_s / RUN.time_s < 0.13
    assert checkpoints.high_s / RUN.time_s < 0.25
    assert parts["first weights"].high_s == pytest.approx(129.3, rel=0.01)


def test_failures_cost_what_the_failing_run_does() -> None:
    spec = clock().model_copy(update={"stragglers": None})
    mttf_s = DAY_S / (RUN.num_nodes * 0.0065)
    sent_s = 4 * RUN.num_parameters / 240e6
    write_s = 12 * RUN.num_parameters / 170e6
    interval_s = young_interval_s(write_s, mttf_s)
    failing_s = failing_time_s(RUN.time_s, interval_s, write_s, 600.0 + 247.0 + sent_s, 1 / mttf_s)
    parts = parts_of(spec)
    assert parts["checkpoints"].typical_s == pytest.approx(RUN.time_s * write_s / interval_s)
    lost_s = failing_s - RUN.time_s - parts["checkpoints"].typical_s
    assert parts["failures"].typical_s == pytest.approx(float(lost_s))


def test_a_machine_without_spares_waits_for_repairs() -> None:
    repair = SecondsRange(low=3600.0, typical=86_400.0, high=7 * 86_400.0)
    without = parts_of(clock())
    spec = clock().model_copy(update={"spares": 0, "repair": repair})
    waiting = parts_of(spec)["waiting for repairs"]
    assert "waiting for repairs" not in without
    running_s = sum(without[name].typical_s for name in ("steps", "stragglers", "checkpoints", "failures"))
    stopped = float(stopped_share(0, 2 * 0.0065))
    assert waiting.typical_s == pytest.approx(running_s * stopped / (1 - stopped))
    assert (
        parts_of(spec.model_copy(update={"spares": 2}))["waiting for repairs"].typical_s < waiting.typical_s
    )


def test_draws_of_the_wall_clock_hold_its_typical_value_between_its_ends() -> None:
    spec = clock()
    time_s = np.asarray(RUN.time_s)
    *_, total = RUN.parts(spec)
    assert float(RUN.wall_s(spec, time_s, typical)) == pytest.approx(total.typical_s)
    low, high = interval(RUN.wall_s(spec, time_s, Draws(seed=0, count=2000)))
    assert total.low_s < low < total.typical_s < high < total.high_s


def test_youngs_interval_loses_less_than_any_fixed_number_of_steps() -> None:
    def lost_s(every: int | str) -> float:
        spec = clock().model_copy(update={"checkpoint_every": every, "stragglers": None})
        parts = parts_of(spec)
        return parts["checkpoints"].typical_s + parts["failures"].typical_s

    assert lost_s("young") <= min(lost_s(every) for every in (100, 1000, 10_000, 40_000)) * 1.01


def test_without_failures_nothing_is_lost_but_the_writing() -> None:
    spec = clock().model_copy(update={"failures_per_node_day": None, "checkpoint_every": 1000})
    assert "failures" not in parts_of(spec)
    assert parts_of(spec)["checkpoints"].typical_s > 0


def test_a_run_that_hardly_advances_is_said() -> None:
    often = NumberRange(low=1.0, typical=4.0, high=10.0)
    spec = clock().model_copy(update={"failures_per_node_day": often, "checkpoint_every": 20_000})
    assert "hardly advances" in parts_of(spec)["failures"].how


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"queue": {"low": 2.0, "typical": 1.0, "high": 3.0}}, "in this order"),
        ({"checkpoint_rate": {"low": 1e8, "typical": 1e8, "high": 1e8}}, "young needs failures_per_node_day"),
        ({"spares": 1}, "write repair and failures_per_node_day"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"compile_time": {"low": 1.0, "typical": 1.0, "high": 3.0}}, "compile_time"),
    ],
)
def test_what_makes_no_sense_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        WallClockSpec.model_validate({"name": "x", **values})


def test_evaluations_take_their_share_of_the_steps_with_their_stragglers() -> None:
    spec = WallClockSpec(
        name="evaluated",
        evaluation=NumberRange(low=0.01, typical=0.02, high=0.03),
        stragglers=NumberRange(low=1.0, typical=1.5, high=1.5),
    )
    parts = parts_of(spec)
    assert parts["evaluation"].typical_s == pytest.approx(0.02 * 1.5 * RUN.time_s)
    assert parts["evaluation"].low_s == pytest.approx(0.01 * RUN.time_s)
    assert parts["evaluation"].how == "2 % of the steps"
    assert RUN.wall_s(spec, np.array(RUN.time_s), typical) == pytest.approx(parts["whole run"].typical_s)
