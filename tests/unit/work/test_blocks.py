"""Blocks as a framework runs them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfsim.specs.recipe import KernelPrecisions
from perfsim.testing import toys
from perfsim.work.kernels import Kernel, LayerSlice
from perfsim.work.layer import attention_kernels, head_kernels, mlp_kernels

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
