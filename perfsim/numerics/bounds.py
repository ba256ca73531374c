"""Forward error bounds of a computed matrix product.

For every order of summation |y - x w| <= gamma_k |x| |w| with gamma_n = n u / (1 - n u): N. J. Higham,
Accuracy and Stability of Numerical Algorithms, 2nd edition (2002), lemma 3.1 and section 3.5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating[Any]]


def gamma(n: int, unit_roundoff: float) -> float:
    """Higham's gamma_n = n u / (1 - n u); infinite for n u >= 1, where no bound holds."""
    product = n * unit_roundoff
    return product / (1 - product) if product < 1 else float("inf")


def error_bound(k: int, dtype: np.dtype[Any]) -> float:
    """Bound on |y - x w| / (|x| |w|) if y has precision `dtype` and x w was computed in float64.

    u is half the spacing of numbers at 1. `|x| |w|` itself is computed in `dtype`, so it may be too small
    by a factor of 1 - gamma_k.
    """
    # The float64 reference has an error too.
    own = gamma(k, float(np.finfo(dtype).eps) / 2)
    return (own + gamma(k, float(np.finfo(np.float64).eps) / 2)) * (1 + own)


def relative_error(y: Matrix, reference: Matrix, size: Matrix) -> float:
    """Largest |y - reference| / size; infinite for a wrong shape or a value that is not finite."""
    if y.shape != reference.shape:
        return float("inf")
    difference = np.abs(y.astype(np.float64) - reference)
    if not np.isfinite(difference).all():
        return float("inf")
    return float(np.max(difference / np.maximum(size, np.finfo(np.float32).tiny)))
