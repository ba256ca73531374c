"""Correctness sampling of a step: its GEMMs, drawn and done for real in NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from perfsim.errors import VerificationError
from perfsim.graph import TaskGraph
from perfsim.numerics import GemmPass, GemmSample, GemmShape, SampleResult, layer_of, sample_gemms
from perfsim.prediction.evaluation import Evaluation
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.result import SamplingSummary
from perfsim.prediction.verification_spec import SamplingSpec
from perfsim.transformer import Kernel

SAMPLE_FLOP = 2e7
"""Of one sample: blocks this large keep the check of a whole study under a second."""
FULL_FLOP = 2e9
"""Of all samples together where every class is executed: about a second of one core."""

_PASSES: dict[str, GemmPass] = {
    "dgrad": "dgrad",
    "wgrad": "wgrad",
    "dgrad_probabilities": "dgrad",
    "dgrad_values": "wgrad",
    "dgrad_queries": "dgrad",
    "dgrad_keys": "wgrad",
}
"""By the end of a kernel's name: which product of its layer it is, attention's products included."""
_ATTENTION = ("scores", "context")
"""Products of a head, one of them at least a rank."""
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
"""The products that one fused attention kernel does, of equal FLOPs each [2205.14135 Alg. 1 and 4]."""


def sample_step(evaluation: Evaluation, asked: SamplingSpec) -> SamplingSummary | None:
    """Draw GEMMs of a simulated step and check their partition; None where none is wanted.

    `full` executes every class of GEMM in the step; the blocks shrink so that the cost stays bounded.
    """
    samples = gemm_samples(evaluation.graph, evaluation.plan.layout.tensor)
    if asked.mode == "off" or not asked.tasks or not samples:
        return None
    full = asked.mode == "full"
    report = sample_gemms(
        samples,
        count=len(samples) if full else asked.tasks,
        seed=asked.seed,
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
        mode=asked.mode,
        worst=_in_words(report.worst),
        failed=tuple(_in_words(each) for each in report.details if not each.passed),
    )


def verified(prediction: Prediction, mode: str) -> SamplingSummary | None:
    """The samples of one prediction; None where `mode` is off. Raises ValueError for a stored prediction."""
    return sample_step(prediction.run, SamplingSpec.model_validate({"mode": mode}))


def must_be_right(summaries: Iterable[SamplingSummary]) -> None:
    """Raise VerificationError with every sample whose partition gave another product."""
    wrong = [each for summary in summaries for each in summary.failed]
    if wrong:
        raise VerificationError("sampled products differ from the unpartitioned ones: " + "; ".join(wrong))


def _in_words(result: SampleResult) -> str:
    how = result.partition if result.partition != "none" else "whole"
    parts = f" in {result.parts} parts" if result.parts > 1 else ""
    return f"{result.name} ({result.which}): {how}{parts}"


def gemm_samples(graph: TaskGraph, tensor: int = 1) -> list[GemmSample]:
    """Every class of GEMM in a graph, with how many products of the graph belong to it.

    `tensor` ranks share the heads of attention between them.
    """
    counts = np.bincount(graph.work, minlength=len(graph.works))
    weights: dict[Kernel, float] = {}
    for work, count in zip(graph.works, counts.tolist(), strict=True):
        for kernel in work.kernels:
            if kernel.op in ("gemm", "attention") and count:
                weights[kernel] = weights.get(kernel, 0.0) + count * kernel.batch
    return [sample for kernel, weight in weights.items() for sample in _samples(kernel, weight, tensor)]


def _samples(kernel: Kernel, weight: float, tensor: int) -> Iterator[GemmSample]:
    """The unpartitioned products behind one rank's share of them."""
    if kernel.op == "attention":
        products = _FLASH[kernel.name]
        for name, which in products:
            m, n, k = (kernel.m, kernel.n, kernel.k) if name == "scores" else (kernel.m, kernel.k, kernel.n)
            flop = kernel.flop / kernel.batch / len(products)
            full = f"{kernel.name}.{name}"
            yield GemmSample(full, m, n, k, "heads", tensor, flop, weight, which, kernel.batch * tensor)
        return
    which = _PASSES.get(kernel.name.rpartition(".")[2], "forward")
    own = GemmShape(kernel.m, kernel.n, kernel.k)
    if kernel.name.endswith(".dgrad_keys"):  # written as its transpose
        own = GemmShape(kernel.n, kernel.m, kernel.k)
    m, n, k = layer_of(own, which)
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
