"""What machines and electricity cost, and what electricity emits: `Prices`, in a study or a file."""

from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from perfsim.base.errors import Problem, UnknownNameError
from perfsim.base.spec import CatalogSpec, Date, Name, Spec
from perfsim.base.units import number
from perfsim.specs.wall_clock import Range

Number = Annotated[float, *number(0, 1e12)]
Currency = Annotated[str, Field(min_length=1, max_length=12)]
GIVEN = "given by the study"
NOT_GIVEN = "not given"
PRICE_OF = "prices.machines."
"""What the path of a machine's price begins with; the name of its system follows."""


class _AmountRange(Range[Number]):
    """An amount with its 90 % range."""


Amount = Number | _AmountRange
"""A number, or its range {low, typical, high}."""


class PriceSpec(Spec):
    """The price of a machine for each device: rent for an hour, or purchase."""

    device_hour: Amount | None = None
    """Rent of one device for an hour, electricity included."""
    purchase: Amount | None = None
    """Of one device with its share of node, network and servers."""
    years: Amount | None = None
    """For how long a bought device is used."""
    utilisation: Amount | None = None
    """Share of that time in which it works, 0 to 1."""
    source: str = GIVEN
    date: Date | None = None
    """When it was asked or paid."""

    @model_validator(mode="after")
    def _is_one_price(self) -> Self:
        if (self.device_hour is None) == (self.purchase is None):
            raise ValueError("write device_hour (rent) or purchase, one of them")
        bought = (self.years, self.utilisation)
        if self.purchase is not None and None in bought:
            raise ValueError("purchase: write years and utilisation as well")
        if self.device_hour is not None and bought != (None, None):
            raise ValueError("years and utilisation belong to purchase, not to device_hour")
        if self.purchase is not None and min(ends(self.years)) * min(ends(self.utilisation)) <= 0:
            raise ValueError("years and utilisation must be above 0")
        if max(ends(self.utilisation)) > 1:
            raise ValueError("utilisation is a share of the time, at most 1")
        return self

    def text(self, currency: str) -> str:
        """`5.12 USD a device-hour`."""
        if self.device_hour is not None:
            return f"{amount_text(self.device_hour)} {currency} a device-hour"
        price, years, share = map(amount_text, (self.purchase, self.years, self.utilisation))
        return f"{price} {currency} a device, over {years} years at {share} of the time"


class Prices(CatalogSpec):
    """Prices of machines, and what electricity costs and emits; nothing is counted that is not given."""

    name: Name = "prices"
    currency: Currency = "USD"
    """Of all prices."""
    machines: dict[str, PriceSpec] = Field(default_factory=dict)
    """By the name of a system; those that are not asked about do no harm."""
    pue: Annotated[float, *number(1, 10)] | _AmountRange | None = None
    """Energy of the building over the energy of its machines."""
    tariff: Amount | None = None
    """Money a kWh."""
    carbon: Amount | None = None
    """kg of CO2 equivalents a kWh."""
    source: str = GIVEN
    """Of PUE, tariff and carbon."""

    @model_validator(mode="after")
    def _cooling_takes_energy(self) -> Self:
        if self.pue is not None and min(ends(self.pue)) < 1:
            raise ValueError("pue: energy of the building over the energy of its machines, at least 1")
        return self

    def unknown(self, systems: Iterable[str]) -> dict[str, Problem]:
        """What is wrong with the price of each machine that is none of these systems, by its name."""
        known = dict.fromkeys(systems)
        wrong = sorted(self.machines.keys() - known.keys())
        return {name: UnknownNameError("system", name, known).problems[0] for name in wrong}


def ends(amount: float | Range[Any] | None) -> tuple[float, float, float]:
    """Low, typical and high; 0 where nothing is given."""
    if isinstance(amount, Range):
        return amount.low, amount.typical, amount.high
    return (float(amount or 0.0),) * 3


def amount_text(amount: Amount | None) -> str:
    """`5.12`, or `5 (4 to 6)`."""
    low, typical, high = ends(amount)
    return f"{typical:,.9g} ({low:,.9g} to {high:,.9g})" if low < high else f"{typical:,.9g}"
