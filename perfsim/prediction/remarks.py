"""What an answer adds about itself: settings nobody named, a batch at the edge of what was tried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfsim.strategies import Plan
from perfsim.workload import ParallelLayout


def defaults_remark(named: Iterable[str], plan: Plan) -> str:
    """Which settings of a layout were left at their defaults, and which Megatron users usually set.

    Only settings that matter for the layout's degrees: Megatron-LM's README recommends sequence
    parallelism with tensor parallelism, the distributed optimizer (ZeRO 1) with data parallelism, and
    selective recompute where attention keeps its scores.
    """
    layout, given = plan.layout, set(named)
    if not isinstance(layout, ParallelLayout):
        return ""
    left, usual = [], []
    for name, value, usually in _settings(layout, plan.job.recipe.attention):
        if name not in given:
            left.append(f"{name} {value}")
            if usually:
                usual.append(usually)
    if not left:
        return ""
    tail = f"; Megatron users usually set {', '.join(usual)}" if usual else ""
    return f"left at defaults by the layout: {', '.join(left)}{tail}"


def _settings(layout: ParallelLayout, attention: str) -> list[tuple[str, str, str]]:
    """Name, value and what is usual instead (empty where the value is), of the settings that matter."""
    rows = [("micro_batch_size", str(layout.micro_batch_size), "")]
    if layout.tensor > 1:
        split = layout.sequence_parallel
        rows.append(("sequence_parallel", str(split).lower(), "" if split else "sp=true"))
    if layout.data > 1:
        rows.append(("zero_stage", str(layout.zero_stage), "" if layout.zero_stage else "zero=1"))
    selective = "recompute=selective" if attention == "standard" and layout.recompute == "none" else ""
    rows.append(("recompute", layout.recompute, selective))
    if layout.pipeline > 1:
        rows.append(("schedule", layout.schedule, ""))
    return rows


def edge_remark(tried: Sequence[int], best: int) -> str:
    """A remark where the best batch is the first or the last of the batches tried; empty inside."""
    if len(tried) < 2 or min(tried) < best < max(tried):
        return ""
    side, other = ("smallest", "smaller") if best <= min(tried) else ("largest", "larger")
    return (
        f"best batch {best} is the {side} of the {len(tried)} tried ({min(tried)} to {max(tried)} "
        f"sequences): a {other} one may be better; widen batch_sizes"
    )
