"""Device-hours, energy, carbon and money of a run, reckoned by hand, and the ranges that they rest on."""

import math
from dataclasses import replace

import numpy as np
import pytest

from perfsim.base.units import YEAR_S
from perfsim.convergence.bill import HOUR_S, Rates
from perfsim.convergence.uncertain import Z_90, Draws, Spread, Uncertain, one_at, typical
from perfsim.specs.hardware import PowerSpec, SystemSpec
from perfsim.specs.prices import Prices, PriceSpec


def machine(name: str, power_w: float | None, idle_w: float | None = None) -> SystemSpec:
    power = None
    if power_w is not None:
        power = PowerSpec.model_construct(low=power_w, typical=power_w, high=power_w, idle=idle_w)
    return SystemSpec.model_construct(name=name, power=power)


RENTED = PriceSpec.model_validate({"device_hour": 5.0})
BOUGHT = PriceSpec.model_validate({"purchase": 25_000.0, "years": 4.0, "utilisation": 0.5})
ENERGY = Prices.model_validate({"pue": 1.2, "carbon": 0.4, "tariff": 0.1})


def priced(price: PriceSpec, **changes: None) -> Prices:
    """Prices with one of a machine."""
    return ENERGY.model_copy(update={"machines": {"dgx": price}, **changes})


RATES = Rates(system=machine("dgx", 6500.0), devices=16, units=2, prices=priced(RENTED))
DAY = np.asarray(24 * HOUR_S)
ENERGY_KWH = 2 * 6.5 * 24 * 1.2


def test_a_day_of_two_nodes_rented_and_bought_by_hand() -> None:
    """Rent includes electricity; bought, a day is its share of the life."""
    rented, bought = (replace(RATES, prices=priced(price)).bill(DAY, typical) for price in (RENTED, BOUGHT))
    assert rented.device_hours == 384
    assert rented.energy_kwh == pytest.approx(ENERGY_KWH)
    assert rented.carbon_kg == pytest.approx(0.4 * ENERGY_KWH)
    assert rented.money == pytest.approx(384 * 5.0)
    share = 24 * HOUR_S / (4 * YEAR_S * 0.5)
    assert bought.money == pytest.approx(16 * 25_000 * share + 0.1 * ENERGY_KWH)


def test_what_is_not_given_is_listed_and_stays_out_of_the_sums() -> None:
    bare = Rates(system=machine("cs-2", 23e3), devices=1, units=1, prices=Prices())
    bill = bare.bill(DAY, typical)
    assert bill.energy_kwh == pytest.approx(23 * 24)
    assert bill.carbon_kg is bill.money is None
    assert bare.not_given == ("PUE (energy is before cooling)", "carbon intensity", "price of cs-2")
    assert RATES.not_given == ()
    assert replace(bare, system=machine("cs-2", None)).bill(DAY, typical).energy_kwh is None
    assert replace(RATES, prices=priced(BOUGHT, tariff=None)).not_given == ("tariff of electricity",)


def test_a_range_of_the_price_is_the_range_of_the_money() -> None:
    price = PriceSpec.model_validate({"device_hour": {"low": 4.0, "typical": 5.0, "high": 8.0}})
    money = replace(RATES, prices=priced(price)).bill(DAY, Draws(seed=0, count=5000)).money
    assert Spread.of(money, 0.0).band == pytest.approx((384 * 4.0, 384 * 8.0), rel=0.01)


@pytest.mark.parametrize(
    ("idle_w", "busy", "mean_kw"),
    [(2000.0, 0.75, 0.25 * 2.0 + 0.75 * 6.5), (None, 0.75, 6.5), (9000.0, 0.5, 6.5)],
    ids=["waiting takes idle power", "unknown: as computing", "never above computing"],
)
def test_a_step_takes_idle_power_while_it_waits(idle_w: float | None, busy: float, mean_kw: float) -> None:
    waiting = replace(RATES, system=machine("dgx", 6500.0, idle_w), busy=busy).bill(DAY, typical)
    assert waiting.energy_kwh == pytest.approx(2 * mean_kw * 24 * 1.2)


@pytest.mark.parametrize("ends", [(0.5, 1.0, 4.0), (0.0, 10.0, 30.0), (2.0, 2.0, 2.0)])
def test_ends_and_middle_are_met_and_drawn(ends: tuple[float, float, float]) -> None:
    entry = Uncertain("x", *ends, "")
    assert entry.at(np.array([-Z_90, 0.0, Z_90])) == pytest.approx(ends)
    assert entry.at(-9.0) >= 0.0
    low, high = Spread.of(entry.at(Draws(seed=1, count=20_000)("x")), 0.0).band
    assert (low, high) == pytest.approx((ends[0], ends[2]), rel=0.01, abs=0.01)


def test_equal_names_are_the_same_draws_and_others_independent_and_combine_in_quadrature() -> None:
    draws = Draws(seed=0, count=20_000)
    assert np.array_equal(draws("a"), Draws(seed=0, count=20_000)("a"))
    assert abs(np.corrcoef(draws("a"), draws("b"))[0, 1]) < 0.03
    assert not np.array_equal(draws("a"), Draws(seed=6, count=20_000)("a"))
    factors = (Uncertain("a", 1 / 1.3, 1.0, 1.3, ""), Uncertain("b", 1 / 1.5, 1.0, 1.5, ""))
    product = math.prod(factor.at(draws(factor.name)) for factor in factors)
    width = math.exp(math.hypot(math.log(1.3), math.log(1.5)))
    assert Spread.of(product, 0.0).band == pytest.approx((1 / width, width), rel=0.01)


def test_one_input_is_moved_and_the_others_stay() -> None:
    moved = one_at("a", 1.0)
    assert (moved("a"), moved("b"), typical("a")) == (1.0, 0.0, 0.0)
