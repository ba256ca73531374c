"""Every model of the catalogue against the number of parameters that was published for it."""

import pytest

from perfsim.catalog import Catalog, data_root
from perfsim.work.counts import parameters
from perfsim.work.kernels import LayerSlice
from perfsim.work.layer import attention_core, attention_kernels, mlp_kernels

CATALOG = Catalog([data_root()])


COUNTS = {
    "bert_large": (336e6, 1e6),
    "cerebras_gpt_111m": (111e6, 1e6),
    "cerebras_gpt_256m": (256e6, 1e6),
    "cerebras_gpt_590m": (590e6, 1e6),
    "cerebras_gpt_1p3b": (1.3e9, 1e8),
    "cerebras_gpt_2p7b": (2.7e9, 1e8),
    "cerebras_gpt_6p7b": (6.7e9, 1e8),
    "cerebras_gpt_13b": (13e9, 1e9),
    "gpt3_xl": (1.3e9, 1e8),
    "gpt3_6p7b": (6.7e9, 1e8),
    "gpt3_13b": (13e9, 1e9),
    "gpt3_20b": (20e9, 1e9),
    "gpt3_175b": (175e9, 1e9),
    "gpt_1t": (1008e9, 1e9),
    "gpt_120t": (120e12, 1e11),
    "megatron_1p2b": (1.2e9, 1e8),
    "megatron_2p5b": (2.5e9, 1e8),
    "megatron_8p3b": (8.3e9, 1e8),
    "mt_nlg_530b": (529.6e9, 1e9),
    "gpt_neox_20b": (20_554_567_680, 1),
    "gptj_6b": (6_053_381_344, 1),
    "llama_7b": (6.7e9, 1e8),
    "llama_13b": (13.0e9, 1e8),
    "llama_33b": (32.5e9, 1e8),
    "llama_65b": (65_285_660_672, 1),
    "llama2_70b": (68_976_648_192, 1),
    "llama31_70b": (70.6e9, 1e8),
    "opt_175b": (175e9, 1e9),
    "mixtral_8x7b": (46.7e9, 1e8),
    "mixtral_8x22b": (140_620_634_112, 1),
    "grok1": (314e9, 1e9),
    "deepseek_v3": (671_026_419_200, 1),
    "qwen3_30b_a3b": (30_532_122_624, 1),
    "qwen3_235b_a22b": (235e9, 1e9),
    "gpt_oss_120b": (116.8e9, 1e8),
    "gpt_oss_20b": (20_914_757_184, 1),
    "llama2_7b": (6.74e9, 1e7),
    "llama2_13b": (13.0e9, 1e8),
    "llama33_70b": (70.6e9, 1e8),
    "kimi_k2": (1e12, 1e11),
    "glm45": (355e9, 1e9),
    "glm45_air": (106e9, 1e9),
    "llama3_8b": (8_030_261_248, 1),
    "llama31_8b": (8_030_261_248, 1),
    "llama31_405b": (405e9, 1e9),
    "llama32_1b": (1.23e9, 1e7),
    "llama32_3b": (3.21e9, 1e7),
    "mistral_7b": (7_241_732_096, 1),
    "mistral_large": (123e9, 1e9),
    "mistral_small_24b": (24e9, 1e9),
    "qwen25_0p5b": (494_032_768, 1),
    "qwen25_1p5b": (1_543_714_304, 1),
    "qwen25_3b": (3_085_938_688, 1),
    "qwen25_7b": (7_615_616_512, 1),
    "qwen25_14b": (14.77e9, 1e7),
    "qwen25_32b": (32_763_876_352, 1),
    "qwen25_72b": (72_706_203_648, 1),
    "qwen3_0p6b": (596_049_920, 1),
    "qwen3_1p7b": (1_720_574_976, 1),
    "qwen3_4b": (4_022_468_096, 1),
    "qwen3_8b": (8_190_735_360, 1),
    "qwen3_14b": (14_768_307_200, 1),
    "qwen3_32b": (32_762_123_264, 1),
    "phi3_mini": (3_821_079_552, 1),
    "phi4": (14.7e9, 1e8),
    "gemma2_2b": (2_614_341_888, 1),
    "gemma2_9b": (9_241_705_984, 1),
    "gemma2_27b": (27_227_128_320, 1),
    "olmo2_7b": (7_298_617_344, 1),
    "olmo2_13b": (13.7e9, 1e8),
    "llama4_maverick": (400e9, 1e9),
    "llama4_scout": (108e9, 1e9),  # printed 109 with the vision encoder, of one billion
}
"""From model cards, checkpoints and papers, each with the last digit that these print."""

EXACT = [
    *("gpt_neox_20b", "llama_65b", "llama2_70b", "llama3_8b", "llama31_8b", "mistral_7b", "phi3_mini"),
    *(f"qwen3_{size}" for size in ("0p6b", "1p7b", "4b", "8b", "14b", "32b", "30b_a3b")),
]
"""Counts that are met to the last digit that was printed."""
ACTIVE = {
    "mixtral_8x7b": (12.9e9, 1e8),
    "mixtral_8x22b": (39_152_031_744, 1),
    "deepseek_v3": (37e9, 1e9),
    "qwen3_30b_a3b": (3.3e9, 1e8),
    "qwen3_235b_a22b": (22e9, 1e9),
    "gpt_oss_120b": (5.13e9, 1e7),
    "gpt_oss_20b": (3.61e9, 1e7),
    "llama4_maverick": (17e9, 1e9),
    "kimi_k2": (32e9, 1e9),
    "glm45": (32e9, 1e9),
    "glm45_air": (12e9, 1e9),
    "llama4_scout": (17e9, 1e9),
}
"""Parameters that compute a token, as printed, rounded or cut off.

Grok-1's card prints 86 billion where its shapes give 83.
"""
WITHOUT_EMBEDDING = ["gpt_oss_120b", "gpt_oss_20b", "glm45", "glm45_air"]
"""Whose authors leave the embedding out of the active parameters."""


def test_a_count_is_known_for_every_model() -> None:
    assert set(COUNTS) == set(CATALOG.names("model"))


@pytest.mark.parametrize("name", COUNTS)
def test_a_model_has_its_published_counts_within_a_percent_or_the_printed_digits(name: str) -> None:
    """Published totals leave multi-token prediction out; with experts, also the active parameters."""
    published, last_digit = COUNTS[name]
    counts = parameters(CATALOG.model(name))
    off = abs(counts.total - counts.mtp - published)
    assert off <= (0 if name in EXACT else max(0.01 * published, 0.5 * last_digit))
    if name in ACTIVE:
        published, last_digit = ACTIVE[name]
        computed = counts.active - (counts.embedding if name in WITHOUT_EMBEDDING else 0)
        assert abs(computed - published) <= max(0.01 * published, last_digit)


def test_multi_token_prediction_of_deepseek_adds_a_layer_a_projection_and_three_norms() -> None:
    """The checkpoint has 14 billion more: the layer, the projection, and copies of embedding and head."""
    counts = parameters(CATALOG.model("deepseek_v3"))
    copies = counts.embedding + counts.head
    assert (counts.mtp + copies) / 1e9 == pytest.approx(14, abs=0.6)


def test_a_shared_norm_and_an_attention_without_biases_are_neither_counted_nor_run() -> None:
    gptj = CATALOG.model("gptj_6b")
    usual = gptj.model_copy(update={"norms_per_layer": 2, "attention_bias": None})
    assert parameters(usual).of() - parameters(gptj).of() == 2 * gptj.hidden_size + 4 * gptj.hidden_size
    names = [kernel.name for kernel in mlp_kernels(LayerSlice(gptj, 2048, 1), "forward")]
    assert "mlp_norm" not in names
    kernels = attention_kernels(LayerSlice(gptj, 2048, 1), "backward")
    assert not [kernel for kernel in kernels if "bias" in kernel.name]


def test_fused_attention_of_an_encoder_computes_both_halves_of_the_scores() -> None:
    encoder = CATALOG.model("bert_large")
    decoder = encoder.model_copy(update={"causal": True})
    whole, half = (
        attention_core(LayerSlice(model, 512, 4, attention="flash"))[0].flop for model in (encoder, decoder)
    )
    assert whole == 2 * half == 4.0 * 4 * 512**2 * 1024
