"""Answers a comparison by its subject."""

from __future__ import annotations

from perfsim.errors import InputError
from perfsim.studies.comparisons.equations import compare_equations
from perfsim.studies.comparisons.losses import compare_losses
from perfsim.studies.comparisons.spec import Comparison, ComparisonSpec
from perfsim.studies.comparisons.speeds import compare_speeds


def compare(spec: ComparisonSpec) -> Comparison:
    """The rows and sentences of a comparison; raises what predictions and laws of its subject raise."""
    if spec.losses is not None:
        return compare_losses(spec, spec.losses)
    if spec.speeds is not None:
        return compare_speeds(spec, spec.speeds)
    if spec.equations is not None:
        return compare_equations(spec, spec.equations)
    raise InputError(f"{spec.name} compares nothing")
