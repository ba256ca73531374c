"""Which links can bind: dropping the others changes nothing but the work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsim.engine import Flow
from perfsim.machines.placement import binding_links, flows_on
from perfsim.testing.independent import max_min_rates, reduced


def test_a_link_that_another_of_no_more_capacity_stands_for_is_dropped() -> None:
    assert binding_links([{0: 1, 1: 1}, {1: 1}], {0: 2.0, 1: 2.0}) == [1]
    assert binding_links([{0: 1, 1: 1}, {1: 1}], {0: 1.0, 1: 2.0}) == [0, 1], "the narrow one binds too"


def test_of_links_that_are_the_same_the_first_is_kept() -> None:
    assert binding_links([{7: 1, 3: 1, 5: 1}], {3: 1.0, 5: 1.0, 7: 1.0}) == [3]


def test_a_link_crossed_twice_stands_for_one_of_half_the_capacity() -> None:
    assert binding_links([{0: 1, 1: 2}], {0: 1.5, 1: 2.0}) == [1]
    flows, capacities = flows_on([{0: 6}, {0: 4}], [1.0, 1.0], {0: 10.0})
    assert [flow.route for flow in flows] == [(0, 0, 0), (0, 0)]
    assert capacities.tolist() == [5.0]


def test_a_link_without_capacity_is_kept() -> None:
    assert binding_links([{0: 1, 1: 1}], {0: 0.0, 1: 2.0}) == [0]


@pytest.mark.parametrize("wafers", [1, 16, 192, 2048])
def test_a_tree_is_one_link_each_way_however_many_leaves_it_has(wafers: int) -> None:
    down = range(0, 2 * wafers, 2)
    up = range(1, 2 * wafers, 2)
    flows, capacities = reduced([Flow(tuple(down), 1.0), Flow(tuple(up), 1.0)], [1.0] * 2 * wafers)
    assert [flow.route for flow in flows] == [(0,), (1,)]
    assert capacities.tolist() == [1.0, 1.0]


links = st.integers(0, 5)
flows = st.builds(
    Flow,
    st.lists(links, max_size=6).map(tuple),
    st.integers(1, 12).map(lambda n: n / 4),
    st.integers(1, 3),
)


@given(st.lists(flows, min_size=1, max_size=6), st.lists(st.integers(1, 24), min_size=6, max_size=6))
def test_rates_on_the_links_that_are_left_are_those_on_all(asked: list[Flow], eighths: list[int]) -> None:
    capacities = [n / 8 for n in eighths]
    fewer, left = reduced(asked, capacities)
    assert len(left) <= len(capacities)
    caps = [flow.bytes_per_s for flow in asked]
    weights = [flow.weight for flow in asked]
    full = max_min_rates([flow.route for flow in asked], caps, capacities, weights)
    few = max_min_rates([flow.route for flow in fewer], caps, left, weights)
    np.testing.assert_allclose(few, full, rtol=1e-9)
