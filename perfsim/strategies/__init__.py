"""Ways to train on many devices. One file each; the registry below is the one line to add."""

from __future__ import annotations

from importlib.metadata import entry_points

from perfsim.errors import InputError, Problem, UnknownNameError
from perfsim.strategies.plan import TIGHT, Duration, Plan, Strategy
from perfsim.strategies.streaming.strategy import WeightStreaming
from perfsim.strategies.three_d.strategy import ThreeD

__all__ = ["STRATEGIES", "TIGHT", "Duration", "Plan", "Strategy", "strategy", "strategy_names"]

STRATEGIES: dict[str, Strategy] = {
    each.name: each
    for each in (
        ThreeD(),
        ThreeD("data", ("data",), "data parallelism alone: every device holds the model"),
        ThreeD("tensor", ("tensor",), "tensor parallelism alone: every layer is cut over all devices"),
        ThreeD("pipeline", ("pipeline",), "pipeline parallelism alone: layers are dealt over all devices"),
        ThreeD(
            "zero3",
            ("tensor", "data"),
            "data (and tensor) parallelism with everything sharded: ZeRO 3, FSDP",
            zero_stage=3,
        ),
        WeightStreaming(),
    )
}

ENTRY_POINTS = "perfsim.strategies"
PROMISED = [member for member in vars(Strategy) if not member.startswith("_")]
"""Every member of the protocol."""


def strategy_names() -> list[str]:
    """Every strategy, those of installed plug-ins included."""
    return sorted({*STRATEGIES, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def strategy(name: str) -> Strategy:
    """The strategy called `name`; InputError names the nearest."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    for point in entry_points(group=ENTRY_POINTS, name=name):
        plug_in: Strategy = point.load()()
        if missing := [member for member in PROMISED if not hasattr(plug_in, member)]:
            lacks = f"the plug-in strategy {name!r} has no {', '.join(missing)}"
            raise InputError([Problem(lacks, help="inherit from perfsim.strategies.Strategy")])
        return plug_in
    raise UnknownNameError("strategy", name, strategy_names())
