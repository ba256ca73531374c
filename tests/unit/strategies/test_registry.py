"""Finding a strategy by name."""

from types import SimpleNamespace

import pytest

from perfsim.base.errors import InputError
from perfsim.strategies import STRATEGIES, strategy, strategy_names
from perfsim.strategies.three_d.strategy import ThreeD


def test_the_built_in_strategies_are_there_under_their_own_names() -> None:
    assert {"3d", "data", "tensor", "pipeline", "weight-streaming"} <= set(strategy_names())
    assert all(strategy(name).name == name for name in STRATEGIES)


def test_an_unknown_name_gets_the_nearest_and_the_list() -> None:
    with pytest.raises(InputError, match="unknown strategy 'weightstreaming'") as caught:
        strategy("weightstreaming")
    assert "did you mean `weight-streaming`?" in str(caught.value)
    assert "3d, data" in str(caught.value)


def test_a_plug_in_without_part_of_the_protocol_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Partial:
        name = "mine"
        system_kind = "gpu-cluster"
        summary = "a strategy that cannot write its graph"
        layouts = ThreeD.layouts
        plan = ThreeD.plan
        estimate_s = ThreeD.estimate_s

    point = SimpleNamespace(name="mine", group="perfsim.strategies", value="mine:Mine", load=lambda: Partial)
    monkeypatch.setattr("perfsim.strategies.plug_ins", lambda room: [point] * (room == "strategies"))
    with pytest.raises(InputError, match=r"'mine' of perfsim\.strategies \(mine:Mine\) has no screen, emit"):
        strategy("mine")
