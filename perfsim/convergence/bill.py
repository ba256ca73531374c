"""Prices and energy in a study's YAML: what a machine costs, and what electricity costs and emits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from perfsim.base.spec import Spec
from perfsim.base.units import DAY_S, number
from perfsim.convergence.uncertain import FloatArray, Place, Uncertain
from perfsim.specs.hardware import SystemSpec
from perfsim.specs.wall_clock import NumberRange

# What a run takes besides time: device-hours, energy, carbon and money.
#
#     device-hours = devices x wall
#     energy       = units x (idle + (power - idle) x busy) x wall x PUE    (units: nodes, or systems)
#     carbon       = energy x intensity
#     money        = device-hours x price                  (rented: the price includes electricity)
#                  = units x purchase x wall / (life x utilisation) + energy x tariff         (bought)
#
# What is not given stays away from the sums and is listed.

HOUR_S = 3600.0
YEAR_S = 365.25 * DAY_S
JOULES_A_KWH = 3.6e6


@dataclass(frozen=True, kw_only=True)
class Bought:
    """A unit that is bought: a node, or a wafer-scale system with its share of servers."""

    price: Uncertain
    years: Uncertain
    utilisation: Uncertain
    """Share of its life in which it works."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a machine takes for each hour; None where an input is not given."""

    system: str
    devices: int
    units: int
    power_w: Uncertain | None = None
    """Of one unit that computes, before cooling."""
    idle_w: float | None = None
    """Of one unit whose devices wait; None: as one that computes."""
    busy: float = 1.0
    """Share of a step in which devices compute, neither in a bubble nor in exposed communication."""
    pue: Uncertain | None = None
    """Energy of the building over that of its machines."""
    kg_a_kwh: Uncertain | None = None
    tariff: Uncertain | None = None
    """Money a kWh."""
    device_hour: Uncertain | None = None
    """Rent of one device for an hour, with its electricity."""
    bought: Bought | None = None

    @property
    def inputs(self) -> list[Uncertain]:
        """Those that are given."""
        given = [self.power_w, self.pue, self.kg_a_kwh, self.tariff, self.device_hour]
        if self.bought is not None:
            given += [self.bought.price, self.bought.years, self.bought.utilisation]
        return [entry for entry in given if entry is not None]

    @property
    def not_given(self) -> tuple[str, ...]:
        """Inputs without which the bill has gaps."""
        wanted = {
            f"power of {self.system}": self.power_w,
            "PUE (energy is before cooling)": self.pue,
            "carbon intensity": self.kg_a_kwh,
            f"price of {self.system}": self.device_hour or self.bought,
            "tariff of electricity": self.tariff if self.bought is not None else self,
        }
        return tuple(name for name, entry in wanted.items() if entry is None)


@dataclass(frozen=True)
class Bill:
    """What a run takes; None where an input is not given."""

    device_hours: FloatArray
    energy_kwh: FloatArray | None
    carbon_kg: FloatArray | None
    money: FloatArray | None


def bill(wall_s: FloatArray, rates: Rates, place: Place) -> Bill:
    """The bill of runs of so many seconds, with the inputs at their places."""

    def at(entry: Uncertain) -> FloatArray:
        return entry.at(place(entry.name))

    hours = wall_s / HOUR_S
    energy_kwh = carbon_kg = money = None
    if rates.power_w is not None:
        computing_w = at(rates.power_w)
        idle_w = computing_w if rates.idle_w is None else np.minimum(rates.idle_w, computing_w)
        power_w = idle_w + (computing_w - idle_w) * rates.busy
        energy_kwh = rates.units * power_w * wall_s / JOULES_A_KWH
        energy_kwh = energy_kwh if rates.pue is None else energy_kwh * at(rates.pue)
    if energy_kwh is not None and rates.kg_a_kwh is not None:
        carbon_kg = energy_kwh * at(rates.kg_a_kwh)
    if rates.device_hour is not None:
        money = hours * rates.devices * at(rates.device_hour)
    elif rates.bought is not None:
        used_s = at(rates.bought.years) * YEAR_S * at(rates.bought.utilisation)
        money = rates.units * at(rates.bought.price) * wall_s / used_s
        if energy_kwh is not None and rates.tariff is not None:
            money = money + energy_kwh * at(rates.tariff)
    return Bill(hours * rates.devices, energy_kwh, carbon_kg, money)


Number = Annotated[float, *number(0, 1e12)]
GIVEN = "given by the study"
NOT_GIVEN = "not given"


class AmountRange(NumberRange):
    """An amount with its 90 % range."""

    low: Number
    typical: Number
    high: Number


Amount = Number | AmountRange
"""A number, or its range {low, typical, high}."""


class PriceSpec(Spec):
    """The price of a machine: rent for each device and hour, or purchase of a node or wafer-scale system."""

    device_hour: Amount | None = None
    """Rent of one device for an hour, electricity included."""
    purchase: Amount | None = None
    """Of one node, or of one wafer-scale system with its share of servers."""
    years: Amount | None = None
    """For how long a bought unit is used."""
    utilisation: Amount | None = None
    """Share of that time in which it works, 0 to 1."""
    source: str = GIVEN

    @model_validator(mode="after")
    def _is_one_price(self) -> Self:
        if (self.device_hour is None) == (self.purchase is None):
            raise ValueError("write device_hour (rent) or purchase, one of them")
        bought = (self.years, self.utilisation)
        if self.purchase is not None and None in bought:
            raise ValueError("purchase: write years and utilisation as well")
        if self.device_hour is not None and bought != (None, None):
            raise ValueError("years and utilisation belong to purchase, not to device_hour")
        if self.purchase is not None and min(_ends(self.years)) * min(_ends(self.utilisation)) <= 0:
            raise ValueError("years and utilisation must be above 0")
        if max(_ends(self.utilisation)) > 1:
            raise ValueError("utilisation is a share of the time, at most 1")
        return self

    def text(self, currency: str) -> str:
        """`5.12 USD a device-hour`."""
        if self.device_hour is not None:
            return f"{amount_text(self.device_hour)} {currency} a device-hour"
        bought = [amount_text(value or 0.0) for value in (self.purchase, self.years, self.utilisation)]
        return f"{bought[0]} {currency} a unit, over {bought[1]} years at {bought[2]} of the time"


class EnergySpec(Spec):
    """Cooling, tariff and carbon of electricity."""

    pue: Annotated[float, *number(1, 10)] | AmountRange | None = None
    """Energy of the building over that of its machines."""
    tariff: Amount | None = None
    """Money a kWh."""
    carbon: Amount | None = None
    """kg of CO2 equivalents a kWh."""
    source: str = GIVEN

    @model_validator(mode="after")
    def _cooling_takes_energy(self) -> Self:
        if self.pue is not None and min(_ends(self.pue)) < 1:
            raise ValueError("pue: energy of the building over that of its machines, at least 1")
        return self


Currency = Annotated[str, Field(min_length=1, max_length=12)]


def rates_of(
    system: SystemSpec,
    devices: int,
    units: int,
    price: PriceSpec | None,
    energy: EnergySpec,
    busy: float = 1.0,
) -> Rates:
    """What a machine takes for each hour; equal inputs of several machines have equal names.

    `busy` is the share of a step in which devices compute.
    """
    bought = device_hour = None
    about = system.name
    if price is not None and price.purchase is not None:
        bought = Bought(
            price=_range(f"purchase price of {about}", price.purchase),
            years=_range(f"years of use of {about}", price.years),
            utilisation=_range(f"utilisation of {about}", price.utilisation),
        )
    elif price is not None:
        device_hour = _range(f"price of a device-hour of {about}", price.device_hour)
    power = system.power
    power_w = None
    if power is not None:
        power_w = Uncertain(f"power of {about}", power.low, power.typical, power.high, "W")
    return Rates(
        system=about,
        devices=devices,
        units=units,
        power_w=power_w,
        idle_w=None if power is None else power.idle,
        busy=busy,
        pue=None if energy.pue is None else _range("PUE", energy.pue),
        kg_a_kwh=None if energy.carbon is None else _range("carbon intensity", energy.carbon, "kg a kWh"),
        tariff=None if energy.tariff is None else _range("tariff of electricity", energy.tariff, "a kWh"),
        device_hour=device_hour,
        bought=bought,
    )


def _ends(amount: Amount | None) -> tuple[float, float, float]:
    if isinstance(amount, AmountRange):
        return amount.low, amount.typical, amount.high
    return (float(amount or 0.0),) * 3


def _range(name: str, amount: Amount | None, unit: str = "") -> Uncertain:
    return Uncertain(name, *_ends(amount), unit)


def amount_text(amount: Amount) -> str:
    """`5.12`, or `5 (4 to 6)`."""
    low, typical, high = _ends(amount)
    return f"{typical:,.6g} ({low:,.6g} to {high:,.6g})" if low < high else f"{typical:,.6g}"
