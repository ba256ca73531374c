"""Every model of the catalogue against the number of parameters that was published for it."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from perfsim.catalog import Catalog, data_root
from perfsim.transformer import LayerSlice, attention_backward, attention_core, mlp_forward, parameters
from perfsim.workload import TransformerConfig

CATALOG = Catalog([data_root()])


class Published(NamedTuple):
    """A count as its authors print it, and the last digit that they print."""

    count: float
    last_digit: float = 1.0


COUNTS = {
    "bert_large": Published(336e6, 1e6),
    "cerebras_gpt_111m": Published(111e6, 1e6),
    "cerebras_gpt_256m": Published(256e6, 1e6),
    "cerebras_gpt_590m": Published(590e6, 1e6),
    "cerebras_gpt_1p3b": Published(1.3e9, 1e8),
    "cerebras_gpt_2p7b": Published(2.7e9, 1e8),
    "cerebras_gpt_6p7b": Published(6.7e9, 1e8),
    "cerebras_gpt_13b": Published(13e9, 1e9),
    "gpt3_xl": Published(1.3e9, 1e8),
    "gpt3_6p7b": Published(6.7e9, 1e8),
    "gpt3_13b": Published(13e9, 1e9),
    "gpt3_20b": Published(20e9, 1e9),
    "gpt3_175b": Published(175e9, 1e9),
    "gpt_1t": Published(1008e9, 1e9),
    "gpt_neox_20b": Published(20_554_567_680),
    "gptj_6b": Published(6_053_381_344),
    "llama_7b": Published(6.7e9, 1e8),
    "llama_13b": Published(13.0e9, 1e8),
    "llama_33b": Published(32.5e9, 1e8),
    "llama_65b": Published(65_285_660_672),
    "llama2_70b": Published(68_976_648_192),
    "llama31_70b": Published(70.6e9, 1e8),
    "opt_175b": Published(175e9, 1e9),
}
"""From model cards, checkpoints and papers, with the digits that these print."""

EXACT = ["gpt_neox_20b", "llama_65b", "llama2_70b"]


def gptj() -> TransformerConfig:
    return CATALOG.model("gptj_6b")


def test_a_count_is_known_for_every_model() -> None:
    assert set(COUNTS) == set(CATALOG.names("model"))


@pytest.mark.parametrize("name", COUNTS)
def test_a_model_has_its_published_count_within_a_percent_or_the_printed_digits(name: str) -> None:
    published = COUNTS[name]
    off = abs(parameters(CATALOG.model(name)).total - published.count)
    assert off <= max(0.01 * published.count, 0.5 * published.last_digit)


@pytest.mark.parametrize("name", EXACT)
def test_a_count_that_was_printed_to_the_last_digit_is_met_to_the_last_digit(name: str) -> None:
    assert parameters(CATALOG.model(name)).total == COUNTS[name].count


def test_llama2_70b_has_an_eighth_of_the_key_and_value_weights() -> None:
    grouped = CATALOG.model("llama2_70b")
    every_head = grouped.model_copy(update={"num_query_groups": None})
    saved = parameters(every_head).layer_matrices - parameters(grouped).layer_matrices
    assert saved == 2 * grouped.hidden_size**2 * 7 // 8


# ------------------------------------------------------------------- what the newer shapes change
def test_a_shared_norm_and_an_attention_without_biases_are_neither_counted_nor_run() -> None:
    usual = gptj().model_copy(update={"norms_per_layer": 2, "attention_bias": None})
    h = gptj().hidden_size
    assert parameters(usual).layer - parameters(gptj()).layer == 2 * h + 4 * h
    names = [kernel.name for kernel in mlp_forward(LayerSlice(gptj(), 2048, 1))]
    assert "mlp_norm" not in names
    kernels = attention_backward(LayerSlice(gptj(), 2048, 1))
    assert not [kernel for kernel in kernels if "bias" in kernel.name]


def test_fused_attention_of_an_encoder_computes_both_halves_of_the_scores() -> None:
    encoder = CATALOG.model("bert_large")
    decoder = encoder.model_copy(update={"causal": True})
    whole, half = (
        attention_core(LayerSlice(model, 512, 4, attention="flash"))[0].flop for model in (encoder, decoder)
    )
    assert whole == 2 * half == 4.0 * 4 * 512**2 * 1024
