"""Constants that were fitted, kept apart from the datasheet: one file, one fit, one record.

Every class carries a `fit` record: the command that made it, the table it was made from, how many
points, and the residual. `perfsim.costs` and `perfsim.collectives` read these numbers and nothing
else that is empirical.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(gt=0, le=1)]


class FitRecord(BaseModel):
    """How a set of constants came to be."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    command: str
    table: str
    """Source id of the measurements."""
    points: int
    median_ape: float
    p90_ape: float
    standard_errors: dict[str, float] = Field(default_factory=dict)
    """Relative standard error by constant, where the fit gives one."""
    note: str = ""


class Calibration(BaseModel):
    """What every calibration file carries."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    description: str = ""
    sources: dict[str, str] = Field(default_factory=dict)
    assumed: dict[str, str] = Field(default_factory=dict)
    fit: dict[str, FitRecord] = Field(default_factory=dict)
    """One record per group of constants."""
