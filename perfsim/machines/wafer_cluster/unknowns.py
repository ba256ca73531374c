"""What published logs of wafers do not show: newer software, more systems, other kinds of layers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from perfsim.calibration import WaferCalibration
from perfsim.costs.wafer import PEAK, growth_per_release, nearest_release, place_of
from perfsim.machines.machine import Unknown
from perfsim.transformer import attention_flop_per_step, model_flop_per_step, parameters
from perfsim.workload import Job, layer_kinds

LEAST_EFFICIENCY = 0.91
"""Least efficiency of `SYSTEMS` systems [Cerebras-GPT, arXiv 2304.03208: linear within 9 % for all sizes]."""
SYSTEMS = 16
SEQUENCE = 2048
"""Longest sequence of a published log. Configurations of up to 8,192 tokens (Model Zoo 2.2.0, Jais 30B)
and a speed-up on more systems at 10,240 (GenSLM) are published without a step time."""
ATTENTION_SHARE = 0.234
"""Largest share of a model's FLOPs in attention's core of a published log: GPT-2 small at 2,048 tokens."""
ATTENTION_FACTOR = 2.0
"""assumed: beyond that share, attention's core takes half to twice as long as predicted; no log shows it."""

EXPERTS_FACTOR = 2.0
"""assumed: experts take half to twice as long as predicted; no log shows any. Whether cores without a token
of an expert wait for its weights, and how many experts share the mesh at once, is not published."""


def of_release(wanted: str, calibration: WaferCalibration) -> Iterator[Unknown]:
    """The efficiency of a software release without a log, which has that of the nearest measured one.

    assumed: each release between may have changed the efficiency, either way, by as much as the releases of
    published logs did in the mean; no efficiency exceeds 1. All of a step counts as arithmetic.
    """
    used = nearest_release(wanted, calibration)
    if PEAK in (wanted, used) or wanted == used:
        return
    between, growth = abs(place_of(wanted) - place_of(used)), growth_per_release(calibration)
    width = min(between * abs(growth), -math.log(calibration.efficiency[used]))
    if width:
        words = (
            f"published releases differ in efficiency by {_percent(abs(growth))} each, so the band allows "
            f"{_percent(width)} for {between} of them"
        )
        yield Unknown("release-borrowed", width, words, shared=True)


def of_systems(count: int) -> Iterator[Unknown]:
    """The loss of many systems, of which this model predicts next to none.

    assumed: it grows with the logarithm of their number, as the levels of the tree do, up to the least
    efficiency that is published: log(count) / log(16) log(1 / 0.91). A spread of speeds of single systems
    that explains 0.91 at 16 grows more slowly (`perfsim.validation.scaling`).
    """
    if count > 1:
        width = -math.log(LEAST_EFFICIENCY) * math.log(count) / math.log(SYSTEMS)
        words = (
            f"published scaling is linear within {100 * (1 - LEAST_EFFICIENCY):.0f} % up to {SYSTEMS} "
            f"systems, so the band allows {_percent(width)} on {count:,}"
        )
        yield Unknown("devices-outside", width, words)


def of_job(job: Job) -> Iterator[Unknown]:
    """Layers and sequences that no log has: grouped queries, gated MLPs, experts, more than 2,048 tokens.

    The first two are more matrix products of the kind that logs have, so the band does not widen. What a long
    sequence adds is attention's core: its share of the model's FLOPs above the largest of a log may be wrong
    by a factor.
    """
    model = job.model
    unlike = ["grouped queries"] * (model.query_groups < model.num_attention_heads)
    unlike += ["a gated MLP"] * model.gated_mlp
    unlike += ["latent attention"] * (model.latent_attention is not None)
    unlike += ["attention in a window"] * (model.sliding_window is not None)
    if unlike:
        words = (
            f"no published log of a wafer has {' or '.join(unlike)}: such models are published as "
            "configurations without a step time, and take the efficiency of other matrix products"
        )
        yield Unknown("shape-outside", 0.0, words)
    yield from _of_experts(job)
    if job.seq_length <= SEQUENCE:
        return
    excess = max(0.0, attention_flop_per_step(job) / model_flop_per_step(job) - ATTENTION_SHARE)
    width = math.log1p(excess * (ATTENTION_FACTOR - 1.0))
    words = (
        f"sequences of {job.seq_length:,} tokens, while published logs of wafers have at most {SEQUENCE:,}; "
    )
    if width:
        words += f"the band allows {_percent(width)} for the core of attention"
    else:
        words += "the core of attention has no larger share of the work than in them"
    yield Unknown("sequence-outside", width, words)


def _of_experts(job: Job) -> Iterator[Unknown]:
    """Experts, which no log of a wafer has: their share of the model's FLOPs may be wrong by a factor."""
    experts, counts = job.model.experts, parameters(job.model)
    if experts is None:
        return
    routed = sum(counts.routed_of(kind) for kind in layer_kinds(job.model))
    active = 6.0 * routed * experts.top_k / experts.num_experts * job.tokens_per_step
    width = math.log1p(active / model_flop_per_step(job) * (EXPERTS_FACTOR - 1.0))
    words = (
        f"no published run trains experts on wafers: all {experts.num_experts} experts of a layer are taken "
        f"to stream, one after another, past the tokens of each, {experts.top_k} experts a token; the band "
        f"allows {_percent(width)}"
    )
    yield Unknown("experts-outside", width, words)


def _percent(width: float) -> str:
    return f"{100 * math.expm1(width):.0f} %"
