"""Prices and energy as a study writes them."""

import pytest
from pydantic import ValidationError

from perfsim.catalog import default_catalog
from perfsim.convergence.bill import Rates
from perfsim.specs.prices import Prices, PriceSpec


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pue": 0.9}, "pue"),
        ({"pue": {"low": 0.9, "typical": 1.1, "high": 1.2}}, "pue"),
        ({}, "device_hour .rent. or purchase"),
        ({"device_hour": 1.0, "purchase": 1.0}, "one of them"),
        ({"purchase": 1e5}, "write years and utilisation"),
        ({"purchase": 1e5, "years": 4, "utilisation": 0}, "above 0"),
        ({"purchase": 1e5, "years": 4, "utilisation": 80}, "at most 1"),
        ({"device_hour": 5, "years": 4}, "belong to purchase"),
        ({"device_hour": {"low": 3, "typical": 2, "high": 4}}, "in this order"),
        ({"device_hour": "5 USD"}, "device_hour"),
        ({"device_our": 5}, "device_our"),
    ],
)
def test_what_is_no_price_or_no_energy_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        (Prices if "pue" in values else PriceSpec).model_validate(values)


def test_prices_are_written_with_their_unit() -> None:
    rent = PriceSpec.model_validate({"device_hour": {"low": 4, "typical": 5.12, "high": 6}})
    assert rent.text("EUR") == "5.12 (4 to 6) EUR a device-hour"
    bought = PriceSpec.model_validate({"purchase": 2_500_000, "years": 4, "utilisation": 0.8})
    assert bought.text("USD") == "2,500,000 USD a device, over 4 years at 0.8 of the time"


def test_power_is_of_a_node_or_system_and_equal_inputs_of_two_machines_have_one_name() -> None:
    electricity = {"pue": 1.2, "tariff": 0.1, "carbon": 0.4}
    prices = Prices.model_validate({"machines": {"cs-2": {"device_hour": 5.0}}, **electricity})
    names = []
    for system, devices, units in (("dgx-a100-80gb", 128, 16), ("cs-2", 16, 16)):
        machine = default_catalog().system(system)
        rates = Rates(system=machine, devices=devices, units=units, prices=prices)
        names.append({entry.name for entry in rates.given.values()})
    assert names[0] & names[1] == {"PUE", "tariff of electricity", "carbon intensity"}
    rates = Rates(system=default_catalog().system("cs-2"), devices=16, units=16, prices=Prices())
    power = rates.given["power"]
    assert (power.low, power.typical, power.high) == (17.5e3, 23e3, 31.2e3)
