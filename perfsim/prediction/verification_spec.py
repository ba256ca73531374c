"""Settings of correctness sampling, in the YAML of a study or an option."""

from __future__ import annotations

from typing import Annotated, Literal

from perfsim.spec import Spec
from perfsim.units import number

Verify = Literal["off", "sample", "full"]


MOST_SAMPLES = 10_000
"""More than the classes of GEMM in any step."""


class SamplingSpec(Spec):
    """How many GEMMs of a step are computed to check their partition."""

    mode: Verify = "sample"
    """off; sample: `tasks` classes of GEMM, drawn in proportion to FLOPs; full: every class."""
    tasks: Annotated[int, *number(0, MOST_SAMPLES)] = 12
    seed: Annotated[int, *number(0, 2**32 - 1)] = 0
