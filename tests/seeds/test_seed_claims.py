"""Quantitative claims of four documents, each with a command, the simulated figure, and a plain verdict.

The documents are three posts of Cerebras (June and September 2022, March 2023) and the figures they cite.
With PERFSIM_SEEDS=FILE (`make seeds`) all claims are answered and FILE gets a table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from perfsim.catalog import default_catalog
from perfsim.catalog.catalog import data_root
from perfsim.cli import main

AGREES = "agrees"
AGREES_IF = "agrees if"
POSTS = {
    "000": "N. Vassilieva, Cerebras blog, 2022-06-22 (one CS-2, 1.3 to 6.7 billion parameters)",
    "001": "D. Lam, Cerebras blog, 2022-09-14 (linear scaling to 192 CS-2)",
    "002": "N. Dey et al., Cerebras blog, 2023-03-28 (Cerebras-GPT)",
    "003": "J. Hestness et al., Cerebras blog, 2022-06-22 (largest models on one device)",
}
FIT = "perfsim calibrate convergence studies/validation/bert_reference.csv"
Figures = tuple[str, str]
"""The simulated figure in words, and the verdict with its condition."""
Check = Callable[[str], Figures]


class Claim(NamedTuple):
    """The post that makes a claim, the command that answers it, and its check, whose docstring it is."""

    post: str
    command: str
    check: Check


CLAIMS: list[Any] = []


def claim(post: str, command: str, *, slow: bool = False) -> Callable[[Check], Check]:
    """The decorated function checks a claim; a slow one has a command that takes seconds."""

    def registered(check: Check) -> Check:
        marks = [pytest.mark.slow] if slow else []
        CLAIMS.append(pytest.param(Claim(post, command, check), marks=marks, id=check.__name__))
        return check

    return registered


def called(command: str) -> str:
    """What a command prints, or says where it refuses."""
    result = CliRunner().invoke(main, command.removeprefix("perfsim ").split())
    return result.output if result.exit_code else result.stdout


def document(command: str) -> Any:
    return json.loads(called(f"{command} --json"))


def fitted_samples(command: str) -> Callable[[float], float]:
    """The samples at a batch by the E_min and B_crit that `calibrate convergence` prints."""
    values = dict(line.split(":") for line in called(command).splitlines() if line.count(":") == 1)
    e_min = float(values["e_min_tokens"])
    b_crit = float(values["b_crit_tokens"])
    return lambda batch: e_min * (1 + batch / b_crit)


# ------------------------------------------------------------------------------------------- 000
@claim("000", FIT)
def table_1(command: str) -> Figures:
    """2.5, 3.1, 2.8, 4.7 million samples to train BERT on 8, 64, 1,024, 4,320 GPUs."""
    samples = fitted_samples(command)
    rows = [(448, 2.5e6), (3072, 3.1e6), (3072, 2.8e6), (12960, 4.7e6)]
    worst = max(abs(samples(batch) / said - 1) for batch, said in rows)
    assert worst < 0.07
    shown = ", ".join(f"{samples(batch) / 1e6:.2f}" for batch in (448, 3072, 12960))
    return f"{shown} million samples at batch 448, 3,072, 12,960", f"{AGREES} within {100 * worst:.0f} %"


@claim("000", FIT)
def figure_5(command: str) -> Figures:
    """15 times the batch is 1.5 times the samples (BERT)."""
    samples = fitted_samples(command)
    small, base = (samples(15 * batch) / samples(batch) for batch in (448, 528))
    assert small == pytest.approx(1.5, rel=0.1)
    assert base == pytest.approx(1.5, rel=0.01)
    return (
        f"{small:.2f} times from batch 448, {base:.2f} from 528",
        f"{AGREES_IF} the base is a batch of about 528",
    )


@claim("000", "perfsim sweep bert_mlperf", slow=True)
def times_of_bert(command: str) -> Figures:
    """The four runs of table 1 (their published times)."""
    # The clock of MLPerf: steps, evaluations, and the start of the run.
    runs = [point["whole_run"][-1] for point in document(command)["points"]]
    minutes = [run["typical_s"] / 60 for run in runs]
    measured = [20.0, 3.04, 0.558, 0.226]
    errors = [minute / said - 1 for minute, said in zip(minutes, measured, strict=True)]
    assert [run["name"] for run in runs] == ["whole run"] * 4
    assert all(abs(error) < 0.2 for error in errors)
    shown = ", ".join(f"{value:.3g}" for value in minutes)
    padded = "at three samples a GPU the published runs pad to 512 tokens, so that CUDA graphs replay a step"
    return (
        f"{shown} min on 8, 64, 1,024, 4,320 GPUs (measured 20.0, 3.04, 0.558, 0.226)",
        f"{AGREES} within {100 * max(map(abs, errors)):.0f} %; {padded}",
    )


@claim(
    "000", "perfsim run --model gpt3_6p7b --system dgx-a100-80gb --devices 8 --batch 64 --layout dp=8,mbs=1"
)
def data_parallel_limit(command: str) -> Figures:
    """Above 3 to 4 billion parameters a model does not fit one GPU, even with 80 GB."""
    refused = called(command)
    assert "does not fit" in refused
    for was, now in (("gpt3_6p7b", "cerebras_gpt_2p7b"), ("mbs=1", "mbs=1,zero=1")):
        assert document(command.replace(was, now))["step_time_s"] > 0
    return (
        "6.7B does not fit in 80 GB under plain data parallelism and 2.7B does; with ZeRO 1 6.7B fits",
        f"{AGREES_IF} optimizer state is not sharded",
    )


@claim("000", "perfsim run --model gpt3_6p7b --system cs-2 --devices 1 --batch 48")
def switch_of_models(command: str) -> Figures:
    """1.3B to 6.7B to 20B on one CS-2 changes only numbers of the model."""
    for model in ("gpt3_xl", "gpt3_6p7b", "gpt3_20b"):
        layout = document(command.replace("gpt3_6p7b", model))["layout"]
        assert {layout.get("tensor"), layout.get("pipeline")} <= {None, 1}
    return "1.3B, 6.7B and 20B run on one CS-2 without splitting the model", AGREES


@claim("000", "perfsim validate studies/validation/weight_streaming.yaml", slow=True)
def rate_of_figure_2(command: str) -> Figures:
    """0.4755 steps a second of GPT-3 XL on one CS-2 (log of June 2022)."""
    case = next(case for case in document(command)["cases"] if case["id"] == "seed_gpt3xl_1xcs2")
    assert case["measured_s"] == pytest.approx(1 / 0.4755, rel=1e-3)
    assert abs(case["error"]) < 0.15
    longer = f"a step is {100 * case['error']:.0f} % longer"
    return (
        f"{1 / case['predicted_s']:.3f} steps a second",
        f"{AGREES_IF} a step has 121 sequences, which the document does not say ({longer})",
    )


# ------------------------------------------------------------------------------------------- 001
@claim("001", "perfsim run --model gpt3_20b --system cs-2 --devices 192 --batch-per-device 50", slow=True)
def linear_scaling(command: str) -> Figures:
    """Linear scaling to 192 CS-2."""

    def efficiency_of(line: str) -> float:
        one, many = (document(line.replace("192", count))["tokens_per_s"] for count in ("1", "192"))
        return float(many / one / 192)

    efficiency = efficiency_of(command)
    strong = efficiency_of(command.replace("--batch-per-device 50", "--batch 768"))
    assert efficiency > 0.95
    assert strong < 0.8
    weak = f"{100 * efficiency:.0f} % of linear with 50 sequences a system"
    return (
        f"{weak}, {100 * strong:.0f} % with 768 over all",
        f"{AGREES_IF} the batch grows with the systems; no run on more than 16 is published",
    )


# ------------------------------------------------------------------------------------------- 002
@claim("002", "perfsim study chinchilla_against_gpt3")
def twenty_tokens(command: str) -> Figures:
    """20 tokens a parameter are compute-optimal."""
    *_, best = document(command)["rows"]
    ratio = best["tokens"] / best["params"]
    assert ratio == pytest.approx(20, rel=0.1)
    return f"least loss at {ratio:.1f} tokens a parameter for {best['flop']:.3g} FLOP (besiroglu)", AGREES


@claim("002", "perfsim study pile_law")
def pile_law(command: str) -> Figures:
    """The law of the smaller models predicts the larger ones."""
    rows = {row["name"]: row for row in document(command)["rows"]}
    larger = [rows["Cerebras-GPT 6.7B"], rows["Cerebras-GPT 13B"]]
    assert all(abs(row["error"]) < 0.03 for row in larger)
    shown = " and ".join(f"{row['law_loss']:.3f} ({row['loss']:.3f})" for row in larger)
    return f"fitted on 111M to 2.7B it predicts {shown} for 6.7B and 13B", f"{AGREES} within 0.03 nat"


@claim("002", "perfsim study pile_law")
def least_loss_per_flop(command: str) -> Figures:
    """Cerebras-GPT has the lowest loss per unit of compute, below Pythia."""
    rows = document(command)["rows"]
    cerebras, others = (
        [row["times_flop"] for row in rows if row["name"].startswith(family)]
        for family in ("Cerebras-GPT", "Pythia")
    )
    assert len(cerebras) + len(others) == len(rows) == 15
    assert min(others) > 1 > min(cerebras)
    shown = f"Pythia takes {min(others):.1f} (6.9B and 12B) to {max(others):.0f} (70M) times the FLOP"
    ours = f"Cerebras-GPT {min(cerebras):.1f} to {max(cerebras):.1f}"
    return (
        f"{shown} that the law of Cerebras-GPT takes for its losses, {ours}",
        f"{AGREES}; against the largest models the advantage is a fifth of the compute",
    )


@claim("002", "perfsim run --model cerebras_gpt_13b --system cs-2 --devices 1 --batch 24", slow=True)
def one_device_each(command: str) -> Figures:
    """Data parallelism alone trains all seven models."""
    for model in ("111m", "256m", "590m", "1p3b", "2p7b", "6p7b", "13b"):
        shares = document(command.replace("13b", model))
        assert shares["peak_memory_bytes"] < shares["memory_capacity_bytes"]
    return "all seven models fit one CS-2 with data parallelism alone", AGREES


@claim("002", "perfsim sweep cerebras_gpt", slow=True)
def few_weeks(command: str) -> Figures:
    """All seven models trained in a few weeks on 16 CS-2."""
    points = document(command)["points"]
    healthy, wall = (sum(point[key] for point in points) / 86_400 for key in ("time_to_accuracy_s", "wall_s"))
    assert len(points) == 7
    assert 14 < healthy < wall < 35
    return f"{healthy:.0f} days of healthy steps for all seven, {wall:.0f} at the rate of production", AGREES


@claim("002", "perfsim plan --model opt_175b --system dgx-a100-80gb --devices 992 --batch 992", slow=True)
def opt(command: str) -> Figures:
    """OPT-175B takes data and tensor parallelism on 992 GPUs."""
    best = document(command)["shortlist"][0]
    layout = "tp=8,dp=124,mbs=8,zero=3,recompute=full"
    published = document(command.replace(" plan ", " run ") + f" --layout {layout}")
    slower = published["step_time_s"] / best["step_time_s"]
    assert 1.0 < slower < 1.5
    degrees = f"tensor {best['layout']['tensor']}, pipeline {best['layout']['pipeline']}"
    return (
        f"tensor 8 with sharded data parallelism fits; the best layout predicted has {degrees}",
        f"{AGREES}; a pipeline would have been {100 * (slower - 1):.0f} % faster",
    )


@claim("002", "perfsim plan --model gpt_neox_20b --system dgx-a100-40gb --devices 96 --batch 1536", slow=True)
def neox(command: str) -> Figures:
    """GPT-NeoX-20B takes data, tensor and pipeline parallelism on 96 GPUs."""
    best = document(command)["shortlist"][0]["layout"]
    assert min(best["tensor"], best["pipeline"]) > 1
    degrees = f"tensor {best['tensor']}, pipeline {best['pipeline']}, ZeRO {best['zero_stage']}"
    return (
        f"the best layout predicted has {degrees}",
        f"{AGREES_IF} the batch is about the published one; at its best batch ZeRO 3 needs no pipeline",
    )


# ------------------------------------------------------------------------------------------- 003
@claim("003", "perfsim run --model gpt_neox_20b --system cs-2 --devices 1 --batch 48")
def twenty_billion_on_one(command: str) -> Figures:
    """20 billion parameters train on one CS-2."""
    answer = document(command)
    share = answer["peak_memory_bytes"] / answer["memory_capacity_bytes"]
    assert share < 1
    return f"fits one CS-2 with {100 * share:.0f} % of the wafer's memory", AGREES


@claim("003", "perfsim plan --model gpt3_175b --system dgx-a100-80gb --devices 1024 --batch 1536", slow=True)
def tensor_degree(command: str) -> Figures:
    """Tensor parallelism is limited to 4 or 8."""
    entries = document(command)["shortlist"]
    widest = max(entry["layout"]["tensor"] for entry in entries)
    assert widest <= 8
    return (
        f"tensor degree of the layouts that may be fastest for 175B on 1,024 A100s: at most {widest}",
        AGREES,
    )


@claim("003", "perfsim sweep hybrid_parallelism", slow=True)
def figure_6(command: str) -> Figures:
    """Data parallel to 1.2B on 64 GPUs, tensor parallel at 2.5B on 128, all three from 20B on."""
    points = document(command)["points"]
    published = [point for point in points if "given layout" in point["settings"]]
    planned = [point for point in points if point["system"] != "cs-2" and point not in published]
    wafers = [point for point in points if point["system"] == "cs-2"]
    assert len(published) == len(planned) == len(wafers) == 6
    assert all(point["feasible"] for point in points)
    pairs = zip(published, planned, strict=True)
    faster = [given["step_time_s"] / plan["step_time_s"] for given, plan in pairs]
    assert min(faster) >= 1.0
    degrees = ("tensor", "pipeline")
    split = {
        point["settings"]["variant"]: tuple(point["layout"][name] for name in degrees) for point in planned
    }
    assert split["1.2B"] == split["2.5B"] == (1, 1)
    assert split["530B"][0] > 1 < split["530B"][1]
    words = ", ".join(f"{name} {tensor} x {pipeline}" for name, (tensor, pipeline) in split.items())
    fit = "all six published layouts fit 80 GB, and one CS-2 holds each model unsplit"
    times = f"its steps are {min(faster):.2f} to {max(faster):.2f} times as fast"
    old = "GPUs have 32 GB and no ZeRO, as those of 2019 had"
    return (
        f"{fit}; tensor x pipeline of the planner: {words}; {times}",
        f"{AGREES_IF} {old}: on 80 GB 2.5B needs no model parallelism",
    )


@claim("003", "perfsim study transformer_scaling")
def figure_7(command: str) -> Figures:
    """64 times the TPUs are 12 times the speed."""
    # Published times and epochs (MLPerf 0.6, TPU v3): statistics by the law, no hardware is simulated.
    *_, last = document(command)["rows"]
    assert last["devices"] == 1024
    assert last["speedup"] == pytest.approx(12, rel=0.01)
    assert last["statistical"] == pytest.approx(2.2 / 5.1, rel=0.05)
    assert 64 * last["statistical"] * last["hardware"] == pytest.approx(last["speedup"])
    halves = f"{last['statistical']:.2f} statistics by the law of the batch, {last['hardware']:.2f} hardware"
    lost = f"{1 / last['statistical']:.1f} of {64 / last['speedup']:.1f} times lost are extra epochs"
    return (
        f"{last['speedup']:.1f} times = 64 x {halves} read from published times",
        f"{AGREES}; {lost}",
    )


@claim("003", "perfsim study chinchilla_against_gpt3")
def less_is_more(command: str) -> Figures:
    """Slightly smaller models on more samples reach more accuracy than GPT-3 with the same compute."""
    rows = {row["name"]: row for row in document(command)["rows"]}
    gpt3 = rows["GPT-3 175B"]
    smaller = rows["70B with GPT-3's FLOP"]
    assert smaller["flop"] == pytest.approx(gpt3["flop"], rel=1e-3)
    assert smaller["law_loss"] < gpt3["law_loss"]
    both = f"{smaller['law_loss']:.3f}, 175B on 300 billion {gpt3['law_loss']:.3f}"
    return (
        f"70B on 748 billion tokens reach {both} by law besiroglu",
        f"{AGREES_IF} the law holds outside its runs of up to 16 billion parameters",
    )


@claim("003", "perfsim show devices wse-2")
def specification(_: str) -> Figures:
    """123 times the cores of an A100, 1,000 times its on-chip memory, 12,000 times its bandwidth."""
    catalog = default_catalog()
    wafer = catalog.device("wse-2")
    gpu = catalog.device("a100-sxm4-40gb")
    memory = wafer.memory.capacity / (gpu.memory.cache or 1.0)
    bandwidth = wafer.memory.bandwidth / gpu.memory.bandwidth
    cores = (wafer.compute_units or 0) / (64 * (gpu.compute_units or 1))  # 64 FP32 cores a multiprocessor
    assert cores == pytest.approx(123, rel=0.01)
    assert memory == pytest.approx(1000, rel=0.01)
    assert 12_000 < bandwidth < 13_000
    shown = f"{memory:,.0f} times the on-chip memory, {bandwidth:,.0f} times the bandwidth"
    compared = "caches are compared with SRAM, and HBM of the 40 GB module with SRAM"
    return (
        f"{cores:.0f} times the cores, {shown}",
        f"{AGREES_IF} {compared}; area (56 times) and fabric (45,000 times) are not in the catalogue",
    )


@claim("003", "perfsim study scaling_equations")
def figure_10(command: str) -> Figures:
    """The equations of communication in L, T, B, P, N (derived here; the figure is an image)."""
    rows = document(command)["rows"]
    assert max(abs(row["relative_error"]) for row in rows) < 0.05
    by_kind = {row["approach"]: row["relative_error"] for row in rows if row["devices"] == 8}
    shown = ", ".join(f"{kind} {100 * by_kind[kind]:+.1f} %" for kind in ("data", "tensor", "pipeline"))
    equations = "2 P (N-1)/N, 8 L T B (N-1)/N and 2 T B (N-1)"
    return (
        f"bytes of simulated steps of 1.3B on 2, 4, 8 GPUs over {equations}: {shown}",
        f"{AGREES} within 5 %; embedding, head and tied weights come on top of the equations",
    )


@claim("003", "perfsim study scaling_equations")
def pipeline_memory(command: str) -> Figures:
    """Activation memory of a pipeline grows with the square of its stages."""
    rows = [row for row in document(command)["rows"] if row["devices"] == 8]
    errors = [abs(row["relative_error"]) for row in rows if row["approach"].startswith("pipeline memory")]
    assert len(errors) == 2
    assert max(errors) < 0.01
    grows = "from 2 to 8 stages the activations of all stages grow 3 times for one model"
    return (
        f"{grows}, 12 times where the layers grow with the stages",
        f"{AGREES_IF} the model grows with the stages; for one model 1F1B holds (N + 1) / 2 times its layers",
    )


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data_root())


ANSWERED: dict[Claim, Figures] = {}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_is_reproduced_by_its_command(claim: Claim, tmp_path: Path) -> None:
    writes = " sweep " in claim.command or " study " in claim.command
    ANSWERED[claim] = claim.check(f"{claim.command} --out {tmp_path}/out" if writes else claim.command)


@pytest.mark.slow
def test_the_page_has_every_claim() -> None:
    page = os.environ.get("PERFSIM_SEEDS")
    if not page:
        pytest.skip("PERFSIM_SEEDS names no page")
    assert len(ANSWERED) == len(CLAIMS)
    about = (
        "Written by `make seeds`: what each document says, the command that answers it, the figure, and "
        "whether they agree. Every row is a test in `tests/seeds/`."
    )
    text = f"# The four documents, claim by claim\n\n{about}\n"
    for post, title in POSTS.items():
        text += f"\n## {title}\n\n| it says | command | perfsim says | verdict |\n|---|---|---|---|\n"
        for claim, answer in ANSWERED.items():
            if claim.post == post:
                said = str(claim.check.__doc__).removesuffix(".")
                text += f"| {said} | `{claim.command}` | {' | '.join(answer)} |\n"
    Path(page).write_text(text, encoding="utf-8")
