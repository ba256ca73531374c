"""What a run takes besides time: device-hours, energy, carbon and money.

    device-hours = devices x wall
    energy       = units x (idle + (power - idle) x busy) x wall x PUE    (units: filled nodes, or systems)
    carbon       = energy x intensity
    money        = device-hours x price                  (rented: the price includes electricity)
                 = devices x purchase x wall / (life x utilisation) + energy x tariff         (bought)

Inputs that are not given are left out of the sums and listed.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.base.units import YEAR_S
from perfsim.convergence.uncertain import Place, Uncertain
from perfsim.specs.hardware import SystemSpec
from perfsim.specs.prices import Prices, PriceSpec, ends

HOUR_S = 3600.0
JOULES_A_KWH = 3.6e6


@dataclass(frozen=True)
class Bill:
    """What a run takes; None where an input is not given."""

    device_hours: Floats
    energy_kwh: Floats | None
    carbon_kg: Floats | None
    money: Floats | None


@dataclass(frozen=True, kw_only=True)
class Rates:
    """A machine with what it costs."""

    system: SystemSpec
    devices: int
    units: float
    """Nodes, a part of one in proportion, or wafer-scale systems with their share of servers."""
    prices: Prices
    busy: float = 1.0
    """Share of a step in which devices compute, neither in a bubble nor in exposed communication."""

    @property
    def price(self) -> PriceSpec | None:
        return self.prices.machines.get(self.system.name)

    @cached_property
    def given(self) -> dict[str, Uncertain]:
        """The inputs that are given; equal inputs of several machines have equal names."""
        about = self.system.name
        price = self.price or PriceSpec.model_construct()
        amounts = {
            "power": (f"power of {about}", self.system.power, "W"),
            "pue": ("PUE", self.prices.pue, ""),
            "carbon": ("carbon intensity", self.prices.carbon, "kg a kWh"),
            "tariff": ("tariff of electricity", self.prices.tariff, "a kWh"),
            "device_hour": (f"price of a device-hour of {about}", price.device_hour, ""),
            "purchase": (f"purchase price of {about}", price.purchase, ""),
            "years": (f"years of use of {about}", price.years, ""),
            "utilisation": (f"utilisation of {about}", price.utilisation, ""),
        }
        return {
            field: Uncertain(name, *ends(amount), unit)
            for field, (name, amount, unit) in amounts.items()
            if amount is not None
        }

    @property
    def not_given(self) -> tuple[str, ...]:
        """Inputs without which the bill has gaps."""
        wanted = {
            "power": f"power of {self.system.name}",
            "pue": "PUE (energy is before cooling)",
            "carbon": "carbon intensity",
        }
        missing = [words for field, words in wanted.items() if field not in self.given]
        if self.price is None:
            missing.append(f"price of {self.system.name}")
        elif self.price.purchase is not None and "tariff" not in self.given:
            missing.append("tariff of electricity")
        return tuple(missing)

    def bill(self, wall_s: Floats, place: Place) -> Bill:
        """The bill of runs of so many seconds, with the inputs at their places."""
        at = {field: entry.at(place(entry.name)) for field, entry in self.given.items()}
        device_hours = wall_s / HOUR_S * self.devices
        energy_kwh = carbon_kg = money = None
        if self.system.power is not None:
            computing_w = at["power"]
            idle_w = self.system.power.idle
            waiting_w = computing_w if idle_w is None else np.minimum(idle_w, computing_w)
            power_w = waiting_w + (computing_w - waiting_w) * self.busy
            energy_kwh = self.units * power_w * wall_s / JOULES_A_KWH * at.get("pue", 1.0)
            carbon_kg = energy_kwh * at["carbon"] if "carbon" in at else None
        if "device_hour" in at:
            money = device_hours * at["device_hour"]
        elif "purchase" in at:
            used_s = at["years"] * YEAR_S * at["utilisation"]
            money = self.devices * at["purchase"] * wall_s / used_s
            if energy_kwh is not None and "tariff" in at:
                money = money + energy_kwh * at["tariff"]
        return Bill(device_hours, energy_kwh, carbon_kg, money)
