"""The mathematics of one layer, against counting by hand, and what frameworks fuse and narrow."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from perfsim.specs.recipe import KernelPrecisions
from perfsim.testing import toys
from perfsim.work.counts import (
    attention_weight_input_bytes,
    head_weight_input_bytes,
    layer_activation_bytes,
    mlp_weight_input_bytes,
    model_flop_per_step,
)
from perfsim.work.kernels import Kernel, LayerSlice, gemm
from perfsim.work.layer import (
    attention_core,
    attention_kernels,
    head_kernels,
    mlp_kernels,
    mlp_recompute,
    padded_vocab_size,
)

H = 2048
F = 8192
S = 1024
B = 2
HEADS = 16
VOCAB = 51200
LAYERS = 8


def sliced(model: dict[str, Any] | None = None, **changes: Any) -> LayerSlice:
    return LayerSlice(toys.model(**(model or {})), S, B, **changes)


def flop(kernels: Iterable[Kernel]) -> float:
    return sum(kernel.flop for kernel in kernels)


def elementwise_bytes(kernels: Iterable[Kernel]) -> float:
    return sum(kernel.bytes_accessed for kernel in kernels if kernel.op == "elementwise")


def launches(kernels: Iterable[Kernel]) -> int:
    return sum(kernel.launches for kernel in kernels)


def test_backward_of_a_linear_is_two_gemms_of_the_forwards_flop_and_an_addition() -> None:
    forward = gemm("l", 10, 32, 64)
    dgrad, wgrad, *rest = (forward.input_gradient(), *forward.weight_gradients(4.0, bias=False))
    assert dgrad.flop == wgrad.flop == forward.flop
    assert (dgrad.m, dgrad.n, dgrad.k) == (10, 64, 32)
    assert (wgrad.m, wgrad.n, wgrad.k) == (64, 32, 10)
    assert (dgrad.weight_gradient, wgrad.weight_gradient) == (False, True)
    assert elementwise_bytes(rest) == 64 * 32 * (2 + 2 * 4)  # read the half gradient, read and write fp32


def test_a_bias_has_its_gradient_summed_over_the_tokens_and_accumulated_by_a_kernel_of_its_own() -> None:
    """Megatron adds the gradient of every parameter to that parameter's own main gradient."""
    plain, biased = (gemm("l", 10, 32, 64).weight_gradients(4.0, bias=on) for on in (False, True))
    assert elementwise_bytes(biased) - elementwise_bytes(plain) == 2 * 10 * 32
    assert launches(biased) > launches(plain)
    accumulated = [kernel.launches for kernel in (*plain, *biased) if kernel.name == "l.accumulate"]
    assert accumulated == [1, 2]


def test_flash_attention_halves_under_the_mask_and_recomputes_scores_backward() -> None:
    flash = sliced(attention="flash")
    matmul = 2.0 * B * S**2 * H
    assert flop(attention_core(flash)) == 2 * matmul / 2
    assert flop(attention_core(flash, backward=True)) == 5 * matmul / 2
    bytes_moved = sum(kernel.bytes_accessed for kernel in attention_core(flash))
    standard = sum(kernel.bytes_accessed for kernel in attention_core(sliced()))
    assert bytes_moved < standard / 10, "scores never reach memory"


def test_a_fused_softmax_reads_scores_and_writes_probabilities_its_backward_moves_one_more() -> None:
    """Megatron's scaled masked softmax: one kernel each way over a s^2 b numbers in 16 bits."""
    scores = HEADS * S**2 * B
    part = sliced()
    kernels = (*attention_core(part), *attention_core(part, backward=True))
    moved = {kernel.name: kernel.bytes_accessed for kernel in kernels if "softmax" in kernel.name}
    assert moved == {"softmax": (2 + 2) * scores, "softmax.backward": (2 + 2 + 2) * scores}


def test_sequence_parallelism_shares_norms_and_residuals() -> None:
    cut = sliced(tensor=4)
    shared = sliced(tensor=4, sequence_parallel=True)
    norm_and_residual = (2 * 2 + 3 * 2 + 1) * B * S * H  # attention residual with its mask, and a norm
    alone, together = (elementwise_bytes(mlp_kernels(part, "forward")) for part in (cut, shared))
    saved = alone - together
    assert saved == pytest.approx(norm_and_residual * 3 / 4)


def test_a_recompute_that_stops_early_leaves_out_the_last_linear() -> None:
    whole, early = (mlp_recompute(sliced(recompute_stops_early=early), "full") for early in (False, True))
    assert [kernel.name for kernel in whole] == [*[kernel.name for kernel in early], "fc2", "mlp_residual"]
    assert flop(early) == flop(whole) / 2


SLICES: list[dict[str, Any]] = [
    {},
    {"tensor": 4, "sequence_parallel": True},
    {"tensor": 2, "attention": "flash", "dropout": False},
    {"model": {"gated_mlp": True, "bias": False, "num_query_groups": 4, "position_embedding": "rotary"}},
]


@pytest.mark.parametrize("changes", SLICES)
def test_input_and_weight_gradients_together_are_the_backward(changes: dict[str, Any]) -> None:
    part = sliced(**changes)
    for kernels in (attention_kernels, mlp_kernels, lambda part, which: head_kernels(part, S, which)):
        whole, inputs, weights = (kernels(part, which) for which in ("backward", "dgrad", "wgrad"))
        assert flop(inputs) + flop(weights) == flop(whole)
        assert elementwise_bytes(inputs) + elementwise_bytes(weights) == elementwise_bytes(whole)
        assert launches(inputs) + launches(weights) == launches(whole)
        assert not any(kernel.weight_gradient for kernel in inputs)
        assert all(kernel.weight_gradient for kernel in weights if kernel.op == "gemm")


def test_weight_gradients_need_40_sbh_of_a_layer_and_the_logits_gradient() -> None:
    part = sliced()
    attention = attention_weight_input_bytes(part)
    mlp = mlp_weight_input_bytes(part)
    sbh = B * S * H
    assert (attention, mlp) == (16 * sbh, 24 * sbh)
    assert head_weight_input_bytes(part, S) == 2 * (B * S * VOCAB + 3 * sbh)
    shared = sliced(tensor=4, sequence_parallel=True)
    assert mlp_weight_input_bytes(shared) == mlp / 4


@pytest.mark.parametrize(
    ("vocab", "tensor", "padded"),
    [(50257, 1, 50304), (50257, 8, 51200), (51200, 1, 51200), (51201, 1, 51328)],
)
def test_the_vocabulary_is_padded_to_whole_tiles_of_every_rank(vocab: int, tensor: int, padded: int) -> None:
    assert padded_vocab_size(toys.model(vocab_size=vocab), tensor) == padded


@pytest.mark.parametrize("way", ["eager", "merged", "fused"])
def test_cross_entropy_moves_the_bytes_of_megatrons_passes_over_the_logits(way: str) -> None:
    """VocabParallelCrossEntropy in tensor_parallel/cross_entropy.py: bytes read and written for a logit.

    A compiler merges neighbours: the cast, the difference and the gradient in fp32 are not read again.
    Fused, it reads the logits once and puts its gradient in their place.
    """
    in_place = ("subtract in place", "exponential in place", "divide in place")
    forward = {"cast to fp32": 2 + 4, "maximum": 4, "sum": 4, **dict.fromkeys(in_place, 4 + 4)}
    backward = {"scale in place": 4 + 4, "cast to 16 bits": 4 + 2}
    whole = sliced(
        fused_cross_entropy=way != "eager", fused=("cross_entropy_passes",) if way == "merged" else ()
    )
    kernels = (*head_kernels(whole, 16, "forward"), *head_kernels(whole, 16, "backward"))
    moved = [kernel.bytes_accessed for kernel in kernels if kernel.name.startswith("cross_entropy")]
    eager = [sum(forward.values()), sum(backward.values())]
    passes = {"eager": eager, "merged": [eager[0] - 4 - 4 - 4, eager[1] - 4 - 4], "fused": [2, 2 + 2]}[way]
    assert moved == [number * B * 16 * VOCAB for number in passes]
    wide = replace(whole, element_bytes=4)
    assert head_kernels(wide, 16, "forward") == head_kernels(replace(wide, fused=()), 16, "forward"), (
        "no cast"
    )


def test_a_head_on_few_positions_costs_less() -> None:
    full = toys.job(4)
    few = toys.job(4, {"lm_head_positions": 16})
    saved = model_flop_per_step(full) - model_flop_per_step(few)
    assert saved == pytest.approx(6 * VOCAB * H * 4 * (S - 16))


SBH = S * B * H
RATIO = HEADS * S / H


@pytest.mark.parametrize(
    ("changes", "recompute", "expected"),
    [
        ({"attention": "flash"}, "none", 34),
        ({"dropout": False}, "none", 32 + 2 * RATIO),
        ({"model": {"ffn_hidden_size": 2 * F}}, "selective", 34 + 4 * 4),
        ({"model": {"gated_mlp": True}}, "selective", 34 + 2 * 4),
    ],
)
def test_activations_follow_fused_attention_dropout_and_the_width_of_the_mlp(
    changes: dict[str, Any], recompute: str, expected: float
) -> None:
    """Of 34 + 5 a s / h; without dropout a score keeps 2 bytes of softmax instead of 5 [2205.05198]."""
    assert layer_activation_bytes(sliced(**changes), recompute) == pytest.approx(expected * SBH)


FP8 = KernelPrecisions(forward="fp8", input_gradient="fp8", weight_gradient="bf16")


PLAIN = LayerSlice(toys.model(), 128, 2, tensor=2)


def named(kernels: tuple[Kernel, ...]) -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in kernels}


def test_a_fused_accumulation_reads_and_writes_the_sum_without_a_launch() -> None:
    eager, fused = (
        named(mlp_kernels(part, "backward")) for part in (PLAIN, replace(PLAIN, fused=("accumulation",)))
    )
    numbers = eager["fc1.wgrad"].m * eager["fc1.wgrad"].n
    assert fused["fc1.accumulate"].bytes_accessed == pytest.approx(numbers * 2 * PLAIN.main_grad_bytes)
    assert fused["fc1.accumulate"].launches == 0
    assert fused["fc1.wgrad"] == eager["fc1.wgrad"]


def test_fused_norms_take_three_passes_and_joined_gradients_none() -> None:
    eager, fused = (
        named(attention_kernels(part, "backward")) for part in (PLAIN, replace(PLAIN, fused=("norm", "qkv")))
    )
    norm = "attention_norm.backward"
    assert 5 * fused[norm].bytes_accessed == pytest.approx(3 * eager[norm].bytes_accessed)
    assert set(eager) - set(fused) == {"qkv.join_gradients"}


def test_narrow_products_come_with_the_casts_of_their_first_operand() -> None:
    narrow = replace(PLAIN, precisions=FP8)
    forward = attention_kernels(narrow, "forward")
    backward = mlp_kernels(narrow, "backward")
    assert {kernel.precision for kernel in forward if kernel.partition != "none"} == {"fp8"}
    assert all(kernel.precision is None for kernel in forward if kernel.name in ("scores", "context"))
    kernels = named(backward)
    assert kernels["fc1.dgrad"].precision == "fp8"
    assert kernels["fc1.wgrad"].precision is None, "the table says 16 bits"
    cast = kernels["fc1.dgrad.cast"]
    product = kernels["fc1.dgrad"]
    assert cast.bytes_accessed == pytest.approx(4.0 * product.m * product.k), "two read, one and one written"
    fused = named(mlp_kernels(replace(narrow, fused=("cast",)), "backward"))["fc1.dgrad.cast"]
    assert (fused.bytes_accessed, fused.launches) == (cast.bytes_accessed / 2, 0), "no kernel of its own"
    assert [kernel for kernel in backward if not kernel.name.endswith(".cast")] != list(
        mlp_kernels(PLAIN, "backward")
    )
    flop = sum(kernel.flop for kernel in mlp_kernels(PLAIN, "backward"))
    assert sum(kernel.flop for kernel in backward) == pytest.approx(flop)


def test_the_head_has_sixteen_bits_unless_the_table_says_otherwise() -> None:
    usual = head_kernels(replace(PLAIN, precisions=FP8), 128, "forward")
    narrow = head_kernels(replace(PLAIN, precisions=FP8.model_copy(update={"head": "fp8"})), 128, "forward")
    assert named(usual)["lm_head"].precision is None
    assert named(narrow)["lm_head"].precision == "fp8"
