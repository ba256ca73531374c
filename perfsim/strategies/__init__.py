"""Strategies to train on many devices, and their registry."""

from perfsim.base.errors import InputError, UnknownNameError, check_own, described, made_by, plug_ins
from perfsim.strategies.plan import Plan, Strategy
from perfsim.strategies.streaming.strategy import WeightStreaming
from perfsim.strategies.three_d.strategy import ThreeD

__all__ = ["STRATEGIES", "Plan", "Strategy", "strategy", "strategy_names"]

STRATEGIES: dict[str, Strategy] = {
    known.name: known
    for known in (
        ThreeD(),
        ThreeD("data", ("data", "expert"), "data parallelism alone: every device holds the whole model"),
        ThreeD("tensor", ("tensor",), "tensor parallelism alone: every layer is split over all devices"),
        ThreeD("pipeline", ("pipeline",), "pipeline parallelism alone: layers are divided over all devices"),
        ThreeD(
            "zero3",
            ("tensor", "context", "data", "expert", "expert_tensor"),
            "data (tensor, context) parallelism with sharded parameters and optimizer: ZeRO 3, FSDP",
            zero_stage=3,
        ),
        WeightStreaming(),
    )
}
MEMBERS = [member for member in vars(Strategy) if not member.startswith("_")]
"""Every member of the protocol."""


def strategy_names() -> list[str]:
    """Names of all strategies, also of installed plug-ins."""
    return sorted({*STRATEGIES, *(point.name for point in plug_ins("strategies"))})


def strategy(name: str) -> Strategy:
    """The strategy called `name`; InputError names the nearest."""
    if name in STRATEGIES:
        check_own("strategies", name)
        return STRATEGIES[name]
    installed = {point.name: point for point in plug_ins("strategies")}
    if name not in installed:
        raise UnknownNameError("strategy", name, strategy_names())
    plug_in: Strategy = made_by(installed[name], lambda load: load())
    if missing := [member for member in MEMBERS if not hasattr(plug_in, member)]:
        lacks = f"{described(installed[name])} has no {', '.join(missing)}"
        raise InputError(lacks, "inherit from perfsim.strategies.Strategy")
    return plug_in
