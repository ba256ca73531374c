"""What recompute keeps and runs again: the policies of MaxText and torchtitan."""

from dataclasses import replace

import pytest

from perfsim.catalog import default_catalog
from perfsim.prediction.planner import plan_of
from perfsim.prediction.question import question_of
from perfsim.prediction.run import evaluate
from perfsim.specs.layout import RECOMPUTED, Recompute, recompute_of
from perfsim.specs.model import LayerKind
from perfsim.specs.recipe import Job
from perfsim.work.counts import layer_activation_bytes, model_flop_per_step, recompute_flop_per_step
from perfsim.work.kernels import LayerSlice
from perfsim.work.layer import attention_recompute, mlp_recompute

CATALOG = default_catalog()
LLAMA = CATALOG.model("llama31_70b")
PART = LayerSlice(LLAMA, seq_length=4096, micro_batch_size=1, attention="flash", dropout=False)
BY_OPERATOR = replace(PART, selective="every_second_product")
TOKENS = 4096
HIDDEN = 8192
PAIR = 1024
FFN = 28672


def products(part: LayerSlice, recompute: Recompute) -> dict[str, int]:
    """Columns of the products that run again."""
    kernels = (*attention_recompute(part, recompute), *mlp_recompute(part, recompute))
    return {kernel.name: kernel.n for kernel in kernels if kernel.op != "elementwise"}


def test_full_recompute_that_keeps_qkv_runs_all_but_its_projections_again() -> None:
    whole = products(PART, "full")
    kept = products(replace(PART, keeps="qkv"), "full")
    assert kept == {name: columns for name, columns in whole.items() if name != "qkv"}
    more = layer_activation_bytes(replace(PART, keeps="qkv"), "full") - layer_activation_bytes(PART, "full")
    assert more == 2.0 * TOKENS * (HIDDEN + 2 * PAIR)


def test_recompute_by_operator_runs_keys_projection_and_one_half_of_the_gated_mlp_again() -> None:
    assert products(BY_OPERATOR, "selective") == {"qkv": PAIR, "projection": HIDDEN, "fc1": FFN}
    kept = HIDDEN + PAIR + HIDDEN + FFN + HIDDEN
    """Queries, values, context, one half of the MLP and its result."""
    assert layer_activation_bytes(BY_OPERATOR, "selective") == 2.0 * TOKENS * (HIDDEN + kept)
    assert products(PART, "selective") == {"flash_attention": 4096}, "Megatron's runs the core alone again"


def test_recompute_of_the_mlp_keeps_all_but_its_inner_activations() -> None:
    assert products(PART, "mlp") == {"fc1": 2 * FFN, "fc2": HIDDEN}
    kept = layer_activation_bytes(PART, "none") - layer_activation_bytes(PART, "mlp")
    assert kept == 2.0 * TOKENS * 3 * FFN


@pytest.mark.parametrize(
    ("framework", "recompute", "keeps"),
    [
        ("torchtitan", "selective", "nothing"),
        ("maxtext-xla", "full", "qkv"),
        ("megatron-core-te", "mlp", "nothing"),
    ],
)
def test_flop_and_closed_form_follow_what_is_kept(framework: str, recompute: Recompute, keeps: str) -> None:
    update = {
        "name": framework,  # else the rule chooses it
        "framework": CATALOG.framework(framework),
        "recompute_keeps": keeps,
        "attention": "standard",  # computes masked scores too, as the formula counts
    }
    recipe = CATALOG.recipe("llm_2024").ran_with(**update)
    asked = {"model": LLAMA, "system": "dgx-h100", "devices": 16, "strategy": "zero3", "batch": 16}
    question = question_of({**asked, "recipe": recipe, "layout": f"mbs=1,recompute={recompute}"})
    question = replace(question, must_fit=False)
    plan = plan_of(question)
    run = evaluate(plan, question.costs)
    assert question.chosen.estimate_s(plan, question.costs) == pytest.approx(run.step_time_s, rel=0.02)
    job = plan.job
    flop = model_flop_per_step(job) + recompute_flop_per_step(job, recompute)
    if recompute == "full":  # which skips the last linear, whose result no backward reads
        flop -= 2.0 * LLAMA.num_layers * LLAMA.hidden_size * LLAMA.ffn_hidden_size * job.tokens_per_step
    assert run.graph.flop / len(run.graph.step_ends) == pytest.approx(flop, rel=0.001)


def test_modules_run_again_by_themselves_are_their_kernels_and_keep_all_but_what_these_make() -> None:
    """[Megatron-Core, `--recompute-modules`]: norms, the activation of experts, up-projections of latents."""
    deepseek = CATALOG.model("deepseek_v3")
    part = replace(PART, model=deepseek, kind=LayerKind(experts=True))
    names = {
        mode: {kernel.name for kernel in (*attention_recompute(part, mode), *mlp_recompute(part, mode))}
        for mode in ("norms", "latents")
    }
    assert names["norms"] == {"attention_norm", "mlp_norm", "expert_activation"}
    assert names["latents"] == {"inner_norms", "query", "pair", "rotary"}
    whole = layer_activation_bytes(part, "none")
    assert whole - layer_activation_bytes(part, "norms") == 2.0 * TOKENS * (2 * 7168 + 8 * 2048)
    queries = 128 * (128 + 64)
    latents = 1536 + 512
    assert whole - layer_activation_bytes(part, "latents") == 2.0 * TOKENS * (
        queries + part.pair_width + latents
    )
    job = Job(deepseek, CATALOG.recipe("llm_2024"), 1)
    assert recompute_flop_per_step(job, "norms") == 0.0
    up = sum(kernel.flop for kernel in attention_recompute(part, "latents")) / TOKENS
    layers = deepseek.num_layers + deepseek.mtp_num_layers
    assert recompute_flop_per_step(job, "latents") == pytest.approx(layers * up * job.tokens_per_step)


def test_the_mode_of_some_modules_runs_all_of_them_again_and_the_fewest_others() -> None:
    for mode, modules in RECOMPUTED.items():
        assert recompute_of(modules) == (None if mode == "full" else mode)
    assert recompute_of(["moe_act"]) == "norms"
    assert recompute_of(["mla_up_proj", "mlp"]) == "latents+mlp"
    assert recompute_of(["core_attn", "mlp"]) is None
