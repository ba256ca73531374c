"""Runs that contradict themselves are listed as failed in words, and never end the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from perfsim.evidence.cases import public_cases
from perfsim.evidence.score import validate_file


def written(path: Path, *changes: dict[str, dict[str, Any]], name: str = "gpu.yaml") -> Path:
    """A file of one published run for each of the changes, which replace values in its sections."""
    source = next(each for each in public_cases() if each.name == name)
    run = yaml.safe_load(source.read_text(encoding="utf-8"))["cases"][0]
    rows = []
    for change in changes:
        row = {key: dict(value) if isinstance(value, dict) else value for key, value in run.items()}
        for section, values in change.items():
            row[section].update(values)
        rows.append(row)
    path.write_text("\n".join(["schema: 1", "cases:", *(f"- {_one_line(row)}" for row in rows)]))
    return path


def _one_line(row: dict[str, Any]) -> str:
    return yaml.safe_dump(row, default_flow_style=True, width=100_000).strip()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"system": {"device": "b200"}}, "no system with device 'b200'"),
        ({"model": {"num_attention_heads": 63}}, "is not a multiple of num_attention_heads 63"),
        ({"training": {"precision": "fp8"}}, "computes no fp8; it has "),
        (
            {"system": {"num_devices": 512, "devices_per_node": 8, "inter_node": None}},
            "512 devices in nodes of 8 without inter_node, which means one node",
        ),
        (
            {"system": {"device": "cs-2", "num_devices": 2}, "parallel": {"tensor": 2, "pipeline": 1}},
            "cs-2 divides the batch and nothing else, not tensor 2",
        ),
        ({"training": {"lm_head_positions": 99999}}, "lm_head_positions 99999 is more than seq_length"),
    ],
)
def test_a_run_that_cannot_be_is_failed_in_words(
    tmp_path: Path, change: dict[str, dict[str, Any]], said: str
) -> None:
    table = validate_file(written(tmp_path / "mine.yaml", change))
    assert len(table["failed"]) == 1
    assert said in table["failed"][0]["error"].splitlines()[0]
    assert table["cases"][0]["predicted_s"] is None
    assert table["families_traits"].keys() <= table["families"].keys()


def test_one_node_needs_no_network(tmp_path: Path) -> None:
    system = {"num_devices": 8, "devices_per_node": 8, "inter_node": None}
    change = {"system": system, "parallel": {"tensor": 8, "pipeline": 1, "data": 1, "virtual_pipeline": 1}}
    assert not validate_file(written(tmp_path / "mine.yaml", change))["failed"]


@pytest.mark.parametrize("name", ["gpu.yaml", "convergence.yaml"])
def test_of_two_cases_of_one_name_the_second_is_refused(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "mine.yaml", {}, {}, name=name)
    table = validate_file(path)
    (failed,) = [row for row in table["failed"] if "has the same id" in row["error"]]
    assert (table["count"], failed["line"]) == (2, 4)
