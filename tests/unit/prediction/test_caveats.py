"""What an answer says of its own basis: where each caveat comes from, and that it reaches every outlet."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import perfsim as ps
from perfsim.base.text import GAP
from perfsim.prediction.bands import Hidden
from perfsim.prediction.caveats import CODES, Caveat
from perfsim.prediction.prediction import Prediction
from perfsim.report.study import study_document, study_lines, study_page
from perfsim.report.terminal import run_lines
from perfsim.report.text import ALWAYS
from perfsim.specs.calibration import ClusterCalibration, MeasuredStep
from perfsim.studies.answers import Answer, shared_caveats, weighed
from perfsim.studies.batches import BatchCurve, BatchPoint

SMALL = "cerebras_gpt_111m"
Ask = Callable[[], ps.Prediction]
catalog = ps.Catalog()


def gpus(layout: str = "dp=8,mbs=1", devices: int = 8, **changes: Any) -> ps.Prediction:
    question = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "batch": 2 * devices, **changes}
    return ps.predict(**question, devices=devices, layout=layout)


def slow_updates() -> Any:
    return ps.Catalog().system("cs-2", **{"memoryx.server.arithmetic": "0.1 GFLOP/s"})


def wafers(devices: int = 1, batch: int = 120, **changes: Any) -> ps.Prediction:
    return ps.predict(**{"model": SMALL, "system": "cs-2", **changes}, devices=devices, batch=batch)


def recipe(**changes: Any) -> Any:
    return catalog.recipe("gpt3_pretraining").with_(**changes)


def own_h200() -> Any:
    """An H200 that a user describes: a file that extends the H100 with more memory, on H100's constants."""
    h100 = catalog.system("dgx-h100")
    memory = {"memory.capacity": "141 GiB", "memory.bandwidth": "4.8 TB/s"}
    return h100.with_(name="dgx-h200", device=h100.device.with_(name="h200", **memory))


def own_constants() -> Any:
    """A B200 with constants that its owner fitted to matrix products of it."""
    h100 = catalog.system("dgx-h100")
    command = {"command": "perfsim calibrate gemm own.csv --device b200"}
    fit = {name: record.model_copy(update=command) for name, record in h100.device.calibration.fit.items()}
    calibration = h100.device.calibration.model_copy(update={"name": "own", "fit": fit})
    device = h100.device.model_copy(update={"name": "b200", "calibration": calibration})
    return h100.model_copy(update={"name": "dgx-b200", "device": device})


def imported() -> Any:
    """A model whose file says what a description cannot."""
    gap = {f"{GAP} 1": "attention in chunks; taken as full attention"}
    return catalog.model("gpt3_xl").model_copy(update={"assumed": gap})


def filled(share: float) -> ps.Prediction:
    """A plan on GPUs whose memory it fills to this share."""
    system = catalog.system("dgx-a100-80gb")
    needed = gpus().peak_memory_bytes
    return gpus(system=system.with_(**{"device.memory.capacity": needed / share}))


def scaled(*residuals: float) -> ps.Prediction:
    steps = tuple(
        MeasuredStep(id=f"s{i}", measured_s=1.1 * (1 + off), predicted_s=1.0, residual=off)
        for i, off in enumerate(residuals)
    )
    cluster = ClusterCalibration(name="ours", device="a100-sxm4-80gb", scale=1.1, cases=steps)
    return gpus(cluster=cluster)


STUDY = {
    "name": "s",
    "model": SMALL,
    "recipe": "gpt3_20b_chinchilla",
    "candidates": [{"strategy": "weight-streaming", "system": "cs-2", "devices": 1}],
    "batch_sizes": [128],
    "sampling": {"tasks": 1},
}
FIT = {"name": "ours", "b_crit_tokens": 1e6, "band_factor": 1.5, "batches_tokens": [65536.0, 196608.0]}


def studied(tokens: float | None = 4e11, target_loss: float | None = None, **changes: Any) -> Answer:
    """The candidate of a small study whose recipe has this target."""
    recipe = catalog.recipe("gpt3_20b_chinchilla").with_(tokens=tokens, target_loss=target_loss)
    (candidate,) = ps.study({**STUDY, "recipe": recipe, **changes}).candidates
    return candidate


QUESTIONS: dict[str, Ask] = {
    "calibration-borrowed": lambda: gpus(system=own_h200()),
    "device-outside": lambda: gpus(system=own_constants()),
    "experts-outside": lambda: wafers(model="mixtral_8x7b", batch=8),
    "few-runs": lambda: gpus("dp=8,mbs=1,zero=1", system="b300-sxm-288gb"),
    "release-peak": lambda: wafers(system="cs-2-peak"),
    "release-borrowed": lambda: wafers(recipe=recipe(**{"runtime.software_release": "r2.9"})),
    "precision-outside": lambda: gpus(recipe=recipe(precision="tf32")),
    "memory-above-limit": lambda: filled(0.96),
    "zero3-ranks-outside": lambda: gpus("dp=256,mbs=1,zero=3", 256),
    "devices-outside": lambda: wafers(8, 960),
    "mfu-above-published": lambda: wafers(system="cs-2-peak"),
    "offload-outside": lambda: gpus("dp=8,zero=1,mbs=1,offload_optimizer=cpu"),
    "layout-unreleased": lambda: gpus("dp=8,mbs=1,zero=3"),
    "model-imported": lambda: gpus(model=imported()),
    "speed-of-another": lambda: gpus(runs_on="megatron", runtime="torchtitan"),
    "zero3-with-tensor": lambda: gpus("tp=2,dp=4,zero=3,mbs=1"),
    "hidden-communication": lambda: gpus("tp=2,dp=4,zero=3,mbs=1"),
    "parameters-outside": lambda: wafers(model="gpt3_175b", batch=8),
    "positions-outside": lambda: gpus(recipe=recipe(seq_length=4096)),
    "sequence-outside": lambda: wafers(model="gpt3_xl", recipe=recipe(seq_length=2049), batch=8),
    "shape-outside": lambda: wafers(model="llama_7b", batch=8),
    "micro-batch-outside": lambda: gpus("dp=8,mbs=32,recompute=full", model=SMALL, batch=256),
    "data-sheet-unread": lambda: gpus(system="mi300x-192gb"),
    "link-borrowed": lambda: gpus("dp=16,mbs=1", 16, system="dgx-h100"),
    "link-uncalibrated": lambda: gpus(
        system=catalog.system("dgx-a100-80gb").with_(**{"node.scale_up.calibration": None})
    ),
    "input-assumed": lambda: wafers(system=slow_updates(), batch=1),
    "sparsity-assumed": lambda: wafers(recipe=recipe(weight_sparsity=0.75)),
    "critical-batch-extrapolated": lambda: studied(1e14),
    "target-loss": lambda: studied(None, 2.566, convergence={"loss_law": "cerebras_gpt"}),
    "batch-never-observed": lambda: studied(convergence={"law": "fitted", "fit": FIT}),
    "batch-at-edge": lambda: studied(batch_sizes=[128, 256]),
    "cluster-scaled": lambda: scaled(0.01, -0.01),
    "memory-tight": lambda: filled(0.92),
    "as-of": lambda: gpus(as_of="2023-06"),
    "batch-default": lambda: gpus(batch=None),
    "batch-indivisible": lambda: ps.predict(
        model="gpt3_xl", system="dgx-a100-80gb", devices=24, batch=125, recipe="gpt3_pretraining"
    ),
    "runtime-unnamed": gpus,
    "layout-defaults": gpus,
}
"""For each code a question whose answer has it."""


def caveat_of(prediction: ps.Prediction, code: str) -> Caveat | None:
    return next((caveat for caveat in prediction.caveats if caveat.code == code), None)


def flat(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def documented(repository: Path) -> dict[str, str]:
    """The severities of each code in the document."""
    text = (repository / "docs/caveats.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| ([^|]*) \|", text, re.MULTILINE))
    return {code: said for code, said in rows.items() if code not in ("serious", "warning", "info")}


def test_every_code_has_a_question_and_stands_in_the_document(repository: Path) -> None:
    assert [*documented(repository)] == [*CODES]
    assert set(QUESTIONS) == set(CODES)


@pytest.mark.parametrize("code", list(CODES))
def test_caveats_reach_every_form_of_run_and_study(code: str, factory: ModuleType, repository: Path) -> None:
    prediction = QUESTIONS[code]()
    caveat = caveat_of(prediction, code)
    assert caveat.severity in documented(repository)[code]
    written = {"code": code, "severity": caveat.severity, "text": caveat.text}
    # One step: terminal and JSON, which reads back.
    assert f"{caveat.severity} {caveat.text}" in flat(run_lines(prediction))
    document = prediction.document()
    assert written in document["caveats"]
    assert ps.Prediction.stored({**document, "model": ""}).caveats == prediction.caveats
    # A study: terminal, JSON and page.
    result = factory.study_result()
    known = replace(result.candidates[0], caveats=(caveat,))
    shared = shared_caveats([known])
    result = replace(result, candidates=(known, *result.candidates[1:]), caveats=shared)
    assert study_document(result)["candidates"][0]["caveats"] == [written]
    (top,) = study_document(result)["caveats"]
    assert top.items() >= {**written, "systems": [known.system], "machines": ["128 A100-80GB"]}.items()
    said = flat(study_lines(result))
    assert (caveat.headline in said) == (code in ALWAYS), "far apart: no caveat turns the order"
    assert caveat.headline in said or "1 more caveat in the report" in said
    page = study_page(result)
    tables = [section.table for section in page.sections if section.short == "Caveats" and section.table]
    texts = [remark.text for remark in page.caveats] + [row[2] for table in tables for row in table.shown()]
    assert texts == [caveat.text], "once, at the head or in the table"


def alone(system: str) -> ps.Prediction:
    return ps.predict(model=SMALL, system=system, devices=1, batch=8)


def in_precision(system: str, precision: str) -> ps.Prediction:
    return gpus(system=system, recipe=recipe(precision=precision))


@pytest.mark.parametrize(
    ("prediction", "given"),
    [
        (lambda: gpus("tp=2,dp=4,mbs=1,sp=true,zero=1,recompute=selective", runtime="megatron_2021"), {}),
        (lambda: alone("dgx-a100-40gb"), {"calibration-borrowed": "", "release-borrowed": ""}),
        (lambda: alone("dgx-h100"), {"calibration-borrowed": "", "release-borrowed": ""}),
        (lambda: alone("cs-2"), {"calibration-borrowed": "", "release-borrowed": ""}),
        (lambda: alone("cs-3"), {"calibration-borrowed": "serious", "release-borrowed": "warning"}),
        (lambda: in_precision("dgx-a100-80gb", "fp16"), {"precision-outside": "", "device-outside": ""}),
        (lambda: in_precision("dgx-a100-80gb", "fp32"), {"precision-outside": "serious"}),
        (lambda: in_precision("gb200-nvl72", "tf32"), {"precision-outside": "serious", "device-outside": ""}),
        (lambda: in_precision("gb200-nvl72", "bf16"), {"precision-outside": ""}),
        (lambda: in_precision("dgx-h100", "fp8"), {"precision-outside": ""}),
        (lambda: wafers(2, 240), {"devices-outside": ""}),
        (lambda: wafers(4, 480), {"devices-outside": "warning"}),
        (lambda: wafers(16, 1920), {"devices-outside": "serious"}),
        (lambda: gpus("dp=128,mbs=1,zero=3", 128), {"zero3-ranks-outside": ""}),
        (lambda: gpus("dp=256,mbs=1,zero=3", 256), {"zero3-ranks-outside": "warning"}),
        (lambda: gpus("dp=384,mbs=1,zero=3", 384), {"zero3-ranks-outside": "serious"}),
        (lambda: filled(0.88), {"memory-tight": "", "memory-above-limit": ""}),
        (lambda: filled(0.91), {"memory-tight": "info", "memory-above-limit": ""}),
        (lambda: filled(0.935), {"memory-tight": "info", "memory-above-limit": ""}),
        (lambda: filled(0.95), {"memory-tight": "", "memory-above-limit": "serious"}),
        (lambda: scaled(0.01, -0.01), {"cluster-scaled": "info", "runtime-unnamed": ""}),
        (lambda: scaled(0.2, -0.2), {"cluster-scaled": "warning"}),
    ],
)
def test_a_caveat_is_given_where_due_with_its_severity(prediction: Ask, given: dict[str, str]) -> None:
    """An empty severity: it is not given. The first question has none at all."""
    severities = {caveat.code: caveat.severity for caveat in prediction().caveats}
    assert {code: severities.get(code, "") for code in given or severities} == given


def test_texts_of_caveats_have_the_figures_of_their_question() -> None:
    worst = gpus(system=own_h200()).caveats[0]
    assert (worst.code, worst.severity) == ("calibration-borrowed", "serious")
    assert worst.text.startswith("no measurement of h200: the constants of h100-sxm5 are used; ")
    tf32 = in_precision("dgx-a100-80gb", "tf32")
    of_131072 = {"model": "llama31_8b", "model.num_layers": 4, "recipe.seq_length": 131072}
    long = ps.predict(**of_131072, system="dgx-h100", devices=8, batch=2, layout="tp=4,cp=2,sp=true,zero=1")
    for prediction, code, words in (
        (tf32, "precision-outside", "no published run in tf32; the constants"),
        (gpus(memory_limit=0.1), "memory-above-limit", "above the limit of 10 %"),
        (scaled(0.01, -0.01), "cluster-scaled", "step times multiplied by 1.1"),
        (wafers(system="cs-2-peak"), "mfu-above-published", "the 27 % of the best published run on wse-2"),
        (long, "mfu-above-published", " % without masked attention; that is "),
    ):
        caveat = caveat_of(prediction, code)
        assert words in caveat.text


@pytest.mark.parametrize(
    ("factor", "severity"), [(0.9, ""), (1.04, ""), (1.1, "warning"), (2.9, "warning"), (3.1, "serious")]
)
def test_more_hidden_communication_than_in_any_run_has_both_shares(factor: float, severity: str) -> None:
    run = replace(gpus("tp=2,dp=4,mbs=1,zero=1").run)
    share = factor * Hidden.of(run.plan, 0.0).published
    run.trace.__dict__["hidden_share"] = share
    caveat = caveat_of(Prediction.of(run), "hidden-communication")
    assert (caveat.severity if caveat else "") == severity
    said = f"{100 * share:.0f} % of the step hides communication, while"
    assert caveat is None or (caveat.text.startswith(said) and caveat.text.endswith("% of the step"))


def test_caveats_that_could_turn_the_order_stand_with_the_verdict_others_are_counted(tmp_path: Path) -> None:
    candidates = [
        {"strategy": "3d", "system": "dgx-a100-80gb", "devices": 8},
        {"strategy": "weight-streaming", "system": "cs-2", "devices": [16]},
    ]
    answer = ps.study({**STUDY, "candidates": candidates, "batch_sizes": [960]})
    assert [caveat.turns for caveat in answer.caveats] == [0.0] * len(answer.caveats), "far apart"
    count = len(answer.caveats)
    assert f"... {count} more caveats in the report" in flat(study_lines(answer))
    page = study_page(answer)
    assert page.caveats == []
    worst = answer.caveats[0]
    near = replace(answer, caveats=(replace(worst, turns=0.01), *answer.caveats[1:]))
    assert worst.text in flat(study_lines(near))
    assert study_page(near).caveats == [near.caveats[0]]
    (rows,) = [section.table.rows for section in page.sections if section.anchor == "caveats-step"]
    assert worst.text in {row[2].value for row in rows}
    assert {page.html().count(caveat.text) for caveat in answer.caveats} == {1}


def test_candidates_are_weighed_by_the_step_of_their_machine_and_by_the_tokens(factory: ModuleType) -> None:
    result = factory.study_result()
    codes = ("devices-outside", "target-loss", "as-of")
    about = tuple(Caveat(code, "warning", code) for code in codes)
    rows = [replace(row, caveats=about if row.machine == "16 CS-2" else ()) for row in result.candidates]
    outcomes = [replace(own, turns=0.2) for own in result.decision.outcomes]
    known = weighed(rows, replace(result.decision, outcomes=tuple(outcomes), turns=0.3))
    assert [(caveat.code, caveat.turns) for caveat in known] == [
        *zip(("target-loss", "devices-outside", "as-of"), (0.3, 0.2, 0.0), strict=True)
    ]


@pytest.mark.parametrize(
    ("prediction", "left", "usual"),
    [
        (
            lambda: gpus("tp=2,pp=2"),
            "micro_batch_size 1, sequence_parallel false, zero_stage 0, recompute none, schedule 1f1b",
            "sp=true, zero=1, recompute=selective",
        ),
        (lambda: gpus("dp=8,mbs=2"), "zero_stage 0, recompute none", "zero=1, recompute=selective"),
        (lambda: gpus(""), "", ""),
        (lambda: wafers(layout="dp=1"), "", ""),
    ],
)
def test_settings_that_nobody_named_are_listed_with_usual_ones(
    prediction: Ask, left: str, usual: str
) -> None:
    texts = [caveat.text for caveat in prediction().caveats if caveat.code == "layout-defaults"]
    said = f"left at defaults by the layout: {left}; Megatron users usually set {usual}"
    assert texts == [said] * bool(left)


@pytest.mark.parametrize(
    ("best", "words"),
    [
        (8, "best batch 8 is the smallest of 3 tried (8 to 32 sequences); a smaller batch may be better"),
        (32, "best batch 32 is the largest of 3 tried (8 to 32 sequences); a larger batch may be better"),
        (16, ""),
    ],
)
def test_a_batch_at_the_edge_of_the_grid_says_so(best: int, words: str) -> None:
    points = [BatchPoint(n, 1.0, 1.0, 1.0, 1.0 if n == best else 2.0, (0.5, 3.0)) for n in (8, 16, 32)]
    texts = [caveat.text for caveat in BatchCurve(points, {}).caveats]
    assert len(texts) == bool(words)
    assert all(text.startswith(words) for text in texts)
