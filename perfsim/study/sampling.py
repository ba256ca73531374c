"""Correctness sampling of a step: its GEMMs, drawn and done for real in NumPy."""

from __future__ import annotations

import numpy as np

from perfsim.graph import TaskGraph
from perfsim.numerics.sampling import GemmSample, sample_gemms
from perfsim.study.evaluate import Evaluation
from perfsim.study.result import SamplingSummary
from perfsim.transformer import Kernel

MOST_FLOP = 2e7
"""Of one sample: blocks this large keep the check of a whole study under a second."""


def sample_step(evaluation: Evaluation, tasks: int, seed: int) -> SamplingSummary | None:
    """Draw `tasks` GEMMs of a simulated step and check their partition; None where none is wanted."""
    samples = gemm_samples(evaluation.graph)
    if not tasks or not samples:
        return None
    report = sample_gemms(samples, count=tasks, seed=seed, max_flop_each=MOST_FLOP)
    return SamplingSummary(
        tasks_sampled=report.tasks_sampled,
        tasks_total=report.tasks_total,
        flop_share=report.flop_share,
        worst_relative_error=report.worst_relative_error,
        bound=report.bound,
        passed=report.passed,
        by_partition={partition: part.sampled for partition, part in report.by_partition.items()},
    )


def gemm_samples(graph: TaskGraph) -> list[GemmSample]:
    """Every class of GEMM in a graph, with how many tasks of the graph run it."""
    counts = np.bincount(graph.work, minlength=len(graph.works))
    weights: dict[Kernel, float] = {}
    for work, count in zip(graph.works, counts.tolist(), strict=True):
        for kernel in work.kernels:
            if kernel.op == "gemm":
                weights[kernel] = weights.get(kernel, 0.0) + count * kernel.batch
    return [_sample(kernel, weight) for kernel, weight in weights.items()]


def _sample(kernel: Kernel, weight: float) -> GemmSample:
    """The unpartitioned product behind one rank's share of it."""
    parts = kernel.parts
    columns, rows = kernel.n, kernel.k
    if kernel.partition == "column":
        columns *= parts
    elif kernel.partition == "row":
        rows *= parts
    return GemmSample(
        name=kernel.name,
        m=kernel.m,
        n=columns,
        k=rows,
        partition=kernel.partition,
        parts=parts,
        flop=kernel.flop / kernel.batch,
        weight=weight,
    )
