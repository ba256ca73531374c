"""Correctness sampling of a step: some of its GEMMs are computed in NumPy, partitioned and whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from perfsim.base.errors import VerificationError
from perfsim.base.spec import Spec
from perfsim.base.units import number
from perfsim.numerics.partitions import GemmPass, GemmShape, layer_of
from perfsim.numerics.sampling import GemmSample, SampleResult, sample_gemms
from perfsim.prediction.run import Evaluation
from perfsim.work import TaskGraph
from perfsim.work.kernels import Kernel

# Settings of correctness sampling, in the YAML of a study or an option.

Verify = Literal["off", "sample", "full"]


MOST_SAMPLES = 10_000
"""More than the classes of GEMM in any step."""


class SamplingSpec(Spec):
    """How many GEMMs of a step are computed to check their partition."""

    mode: Verify = "sample"
    """off; sample: `tasks` classes of GEMM, drawn in proportion to FLOPs; full: every class."""
    tasks: Annotated[int, *number(0, MOST_SAMPLES)] = 12
    seed: Annotated[int, *number(0, 2**32 - 1)] = 0


SAMPLE_FLOP = 2e7
"""FLOPs of one sample; with blocks of this size the check of a whole study takes under a second."""
FULL_FLOP = 2e9
"""FLOPs of all samples where every class is executed: about a second on one core."""

_PASSES: dict[str, GemmPass] = {
    "dgrad": "dgrad",
    "wgrad": "wgrad",
    "dgrad_probabilities": "dgrad",
    "dgrad_values": "wgrad",
    "dgrad_queries": "dgrad",
    "dgrad_keys": "wgrad",
}
"""The pass of a GEMM by the suffix of its kernel's name, including products of attention."""
_ATTENTION = ("scores", "context")
"""Products of attention heads; each rank has at least one head."""
_FLASH: dict[str, tuple[tuple[str, GemmPass], ...]] = {
    "flash_attention": (("scores", "forward"), ("context", "forward")),
    "flash_attention.backward": (
        ("scores", "forward"),
        ("context", "dgrad"),
        ("context", "wgrad"),
        ("scores", "dgrad"),
        ("scores", "wgrad"),
    ),
}
"""The products in one fused attention kernel, of equal FLOPs [2205.14135 Alg. 1 and 4]."""


@dataclass(frozen=True, slots=True)
class SamplingSummary:
    """The result of correctness sampling."""

    tasks_sampled: int
    tasks_total: int
    flop_share: float
    """Share of the step's GEMM FLOPs in the sampled classes of work."""
    worst_relative_error: float
    bound: float
    passed: bool
    by_partition: Mapping[str, int] = field(default_factory=dict)
    mode: str = "sample"
    worst: str = ""
    """The sample closest to its bound: name, pass and partition."""
    failed: tuple[str, ...] = ()
    """Samples whose partitioned product is wrong, in the same format."""


def sample_step(evaluation: Evaluation, spec: SamplingSpec) -> SamplingSummary | None:
    """Draw GEMMs of a simulated step and check their partition; None where sampling is off.

    `full` executes every class of GEMM in the step, with smaller blocks so that the cost stays bounded.
    """
    samples = gemm_samples(evaluation.graph, evaluation.plan.layout.tensor)
    if spec.mode == "off" or not spec.tasks or not samples:
        return None
    full = spec.mode == "full"
    report = sample_gemms(
        samples,
        count=len(samples) if full else spec.tasks,
        seed=spec.seed,
        max_flop_each=FULL_FLOP / len(samples) if full else SAMPLE_FLOP,
    )
    return SamplingSummary(
        tasks_sampled=report.tasks_sampled,
        tasks_total=report.tasks_total,
        flop_share=report.flop_share,
        worst_relative_error=report.worst_relative_error,
        bound=report.bound,
        passed=report.passed,
        by_partition={partition: part.sampled for partition, part in report.by_partition.items()},
        mode=spec.mode,
        worst=_in_words(report.worst),
        failed=tuple(_in_words(sample) for sample in report.details if not sample.passed),
    )


def must_be_right(summaries: Iterable[SamplingSummary]) -> None:
    """Raise VerificationError with every sample whose partitioned product is wrong."""
    wrong = [sample for summary in summaries for sample in summary.failed]
    if wrong:
        raise VerificationError("sampled products differ from the unpartitioned ones: " + "; ".join(wrong))


def _in_words(result: SampleResult) -> str:
    how = result.partition if result.partition != "none" else "whole"
    parts = f" in {result.parts} parts" if result.parts > 1 else ""
    return f"{result.name} ({result.which}): {how}{parts}"


def gemm_samples(graph: TaskGraph, tensor: int = 1) -> list[GemmSample]:
    """Every class of GEMM in a graph, weighted by its number of products.

    Attention heads are divided over `tensor` ranks.
    """
    counts = np.bincount(graph.work, minlength=len(graph.works))
    weights: dict[Kernel, float] = {}
    for work, count in zip(graph.works, counts.tolist(), strict=True):
        for kernel in work.kernels:
            if kernel.op in ("gemm", "attention") and count:
                weights[kernel] = weights.get(kernel, 0.0) + count * kernel.batch
    return [sample for kernel, weight in weights.items() for sample in _samples(kernel, weight, tensor)]


def _samples(kernel: Kernel, weight: float, tensor: int) -> Iterator[GemmSample]:
    """The unpartitioned products of which one rank computes a share."""
    if kernel.op == "attention":
        products = _FLASH[kernel.name]
        for name, which in products:
            m, n, k = (kernel.m, kernel.n, kernel.k) if name == "scores" else (kernel.m, kernel.k, kernel.n)
            flop = kernel.flop / kernel.batch / len(products)
            full = f"{kernel.name}.{name}"
            yield GemmSample(full, m, n, k, "heads", tensor, flop, weight, which, kernel.batch * tensor)
        return
    which = _PASSES.get(kernel.name.rpartition(".")[2], "forward")
    shard = GemmShape(kernel.m, kernel.n, kernel.k)
    if kernel.name.endswith(".dgrad_keys"):  # written as its transpose
        shard = GemmShape(kernel.n, kernel.m, kernel.k)
    m, n, k = layer_of(shard, which)
    flop = kernel.flop / kernel.batch
    if kernel.batch > 1 or kernel.name.partition(".")[0] in _ATTENTION:
        heads = kernel.batch * tensor
        yield GemmSample(kernel.name, m, n, k, "heads", tensor, flop, weight, which, heads)
        return
    parts = kernel.parts
    if kernel.partition == "column":
        n *= parts
    elif kernel.partition == "row":
        k *= parts
    yield GemmSample(kernel.name, m, n, k, kernel.partition, parts, flop, weight, which)
