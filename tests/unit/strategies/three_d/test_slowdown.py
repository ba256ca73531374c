"""What compute loses beside communication, in columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsim.engine.tables import excess
from perfsim.strategies.three_d.closed_form import _lost

share = st.floats(0.0, 5.0)
bound = st.floats(0.0, 1.0)


@given(st.tuples(share, share), st.tuples(bound, bound))
def test_a_hidden_second_costs_what_the_engine_makes_of_it_and_less_than_a_second(
    taken: tuple[float, float], limits: tuple[float, float]
) -> None:
    """Also where communications of a machine without a calibration would take more than there is."""
    longer = sum(part * excess(out) for part, out in zip(limits, taken, strict=True))
    (lost,) = _lost(np.array([taken]), np.array([limits]))[0]
    assert lost == pytest.approx(longer / (1 + longer), rel=1e-12)
    assert 0.0 <= lost < 1.0
