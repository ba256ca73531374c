"""Device-hours, energy, carbon and money of a run, reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfsim.convergence.bill import HOUR_S, YEAR_S, Rates
from perfsim.convergence.uncertain import Draws, interval, typical
from perfsim.specs.hardware import PowerSpec, SystemSpec
from perfsim.specs.prices import EnergySpec, PriceSpec


def machine(name: str, power_w: float | None, idle_w: float | None = None) -> SystemSpec:
    power = None
    if power_w is not None:
        power = PowerSpec.model_construct(low=power_w, typical=power_w, high=power_w, idle=idle_w)
    return SystemSpec.model_construct(name=name, power=power)


RENTED = PriceSpec.model_validate({"device_hour": 5.0})
BOUGHT = PriceSpec.model_validate({"purchase": 200_000.0, "years": 4.0, "utilisation": 0.5})
ENERGY = EnergySpec.model_validate({"pue": 1.2, "carbon": 0.4, "tariff": 0.1})
RATES = Rates(system=machine("dgx", 6500.0), devices=16, units=2, energy=ENERGY, price=RENTED)
DAY = np.asarray(24 * HOUR_S)
ENERGY_KWH = 2 * 6.5 * 24 * 1.2


def test_a_rented_day_of_two_nodes_by_hand() -> None:
    own = RATES.bill(DAY, typical)
    assert own.device_hours == 384
    assert own.energy_kwh == pytest.approx(ENERGY_KWH)
    assert own.carbon_kg == pytest.approx(0.4 * ENERGY_KWH)
    assert own.money == pytest.approx(384 * 5.0), "rent includes electricity"


def test_a_bought_day_is_its_share_of_the_life_and_electricity() -> None:
    own = replace(RATES, price=BOUGHT).bill(DAY, typical)
    share = 24 * HOUR_S / (4 * YEAR_S * 0.5)
    assert own.money == pytest.approx(2 * 200_000 * share + 0.1 * ENERGY_KWH)


def test_what_is_not_given_is_listed_and_stays_out_of_the_sums() -> None:
    bare = Rates(system=machine("cs-2", 23e3), devices=1, units=1, energy=EnergySpec())
    own = bare.bill(DAY, typical)
    assert own.energy_kwh == pytest.approx(23 * 24)
    assert own.carbon_kg is own.money is None
    assert bare.not_given == ("PUE (energy is before cooling)", "carbon intensity", "price of cs-2")
    assert RATES.not_given == ()
    assert replace(bare, system=machine("cs-2", None)).bill(DAY, typical).energy_kwh is None
    without = ENERGY.model_copy(update={"tariff": None})
    assert replace(RATES, price=BOUGHT, energy=without).not_given == ("tariff of electricity",)


def test_a_range_of_the_price_is_the_range_of_the_money() -> None:
    price = PriceSpec.model_validate({"device_hour": {"low": 4.0, "typical": 5.0, "high": 8.0}})
    own = replace(RATES, price=price).bill(DAY, Draws(seed=0, count=5000))
    assert own.money is not None
    assert interval(own.money) == pytest.approx((384 * 4.0, 384 * 8.0), rel=0.01)


@pytest.mark.parametrize(
    ("idle_w", "busy", "mean_kw"),
    [(2000.0, 0.75, 0.25 * 2.0 + 0.75 * 6.5), (None, 0.75, 6.5), (9000.0, 0.5, 6.5)],
    ids=["waiting takes idle power", "unknown: as computing", "never above computing"],
)
def test_a_step_that_waits_takes_idle_power_for_that_share(
    idle_w: float | None, busy: float, mean_kw: float
) -> None:
    waiting = replace(RATES, system=machine("dgx", 6500.0, idle_w), busy=busy).bill(DAY, typical)
    assert waiting.energy_kwh == pytest.approx(2 * mean_kw * 24 * 1.2)
