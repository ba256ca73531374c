"""Settings of correctness sampling, in the YAML of a study or an option."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from perfsim.spec import Spec

Verify = Literal["off", "sample", "full"]


MOST_SAMPLES = 10_000
"""More than the classes of GEMM in any step."""


class SamplingSpec(Spec):
    """How many GEMMs of a step are computed to check their partition."""

    mode: Verify = "sample"
    """off; sample: `tasks` classes of GEMM, drawn in proportion to FLOPs; full: every class."""
    tasks: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 12
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
