"""The decision that a study answers, as plain values: when, how much, how sure, and what would change it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """A typical value with its 90 % interval."""

    typical: float
    """Value with every input as given."""
    low: float
    """5th percentile."""
    high: float
    """95th percentile."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a candidate takes to the target; None where an input is not given."""

    label: str
    """The candidate."""
    steps_s: Spread
    """Time of healthy steps."""
    wall_s: Spread
    """Time on the wall: with what `basis` says."""
    basis: str
    """What the time on the wall holds besides healthy steps."""
    device_hours: Spread
    energy_kwh: Spread | None
    carbon_kg: Spread | None
    """CO2 of the energy."""
    money: Spread | None
    """Price of the run."""
    first: float
    """Probability that no other candidate is at the target earlier."""
    cheapest: float | None
    """Probability that no other candidate costs less; None unless all have a price."""
    not_given: tuple[str, ...]
    """Inputs without which a figure is None."""


@dataclass(frozen=True, slots=True)
class Lever:
    """An input, the ratio of times (or of money) over its 90 % range, and where the order of two flips."""

    name: str
    """The input."""
    low: float
    """Lower end of its 90 % range."""
    typical: float
    """Its value."""
    high: float
    """Upper end of its 90 % range."""
    unit: str
    """Unit of the three."""
    ratio_at_low: float
    """The ratio with the input at its lower end."""
    ratio_at_high: float
    """The ratio with the input at its upper end."""
    flips_at: float | None
    """The nearest value at which both take as much; None within three standard deviations."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The price at which two machines cost the same, for the work of the study."""

    label: str
    """The candidate."""
    rival: str
    """The one that it is compared with."""
    device_hours_ratio: Spread
    """Device-hours of the rival for one of the candidate: what a device-hour of it may cost, in theirs."""
    price: Spread | None
    """The same in money a device-hour, where the rival's price is given."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Times, money and energy of all candidates from one set of seeded draws."""

    seed: int
    """Seed of the draws."""
    draws: int
    """Number of draws."""
    currency: str
    """Currency of all money."""
    sentence: str
    """The decision in words."""
    outcomes: tuple[Outcome, ...]
    first: str
    """Label of the candidate that is first on the wall."""
    rival: str
    """The one that it is compared with; empty if there is none."""
    ratio: Spread | None
    """Time on the wall of the rival over that of the first."""
    sure: float
    """Probability that the first is earlier than the rival."""
    levers: tuple[Lever, ...]
    """The inputs that move the ratio, most first."""
    break_even: tuple[BreakEven, ...]
    money_ratio: Spread | None = None
    """Money of the rival over that of the first; None unless both have a price."""
    money_levers: tuple[Lever, ...] = ()
    """The inputs that move the ratio of money, most first."""
