"""How far a computed product may be from the exact one.

For every order of summation |y - x w| <= gamma_k |x| |w| with gamma_n = n u / (1 - n u): N. J. Higham,
Accuracy and Stability of Numerical Algorithms, 2nd edition (2002), lemma 3.1 and section 3.5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating[Any]]


def gamma(n: int, unit_roundoff: float) -> float:
    """Higham's gamma_n = n u / (1 - n u); infinite where n u >= 1 and nothing can be said."""
    product = n * unit_roundoff
    return product / (1 - product) if product < 1 else float("inf")


def error_bound(k: int, dtype: np.dtype[Any]) -> float:
    """What |y - x w| / (|x| |w|) may be when y has precision `dtype` and x w was formed in float64.

    u is half the spacing of numbers at 1. `|x| |w|` itself is computed in `dtype`, which can make
    it too small by a factor of 1 - gamma_k.
    """
    own = gamma(k, float(np.finfo(dtype).eps) / 2)
    return (own + gamma(k, float(np.finfo(np.float64).eps) / 2)) * (1 + own)


def relative_error(y: Matrix, reference: Matrix, size: Matrix) -> float:
    """Largest |y - reference| / size; infinite for a wrong shape or a number that is none."""
    if y.shape != reference.shape:
        return float("inf")
    difference = np.abs(y.astype(np.float64) - reference)
    if not np.isfinite(difference).all():
        return float("inf")
    return float(np.max(difference / np.maximum(size, np.finfo(np.float32).tiny)))
