"""Inputs with 90 % ranges, and where in its range each of them is: typical, at an end, or a seeded draw."""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Self

import numpy as np

from perfsim.base.arrays import Floats

Values = Floats | float
Z_90 = NormalDist().inv_cdf(0.95)
"""Half-width of a 90 % range in standard deviations."""
Place = Callable[[str], Values]
"""By the name of an input: standard deviations from its typical value. Inputs of one name move together."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A typical value with its 90 % interval."""

    typical: float
    """Value with every input as given."""
    low: float
    """5th percentile."""
    high: float
    """95th percentile."""

    @classmethod
    def of(cls, values: Values, typical: float) -> Self:
        """A typical value with the interval of drawn ones."""
        low, high = np.quantile(values, [0.05, 0.95])
        return cls(typical, float(low), float(high))

    @property
    def band(self) -> tuple[float, float]:
        """The 90 % interval."""
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class Uncertain:
    """An input of at least 0 with its 90 % range; normal in the log, each side with its own width."""

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

    def at(self, place: Values) -> Floats:
        """The values so many standard deviations from the typical one."""
        z = np.asarray(place, dtype=np.float64) / Z_90
        if self.low > 0:
            down = math.log(self.typical / self.low)
            up = math.log(self.high / self.typical)
            return np.asarray(self.typical * np.exp(z * np.where(z < 0, down, up)))
        # Where the low end is 0 it is normal in the value itself, and never below 0.
        down = self.typical - self.low
        up = self.high - self.typical
        return np.maximum(self.typical + z * np.where(z < 0, down, up), 0.0)


def typical(_: str) -> float:
    """Every input at its typical value."""
    return 0.0


def one_at(name: str, place: Values) -> Place:
    """One input at a place, all others typical."""
    return lambda other: place if other == name else 0.0


@dataclass(frozen=True, slots=True)
class Draws:
    """Seeded places of every input, by name: equal names are the same draws in every process."""

    seed: int
    count: int

    def __call__(self, name: str) -> Floats:
        """The places of an input, shape [count]."""
        # Each input has the same quantiles in an order of its own (a Latin hypercube), so that the range of a
        # single input is met to the digit.
        order = np.random.default_rng([self.seed, zlib.crc32(name.encode())]).permutation(self.count)
        return _quantiles(self.count)[order]


@cache
def _quantiles(count: int) -> Floats:
    return np.array([NormalDist().inv_cdf((number + 0.5) / count) for number in range(count)])
