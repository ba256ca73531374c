"""How much of a step's arithmetic is executed for real, as a study or an option says it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from perfsim.spec import Spec

Verify = Literal["off", "sample", "full"]


MOST_SAMPLES = 10_000
"""No step has more classes of GEMM than this."""


class SamplingSpec(Spec):
    """How much of the schedule's arithmetic is executed for real."""

    mode: Verify = "sample"
    """off; sample: `tasks` classes of GEMM drawn by their FLOPs; full: every class of the step."""
    tasks: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 12
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
