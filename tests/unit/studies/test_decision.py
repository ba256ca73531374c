"""The Monte Carlo of a study against its closed forms, what is shared, and the words about it."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from statistics import NormalDist
from typing import Any

import pytest

import perfsim as ps
from perfsim.base.units import DAY_S
from perfsim.catalog import Catalog
from perfsim.convergence.bill import Rates
from perfsim.convergence.critical_batch import CriticalBatch, LawInputs, critical_batch
from perfsim.convergence.time_to_accuracy import TimeToAccuracy
from perfsim.convergence.uncertain import Draws
from perfsim.convergence.wall_clock import HealthyRun
from perfsim.prediction.why import Why
from perfsim.report.table import document_text
from perfsim.specs.hardware import PowerSpec, SystemSpec
from perfsim.specs.prices import Prices
from perfsim.studies.answers import Answer, Production, named
from perfsim.studies.decision import Option, decide
from perfsim.studies.verdict import grounds, sentence

DATA_LAW = critical_batch("data_law", LawInputs(d_min_tokens=4e11))
RENT = {"low": 4.0, "typical": 5.0, "high": 6.0}
DRAWS = Draws(0, 20_000)


def priced(system: str, device_hour: Mapping[str, float] | None, devices: int = 128) -> Rates:
    machine = SystemSpec.model_construct(name=system, power=None)
    machines = {} if device_hour is None else {system: {"device_hour": device_hour}}
    prices = Prices.model_validate({"machines": machines})
    return Rates(system=machine, devices=devices, units=16, prices=prices)


def option(label: str = "a", system: str = "gpu", **changes: Any) -> Option:
    """A candidate that takes about 28 days."""
    batch = changes.pop("batch", 7.9e5)
    step_s = changes.pop("step_s", 4.6)
    time = TimeToAccuracy(
        batch, step_s, 4e11, changes.pop("critical", DATA_LAW), changes.pop("error", 0.2),
        d_min_error=changes.pop("d_min_error", 0.0), unshared_error=changes.pop("own", math.inf),
    )  # fmt: skip
    fields: dict[str, Any] = {"device": system, "plan": label, "production": None, "draws": DRAWS} | changes
    training = HealthyRun(time.steps, step_s, 2e10, 16)
    rates = fields.pop("rates", priced(system, None))
    return Option(label=label, system=system, time=time, training=training, rates=rates, **fields)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch": 1.6e7, "error": 0.0},
        {"batch": 6e6, "error": 0.1},
        {"d_min_error": 0.4},
        {"critical": critical_batch("given_length", LawInputs())},
    ],
)
def test_intervals_are_those_of_the_closed_form_within_a_hundredth(changes: Mapping[str, Any]) -> None:
    alone = option(**changes)
    (outcome,) = decide([alone], "USD").outcomes
    assert outcome.steps_s.typical == pytest.approx(alone.time.time_s, rel=1e-12)
    assert (outcome.steps_s.low, outcome.steps_s.high) == pytest.approx(alone.time.band_s, rel=0.01)


def test_the_ratio_and_its_probability_are_those_of_the_closed_form() -> None:
    first = option("a", batch=3e6, step_s=17.0)
    second = option("b", "wafer", batch=3e5, step_s=1.9)
    decision = decide([first, second], "USD")
    band = second.time.ratio_to(first.time)
    assert (decision.first, decision.rival) == ("a", "b")
    assert (decision.ratio.low, decision.ratio.high) == pytest.approx((band.low, band.high), rel=0.01)
    second = option("b", "wafer", batch=3e6, step_s=18.0)
    decision = decide([first, second], "USD")
    band = second.time.ratio_to(first.time)
    width = math.log(band.high / band.low) / 2 / NormalDist().inv_cdf(0.95)
    assert decision.sure == decision.outcomes[0].first
    assert decision.sure == pytest.approx(NormalDist().cdf(math.log(band.typical) / width), abs=0.01)


def test_what_two_candidates_of_one_machine_share_cancels() -> None:
    slow = option("b", own=0.05, step_s=4.9)
    alike = decide([option("a", own=0.05), slow], "USD")
    apart = decide([option("a", own=0.05), replace(slow, device="other")], "USD")
    assert alike.ratio.high / alike.ratio.low < 0.8 * apart.ratio.high / apart.ratio.low
    band = slow.time.ratio_to(option("a", own=0.05).time, same_machine=True)
    assert (alike.ratio.low, alike.ratio.high) == pytest.approx((band.low, band.high), rel=0.01)


def test_one_plan_under_two_names_is_no_duel() -> None:
    decision = decide([option("a"), option("b", plan="a")], "USD")
    assert (decision.rival, decision.sure) == ("", 1.0)
    assert [outcome.first for outcome in decision.outcomes] == [1.0, 1.0]


def test_production_is_shared_and_lengthens_both() -> None:
    ratio = Production.recorded()
    decision = decide([option("a", production=ratio), option("b", "wafer", production=ratio)], "USD")
    assert decision.ratio == decide([option("a"), option("b", "wafer")], "USD").ratio
    wall = decision.outcomes[0].wall_s
    steps = decision.outcomes[0].steps_s
    assert wall.typical == pytest.approx(steps.typical / ratio.ratio)
    band_s = ratio.band_s(steps.typical, (steps.low, steps.high))
    assert (wall.low, wall.high) == pytest.approx(band_s, rel=0.01)


def test_a_part_of_a_node_takes_its_part_of_the_energy() -> None:
    study = {
        "name": "part",
        "model": "llama31_8b",
        "recipe": Catalog().recipe("llm_2024").with_(tokens=1e11),
        "candidates": [{"strategy": "3d", "system": "gb200-nvl72", "devices": count} for count in (8, 72)],
        "batch_sizes": [144],
    }
    decision = ps.study(study).decision
    part, whole = (known.energy_kwh.typical / known.wall_s.typical for known in decision.outcomes)
    assert part == pytest.approx(whole * 8 / 72, rel=0.1), "but for waits"


def test_machines_of_unlike_size_are_compared_at_the_power_the_price_and_the_time_of_the_first() -> None:
    """Wafers take 1.5 times as long, draw a quarter of the power, and cost half as much an hour."""
    power = PowerSpec.model_construct(low=4e3, typical=4e3, high=4e3, idle=None)
    rented = priced("gpu", {"low": 1.0, "typical": 1.0, "high": 1.0})
    gpus = option("a", rates=replace(rented, system=rented.system.model_copy(update={"power": power})))
    leased = priced("wafer", {"low": 4.0, "typical": 4.0, "high": 4.0}, devices=16)
    wafer = leased.system.model_copy(update={"power": power})
    wafers = option("b", "wafer", step_s=6.9, rates=replace(leased, system=wafer, units=4))
    first, second = decide([gpus, wafers], "USD").outcomes
    hours = first.wall_s.typical / 3600
    tokens = gpus.time.examples_tokens / 1e9
    assert first.cost_per_1e9_tokens == pytest.approx(128 * hours / tokens)
    assert second.energy_kwh_per_1e9_tokens == pytest.approx(4 * 4 * 1.5 * hours / tokens)
    at_equal = (first.equal_power_s, first.equal_price_s, first.equal_time_devices)
    assert at_equal == pytest.approx((first.wall_s.typical, first.wall_s.typical, 128))
    assert second.equal_power_s == pytest.approx(1.5 / 4 * first.wall_s.typical)
    assert second.equal_price_s == pytest.approx(1.5 / 2 * first.wall_s.typical)
    assert second.equal_time_devices == pytest.approx(16 * 1.5)
    unpriced = decide([option("a"), wafers], "USD").outcomes
    assert [own.equal_price_s for own in unpriced] == [None, None]


def test_an_input_flips_the_order_where_times_are_equal_the_critical_batch_where_batches_differ() -> None:
    fast = option("a", error=0.3)
    slow = option("b", "wafer", error=0.3, step_s=5.0)
    levers = {lever.name: lever for lever in decide([fast, slow], "USD").levers}
    lever = levers["step time of a"]
    ratio = 5.0 / 4.6
    assert lever.flips_at == pytest.approx(ratio, rel=1e-4)
    assert (lever.ratio_at_low, lever.ratio_at_high) == pytest.approx((ratio * 1.3, ratio / 1.3), rel=1e-3)
    assert "critical batch" not in levers, "equal batches: it moves no ratio"
    far = decide([fast, replace(slow, time=option(step_s=50.0).time)], "USD").levers
    assert [row.flips_at for row in far] == [None] * len(far)
    unlike = [option("a", batch=2e7, step_s=90.0), option("b", "wafer", batch=4e5, step_s=4.0)]
    lever = decide(unlike, "USD").levers[0]
    assert lever.name == "critical batch"
    assert (lever.low, lever.high) == pytest.approx(DATA_LAW.band_tokens)
    assert lever.low < lever.flips_at < lever.high


def test_a_break_even_price_where_one_price_is_missing() -> None:
    gpus = option("a", rates=priced("gpu", RENT))
    wafers = option("b", "wafer", step_s=2.3, rates=priced("wafer", None, devices=16))
    decision = decide([gpus, wafers], "USD")
    row = next(row for row in decision.break_even if row.label == "b")
    assert row.device_hours_ratio.typical == pytest.approx(16.0)
    assert row.price.typical == pytest.approx(80.0)
    assert row.price.low < 80.0 < row.price.high
    assert next(row for row in decision.break_even if row.label == "a").price is None


def said(rows: Sequence[Answer], options: Sequence[Option], currency: str = "USD") -> Mapping[str, str]:
    """The verdict and its grounds."""
    decision = decide(options, currency)
    rows = named(rows)
    return {"verdict": sentence(rows, decision), **grounds(rows, decision, None)}


def test_costs_are_of_both_with_who_is_cheapest_and_what_was_not_given() -> None:
    gpus, wafer = answer(10.0), wafers(12.0)
    rented = of(gpus, rates=priced("gpu", RENT, devices=512))
    unpriced = said([gpus, wafer], [rented, of(wafer, rates=priced("wafer", None))], "EUR")["costs"]
    assert unpriced.startswith("614,000 EUR (")
    assert " against not given; not given: power of gpu, PUE (energy is before cooling)" in unpriced
    assert unpriced.endswith(", price of wafer.")
    cheap = said([gpus, wafer], [rented, of(wafer, rates=priced("wafer", RENT, devices=16))])["costs"]
    assert "; least money, with a probability of more than 99 %: 1 wafers; not given: " in cheap
    assert said([gpus], [of(gpus)])["costs"] == "Prices are not given."


def decided(seed: int) -> str:
    """The decision of two candidates as JSON text; also run in other processes."""
    draws = Draws(seed, 20_000)
    first = option("a", production=Production.recorded(), draws=draws)
    return document_text(decide([first, option("b", "wafer", batch=3e5, step_s=1.8, draws=draws)], "USD"))


def test_the_same_seed_gives_the_same_bytes_on_one_and_two_processes() -> None:
    expected = decided(11)
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        assert list(pool.map(decided, [11, 11])) == [expected] * 2
    assert json.loads(expected)["seed"] == 11
    assert json.loads(decided(12))["outcomes"] != json.loads(expected)["outcomes"]


def test_what_moves_the_money_is_moved_by_prices_and_flips_where_both_cost_the_same() -> None:
    tenfold = {"low": 30.0, "typical": 40.0, "high": 50.0}
    rates = [priced("gpu", RENT), priced("wafer", tenfold, 16)]
    name = "price of a device-hour of wafer"
    pair = [option("a", "gpu", rates=rates[0]), option("b", "wafer", step_s=5.0, rates=rates[1])]
    decision = decide(pair, "USD")
    assert decision.money_ratio.typical == pytest.approx(5.0 / 4.6 * 16 * 40 / (128 * 5))
    lever = next(row for row in decision.money_levers if row.name == name)
    assert lever.ratio_at_high / lever.ratio_at_low == pytest.approx(50 / 30)
    assert lever.flips_at == pytest.approx(40 / decision.money_ratio.typical, rel=1e-3)
    assert name not in {row.name for row in decision.levers}


# The sentence that ends a study, and the lines below it.

CRITICAL = CriticalBatch(1e7, 2.0, "constant", "a test")


def answer(
    days: float,
    *,
    strategy: str = "3d",
    system: str = "gpus",
    devices: int = 8,
    batch_tokens: float = 1e6,
    error: float = 0.05,
) -> Answer:
    """A machine that needs about so many days: its step time is chosen to that end."""
    unit = TimeToAccuracy(batch_tokens, 1.0, 1e11, CRITICAL, error)
    step_s = days * DAY_S / unit.time_s
    time = TimeToAccuracy(batch_tokens, step_s, 1e11, CRITICAL, error, unshared_error=error / 2)
    shares = ("mfu", "hfu", "bubble_fraction", "exposed_communication_fraction", "peak_memory_bytes")
    return Answer(
        model="toy",
        why=Why("compute", {}, "", ""),
        strategy=strategy,
        system=system,
        num_devices=devices,
        machine=f"{devices} {system}",
        devices_noun=system,
        device=system,
        layout={},
        global_batch_size=1,
        step_time_s=step_s,
        tokens_per_s=batch_tokens / step_s,
        time=time,
        breakdown_s={},
        memory=(),
        **dict.fromkeys(shares, 0.4),
    )


def wafers(days: float, devices: int = 1, **changes: Any) -> Answer:
    return answer(days, strategy="weight-streaming", system="wafers", devices=devices, **changes)


def of(row: Answer, **changes: Any) -> Option:
    """The option of a row, with healthy steps alone on the wall."""
    return replace(option(row.label, row.system, **changes), time=row.time)


def test_a_lone_candidate_has_its_range_and_one_layout_under_two_names_is_no_race() -> None:
    alone = answer(10.0)
    wall_s = decide([of(alone)], "USD").outcomes[0].wall_s
    low, high = wall_s.low / DAY_S, wall_s.high / DAY_S
    days = f"8 gpus reach the target after 10.0 days on the wall ({low:.2f} to {high:.1f})."
    assert said([alone], [of(alone)])["verdict"] == days
    zero3 = answer(10.0, strategy="zero3")
    both = said([alone, zero3], [of(alone), of(zero3, plan=alone.label)])
    assert both["verdict"].startswith("8 gpus, 3d reach the target after 10.0 days")
    assert both["why"] == "The same layout answers 8 gpus, zero3."


def test_why_is_factors_that_multiply_to_the_ratio_the_largest_first() -> None:
    slow = answer(30.0, batch_tokens=8e6)
    fast = wafers(10.0, batch_tokens=5e5)
    known = said([slow, fast], [of(slow), of(fast)])
    assert known["verdict"].startswith("1 wafers is first with a probability of more than 99 %: 10.0 days")
    assert known["verdict"].endswith("while 8 gpus take 3.00 times (2.37 to 4.16) as long.")
    factors = [float(factor) for factor in re.findall(r"([\d.]+) times by", known["why"])]
    assert math.prod(factors) == pytest.approx(3.0, rel=0.01)
    assert factors == sorted(factors, reverse=True)
    assert "batches of 0.5 M against 8 M tokens" in known["why"]


def test_it_rests_on_the_speed_or_the_input_that_is_nearest_to_turning_the_order() -> None:
    gpus, wafer = answer(10.0, error=0.05), wafers(12.0, error=0.5)
    rests = said([gpus, wafer], [of(gpus), of(wafer)])["rests on"]
    assert rests.startswith("First only while 1 wafers stays below 48.0 % of peak (40.0 % here, ")
    assert rests.endswith(" standard deviations away); above it 1 wafers is first.")
    gpus, wafer = answer(10.0, error=0.5), wafers(12.0, error=0.05)
    assert "while 8 gpus stay above 33.3 % of peak" in said([gpus, wafer], [of(gpus), of(wafer)])["rests on"]
    large = answer(10.0, batch_tokens=4e7, error=0.05)
    small = wafers(12.0, error=0.05)
    rests = said([large, small], [of(large), of(small)])["rests on"]
    assert rests.startswith("First only with critical batch above ")
    far = said([answer(1.0), small], [of(answer(1.0)), of(small)])["rests on"]
    assert far == "No input alone turns the order within three standard deviations."


def test_the_rival_is_another_machine_whatever_the_order_of_candidates() -> None:
    rows = [answer(40.0), wafers(10.0, 16), wafers(12.0, 8)]
    known = said(rows, [of(row) for row in rows])
    assert known["verdict"].startswith("16 wafers are first")
    assert "while 8 gpus take" in known["verdict"]
    assert known == said(rows[::-1], [of(row) for row in rows[::-1]])


def test_the_order_turns_by_the_machine_that_is_not_sure() -> None:
    rows = [answer(10.0, error=0.01), wafers(10.5, error=0.3)]
    decision = decide([of(row) for row in rows], "USD")
    gpus, wafer = (outcome.turns for outcome in decision.outcomes)
    assert gpus < 0.01 < 0.3 < wafer < 0.5
    assert decision.turns == 0.0, "equal batches"
