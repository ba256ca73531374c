"""Dispatch of items to several members: the copies that travel, against random choices; how long it takes."""

from __future__ import annotations

import numpy as np
import pytest

from perfsim.catalog import default_catalog
from perfsim.network import Group
from perfsim.network.algorithms import copies
from perfsim.network.collectives import CollectiveModel


@pytest.mark.parametrize(("places", "chosen"), [(8, 2), (16, 8), (4, 8)])
def test_places_reached_are_those_that_random_choices_reach(places: int, chosen: int) -> None:
    drawn = np.random.default_rng(1).integers(places, size=(20_000, chosen))
    mean = np.mean([len(set(row)) for row in drawn.tolist()])
    assert chosen * copies(Group.inside_node(places), chosen).inside == pytest.approx(float(mean), rel=0.01)


def test_one_copy_crosses_to_each_other_node_that_has_some_of_the_members() -> None:
    share = copies(Group.even(8, 4), 8)
    assert share.across * 8 == pytest.approx(3 * (1 - 0.75**8))
    assert share.inside * 8 == pytest.approx(32 * (1 - (31 / 32) ** 8))


def test_a_single_copy_of_every_item_is_an_all_to_all_without_its_slowdown() -> None:
    node = default_catalog().system("dgx-h100").node
    model = CollectiveModel.of_node(node)
    group = Group.inside_node(8)
    assert model.dispatch_s(1e8, group, 1) == pytest.approx(model.time_s("all_to_all", 1e8, group))
    several = Group.even(8, 4)
    assert model.dispatch_s(1e8, several, 1) < model.time_s("all_to_all", 1e8, several)
    assert model.dispatch_s(1e8, several, 8) < 0.6 * model.dispatch_s(1e8, several, 1)
    assert float(model.dispatch_s(0.0, several, 8)) == 0.0
