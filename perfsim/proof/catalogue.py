"""The cases of a proof of the whole catalogue: every strategy, schedule, ZeRO stage and recompute mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from typing import NamedTuple, get_args

from perfsim.strategies import STRATEGIES, strategy_names
from perfsim.strategies.schedules import SCHEDULES, least_chunks
from perfsim.workload import (
    ContextExchange,
    Layout,
    ParallelLayout,
    Recompute,
    RecomputeKeeps,
    StreamingLayout,
)

MODES: tuple[Recompute, ...] = ("none", "selective", "full")
INTERLEAVED = 2


class Case(NamedTuple):
    """One layout to prove; `microbatches` of each replica."""

    strategy: str
    layout: Layout | None
    """None: the first layout that the strategy lists."""
    microbatches: int = 2
    overlap: bool = False
    ahead: bool = False
    """Whether parameters are gathered beside the first forward of a step."""
    capacity: float | None = None
    """Most tokens of an expert over their mean; None: none is dropped."""
    keeps: RecomputeKeeps = "nothing"
    """What a full recompute keeps besides inputs of layers."""

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.layout.num_devices if self.layout else 2


def catalogue_cases(*, experts: bool = False) -> list[Case]:
    """Every case; strategies of other packages take the first layout that they list.

    A model with experts has cases of its own, for what the executor knows of them.
    """
    if experts:
        return list(_experts())
    built_in = [
        *_data(),
        *_zero3(),
        *_tensor(),
        *_pipeline(),
        *_three_d(),
        *_groups(),
        *_gathered_ahead(),
        *_context(),
        *_offload(),
        *_weight_streaming(),
    ]
    return built_in + [Case(name, None) for name in strategy_names() if name not in STRATEGIES]


def _data() -> Iterator[Case]:
    for stage in (0, 1, 2):
        for overlap in (False, True):
            yield Case("data", ParallelLayout(data=3 if stage else 2, zero_stage=stage), 3, overlap)


def _zero3() -> Iterator[Case]:
    for mode in MODES:
        yield Case("zero3", ParallelLayout(data=2, zero_stage=3, recompute=mode), 2)
    yield Case("zero3", ParallelLayout(data=4, zero_stage=3, shard_group=2), 2)
    with_tensor = ParallelLayout(tensor=2, data=2, sequence_parallel=True, zero_stage=3, recompute="full")
    yield Case("zero3", with_tensor)


def _tensor() -> Iterator[Case]:
    for sequence_parallel in (False, True):
        for mode in MODES:
            yield Case("tensor", ParallelLayout(2, recompute=mode, sequence_parallel=sequence_parallel))
    yield Case("tensor", ParallelLayout(tensor=4, sequence_parallel=True))


def _pipeline() -> Iterator[Case]:
    """Every schedule in every mode, also with every second layer recomputed, with enough micro-batches."""
    for name in SCHEDULES:
        for mode in MODES:
            plain = ParallelLayout(pipeline=3, schedule=name, recompute=mode, virtual_pipeline=_chunks(name))
            yield Case("pipeline", plain, 6)
        every_second = ParallelLayout(
            pipeline=2,
            schedule=name,
            recompute="full",
            recompute_every=2,
            virtual_pipeline=_chunks(name),
        )
        yield Case("pipeline", every_second, 4)


def _three_d() -> Iterator[Case]:
    """Every schedule with every ZeRO stage; recompute modes and overlap alternate."""
    modes, overlaps, sequence_parallel = cycle(MODES), cycle((False, True)), cycle((True, False, True))
    base = ParallelLayout(tensor=2, pipeline=2, data=2)
    for name in SCHEDULES:
        for stage in (0, 1, 2):
            layout = replace(
                base,
                schedule=name,
                virtual_pipeline=_chunks(name),
                zero_stage=stage,
                recompute=next(modes),
                sequence_parallel=next(sequence_parallel),
            )
            yield Case("3d", layout, 2 if name == "interleaved" else 3, next(overlaps))


def _groups() -> Iterator[Case]:
    """States that are sharded in several groups of replicas."""
    for stage in (1, 2):
        for overlap in (False, True):
            layout = ParallelLayout(tensor=2, data=4, zero_stage=stage, shard_group=2)
            yield Case("3d", layout, 2, overlap=overlap)
    yield Case("3d", ParallelLayout(pipeline=2, data=4, zero_stage=2, shard_group=2), 3, overlap=True)


def _gathered_ahead() -> Iterator[Case]:
    """Parameters that are gathered beside the first forward of a step, also with stages in a V and chunks."""
    for stage in (1, 2):
        yield Case("data", ParallelLayout(data=2, zero_stage=stage), 2, overlap=True, ahead=True)
        for name in ("1f1b", "interleaved", "zbv"):
            layout = ParallelLayout(
                pipeline=2, data=2, schedule=name, virtual_pipeline=_chunks(name), zero_stage=stage
            )
            yield Case("3d", layout, 4, overlap=stage > 1, ahead=True)
    layout = ParallelLayout(tensor=2, data=4, zero_stage=1, shard_group=2, recompute="full")
    yield Case("3d", layout, 1, overlap=True, ahead=True)


def _context() -> Iterator[Case]:
    """Both exchanges of context ranks, with recompute, split backwards, tensor peers and sharded states."""
    for exchange in get_args(ContextExchange):
        base = ParallelLayout(context=2, context_exchange=exchange)
        yield Case("3d", base)
        yield Case("3d", replace(base, context=4, recompute="full"))
        yield Case(
            "3d", replace(base, tensor=2, data=2, sequence_parallel=True, zero_stage=2), 2, overlap=True
        )
        yield Case("3d", replace(base, pipeline=2, schedule="zb1p", zero_stage=1), 3)
        yield Case("zero3", replace(base, data=2, zero_stage=3, recompute="full"))


def _experts() -> Iterator[Case]:
    """Expert degrees, schedules, recompute, context ranks, dropped tokens, tensor peers and ZeRO stages."""
    for ranks, peers in ((1, 1), (2, 1), (4, 1), (2, 2)):
        for stage in (0, 1):
            layout = ParallelLayout(data=4, expert=ranks, expert_tensor=peers, zero_stage=stage)
            yield Case("3d", layout, 2, overlap=stage == 0)
    base = ParallelLayout(data=2, expert=2)
    for mode in ("full", "selective"):
        yield Case("3d", replace(base, recompute=mode))
    yield Case("3d", replace(base, data=4, zero_stage=1, recompute="full"), 2, capacity=0.5)
    yield Case("3d", replace(base, context=2, expert=4, recompute="full"), keeps="qkv")
    yield Case("3d", replace(base, context=2, expert=4, context_exchange="all_to_all"))
    for name in SCHEDULES:
        layout = replace(base, pipeline=2, schedule=name, virtual_pipeline=_chunks(name), zero_stage=1)
        yield Case("3d", layout, 4)
    yield from _experts_of_tensor_peers()
    yield from _sharded_experts()
    yield from _weight_streaming()


def _experts_of_tensor_peers() -> Iterator[Case]:
    """Tensor peers that compute their own positions; experts over the same peers, others or both."""
    base = ParallelLayout(tensor=2, data=2, sequence_parallel=True, expert=2)
    yield Case("3d", replace(base, data=1, expert=1))
    yield Case("3d", replace(base, expert_tensor=2, recompute="full"))
    yield Case("3d", replace(base, context=2, expert=4, zero_stage=1), overlap=True)
    yield Case("3d", replace(base, pipeline=2, recompute="selective"), 3)
    yield Case("3d", replace(base, pipeline=2, data=4, schedule="zb1p", zero_stage=2), 3, overlap=True)


def _sharded_experts() -> Iterator[Case]:
    """Gradients and parameters of experts sharded over fewer ranks than the rest, as many, or none."""
    base = ParallelLayout(data=4, expert=2)
    for layout in (base, replace(base, data=2), replace(base, expert=1)):
        yield Case("3d", replace(layout, zero_stage=2), 3, overlap=True, ahead=layout.data > base.expert)
        yield Case("zero3", replace(layout, zero_stage=3, recompute="full"))
    zbv = ParallelLayout(pipeline=2, data=2, virtual_pipeline=2, schedule="zbv", zero_stage=2)
    yield Case("3d", zbv, 4)
    with_tensor = ParallelLayout(tensor=2, data=4, sequence_parallel=True, zero_stage=3, expert=2)
    yield Case("zero3", with_tensor)


def _offload() -> Iterator[Case]:
    """Optimizer and parameters on the host, with every ZeRO stage, pipelines, tensor peers and recompute."""
    off = ParallelLayout(offload_optimizer="cpu")
    yield Case("3d", off, 2)
    yield Case("3d", replace(off, tensor=2, pipeline=2, recompute="full"), 3)
    for stage in (0, 1, 2, 3):
        for overlap in (False, True):
            yield Case("3d", replace(off, data=2, zero_stage=stage), 3, overlap=overlap)
    yield Case("3d", replace(off, tensor=2, pipeline=2, data=2, zero_stage=1), 3, overlap=True)
    yield Case("3d", replace(off, tensor=2, data=2, zero_stage=2), 3, overlap=True)
    for mode in MODES:
        yield Case("3d", ParallelLayout(tensor=2, recompute=mode, offload_activations="cpu"), 2)
        layout = replace(off, data=2, zero_stage=3, offload_param="cpu", recompute=mode)
        yield Case("zero3", layout, 2)


def _chunks(schedule: str) -> int:
    return INTERLEAVED if SCHEDULES[schedule].chunks is None else least_chunks(schedule)


def _weight_streaming() -> Iterator[Case]:
    for group, systems, microbatches in ((0, 1, 1), (0, 3, 2), (1, 2, 3), (2, 2, 2), (4, 4, 1)):
        mode: Recompute = "full" if group else "none"
        layout = StreamingLayout(data=systems, micro_batch_size=2, recompute=mode, recompute_layers=group)
        yield Case("weight-streaming", layout, microbatches)
        if systems == INTERLEAVED:
            yield Case("weight-streaming", replace(layout, spill=True), microbatches)
