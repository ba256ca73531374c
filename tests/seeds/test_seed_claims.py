"""Quantitative claims of four documents, each with a command, the simulated figure, and a plain verdict.

The documents are three posts of Cerebras (June and September 2022, March 2023) and the figures they cite.
With PERFSIM_SEEDS=FILE (`make seeds`) all claims are answered and FILE gets a table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfsim.api.predicting import predict
from perfsim.catalog import default_catalog
from perfsim.catalog.catalog import data_root
from perfsim.cli import main
from perfsim.convergence.loss_laws import BESIROGLU, CEREBRAS_GPT, compute_law
from perfsim.convergence.time_to_accuracy import split_speedup
from perfsim.prediction.evaluation import graph_of
from perfsim.transformer import parameters

AGREES, AGREES_IF, DOES_NOT = "agrees", "agrees if", "does not"
POSTS = {
    "000": "N. Vassilieva, Cerebras blog, 2022-06-22 (one CS-2, 1.3 to 6.7 billion parameters)",
    "001": "D. Lam, Cerebras blog, 2022-09-14 (linear scaling to 192 CS-2)",
    "002": "N. Dey et al., Cerebras blog, 2023-03-28 (Cerebras-GPT)",
    "003": "J. Hestness et al., Cerebras blog, 2022-06-22 (largest models on one device)",
}
REFERENCE = "studies/validation/bert_reference.csv"
Figures = tuple[str, str]
"""The simulated figure in words, and the verdict with its condition."""


@dataclass(frozen=True)
class Claim:
    """What a document says, and how it is checked."""

    seed: str
    says: str
    command: str
    check: Callable[[str], Figures]


def called(command: str) -> str:
    """What a command prints, or says where it refuses."""
    result = CliRunner().invoke(main, command.removeprefix("perfsim ").split())
    return result.output if result.exit_code else result.stdout


def document(command: str) -> Any:
    return json.loads(called(f"{command} --json"))


def fitted_samples(printed: str) -> Callable[[float], float]:
    """The samples at a batch by the E_min and B_crit that `calibrate convergence` prints."""
    values = {line.split(":")[0]: line.split(":")[1] for line in printed.splitlines() if line.count(":") == 1}
    e_min, b_crit = float(values["e_min_tokens"]), float(values["b_crit_tokens"])
    return lambda batch: e_min * (1 + batch / b_crit)


# ------------------------------------------------------------------------------------------- 000
def table_1(command: str) -> Figures:
    samples = fitted_samples(called(command))
    rows = [(448, 2.5e6), (3072, 3.1e6), (3072, 2.8e6), (12960, 4.7e6)]
    worst = max(abs(samples(batch) / said - 1) for batch, said in rows)
    assert worst < 0.07
    shown = ", ".join(f"{samples(batch) / 1e6:.2f}" for batch in (448, 3072, 12960))
    return f"{shown} million samples at batch 448, 3,072, 12,960", f"{AGREES} within {100 * worst:.0f} %"


def figure_5(command: str) -> Figures:
    samples = fitted_samples(called(command))
    growth = {base: samples(15 * base) / samples(base) for base in (448, 528)}
    assert growth[448] == pytest.approx(1.5, rel=0.1)
    assert growth[528] == pytest.approx(1.5, rel=0.01)
    return (
        f"{growth[448]:.2f} times from batch 448, {growth[528]:.2f} from 528",
        f"{AGREES_IF} the base is a batch of about 528",
    )


def times_of_bert(command: str) -> Figures:
    """The clock of MLPerf: steps, evaluations, and the start of the run."""
    runs = [point["whole_run"][-1] for point in document(command)["points"]]
    minutes = [run["typical_s"] / 60 for run in runs]
    measured = [20.0, 3.04, 0.558, 0.226]
    errors = [own / said - 1 for own, said in zip(minutes, measured, strict=True)]
    assert [run["name"] for run in runs] == ["whole run"] * 4
    assert all(abs(error) < 0.2 for error in errors)
    shown = ", ".join(f"{value:.3g}" for value in minutes)
    padded = (
        "at three samples a GPU the published runs pad to 512 tokens, so that CUDA graphs can replay a step"
    )
    return (
        f"{shown} min on 8, 64, 1,024, 4,320 GPUs (measured 20.0, 3.04, 0.558, 0.226)",
        f"{AGREES} within {100 * max(map(abs, errors)):.0f} %; {padded}",
    )


def data_parallel_limit(command: str) -> Figures:
    refused = called(command)
    smaller = document(command.replace("gpt3_6p7b", "cerebras_gpt_2p7b"))
    sharded = document(command.replace("mbs=1", "mbs=1,zero=1"))
    assert "does not fit" in refused
    assert smaller["step_time_s"] > 0
    assert sharded["step_time_s"] > 0
    return (
        "6.7B does not fit in 80 GB under plain data parallelism and 2.7B does; with ZeRO 1 6.7B fits",
        f"{AGREES_IF} optimizer state is not sharded",
    )


def switch_of_models(command: str) -> Figures:
    layouts = {}
    for model in ("gpt3_xl", "gpt3_6p7b", "gpt3_20b"):
        layout = document(command.replace("gpt3_6p7b", model))["layout"]
        layouts[model] = {name: layout.get(name) for name in ("tensor", "pipeline")}
    assert all(set(layout.values()) <= {None, 1} for layout in layouts.values())
    return "1.3B, 6.7B and 20B run on one CS-2 without splitting the model", AGREES


# ------------------------------------------------------------------------------------------- 001
def linear_scaling(command: str) -> Figures:
    one = document(command.replace("--devices 192", "--devices 1"))
    many = document(command)
    efficiency = many["tokens_per_s"] / one["tokens_per_s"] / 192
    fixed = [
        document(f"{command.replace('--batch-per-device 50', '--batch 768').replace('192', count)}")
        for count in ("1", "192")
    ]
    strong = fixed[1]["tokens_per_s"] / fixed[0]["tokens_per_s"] / 192
    assert efficiency > 0.95
    assert strong < 0.8
    weak = f"{100 * efficiency:.0f} % of linear with 50 sequences a system"
    return (
        f"{weak}, {100 * strong:.0f} % with 768 over all",
        f"{AGREES_IF} the batch grows with the systems; no run on more than 16 is published",
    )


# ------------------------------------------------------------------------------------------- 002
def twenty_tokens(_: str) -> Figures:
    flop = 5.76e23
    sizes = [7.225e10 * factor for factor in (0.5, 1.0, 2.0)]
    losses = [BESIROGLU.loss(size, flop / (6 * size)) for size in sizes]
    ratio = flop / (6 * sizes[1]) / sizes[1]
    assert losses[1] == min(losses)
    assert ratio == pytest.approx(18.4, rel=0.01)
    return f"least loss at {ratio:.1f} tokens a parameter for {flop:.3g} FLOP by law besiroglu", AGREES


def pile_law(_: str) -> Figures:
    law = compute_law(CEREBRAS_GPT[:5])
    errors = [law.loss(params, tokens) - loss for params, tokens, loss in CEREBRAS_GPT[5:]]
    assert max(map(abs, errors)) < 0.03
    shown = " and ".join(f"{law.loss(*run[:2]):.3f} ({run[2]:.3f})" for run in CEREBRAS_GPT[5:])
    return f"fitted on 111M to 2.7B it predicts {shown} for 6.7B and 13B", f"{AGREES} within 0.03 nat"


def one_device_each(command: str) -> Figures:
    models = ("111m", "256m", "590m", "1p3b", "2p7b", "6p7b", "13b")
    for model in models:
        shares = document(command.replace("13b", model))
        assert shares["peak_memory_bytes"] < shares["memory_capacity_bytes"]
    return "all seven models fit one CS-2 with data parallelism alone", AGREES


def neox(command: str) -> Figures:
    best = document(command)["shortlist"][0]["layout"]
    assert min(best["tensor"], best["pipeline"]) > 1
    degrees = f"tensor {best['tensor']}, pipeline {best['pipeline']}, ZeRO {best['zero_stage']}"
    return (
        f"the best layout predicted has {degrees}",
        f"{AGREES_IF} the batch is about the published one; at its best batch ZeRO 3 needs no pipeline",
    )


# ------------------------------------------------------------------------------------------- 003
def twenty_billion_on_one(command: str) -> Figures:
    answer = document(command)
    share = answer["peak_memory_bytes"] / answer["memory_capacity_bytes"]
    assert share < 1
    return f"fits one CS-2 with {100 * share:.0f} % of the wafer's memory", AGREES


def tensor_degree(command: str) -> Figures:
    entries = document(command)["shortlist"]
    widest = max(entry["layout"]["tensor"] for entry in entries)
    assert widest <= 8
    return (
        f"tensor degree of the layouts that may be fastest for 175B on 1,024 A100s: at most {widest}",
        AGREES,
    )


def figure_7(_: str) -> Figures:
    """Published times and epochs (MLPerf 0.6, TPU v3): nothing is simulated."""
    speedup, statistical = 10.198 / 0.84764, 2.2 / 5.1
    split = split_speedup(speedup, 64, 2.2, 5.1)
    assert speedup == pytest.approx(12, rel=0.01)
    assert split.statistical == pytest.approx(statistical)
    halves = f"{split.statistical:.2f} is statistics (epochs 2.2 to 5.1) and {split.hardware:.2f} hardware"
    return (
        f"{speedup:.1f} times, of which {halves}, read from published times",
        f"{AGREES}; 2.3 of the 5.3 times lost are extra epochs, not communication",
    )


def specification(_: str) -> Figures:
    catalog = default_catalog()
    wafer, gpu = catalog.device("wse-2"), catalog.device("a100-sxm4-40gb")
    memory = wafer.memory.capacity / (gpu.memory.cache or 1.0)
    bandwidth = wafer.memory.bandwidth / gpu.memory.bandwidth
    assert memory == pytest.approx(1000, rel=0.01)
    assert 12_000 < bandwidth < 13_000
    return (
        f"{memory:,.0f} times the on-chip memory, {bandwidth:,.0f} times the bandwidth",
        f"{AGREES_IF} caches are compared with SRAM, and HBM of the 40 GB module with SRAM",
    )


def pipeline_memory(_: str) -> Figures:
    def held(stages: int, layers: int) -> float:
        model = default_catalog().models["gpt3_xl"].with_(num_layers=layers)
        prediction = predict(
            model=model, system="dgx-a100-80gb", devices=stages, batch=32,
            layout=f"pp={stages},mbs=1,recompute=none",
        )  # fmt: skip
        return sum(bar.parts_bytes["activations"] for bar in prediction.memory)

    same, grown = held(8, 24) / held(2, 24), held(8, 24) / held(2, 6)
    assert same == pytest.approx(9 / 3, rel=0.01)
    assert grown == pytest.approx(36 / 3, rel=0.1)
    both = f"{same:.1f} times for one model, {grown:.0f} times where the layers grow with the stages"
    return (
        f"from 2 to 8 stages the activations of all stages grow {both}",
        f"{AGREES_IF} the model grows with the stages; for one model 1F1B holds (N + 1) / 2 times its layers",
    )


def figure_10(_: str) -> Figures:
    """L layers, T activation bytes of a layer and sample, B samples, P bytes of gradients, N = 4 GPUs."""
    model, samples = default_catalog().models["gpt3_xl"], 8
    tensor_bytes = 2.0 * 2048 * model.hidden_size * samples
    expected = {
        "dp=4,mbs=1,zero=0": 4.0
        * parameters(model).total,  # all-reduced once, so 2 P (N - 1) / N on the wire
        "tp=4,mbs=1": 4.0 * model.num_layers * tensor_bytes,  # all-reduced, 8 L T B (N - 1) / N on the wire
        "pp=4,mbs=1": 2.0 * 3 * tensor_bytes,  # 2 T B over each of N - 1 boundaries
    }
    errors = {}
    for layout, formula in expected.items():
        asked = {"model": model, "system": "dgx-a100-80gb", "devices": 4, "batch": samples, "layout": layout}
        graph = graph_of(predict(**asked).run.plan)
        kind = {"d": "data", "t": "tensor", "p": "pipeline"}[layout[0]]
        sent = [
            task.work.comm_bytes
            for task in graph.tasks()
            if task.work.category == f"{kind}_communication"
            and (kind != "pipeline" or task.work.op == "send_recv")
        ]
        errors[kind] = sum(sent) / formula - 1
    assert all(abs(error) < 0.05 for error in errors.values())
    shown = ", ".join(f"{kind} {100 * error:+.1f} %" for kind, error in errors.items())
    return (
        f"bytes of a simulated step of 1.3B on 4 GPUs over 2 P (N-1)/N, 8 L T B (N-1)/N and 2 T B: {shown}",
        f"{AGREES} within 5 %; embedding, head and tied weights come on top of the equations",
    )


GPUS = "perfsim run --model gpt3_6p7b --system dgx-a100-80gb --devices 8 --batch 64 --layout dp=8,mbs=1"
CLAIMS = {
    "samples of table 1": Claim(
        "000", "2.5, 3.1, 2.8, 4.7 million samples to train BERT on 8, 64, 1,024, 4,320 GPUs",
        f"perfsim calibrate convergence {REFERENCE}", table_1,
    ),
    "figure 5": Claim(
        "000", "15 times the batch is 1.5 times the samples (BERT)",
        f"perfsim calibrate convergence {REFERENCE}", figure_5,
    ),
    "times of table 1": Claim(
        "000", "the four runs of table 1 (their published times)", "perfsim sweep bert_mlperf", times_of_bert
    ),
    "data parallel limit": Claim(
        "000", "above 3 to 4 billion parameters a model does not fit one GPU, even with 80 GB", GPUS,
        data_parallel_limit,
    ),
    "switch of models": Claim(
        "000", "1.3B to 6.7B to 20B on one CS-2 changes only numbers of the model",
        "perfsim run --model gpt3_6p7b --system cs-2 --devices 1 --batch 48", switch_of_models,
    ),
    "linear to 192": Claim(
        "001", "linear scaling to 192 CS-2",
        "perfsim run --model gpt3_20b --system cs-2 --devices 192 --batch-per-device 50", linear_scaling,
    ),
    "twenty tokens": Claim(
        "002", "20 tokens a parameter are compute-optimal", "loss law besiroglu", twenty_tokens
    ),
    "pile law": Claim(
        "002", "the law of the smaller models predicts the larger ones", "loss law cerebras_gpt", pile_law
    ),
    "one device each": Claim(
        "002", "data parallelism alone trains all seven models",
        "perfsim run --model cerebras_gpt_13b --system cs-2 --devices 1 --batch 24", one_device_each,
    ),
    "gpt-neox": Claim(
        "002", "GPT-NeoX-20B takes data, tensor and pipeline parallelism on 96 GPUs",
        "perfsim plan --model gpt_neox_20b --system dgx-a100-40gb --devices 96 --batch 1536", neox,
    ),
    "20B on one": Claim(
        "003", "20 billion parameters train on one CS-2",
        "perfsim run --model gpt_neox_20b --system cs-2 --devices 1 --batch 48", twenty_billion_on_one,
    ),
    "tensor degree": Claim(
        "003", "tensor parallelism is limited to 4 or 8",
        "perfsim plan --model gpt3_175b --system dgx-a100-80gb --devices 1024 --batch 1536", tensor_degree,
    ),
    "figure 7": Claim("003", "64 times the TPUs are 12 times the speed", "published times", figure_7),
    "figure 8": Claim(
        "003", "1,000 times the on-chip memory and 12,000 times the memory bandwidth of an A100",
        "perfsim show devices wse-2", specification,
    ),
    "figure 10": Claim(
        "003", "the equations of communication in L, T, B, P, N (derived here; the figure is an image)",
        "perfsim run --model gpt3_xl --system dgx-a100-80gb --devices 4 --batch 8 --layout dp=4,mbs=1",
        figure_10,
    ),
    "pipeline memory": Claim(
        "003", "activation memory of a pipeline grows with the square of its stages",
        "perfsim run --model gpt3_xl --system dgx-a100-80gb --devices 8 --batch 32 "
        "--layout pp=8,mbs=1,recompute=none", pipeline_memory,
    ),
}  # fmt: skip
SLOW = {"times of table 1", "one device each", "gpt-neox", "tensor degree", "linear to 192"}
"""Claims whose command takes seconds."""


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data_root())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CLAIMS]
)
def test_a_claim_is_reproduced_by_its_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = CLAIMS[name]
    command = f"{claim.command} --out {tmp_path}/out" if " sweep " in claim.command else claim.command
    figure, verdict = claim.check(command)
    assert figure
    assert verdict.startswith((AGREES, DOES_NOT))
    FOUND[name] = (figure, verdict)


FOUND: dict[str, Figures] = {}


@pytest.mark.slow
def test_the_page_has_every_claim() -> None:
    page = os.environ.get("PERFSIM_SEEDS")
    if not page:
        pytest.skip("PERFSIM_SEEDS names no page")
    assert set(FOUND) == set(CLAIMS)
    about = (
        "Written by `make seeds`: what each document says, the command that answers it, the figure, and "
        "whether they agree. Every row is a test in `tests/seeds/`. Figure 2 of 002 (Pythia) "
        "is not here."
    )
    lines = ["# The four documents, claim by claim", "", about, ""]
    for seed, title in POSTS.items():
        lines += [f"## {title}", "", "| it says | command | perfsim says | verdict |", "|---|---|---|---|"]
        lines += [
            f"| {claim.says} | `{claim.command}` | {FOUND[name][0]} | {FOUND[name][1]} |"
            for name, claim in CLAIMS.items()
            if claim.seed == seed
        ]
        lines.append("")
    Path(page).write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
