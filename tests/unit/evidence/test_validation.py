"""Published runs as questions, and the table that is made of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfsim.base.errors import InputError, PlanError
from perfsim.catalog import Catalog
from perfsim.evidence import score as validation
from perfsim.evidence.cases import StepCase, case_system, public_cases
from perfsim.evidence.plans import case_question, evaluate_case
from perfsim.evidence.score import validate_cases
from perfsim.prediction.planner import plan_of
from perfsim.specs.hardware import GpuClusterSpec
from perfsim.specs.recipe import ParallelLayout

MODEL = {
    "num_layers": 4,
    "hidden_size": 1024,
    "ffn_hidden_size": 4096,
    "num_attention_heads": 16,
    "vocab_size": 50257,
    "seq_length": 512,
}


def case(name: str = "a", **changes: Any) -> StepCase:
    """A run of a small model on two wafers; `changes` replace whole sections or plain fields."""
    fields: dict[str, Any] = {
        "id": name,
        "family": "toys",
        "evidence": "A",
        "system": {"device": "cs-2", "num_devices": 2, "software_release": "r1.7"},
        "model": MODEL,
        "strategy": "weight-streaming",
        "parallel": {"data": 2},
        "training": {"global_batch_size": 64},
        "measured": {"step_time_s": 1.0},
    }
    return StepCase.model_validate(fields | changes)


GPUS = {"device": "a100-sxm4-80gb", "num_devices": 16, "devices_per_node": 4, "inter_node": "400 Gb/s"}


# ----------------------------------------------------------------------------- case to question
def test_a_case_becomes_the_job_that_was_run() -> None:
    training = {"global_batch_size": 64, "precision": "fp16", "attention": "flash", "recompute": "full"}
    job = case_question(case(training=training), Catalog()).job
    assert (job.global_batch_size, job.seq_length, job.model.num_layers) == (64, 512, 4)
    assert (job.recipe.precision, job.runtime.attention, job.recipe.recompute) == ("fp16", "flash", "full")
    assert job.runtime.software_release == "r1.7"
    assert job.model.max_position_embeddings == 512, "learned positions grow with the sequence"
    assert not job.recipe.dropout, "fused attention of the time had none"


@pytest.mark.parametrize(("strategy", "overlap"), [("3d", False), ("zero3", True)])
def test_reduction_overlaps_by_the_habit_of_the_strategy_unless_told(strategy: str, overlap: bool) -> None:
    assert case_question(case(strategy=strategy), Catalog()).recipe.runtime.overlap_grad_reduce == overlap
    told = case(strategy=strategy, training={"global_batch_size": 64, "overlap_grad_reduce": not overlap})
    assert case_question(told, Catalog()).recipe.runtime.overlap_grad_reduce != overlap


def test_a_case_layout_has_its_degrees_and_modes() -> None:
    parallel = {"tensor": 2, "pipeline": 2, "data": 4, "layers_per_stage": [1, 3], "zero_stage": 1}
    training = {"global_batch_size": 64, "micro_batch_size": 4, "recompute": "selective"}
    asked = case(parallel=parallel, training=training, system=GPUS)
    layout = case_question(asked, Catalog()).layout
    assert isinstance(layout, ParallelLayout)
    assert (layout.tensor, layout.pipeline, layout.data) == (2, 2, 4)
    assert (layout.layers_per_stage, layout.zero_stage) == ((1, 3), 1)
    assert (layout.micro_batch_size, layout.recompute) == (4, "selective")


def test_the_network_of_a_case_is_shared_equally_by_the_gpus_of_its_node() -> None:
    system = case_system(case(system=GPUS), Catalog())
    assert isinstance(system, GpuClusterSpec)
    assert system.node.devices == 4
    assert system.node.inter_node_bytes_per_s == pytest.approx(50e9)


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"no system with device 'tpu-v4'.*cs-2"):
        case_system(case(system=GPUS | {"device": "tpu-v4"}), Catalog())


def test_a_run_that_happened_is_not_refused_for_memory() -> None:
    huge = {"num_layers": 64, "hidden_size": 8192, "ffn_hidden_size": 32768, "num_attention_heads": 64}
    model = MODEL | huge
    plan = plan_of(
        case_question(case(system=GPUS, strategy="3d", model=model, parallel={"data": 16}), Catalog())
    )
    assert not all(use.fits for use in plan.memory)


def test_on_wafers_the_memory_policy_splits_the_batch() -> None:
    many = case(training={"global_batch_size": 65536})
    assert plan_of(case_question(many, Catalog())).num_microbatches > 1


def test_a_newer_release_is_predicted_faster() -> None:
    new = case(system={"device": "cs-2", "num_devices": 2, "software_release": "r2.0"})
    assert evaluate_case(new, Catalog()).step_time_s < evaluate_case(case(), Catalog()).step_time_s


# -------------------------------------------------------------------------------------- a table
@pytest.fixture
def predictions(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds by case id; a case that is not in it has no plan."""
    known: dict[str, float] = {}

    def run(asked: StepCase, _catalog: Catalog) -> SimpleNamespace:
        if asked.id not in known:
            raise PlanError("no plan fits")
        return SimpleNamespace(step_time_s=known[asked.id], hidden_communication_fraction=0.25)

    monkeypatch.setattr(validation, "evaluate_case", run)
    monkeypatch.setattr(validation, "case_band", lambda *_: None)
    return known


def test_predictions_are_scored_beside_the_baseline(predictions: dict[str, float]) -> None:
    predictions |= {"a": 1.1, "b": 0.7}
    table = validate_cases([case("a"), case("b")], Catalog())
    assert (table["count"], table["failed"]) == (2, [])
    assert table["summary"]["mape"] == pytest.approx(0.2)
    assert table["summary"]["bias"] == pytest.approx(-0.1)
    assert table["baseline"]["mape"] == pytest.approx(0.0), "two equal cases, one constant"
    assert [row["error"] for row in table["cases"]] == pytest.approx([0.1, -0.3])
    assert table["families"]["toys"]["n"] == 2


def test_a_case_without_prediction_stands_under_failed_and_counts_as_1(
    predictions: dict[str, float],
) -> None:
    predictions["a"] = 1.1
    table = validate_cases([case("a"), case("b")], Catalog())
    assert table["failed"] == [{"id": "b", "error": "no plan fits"}]
    assert table["summary"]["mape"] == pytest.approx(0.55)
    assert table["summary_predicted"]["mape"] == pytest.approx(0.1)
    assert table["cases"][1]["predicted_s"] is None
    assert [row["hidden_communication"] for row in table["cases"]] == [0.25, None]
    assert table["families"]["toys"]["hidden_communication"] == 0.25


def test_evidence_c_is_predicted_and_shown_but_not_scored(predictions: dict[str, float]) -> None:
    predictions |= {"a": 1.1, "c": 9.0}
    table = validate_cases([case("a"), case("c", evidence="C")], Catalog())
    assert table["summary"]["mape"] == pytest.approx(0.1)
    assert table["cases"][1]["error"] == pytest.approx(8.0)


def test_the_public_cases_come_with_perfsim() -> None:
    assert {"gpu.yaml", "weight_streaming.yaml"} <= {path.name for path in public_cases()}
