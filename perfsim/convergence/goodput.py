"""Goodput: the fraction of wall time that is useful training, given failures, checkpoints, stragglers.

Rates were measured on clusters of 8-GPU nodes. No such data is known for wafer-scale systems: use the rate
of a node for a system, or none on either side, so that the comparison favours no machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from perfsim.errors import InputError
from perfsim.units import DAY_S

FAILURES_PER_NODE_DAY: Mapping[str, float] = {
    "rsc-1": 6.5e-3,
    "rsc-2": 2.34e-3,
    "llama-3": 3.79e-3,
    "opt-175b": 14.1e-3,
}
"""RSC: Kokolis et al. 2024, arXiv 2410.21680. Llama 3: arXiv 2407.21783 (419 in 54 days on 2048 nodes).
OPT-175B: arXiv 2205.01068 (105 restarts in 60 days on 124 nodes, an upper estimate)."""
DEFAULT_FAILURES_PER_NODE_DAY = FAILURES_PER_NODE_DAY["rsc-1"]

LEAST_GOODPUT = 0.05
FIRST_ORDER_LOSS = 0.3
"""The linear form was checked up to this first-order loss."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Productive fraction of wall time; `warning` says why the formula is unreliable, if it is."""

    share: float
    warning: str = ""


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} must be positive and finite, got {value:g}")


def mean_time_to_failure_s(
    num_nodes: float, failures_per_node_day: float = DEFAULT_FAILURES_PER_NODE_DAY
) -> float:
    """Seconds between failures of a job on `num_nodes` nodes that fail independently: 1 / (nodes x rate).

    The source of the default rate observed 7.9 h at 1,024 GPUs where this gives 28.8 h; at 16,384 they agree.
    """
    _require_positive(num_nodes=num_nodes, failures_per_node_day=failures_per_node_day)
    return DAY_S / (num_nodes * failures_per_node_day)


def young_interval_s(write_s: float, mttf_s: float) -> float:
    """Checkpoint interval of least loss, to first order: sqrt(2 delta M) (Young 1974)."""
    _require_positive(write_s=write_s, mttf_s=mttf_s)
    return math.sqrt(2 * write_s * mttf_s)


def linear_goodput(mttf_s: float, restart_s: float, interval_s: float, write_s: float = 0.0) -> Goodput:
    """G = 1 - (restart + interval / 2) / M - write / interval: first order in the failure rate.

    `write_s` is the time that training stops for one checkpoint, 0 for asynchronous ones (the form of
    Kokolis et al. 2024). At least 0.05, with a warning; also warns if the loss exceeds 0.3.
    """
    _check_checkpointing(mttf_s, restart_s, interval_s, write_s)
    loss = (restart_s + interval_s / 2) / mttf_s + write_s / interval_s
    warning = ""
    if interval_s >= mttf_s:
        warning = (
            "the checkpoint interval is not below the time between failures: the linear form breaks here"
        )
    elif loss > FIRST_ORDER_LOSS:
        warning = f"first-order loss of {loss:.0%}: the linear form is strained, checkpoint more often"
    if loss > 1 - LEAST_GOODPUT:
        warning = f"the linear form gives {1 - loss:.2f}; held at {LEAST_GOODPUT}, a cap and no estimate"
    return Goodput(max(1 - loss, LEAST_GOODPUT), warning)


def _check_checkpointing(mttf_s: float, restart_s: float, interval_s: float, write_s: float) -> None:
    _require_positive(mttf_s=mttf_s, interval_s=interval_s)
    for name, value in (("restart_s", restart_s), ("write_s", write_s)):
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} must be finite and at least 0, got {value:g}")
