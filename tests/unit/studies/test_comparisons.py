"""Comparisons of published figures with laws and equations."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfsim.base.errors import CatalogError, InputError
from perfsim.catalog import default_catalog
from perfsim.cli import main
from perfsim.convergence.laws import BESIROGLU
from perfsim.studies.comparisons import Comparison, comparison
from perfsim.studies.loading import kind_of_study

LOSSES = """\
name: losses
title: T
losses:
  fitted_to: [a, b]
  runs:
    - {name: a, params: 1.0e+9, tokens: 1.0e+9, loss: 4.0}
    - {name: b, params: 1.0e+10, tokens: 1.0e+10, loss: 2.0}
    - {name: c, params: 1.0e+11, tokens: 1.0e+11}
    - {name: d, family: other, params: 1.0e+9, tokens: 1.0e+9, flop: 1.2e+19, loss: 4.0}
"""
SPEEDS = """\
name: speeds
title: T
speeds:
  device: chips
  runs:
    - {name: one, devices: 1, batch: 100, examples: 110, time: 10 h}
    - {name: eight, devices: 8, batch: 1000, examples: 200, time: 5 h}
"""


def answered(folder: Path, text: str) -> Comparison:
    path = folder / "comparison.yaml"
    path.write_text(text)
    return comparison(path)


def test_a_line_through_runs_predicts_the_others_and_prices_them(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in answered(tmp_path, LOSSES).rows}
    assert rows["a"]["law_loss"] == pytest.approx(4.0)
    assert rows["c"]["law_loss"] == pytest.approx(1.0)  # a hundred times the FLOP halve the loss
    assert rows["c"]["error"] is None
    assert rows["d"]["times_flop"] == pytest.approx(2.0)  # the loss of a, with twice its FLOP


def test_the_least_compute_of_a_law_is_where_neither_size_does_better() -> None:
    """Chinchilla's budget of 5.76e23 FLOP is spent best on 72.25 billion parameters, 18.4 tokens each."""
    loss = BESIROGLU.loss(7.225e10, 5.76e23 / (6 * 7.225e10))
    flop, size = BESIROGLU.least_flop(loss)
    assert (flop, size) == (pytest.approx(5.76e23, rel=1e-4), pytest.approx(7.225e10, rel=0.01))
    for other in (size / 1.01, size * 1.01):
        assert 6 * other * BESIROGLU.tokens_to_loss(loss, other) > flop


def test_a_speedup_is_devices_times_statistics_times_hardware(tmp_path: Path) -> None:
    result = answered(tmp_path, SPEEDS)
    first, last = result.rows
    assert (first["statistical"], first["hardware"]) == (1.0, 1.0)
    assert last["statistical"] == pytest.approx(110 / 200)
    assert last["hardware"] == pytest.approx(2 / (8 * 110 / 200))
    assert "E_min 100, B_crit 1e+03" in result.verdict  # 100 (1 + B / 1000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LOSSES.replace("[a, b]", "[a, e]"), "'e' is no run with a loss"),
        (LOSSES.replace("[a, b]", "[a, c]"), "'c' is no run with a loss"),
        (LOSSES.replace("[a, b]", "[]"), "one of them"),
        (SPEEDS.replace("batch: 1000", "batch: 100"), "one batch"),
        (SPEEDS.replace("examples: 200", "examples: 90"), "grow with the batch"),
        (LOSSES + SPEEDS[SPEEDS.index("speeds:\n  device") :], "one of losses, speeds and equations"),
    ],
)
def test_what_tells_nothing_or_has_two_subjects_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        answered(tmp_path, text)


def test_the_study_verb_answers_a_comparison_and_writes_its_page(tmp_path: Path) -> None:
    name = "pile_law"
    assert kind_of_study(name) == "comparison"
    shown = CliRunner().invoke(main, ["study", name, "--out", str(tmp_path / "a")])
    assert shown.exit_code == 0, shown.output
    result = comparison(name)
    assert result.title in shown.output.replace("\n", " ")
    command = ["study", name, "--out", str(tmp_path / "b"), "--json"]
    document = json.loads(CliRunner().invoke(main, command).stdout)
    assert document["verdict"] == result.verdict
    assert len(document["rows"]) == len(result.rows)
    page = (tmp_path / "a" / "index.html").read_text()
    assert result.question.split(".")[0] in page
    assert page.count("<tr>") == 1 + len(result.rows)
    assert (tmp_path / "a" / "summary.json").exists()


def test_studies_and_sweeps_are_no_comparisons() -> None:
    assert (kind_of_study("gpt3_20b"), kind_of_study("capacity_20b")) == ("study", "sweep")
    with pytest.raises(CatalogError):
        comparison("gpt3_20b", catalog=default_catalog())
