"""A study asked backwards says what an exhaustive sweep over the same input says."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import perfsim as ps
from perfsim.base.errors import PerfsimError
from perfsim.base.units import DAY_S, GIB
from perfsim.catalog import default_catalog
from perfsim.convergence.uncertain import typical
from perfsim.report.solve import _curve
from perfsim.studies import solve as solving
from perfsim.studies.answers import PointResult
from perfsim.studies.batches import Target
from perfsim.studies.decision import option_of
from perfsim.studies.loading import changed_study, priced
from perfsim.studies.runner import answer_point
from perfsim.studies.spec import StudySpec
from perfsim.work.counts import parameters
from perfsim.work.family import scaled

Make = Callable[..., StudySpec]
PRICES = {"cs-2": 30.0}
ENDS = {"to": "or more", "down": "or less"}
NODE: dict[str, Any] = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "batch": 64, "recipe.tokens": 1e9}
FINDS = ("devices", "recipe.tokens", "price.device_hour", "system.io_ports", "recipe.global_batch_size")
"""Unknowns along which days or money rise or fall, and the batch, along which time turns back."""


def answered(
    study: StudySpec, find: str, values: list[Any], quantity: str, bound: float
) -> list[tuple[bool, float]]:
    """By value, whether typical inputs meet `quantity <= bound`, and the share of joint draws that does."""
    found: list[tuple[bool, float]] = []
    for value in values:
        try:
            changes = {find: (value,) if find == "devices" else value}
            (point,) = changed_study(study, changes, default_catalog()).points
            option = option_of(PointResult(point.study, answer=answer_point(point)))
        except PerfsimError:
            found.append((False, 0.0))
            continue
        met = []
        for at in (typical, option.draws):
            wall_s = option.wall_s(at)
            bill = option.rates.bill(wall_s, at)
            amounts = {"days": wall_s / DAY_S, "cost": bill.money, "device_hours": bill.device_hours}
            met.append(float(np.mean(np.asarray(amounts[quantity]) <= bound)))
        found.append((met[0] == 1.0, met[1]))
    return found


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 100))]
)
def test_it_agrees_with_a_full_sweep(study_of: Make, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(solving, "STEPS", 12)
    monkeypatch.setattr(solving, "_REACH", 10.0)
    draw = random.Random(seed)
    find = FINDS[seed % len(FINDS)]
    quantity = "cost" if find == "price.device_hour" else draw.choice(("days", "cost", "device_hours"))
    batches = {"batch_sizes": "auto" if seed >= 80 else [2 ** draw.randint(3, 6)]}
    batch = {} if find == "recipe.global_batch_size" else batches
    study = priced(study_of(**batch), PRICES)
    today = ps.solve(study, find=find, minimise=quantity)
    (rows,) = today.tried.values()
    known = [row.quantities[quantity] for row in rows if row.quantities]
    bound = draw.choice(known) * draw.uniform(0.7, 1.4)
    answer = ps.solve(study, find=find, such_that=f"{quantity} <= {bound!r}")
    (unknown,) = answer.unknowns.values()
    values = [unknown.values[place] for place in unknown.grid or range(len(unknown.values))]
    tried = {row.value for rows in answer.tried.values() for row in rows}
    values = sorted({*values, *tried})
    met = [typically for typically, _ in answered(study, unknown.path, values, quantity, bound)]
    turns = {
        (values[index] if met[index] else values[index + 1], "or less" if met[index] else "or more")
        for index in range(len(values) - 1)
        if met[index] != met[index + 1]
    }
    found = {(row.value, ENDS.get(row.side.split()[0], row.side)) for row in answer.solutions if row.side}
    assert found <= turns
    assert bool(found) == bool(turns) or not answer.solutions[0].side
    assert any(met) == (answer.solutions[0].value is not None)
    for row in answer.solutions:
        assert row.value is None or row.quantity[quantity] <= bound
        assert row.range is None or row.range[0] <= row.value <= row.range[1]
        if row.surely is not None and row.side:
            ((_, share),) = answered(study, unknown.path, [row.surely], quantity, bound)
            assert share >= 0.9


@pytest.mark.parametrize(
    "candidate",
    [
        {"strategy": "weight-streaming", "system": "cs-2", "devices": [4]},
        {"strategy": "3d", "system": "dgx-a100-80gb", "devices": [16]},
    ],
    ids=["wafers", "gpus"],
)
def test_near_a_nearly_best_batch_the_best_is_found_sooner(study_of: Make, candidate: dict[str, Any]) -> None:
    study = study_of(candidates=[candidate], batch_sizes="auto")
    (point,) = study.points
    target = Target.of_study(study)
    grid = list(target.batches(study, point.question))
    whole = target.curve(point.question, grid, extend=True)
    place = grid.index(whole.best)
    for near in (0, grid[max(place - 3, 0)], whole.best, 1.3 * whole.best):
        curve = target.curve(point.question, grid, extend=True, near=round(near))
        assert curve.best == whole.best
        assert len(curve.tried) <= 11 < len(whole.tried)


@pytest.mark.parametrize(
    ("batch", "hours", "least", "sides"),
    [
        pytest.param({}, 0.25, 144, ["or more"], marks=pytest.mark.slow),
        ({"batch": 64}, 1.0, 32, ["", "", "or more"]),
    ],
    ids=["any", "given"],
)
def test_of_devices_every_number_of_nodes_down_to_one_that_fails_is_tried(
    batch: dict[str, int], hours: float, least: int, sides: list[str]
) -> None:
    asked = {**NODE, "batch": None, **batch}
    answer = ps.solve(find="devices", such_that=f"hours <= {hours}", **asked)
    assert (answer.solutions[0].value, [row.side for row in answer.solutions]) == (least, sides)
    (rows,) = answer.tried.values()
    met = {row.value: row.quantities.get("hours", np.inf) <= hours for row in rows}
    before = least - 8
    while not met[before] and before % 16:  # numbers of the grid, here of two nodes or more
        before -= 8
    assert not met[before]
    ends = answer.solutions[-1]
    beyond = [met[value] for value in met if value >= ends.value]
    assert all(beyond)
    assert f"every value tried to {max(met):,} meets it" in ends.reason
    assert "below " in answer.solutions[0].reason


def test_inside_a_rack_whole_servers_are_tried() -> None:
    rack = {**NODE, "system": "gb200-nvl72", "batch": 720}
    step_s = ps.predict(**rack, devices=36).step_time_s
    (row, *_) = ps.solve(find="devices", such_that=f"step_time_s <= {1.001 * step_s}", **rack).solutions
    assert row.value == 36


def test_what_is_far_out_of_reach_is_given_up_soon_with_the_nearest_number_of_all() -> None:
    answer = ps.solve(find="devices", such_that="device_hours <= 0.001", **NODE)
    (row,) = answer.solutions
    (tried,) = answer.tried.values()
    nearest = min((1, 2, 4, 8, 16, 32, 64), key=lambda n: n * ps.predict(**NODE, devices=n).step_time_s)
    assert (row.value, row.nearest, len(tried) <= 8) == (None, nearest, True)
    assert "more devices" not in row.reason


def test_the_least_time_is_looked_for_beyond_numbers_without_a_plan_and_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(solving, "LARGEST", 64)
    asked = {**NODE, "batch": 256, "prices.machines.dgx-a100-80gb.device_hour": 1}
    answer = ps.solve(find="devices", such_that="cost <= 1e9", minimise="days", **asked)
    (row,) = answer.solutions
    (tried,) = answer.tried.values()
    assert any(known.reason for known in tried)
    assert (row.value, max(known.value for known in tried)) == (64, 64)
    assert "numbers above 64 are not tried" in row.reason


def test_a_rate_stands_on_the_page_with_its_unit() -> None:
    path = "system.node.nic.bandwidth"
    asked = ps.solve(find=path, such_that="days <= 1", **NODE, devices=16)
    (curve,) = _curve(asked)
    assert curve.figure.layout.xaxis.title.text == f"{path} (GB/s)"
    assert 25.0 in [round(value, 6) for value in curve.table.values("value")]


def test_less_than_a_number_is_tried_down_to_the_least() -> None:
    (row,) = ps.solve(find="recipe.tokens", such_that="hours <= 4", **NODE, devices=8).solutions
    assert row.side == "or less"
    assert "every value tried down to" in row.reason


@pytest.mark.parametrize(
    ("base", "rows"),
    [
        ("gpt3_13b", {"gpt3_xl": 24, "gpt3_6p7b": 32, "gpt3_13b": 40, "gpt3_175b": 96}),
        ("llama_7b", {"llama_13b": 40, "llama_33b": 60, "llama_65b": 80}),
        ("llama31_8b", {"llama31_70b": 80, "llama31_405b": 126}),
        ("cerebras_gpt_1p3b", {"cerebras_gpt_111m": 10, "cerebras_gpt_590m": 18, "cerebras_gpt_13b": 40}),
    ],
)
def test_a_family_meets_the_published_rows(base: str, rows: dict[str, int]) -> None:
    model = ps.Catalog().model
    for name, layers in rows.items():
        count = float(parameters(model(name)).total)
        shape = scaled(model(base), count)
        assert parameters(shape).total == pytest.approx(count, rel=0.05)
        assert shape.num_layers == pytest.approx(layers, rel=0.3)
        assert shape.hidden_size == pytest.approx(model(name).hidden_size, rel=0.2)


def test_a_price_is_found_with_one_answer(study_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock(wraps=answer_point)
    monkeypatch.setattr(solving, "answer_point", asked)
    answer = ps.solve(priced(study_of(), PRICES), find="price.device_hour", such_that="cost <= 1e4")
    assert asked.call_count == 1 < len(answer.sweep.points) == len(next(iter(answer.tried.values())))


def test_a_value_whose_neighbours_are_refused_is_found_once_without_a_range(study_of: Make) -> None:
    machine = {"strategy": "3d", "system": "dgx-a100-80gb", "devices": 4, "layout": "dp=4,mbs=1"}
    study = study_of(candidates=[machine], batch_sizes=[16])
    (row,) = ps.solve(study, find="devices", such_that="days <= 1e6").solutions
    assert (row.value, row.side, row.range) == (4, "", None)


def test_the_page_draws_the_quantity_of_the_condition_with_its_unit(study_of: Make, tmp_path: Path) -> None:
    answer = ps.solve(study_of(), find="devices", such_that="energy_kwh <= 20")
    page = answer.save(tmp_path).read_text(encoding="utf-8")
    assert "Energy (kWh) by devices" in page
    assert "energy kwh" not in page


def test_a_loss_is_found_though_half_of_it_and_twice_it_are_beyond_its_law(study_of: Make) -> None:
    study = study_of()
    answered = PointResult(study, answer=answer_point(study.points[0]))
    days = option_of(answered).typical_s / DAY_S
    row, end = ps.solve(study, find="recipe.target_loss", such_that=f"days <= {days / 2}").solutions
    assert row.side.startswith("to ")
    assert end.reason.startswith("none above it has an answer: loss law 'besiroglu' is used outside its runs")
    assert 0.4 * days < row.quantity["days"] <= days / 2


def test_of_a_field_that_takes_ranges_alone_the_ends_keep_their_distance(study_of: Make) -> None:
    clocked = {"strategy": "weight-streaming", "system": "cs-2", "devices": 1, "wall_clock": "cs-2"}
    answer = ps.solve(study_of(candidates=[clocked]), find="wall_clock.load", such_that="days <= 1e6")
    loads = [point.candidate.wall_clock.load for point in answer.sweep.points if point.feasible]
    assert len({load.typical for load in loads}) > 1
    assert {round(load.high / load.low, 6) for load in loads} == {round(336 / 227, 6)}


def test_batches_share_the_odd_part_of_the_devices_or_take_a_sequence_each(study_of: Make) -> None:
    target = Target.of_study(study_of())
    assert {batch % 12_288 for batch in target.grid(2048, 12_288)} >= {192, 384}
    assert target.grid(2048, 8 * 39_989) == [8 * 39_989]
    assert target.grid(2**30, 24, 15) == [15]  # the least of a given layout


def test_without_devices_one_node_is_asked_unless_the_devices_are_what_is_looked_for() -> None:
    given = {"model": "gpt3_20b", "system": "dgx-a100-80gb", "layout": "tp=8,dp=1", "recipe": "chinchilla"}
    asked = {
        find: solving.study_of(given, default_catalog(), find).points[0] for find in ("batch", "devices")
    }
    assert {find: point.num_devices for find, point in asked.items()} == {"batch": 8, "devices": 16}


def test_a_search_for_the_end_of_a_run_that_has_none_begins_at_20_tokens_a_parameter() -> None:
    machine = {"model": "gpt3_xl", "system": "dgx-a100-80gb"}
    studies = [solving.study_of(machine, default_catalog(), find) for find in ("batch", "recipe.tokens")]
    assert [study.recipe.tokens_per_parameter for study in studies] == [None, 20]


def test_layouts_are_found_that_need_less_memory_than_the_fastest() -> None:
    rows = ps.solve(find="layout", such_that="memory <= 6 GiB", **NODE, devices=8).solutions
    assert rows[0].value is not None
    assert all(row.quantity["memory"] <= 6 * GIB for row in rows)
    (least,) = ps.solve(find="layout", minimise="memory", **NODE, devices=8).solutions
    assert least.quantity["memory"] == min(row.quantity["memory"] for row in rows)
    wafer = NODE | {"system": "cs-2", "devices": 1}
    assert ps.solve(find="layout", such_that="memory <= 10 GB", **wafer).solutions[0].value is not None


def test_a_bound_on_memory_is_met_where_any_layout_is_within_it() -> None:
    answer = ps.solve(find="model.num_layers", such_that="memory <= 20 GiB", **NODE, devices=8)
    (row,) = answer.solutions
    (unknown,) = answer.unknowns.values()
    after = unknown.values[unknown.values.index(row.value) + 1]
    given = NODE | {"devices": 8, "memory_limit": 0.25}
    asked = (given | {"model.num_layers": layers} for layers in (row.value, after))
    peaks = [ps.predict(**question).peak_memory_bytes for question in asked]
    assert (row.side, row.range) == ("or less", None)  # no draw moves memory
    assert peaks[0] <= 20 * GIB < peaks[1]


def test_conditions_of_opposite_sense_bound_a_value_on_both_sides() -> None:
    conditions = ["hours <= 4", "device_hours <= 24"]
    first, last = ps.solve(find="devices", such_that=conditions, **NODE).solutions
    assert (first.side, last.side) == (f"to {last.value}", f"down to {first.value}")
    assert "64 sequences do not divide" in first.reason
    ends = [row.quantity for row in (first, last)]
    assert all(amounts["hours"] <= 4 and amounts["device_hours"] <= 24 for amounts in ends)
