"""Remarks on an answer: settings left at defaults, and a best batch at the edge of those tried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfsim.machines import machine_of
from perfsim.strategies import Plan


def defaults_remark(named: Iterable[str], plan: Plan) -> str:
    """The settings of a layout that are left at defaults, and their usual values among Megatron users.

    Only settings that matter for the layout's degrees are listed.
    """
    given = set(named)
    settings = machine_of(plan.system).usual_settings(plan.layout, plan.job.recipe)
    left = [setting for setting in settings if setting.name not in given]
    if not left:
        return ""
    usual = [setting.usual for setting in left if setting.usual]
    tail = f"; Megatron users usually set {', '.join(usual)}" if usual else ""
    return f"left at defaults by the layout: {', '.join(f'{name} {value}' for name, value, _ in left)}{tail}"


def edge_remark(tried: Sequence[int], best: int) -> str:
    """A remark where the best batch is the smallest or largest of those tried; empty elsewhere."""
    if len(tried) < 2 or min(tried) < best < max(tried):
        return ""
    side, direction = ("smallest", "smaller") if best <= min(tried) else ("largest", "larger")
    return (
        f"best batch {best} is the {side} of {len(tried)} tried ({min(tried)} to {max(tried)} "
        f"sequences): a {direction} batch may be better; widen batch_sizes"
    )
