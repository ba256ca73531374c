"""What published runs reached, and a plan that claims more."""

from __future__ import annotations

from importlib.resources import files

import pytest

import perfsim as ps
from perfsim.prediction import reached
from perfsim.prediction.documents import run_document
from perfsim.prediction.reached import Reached, above_all_published, fewer_than_published, recorded
from perfsim.published.plans import public_cases
from perfsim.strategies import Plan
from perfsim.validation.record_reached import record_text


@pytest.fixture(scope="module")
def plan() -> Plan:
    return ps.predict(
        model="gpt3_xl", system="dgx-a100-80gb", devices=8, strategy="3d", layout="dp=8,mbs=1", batch=16
    ).run.plan


def test_the_record_is_what_the_cases_give() -> None:
    paths = [path for path in public_cases() if path.name != "convergence.yaml"]
    kept = files("perfsim.prediction").joinpath(reached.RECORD).read_text(encoding="utf-8")
    assert kept == record_text(paths), "run: perfsim validate --record"


def test_published_figures_of_the_record_are_those_of_the_papers() -> None:
    """Korthikanti et al., Table 5: 530B with selective recompute reaches 56.0 % MFU on 280 GPUs."""
    (row,) = (row for row in recorded() if row.id == "korthikanti22_t5_530b_selective")
    assert row.mfu == pytest.approx(0.560, abs=0.002)
    assert row.num_devices == 280


@pytest.mark.parametrize(
    ("rows", "mfu", "said"),
    [
        ([("standard", 8, 0.5)], 0.49, ""),
        ([("standard", 8, 0.5)], 0.52, ""),
        ([("standard", 8, 0.5)], 0.53, "with standard attention on a quarter"),
        ([("standard", 8, 0.5), ("flash", 8, 0.6)], 0.53, "with standard attention on a quarter"),
        ([("standard", 1, 0.7), ("standard", 2, 0.5)], 0.6, "with standard attention on a quarter"),
        ([("standard", 1, 0.5)], 0.6, "with standard attention: the best has 50 %"),
        ([("flash", 1, 0.5)], 0.6, "with any attention: the best has 50 % (run0, 1 devices)"),
        ([], 0.9, ""),
    ],
)
def test_a_plan_above_all_runs_of_its_kind_is_called_optimistic(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, rows: list[tuple[str, int, float]], mfu: float, said: str
) -> None:
    device = plan.system.device.name
    runs = tuple(
        Reached(f"run{i}", device, attention, devices, value)
        for i, (attention, devices, value) in enumerate(rows)
    )
    monkeypatch.setattr(reached, "recorded", lambda: (*runs, Reached("other", "x", "standard", 99, 0.99)))
    remark = above_all_published(plan, mfu)
    assert said in remark
    assert bool(remark) == bool(said)


@pytest.mark.parametrize(("batch", "said"), [(4, True), (29, True), (30, False), (128, False)])
def test_a_wafer_with_far_fewer_sequences_than_any_log_is_told_so(batch: int, said: bool) -> None:
    """The logs have 60 sequences a system or more: there nothing tells a fixed time from efficiency."""
    prediction = ps.predict(
        model="cerebras_gpt_111m", system="cs-2", devices=1, strategy="weight-streaming", batch=batch
    )
    answer, run = run_document(prediction), prediction.run
    notes = [note for note in answer["notes"] if "all published logs used here" in note]
    assert bool(notes) == said
    fixed_s = answer["why"]["fixed_s"]
    assert (fewer_than_published(run.plan, fixed_s) != "") == said
    if said:
        more_s = 0.0055 * run.plan.job.model.num_layers - fixed_s
        assert f"up to {more_s:.2g} s longer" in notes[0]


def test_gpus_have_no_remark_on_sequences_a_system(plan: Plan) -> None:
    assert fewer_than_published(plan, 0.0) == ""
