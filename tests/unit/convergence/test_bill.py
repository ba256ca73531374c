"""Device-hours, energy, carbon and money of a run, reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfsim.convergence.bill import HOUR_S, YEAR_S, Bought, Rates, bill
from perfsim.convergence.uncertain import Draws, Uncertain, interval, typical


def sure(name: str, value: float) -> Uncertain:
    return Uncertain(name, value, value, value)


RATES = Rates(
    system="dgx",
    devices=16,
    units=2,
    power_w=sure("power", 6500.0),
    pue=sure("PUE", 1.2),
    kg_a_kwh=sure("carbon", 0.4),
    tariff=sure("tariff", 0.1),
    device_hour=sure("rent", 5.0),
)
DAY = np.asarray(24 * HOUR_S)


def test_a_rented_day_of_two_nodes_by_hand() -> None:
    own = bill(DAY, RATES, typical)
    assert own.device_hours == 384
    assert own.energy_kwh == pytest.approx(2 * 6.5 * 24 * 1.2)
    assert own.carbon_kg == pytest.approx(0.4 * 2 * 6.5 * 24 * 1.2)
    assert own.money == pytest.approx(384 * 5.0), "rent includes electricity"


def test_a_bought_day_is_its_share_of_the_life_and_electricity() -> None:
    bought = Bought(price=sure("p", 200_000.0), years=sure("y", 4.0), utilisation=sure("u", 0.5))
    own = bill(DAY, replace(RATES, device_hour=None, bought=bought), typical)
    share = 24 * HOUR_S / (4 * YEAR_S * 0.5)
    assert own.money == pytest.approx(2 * 200_000 * share + 0.1 * 2 * 6.5 * 24 * 1.2)


def test_what_is_not_given_is_listed_and_stays_out_of_the_sums() -> None:
    bare = Rates(system="cs-2", devices=1, units=1, power_w=sure("power", 23e3))
    own = bill(DAY, bare, typical)
    assert own.energy_kwh == pytest.approx(23 * 24)
    assert own.carbon_kg is own.money is None
    assert bare.not_given == ("PUE (energy is before cooling)", "carbon intensity", "price of cs-2")
    assert RATES.not_given == ()
    assert bill(DAY, replace(bare, power_w=None), typical).energy_kwh is None
    bought = Bought(price=sure("p", 1.0), years=sure("y", 1.0), utilisation=sure("u", 1.0))
    assert replace(RATES, device_hour=None, bought=bought, tariff=None).not_given == (
        "tariff of electricity",
    )


def test_a_range_of_the_price_is_the_range_of_the_money() -> None:
    rates = replace(RATES, device_hour=Uncertain("rent", 4.0, 5.0, 8.0))
    own = bill(DAY, rates, Draws(seed=0, count=5000))
    assert own.money is not None
    assert interval(own.money) == pytest.approx((384 * 4.0, 384 * 8.0), rel=0.01)


def test_a_step_that_waits_takes_idle_power_for_that_share() -> None:
    waiting = bill(DAY, replace(RATES, idle_w=2000.0, busy=0.75), typical)
    assert waiting.energy_kwh == pytest.approx(2 * (0.25 * 2.0 + 0.75 * 6.5) * 24 * 1.2)
    unknown = bill(DAY, replace(RATES, busy=0.75), typical)
    assert unknown.energy_kwh == pytest.approx(2 * 6.5 * 24 * 1.2), "without idle power waiting is computing"


def test_idle_power_is_never_above_that_of_computing() -> None:
    low = replace(RATES, idle_w=9000.0, busy=0.5)
    assert bill(DAY, low, typical).energy_kwh == pytest.approx(2 * 6.5 * 24 * 1.2)
