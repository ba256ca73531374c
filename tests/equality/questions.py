"""What is asked: the questions of single steps, of plans and of proofs.

Names of questions are parts of the keys under which answers are recorded, and so are the texts of layouts
in them: they stay as they are. Where the package calls a thing otherwise, `accessors.py` translates.
"""

from __future__ import annotations

from dataclasses import dataclass

RECIPES = {
    "fp16": "{name: fp16, extends: llm_2021, precision: fp16, reduce_precision: fp16}",
    "fp32": "{name: fp32, extends: llm_2021, precision: fp32}",
    "tf32": "{name: tf32, extends: llm_2021, precision: tf32, dropout: false}",
    "flash": "{name: flash, extends: llm_2021, attention: flash, overlap_param_gather: true}",
    "fp8": "{name: fp8, extends: llm_2024, precision: fp8, seq_length: 4096}",
    "pure16": "{name: pure16, extends: llm_2024, optimizer_precision: bf16, seq_length: 4096}",
    "adam8": "{name: adam8, extends: llm_2024, optimizer: adam8bit, seq_length: 4096}",
    "muon": "{name: muon, extends: llm_2024, optimizer: muon, seq_length: 4096}",
    "titan": "{name: titan, extends: llm_2024, framework: torchtitan, seq_length: 8192}",
    "maxtext": "{name: maxtext, extends: llm_2024, framework: maxtext-xla, seq_length: 8192}",
    "primus": "{name: primus, extends: llm_2024, framework: primus-te, seq_length: 8192}",
    "long": "{name: long, extends: llm_2024, seq_length: 32768}",
    "balanced": "{name: balanced, extends: llm_2024, routing: balanced, seq_length: 4096}",
    "deepep": "{name: deepep, extends: llm_2024, dispatcher: deepep, seq_length: 4096}",
    "sparse": "{name: sparse, extends: llm_2021, weight_sparsity: 0.75}",
    "peak": "{name: peak, extends: llm_2021, software_release: peak}",
    "blocking": "{name: blocking, extends: llm_2021, host_blocking: true, overlap_grad_reduce: false}",
}
"""Recipes that are not shipped, as the YAML of their files."""


@dataclass(frozen=True)
class Step:
    """A question of one optimizer step."""

    model: str
    system: str
    devices: int
    batch: int | None = None
    layout: str = ""
    strategy: str = ""
    recipe: str = ""
    memory_limit: float | None = None
    perturb: str = ""
    detail: str = ""
    expand: str = ""

    @property
    def name(self) -> str:
        """The question in a line, the key of its answer."""
        words = [f"{self.model} on {self.devices} {self.system}"]
        words += [f"batch {self.batch}"] if self.batch else []
        words += [self.layout] if self.layout else []
        words += [f"strategy {self.strategy}"] if self.strategy else []
        words += [f"recipe {self.recipe}"] if self.recipe else []
        words += [f"memory {self.memory_limit}"] if self.memory_limit else []
        words += [f"perturbed {self.perturb}"] if self.perturb else []
        words += [f"detail {self.detail}"] if self.detail else []
        words += [f"expanded {self.expand}"] if self.expand else []
        return ", ".join(words)


A80 = "dgx-a100-80gb"
H100 = "dgx-h100"

STEPS = [
    # every shipped system, the planner's choice and a given layout
    *(
        Step("llama_7b", system, 16, 128)
        for system in (
            "b200-sxm-180gb",
            "b300-sxm-288gb",
            "dgx-a100-40gb",
            A80,
            H100,
            "gb200-nvl72",
            "gb300-nvl72",
            "h100-96gb-hbm2e-500w",
            "h100-sxm5-80gb",
            "h200-sxm5-141gb",
            "h800-sxm5-80gb",
            "mi300x-192gb",
            "mi325x-256gb",
            "mi350x-288gb",
            "mi355x-288gb",
        )
    ),
    *(
        Step("llama31_70b", system, 64, 128, "tp=4,pp=4,dp=4,mbs=1,zero=1,sp=true,recompute=full")
        for system in ("b200-sxm-180gb", H100, "gb200-nvl72", "gb300-nvl72", "mi300x-192gb", "h800-sxm5-80gb")
    ),
    *(Step("gpt3_xl", system, 4, 512) for system in ("cs-2", "cs-2-peak", "cs-3", "memoryx-a100")),
    # every shipped model
    *(
        Step(model, A80, 16, 64)
        for model in (
            "bert_large",
            "cerebras_gpt_111m",
            "cerebras_gpt_256m",
            "cerebras_gpt_590m",
            "cerebras_gpt_1p3b",
            "cerebras_gpt_2p7b",
            "cerebras_gpt_6p7b",
            "cerebras_gpt_13b",
            "gpt3_xl",
            "gpt3_6p7b",
            "gpt3_13b",
            "gptj_6b",
            "llama_13b",
            "megatron_1p2b",
            "megatron_2p5b",
            "megatron_8p3b",
        )
    ),
    Step("llama_33b", H100, 32, 128, "tp=4,pp=2,dp=4,mbs=1,zero=1,sp=true"),
    Step("llama_65b", H100, 64, 128, "tp=8,pp=2,dp=4,mbs=1,zero=1,sp=true"),
    Step("opt_175b", A80, 128, 256, "tp=8,pp=8,dp=2,mbs=1,recompute=full"),
    Step("mt_nlg_530b", A80, 280, 280, "tp=8,pp=35,dp=1,mbs=1,recompute=full"),
    Step("gpt_1t", A80, 512, 512, "tp=8,pp=64,dp=1,mbs=1,recompute=full"),
    # strategies
    Step("gpt3_xl", A80, 8, 64, strategy="data"),
    Step("gpt3_xl", A80, 8, 64, strategy="tensor"),
    Step("gpt3_xl", A80, 8, 64, strategy="pipeline"),
    Step("gpt3_xl", A80, 8, 64, strategy="zero3"),
    Step("gpt3_xl", A80, 8, 64, strategy="3d"),
    Step("mixtral_8x7b", H100, 32, 128, strategy="zero3"),
    Step("gpt3_20b", A80, 8, 64, strategy="data"),
    Step("gpt3_xl", A80, 8, 64, strategy="weight-streaming"),
    Step("gpt3_xl", "cs-2", 1, 64, strategy="3d"),
    # layouts of dense models
    Step("gpt3_20b", A80, 32, 128, "tp=2,pp=4,dp=4,mbs=2,recompute=full"),
    Step("gpt3_20b", A80, 32, 128, "tp=4,pp=4,dp=2,mbs=1,sp=true,recompute=selective"),
    Step("gpt3_20b", A80, 32, 128, "tp=8,pp=1,dp=4,mbs=4,zero=1,sp=true,recompute=selective"),
    Step("gpt3_20b", A80, 32, 128, "tp=2,pp=2,dp=8,mbs=1,zero=2,recompute=full"),
    Step("gpt3_20b", A80, 32, 128, "dp=32,mbs=4,zero=3,recompute=full"),
    Step("gpt3_20b", A80, 32, 128, "dp=32,mbs=2,zero=3,shard_group=8,recompute=full"),
    Step("gpt3_20b", A80, 32, 128, "tp=2,pp=4,dp=4,mbs=1,recompute=full,recompute_every=2"),
    Step("gpt3_20b", A80, 32, 128, "tp=2,pp=4,dp=4,mbs=1,schedule=gpipe,recompute=full"),
    Step("gpt3_20b", A80, 32, 128, "tp=2,pp=4,dp=4,mbs=1,schedule=interleaved,vpp=11,zero=1,recompute=full"),
    Step("gpt3_20b", A80, 32, 128, "tp=4,pp=4,dp=2,mbs=1,schedule=zb1p,sp=true"),
    Step(
        "gpt3_20b",
        A80,
        32,
        128,
        "tp=4,pp=4,dp=2,mbs=1,schedule=zbv,vpp=2,sp=true,layers_per_stage=5-5-5-6-6-6-6-5",
    ),
    Step("gpt3_20b", A80, 32, 128, "tp=8,pp=2,dp=2,mbs=1,schedule=zbv,vpp=2,sp=true"),
    Step("gpt3_20b", A80, 32, 128, "tp=8,pp=2,dp=2,mbs=1,schedule=v-half,vpp=2,sp=true"),
    Step("gpt3_20b", A80, 32, 128, "tp=8,pp=2,dp=2,mbs=1,schedule=v-min,vpp=2,sp=true"),
    Step("gpt3_20b", A80, 32, 128, "tp=4,pp=4,dp=2,mbs=1,layers_per_stage=10-12-12-10,recompute=full"),
    Step("gpt3_20b", A80, 8, 64, "dp=8,mbs=2,zero=2,offload_optimizer=cpu,recompute=full"),
    Step("gpt3_20b", A80, 8, 64, "dp=8,mbs=2,zero=3,offload_optimizer=cpu,offload_param=cpu,recompute=full"),
    Step(
        "gpt3_20b", A80, 8, 64, "dp=8,mbs=2,zero=3,offload_optimizer=nvme,offload_param=nvme,recompute=full"
    ),
    Step("gpt3_20b", A80, 8, 64, "tp=8,dp=1,mbs=4,sp=true,recompute=full,offload_activations=cpu"),
    Step("gpt3_20b", A80, 8, 64, "dp=8,mbs=8"),
    Step("gpt3_20b", A80, 8, 64, "tp=3,dp=2"),
    Step("gpt3_175b", H100, 128, 256, "tp=8,pp=8,dp=2,mbs=1,schedule=interleaved,vpp=6,sp=true,zero=1"),
    Step(
        "llama31_70b", H100, 64, 64, "tp=4,cp=4,pp=2,dp=2,mbs=1,zero=1,sp=true,recompute=full", recipe="long"
    ),
    Step(
        "llama31_70b",
        H100,
        64,
        64,
        "tp=4,cp=2,context_exchange=all_to_all,pp=4,dp=2,mbs=1,zero=1,sp=true,recompute=full",
        recipe="long",
    ),
    Step("llama2_70b", H100, 64, 256, "tp=8,pp=4,dp=2,mbs=1"),
    Step("llama2_70b", H100, 64, 256, "tp=8,pp=4,dp=2,mbs=1,vpp=5,schedule=interleaved,sp=true,zero=1"),
    Step("llama2_70b", H100, 64, 256),
    Step("llama2_70b", H100, 64),
    Step("gpt3_20b", A80, 96),
    # models with experts, with latent attention, with multi-token prediction
    Step("mixtral_8x7b", H100, 64, 256, "tp=2,pp=4,dp=8,ep=8,mbs=1,zero=1,sp=true"),
    Step("mixtral_8x7b", H100, 64, 256, "tp=2,pp=4,dp=8,ep=8,mbs=1,zero=1,sp=true", recipe="balanced"),
    Step("mixtral_8x7b", H100, 64, 256, "tp=2,pp=4,dp=8,ep=4,etp=2,mbs=1,zero=1,sp=true", recipe="balanced"),
    Step("mixtral_8x7b", H100, 32, 128),
    Step("mixtral_8x22b", H100, 128, 256, "tp=2,pp=8,dp=8,ep=8,mbs=1,zero=1,sp=true,recompute=full"),
    Step("qwen3_30b_a3b", H100, 32, 128, "dp=32,ep=8,mbs=1,zero=1,recompute=full"),
    Step("qwen3_30b_a3b", H100, 32, 128, "dp=32,ep=8,mbs=1,zero=1,recompute=full", recipe="deepep"),
    Step("qwen3_235b_a22b", "gb200-nvl72", 64, 256, "tp=1,pp=2,dp=32,ep=16,mbs=1,zero=1,recompute=full"),
    Step("gpt_oss_120b", H100, 64, 128, "tp=4,pp=4,dp=4,ep=4,mbs=1,zero=1,sp=true"),
    Step("grok1", H100, 128, 128, "tp=4,pp=8,dp=4,ep=4,mbs=1,zero=1,sp=true,recompute=full"),
    Step("llama4_scout", H100, 64, 128, "tp=4,pp=4,dp=4,ep=16,mbs=1,zero=1,sp=true,recompute=full"),
    Step(
        "llama4_maverick",
        "gb200-nvl72",
        128,
        128,
        "tp=2,pp=4,dp=16,ep=32,mbs=1,zero=1,sp=true,recompute=full",
    ),
    Step("deepseek_v3", "gb200-nvl72", 256, 1024, "tp=2,dp=128,sp=true,ep=64,zero=1,mbs=1,recompute=full"),
    Step(
        "deepseek_v3",
        "h200-sxm5-141gb",
        256,
        512,
        "pp=16,dp=16,ep=16,zero=1,mbs=1,recompute=full,layers_per_stage=3-4-4-4-4-4-4-4-4-4-4-4-4-4-3-3",
    ),
    Step("deepseek_v3", "cs-3", 16, 1024),
    Step("mixtral_8x7b", "cs-3", 4, 256),
    # precisions, optimizers, frameworks
    *(
        Step("gpt3_13b", A80, 16, 64, recipe=recipe)
        for recipe in ("fp16", "fp32", "tf32", "flash", "blocking")
    ),
    *(
        Step("llama2_70b", H100, 64, 128, "tp=4,pp=4,dp=4,mbs=1,zero=1,sp=true", recipe=recipe)
        for recipe in ("fp8", "pure16", "adam8", "muon", "titan")
    ),
    Step("llama31_70b", H100, 64, 128, "dp=64,mbs=1,zero=3,recompute=full", recipe="titan"),
    Step("llama31_70b", H100, 64, 128, "dp=64,mbs=1,zero=3,recompute=full", recipe="maxtext"),
    Step("llama31_70b", "mi300x-192gb", 64, 128, "dp=64,mbs=1,zero=3,recompute=full", recipe="primus"),
    Step("llama31_70b", "b200-sxm-180gb", 64, 128, "tp=2,pp=4,dp=8,mbs=1,zero=1,sp=true", recipe="fp8"),
    # wafers
    Step("gpt3_20b", "cs-2", 1),
    Step("gpt3_20b", "cs-2", 16, 384),
    Step("gpt3_20b", "cs-2", 16, 64),
    Step("gpt3_20b", "cs-2", 4, 96, detail="chunk"),
    Step("gpt3_20b", "cs-2", 4, 96, "mbs=24"),
    Step("gpt3_20b", "cs-2", 4, 96, "dp=4,mbs=24,recompute=full,recompute_layers=2"),
    Step("gpt3_20b", "cs-2", 4, 96, "dp=4,mbs=12,recompute=full,recompute_layers=4,stream_chunks=4"),
    Step("gpt3_20b", "cs-2", 4, 96, recipe="sparse"),
    Step("gpt3_20b", "cs-2", 4, 96, recipe="peak"),
    Step("gpt3_175b", "cs-3", 64, 1024),
    Step("llama31_70b", "cs-3", 16, 512),
    Step("gpt_1t", "cs-3", 64, 1024),
    Step("gpt3_20b", "memoryx-a100", 64, 256),
    # perturbations
    Step("gpt3_xl", A80, 16, 64, "tp=2,pp=2,dp=4,mbs=2", perturb="straggler=1.3@rank5"),
    Step("gpt3_xl", A80, 16, 64, "tp=2,pp=2,dp=4,mbs=2", perturb="jitter=0.02,seed=1"),
    Step("gpt3_xl", A80, 16, 64, "tp=2,pp=2,dp=4,mbs=2", perturb="step-straggler=1.5@0.1,seed=3,draws=5"),
    Step("gpt3_xl", A80, 16, 64, "tp=2,pp=2,dp=4,mbs=2", perturb="slow=0.25@node0/nic0-leaf0"),
    Step("gpt3_xl", A80, 16, 64, perturb="mttf=8h,checkpoint=1h,restart=10min,write=1min"),
    Step("gpt3_xl", A80, 16, 64, perturb="at=5h,checkpoint=1h,restart=10min"),
    Step("gpt3_20b", "cs-2", 4, 96, perturb="straggler=1.3@rank1"),
    Step("gpt3_20b", "cs-2", 4, 96, perturb="jitter=0.05,seed=2"),
    # collectives as steps
    Step("gpt3_xl", A80, 16, 64, "dp=16,mbs=2", expand="data.all_reduce=tree"),
    Step("gpt3_xl", A80, 16, 64, "dp=16,mbs=2", expand="data.all_reduce=ring"),
    # limits of memory
    Step("gpt3_13b", A80, 16, 64, memory_limit=0.5),
    Step("gpt3_13b", A80, 16, 64, memory_limit=1.0),
    Step("gpt3_175b", A80, 8, 8),
    # what cannot be asked
    Step("gpt3_xl", A80, 12345, 64),
    Step("gpt3_xl", A80, 16, 63, "dp=16,mbs=2"),
    Step("no_such_model", A80, 16),
]


@dataclass(frozen=True)
class Shortlist:
    """A question of the layouts that may be the fastest."""

    model: str
    system: str
    devices: int
    batch: int | None = None
    recipe: str = ""
    objective: str = "step-time"
    strategy: str = ""
    match: str = ""

    @property
    def name(self) -> str:
        """The question in a line, the key of its answer."""
        words = [f"{self.model} on {self.devices} {self.system}"]
        words += [f"batch {self.batch}"] if self.batch else []
        words += [f"strategy {self.strategy}"] if self.strategy else []
        words += [f"recipe {self.recipe}"] if self.recipe else []
        words += [f"by {self.objective}"] if self.objective != "step-time" else []
        words += [f"matched by {self.match}"] if self.match else []
        return ", ".join(words)


PLANS = [
    Shortlist("gpt3_175b", A80, 512, 192),
    Shortlist("gpt3_20b", A80, 64, 256),
    Shortlist("llama2_70b", H100, 64, 256),
    Shortlist("llama31_70b", "gb200-nvl72", 64, 256, "fp8"),
    Shortlist("mixtral_8x7b", H100, 32, 128),
    Shortlist("gpt3_20b", "cs-2", 4, 96),
    Shortlist("gpt3_xl", A80, 8, 64, strategy="zero3"),
    Shortlist("gpt3_13b", A80, 32, None, "gpt3_20b_chinchilla", "time-to-accuracy"),
    Shortlist("gpt3_13b", A80, 32, 256, "gpt3_20b_chinchilla", match="cs-2"),
    Shortlist("gpt3_13b", A80, 32, None, "gpt3_20b_chinchilla", "cost"),
    Shortlist("gpt3_175b", A80, 8, 8),
]


@dataclass(frozen=True)
class Proved:
    """A request of executed schedules."""

    model: str
    strategy: str = ""
    layout: str = ""

    @property
    def name(self) -> str:
        """The request in a line, the key of its answer."""
        return " ".join(filter(None, (self.model, self.strategy, self.layout)))


PROOFS = [
    Proved("gpt3_20b", "weight-streaming"),
    Proved("gpt3_xl", "3d", "tp=2,pp=2,dp=1"),
    Proved("gpt3_xl", "3d", "tp=2,pp=4,schedule=zb1p"),
    Proved("gpt3_xl", "zero3"),
]
