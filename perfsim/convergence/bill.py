"""What a run takes besides time: device-hours, energy, carbon and money.

    device-hours = devices x wall
    energy       = units x (idle + (power - idle) x busy) x wall x PUE    (units: nodes, or systems)
    carbon       = energy x intensity
    money        = device-hours x price                  (rented: the price includes electricity)
                 = units x purchase x wall / (life x utilisation) + energy x tariff         (bought)

What is not given stays away from the sums and is listed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfsim.convergence.uncertain import FloatArray, Place, Uncertain
from perfsim.units import DAY_S

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
