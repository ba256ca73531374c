"""Dispatch of items to several members: the copies that travel, against random choices; how long it takes."""

from __future__ import annotations

import numpy as np
import pytest

from perfsim.catalog import default_catalog
from perfsim.network import Group
from perfsim.network.collectives import CollectiveModel
from perfsim.specs.hardware import LinkSpec, NodeSpec

FAST = LinkSpec(name="fast", bandwidth=1e9, latency=0.0)
SLOW = LinkSpec(name="slow", bandwidth=1e8, latency=0.0)
N_BYTES = 1e12


def copies(group: Group, chosen: int) -> float:
    """Copies of an item that travel, from the time on the links that limit."""
    node = NodeSpec(devices=8, scale_up=FAST, nics=8, nic=SLOW)
    seconds = float(CollectiveModel.of_node(node).time_s("all_to_all", N_BYTES, group, chosen))
    if group.nodes > 1:
        return chosen * seconds * SLOW.bandwidth / N_BYTES
    return chosen * seconds * FAST.bandwidth / N_BYTES * group.size / (group.size - 1)


@pytest.mark.parametrize(("places", "chosen"), [(8, 2), (6, 8), (4, 8)])
def test_places_reached_are_those_that_random_choices_reach(places: int, chosen: int) -> None:
    drawn = np.random.default_rng(1).integers(places, size=(20_000, chosen))
    mean = np.mean([len(set(row)) for row in drawn.tolist()])
    assert copies(Group.inside_node(places), chosen) == pytest.approx(float(mean), rel=0.01)


def test_one_copy_crosses_to_each_other_node_that_has_some_of_the_members() -> None:
    assert copies(Group.even(8, 4), 8) == pytest.approx(3 * (1 - 0.75**8))


def test_copies_a_node_save_what_an_all_to_all_sends_to_it_again() -> None:
    model = CollectiveModel.of_node(default_catalog().system("dgx-h100").node)
    several = Group.even(8, 4)
    assert model.time_s("all_to_all", 1e8, several, 8) < 0.6 * model.time_s("all_to_all", 1e8, several)
    assert model.time_s("all_to_all", 0.0, several, 8) == 0.0
