"""A case file is read row by row; what is wrong with one row refuses that row only."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from perfsim.base.errors import CatalogError
from perfsim.catalog import Catalog
from perfsim.evidence.cases import CaseRows, StepCase
from perfsim.evidence.score import validate_file
from perfsim.prediction.question import question_of
from perfsim.testing.toys import published_run

ROW = published_run(
    id="good",
    family="mine",
    system={"device": "h100-sxm5-80gb", "num_devices": 8, "devices_per_node": 8},
    model={"num_layers": 2, "num_attention_heads": 8},
    parallel={"data": 8},
    training={"micro_batch_size": 1, "global_batch_size": 16, "precision": "bf16", "attention": "flash"},
    measured={"step_time_s": 0.05},
)
WAFER: dict[str, Any] = ROW | {
    "id": "wafer",
    "system": {"device": "cs-2", "num_devices": 1, "software_release": "r2.0"},
    "strategy": "weight-streaming",
    "parallel": {"data": 1},
    "training": {"global_batch_size": 64},
}


def changed(changes: dict[str, Any], name: str = "changed") -> dict[str, Any]:
    """The good row with other values, by their dotted paths."""
    row = {key: dict(part) if isinstance(part, dict) else part for key, part in ROW.items()} | {"id": name}
    for path, value in changes.items():
        section, _, key = path.rpartition(".")
        (row[section] if section else row)[key] = value
    return row


def written(path: Path, *rows: Any) -> Path:
    """One row a line, from line 3 on."""
    flow: dict[str, Any] = {"default_flow_style": True, "width": 10_000, "sort_keys": False}
    lines = [yaml.safe_dump([row], **flow).strip()[1:-1] for row in rows]
    path.write_text("schema: 2\ncases:\n" + "".join(f"- {line}\n" for line in lines))
    return path


def read(path: Path, *rows: Any) -> CaseRows[StepCase]:
    return CaseRows.read(written(path / "mine.yaml", *rows), StepCase)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("training.precison", "bf16", "unknown key `precison` in training (did you mean `precision`?"),
        ("speed", 3, "unknown key `speed`"),
        ("system.device", "h100-sxm5-80g", "unknown device or system 'h100-sxm5-80g'"),
        ("training.precision", "fp7", "training.precision: `fp7` is not one of"),
        ("measured.step_time_s", "fast", "`fast` is text, a number is expected"),
        ("framework", "caffe", "unknown framework `caffe`"),
        ("system.inter_node", "50", "has no unit"),
        ("model.num_attention_heads", 63, "hidden_size 1024 is not a multiple of num_attention_heads 63"),
        ("model.num_query_groups", 3, "is not a multiple of num_query_groups 3"),
    ],
)
def test_an_unknown_key_or_value_refuses_one_row(tmp_path: Path, path: str, value: Any, said: str) -> None:
    rows = read(tmp_path, ROW, changed({path: value}), ROW | {"id": "after"})
    assert [case.id for case in rows.cases] == ["good", "after"]
    (refused,) = rows.refused
    assert (refused.id, refused.line) == ("changed", 4)
    assert said in refused.reason


def test_what_is_no_mapping_or_is_written_twice_refuses_its_row(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.yaml", ROW, "a word", ROW | {"id": "third"})
    path.write_text(path.read_text().replace("id: third,", "id: third, id: third,"))
    rows = CaseRows.read(path, StepCase)
    assert [(row.id, row.line) for row in rows.refused] == [("row 2", 4), ("third", 5)]
    assert len(rows.cases) == 1
    path.write_text("cases: []\n")
    with pytest.raises(CatalogError, match="`schema` is missing"):
        CaseRows.read(path, StepCase)


def test_keys_that_end_in_note_are_remarks_and_rope_is_rotary(tmp_path: Path) -> None:
    noted = changed({"training.precision_note": "as printed", "downgraded_note": {"why": ["a", "b"]}})
    rows = read(tmp_path, noted, changed({"model.position_embedding": "rope"}, "rope"))
    assert not rows.refused
    assert rows.cases[0].training == StepCase.model_validate(ROW).training
    assert rows.cases[1].model.position_embedding == "rotary"


def test_a_table_has_wafers_next_to_gpus_refused_rows_and_memory(tmp_path: Path) -> None:
    measured = ROW | {"measured": {"step_time_s": 0.05, "peak_memory_gib": 2.0}}
    against_itself = changed({"system.num_devices": 512}, "many")
    rows = (measured, WAFER, changed({"training.x": 1}), against_itself)
    table = validate_file(written(tmp_path / "mine.yaml", *rows))
    assert (table["count"], table["summary"]["n"], table["families"]["mine"]["n"]) == (4, 4, 4)
    assert [(row["id"], row["line"]) for row in table["failed"]] == [("changed", 5), ("many", 6)]
    assert "512 devices in nodes of 8 without inter_node" in table["failed"][1]["error"]
    assert [row["predicted_s"] is None for row in table["cases"]] == [False, False, True, True]
    assert table["summary_predicted"]["n"] == 2
    peak_gib = table["cases"][0]["predicted_peak_gib"]
    assert table["memory"]["n"] == 1
    assert table["memory"]["median"] == pytest.approx(abs(peak_gib / 2.0 - 1.0))


@pytest.mark.parametrize("row", [ROW, {"id": "good", "family": "mine", "points": [[8, 9.0], [16, 10.0]]}])
def test_of_two_cases_of_one_name_the_second_is_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    table = validate_file(written(tmp_path / "mine.yaml", row, row))
    (failed,) = [row for row in table["failed"] if "has the same id" in row["error"]]
    assert (table["count"], failed["line"]) == (2, 4)


@pytest.mark.parametrize(("degree", "framework"), [("data", "fsdp-2023"), ("tensor", "torchtitan")])
def test_a_sharded_run_that_splits_layers_has_the_stack_of_a_question(degree: str, framework: str) -> None:
    sharded = {"system.device": "h100-sxm5-80gb", "training.attention": "flash", "parallel.zero_stage": 3}
    case = StepCase.model_validate(changed({**sharded, "parallel.data": 1, f"parallel.{degree}": 8}))
    assert case.stack.framework == framework


def test_who_measured_a_run_decides_nothing() -> None:
    mine = StepCase.model_validate(changed({"training.precision": "fp8"}))
    who = {"id": "maxtext", "family": "torchtitan", "sweep": "megatron", "source": {"title": "fsdp-2023"}}
    other = mine.model_copy(update=who)
    assert mine.stack == other.stack
    recipes = [case.question(Catalog()).recipe.model_copy(update={"name": ""}) for case in (mine, other)]
    assert recipes[0] == recipes[1]


def test_a_run_as_users_ask_it_keeps_its_layout_and_batch_and_leaves_out_its_stack() -> None:
    told = {"training.precision": "fp8", "training.attention": "standard"}
    told |= {"training.overlap_grad_reduce": False}
    runs = [StepCase.model_validate(changed(row)) for row in (told, {"training.precision": "fp8"})]
    described, other = (run.question(Catalog()) for run in runs)
    asked, plain = (run.as_asked(run.question(Catalog())) for run in runs)
    assert described.ran_by != other.ran_by
    assert asked.ran_by == plain.ran_by
    assert asked.ran_by.name == question_of({**NAMED, "recipe.precision": "fp8"}).ran_by.name
    for name in ("model", "system", "devices", "batch", "layout", "must_fit"):
        assert getattr(asked, name) == getattr(described, name)
    assert (asked.recipe.precision, asked.recipe.seq_length) == ("fp8", described.recipe.seq_length)


NAMED = {"model": "llama31_8b", "system": "dgx-h100", "devices": 8, "batch": 8}
"""A question of today on the device of the row."""


def test_a_run_that_happened_is_not_refused_for_memory_and_on_wafers_memory_splits_its_batch() -> None:
    huge = changed({"model.num_layers": 64, "model.hidden_size": 16384})
    wafer = WAFER | {"training": {"global_batch_size": 65536}}
    gpus, wafers = (StepCase.model_validate(row).placed(Catalog()).plan for row in (huge, wafer))
    assert not all(use.fits for use in gpus.memory)
    assert wafers.num_microbatches > 1
