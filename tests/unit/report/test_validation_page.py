"""The accuracy page of a few small runs, from cases to files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from perfsim.catalog import Catalog
from perfsim.cli import main
from perfsim.evidence.ablation import StepAccuracy
from perfsim.evidence.cases import CaseRows, StepCase
from perfsim.evidence.score import validate_cases
from perfsim.report.validation import validation_lines, write_validation
from perfsim.testing.toys import SMALLEST, published_run


def run(name: str, measured_s: float, **changes: Any) -> StepCase:
    row = published_run(
        id=name,
        system={"num_devices": 2, "devices_per_node": 2},
        model=SMALLEST,
        parallel={"tensor": 2},
        training={"global_batch_size": 4, "micro_batch_size": 1},
        measured={"step_time_s": measured_s},
    )
    return StepCase.model_validate(row | changes)


WAFER = {"device": "cs-2", "num_devices": 1, "software_release": "r1.8"}


def page_of(
    cases: list[StepCase], *, leaves_out: bool = False, catalog: Catalog | None = None
) -> StepAccuracy:
    catalog = catalog or Catalog()
    result = {"file": "toys.yaml", **validate_cases(CaseRows(cases), catalog)}
    return StepAccuracy.of(cases, result, catalog, leaves_out=leaves_out)


def test_names_of_runs_are_escaped_and_a_page_says_how_to_leave_families_out(tmp_path: Path) -> None:
    page = page_of([run("<script>x</script>|*a*", 0.1)])
    html, text = (path.read_text(encoding="utf-8") for path in write_validation([page], [], tmp_path))
    assert "<script>x</script>" not in html
    assert "\\<script>x\\</script>\\|\\*a\\*" in text
    assert "add --leave-out" in text


def test_the_json_of_gpu_runs_has_the_score_of_each_family_left_out(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    public = yaml.safe_load((repository / "studies" / "validation" / "gpu.yaml").read_text(encoding="utf-8"))
    few = [case for case in public["cases"] if case["system"]["num_devices"] <= 2 or "125m" in case["id"]]
    path = tmp_path / "few.yaml"
    path.write_text(yaml.safe_dump({**public, "cases": few}), encoding="utf-8")
    answer = CliRunner().invoke(main, ["validate", str(path), "--leave-out", "--json"])
    scores = json.loads(answer.output)["left_out"]
    assert set(scores["families"]) == {"vtrain_single", "llm_foundry_a100_80gb"}
    assert scores["summary"]["n"] == len(few)
    assert all(row["mape"] > 0 and row["bias"] is not None for row in scores["families"].values())


@pytest.mark.slow
def test_models_of_wafer_logs_are_left_out_in_text_and_page(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    logs = str(repository / "studies" / "validation" / "weight_streaming.yaml")
    answer = CliRunner().invoke(main, ["validate", logs, "--leave-out", "--page", str(tmp_path)])
    assert "with evidence C: not scored, not listed." in " ".join(answer.output.split())
    (row,) = (line for line in answer.output.splitlines() if line.startswith("all runs"))
    written = (tmp_path / "validation.md").read_text(encoding="utf-8")
    rows = (line.split(" | ") for line in written.splitlines() if line.startswith(("| family", "| all runs")))
    (heads, *_, scored) = rows
    assert f" {scored[heads.index('left out')]} " in row
    outside = [line.rsplit("|", 2)[1] for line in written.splitlines() if "| C, batch inferred |" in line]
    assert outside
    assert all("%" in cell for cell in outside), "each with its model left out"
    without = CliRunner().invoke(main, ["validate", logs])
    assert "left out" not in without.output.split("Median")[0]


EXPLAINED = {"name": "all sizes", "run": "large", "systems": 16}
AGAINST = {"base": "small", "measured": 0.5, "predicted": 0.45, "error": -0.1, "band": [0.4, 0.6]}
EFFICIENCY = {"name": "all sizes", "fewer": 1, "systems": 16, "measured": 0.91, "least": True}
SCALING: dict[str, Any] = {
    "source": "a paper",
    "runs": [{"name": "large", "systems": 16, "against": [AGAINST]}],
    "efficiencies": [
        EFFICIENCY | {"predicted": 1.0, "predicted_for": "large", "allowed": 0.9099, "source": "section 5"}
    ],
    "explanations": [
        EXPLAINED
        | {"cause": "links are slower", "needed": 18.07e9, "in_model": 150e9, "unit": "bytes_per_s"},
        EXPLAINED | {"cause": "one system is slower", "needed": 0.0989, "in_model": 0.0, "unit": "fraction"},
    ],
}


def test_published_ratios_for_more_wafers_stand_on_page_and_terminal(tmp_path: Path) -> None:
    wafer = {"strategy": "weight-streaming", "parallel": {}, "system": WAFER}
    page = page_of([run("old", 1.0, **wafer)])
    result = {**page.result, "scaling": SCALING}
    text = write_validation([replace(page, result=result)], [], tmp_path)[1].read_text(encoding="utf-8")
    assert "| large | 16 | small | 0.5 | 0.45 | -10.0 % | yes |" in text
    assert "| all sizes | 1 to 16 | at least 0.91 | 1.000 | 0.910 | section 5 |" in text
    assert "| links are slower | 18.1 GB/s | 150 GB/s |" in text
    assert "| one system is slower | 9.9 % | 0.0 % |" in text
    said = "\n".join(validation_lines(result, 0))
    assert "at least 0.91" in said
    assert "18.1 GB/s" in said
    assert "at least" not in "\n".join(validation_lines(page.result, 0))
