"""`perfsim plan --match`: how many devices of another system take equal time."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from perfsim.cli import main

ASKED = ["plan", "--model", "cerebras_gpt_111m", "--system", "cs-2", "--devices", "2"]


def test_equal_time_is_printed_and_in_json() -> None:
    asked = [*ASKED, "--recipe", "chinchilla", "--match", "cs-2"]
    shown = CliRunner().invoke(main, asked)
    assert shown.exit_code == 0, shown.output
    assert "each at its best batch. Tried: 1 " in " ".join(shown.output.split())
    document = json.loads(CliRunner().invoke(main, [*asked, "--json"]).output)
    match = document["match"]
    assert match["system"] == "cs-2"
    assert set(match["num_devices"]) == {"low", "typical", "high"}
    first = match["tried"][0]
    last = match["tried"][-1]
    assert first["num_devices"] == 1
    assert last["ratio"]["high"] <= 1 or match["num_devices"]["high"] is None
    own_s = document["shortlist"][0]["time_to_accuracy_s"]
    assert first["ratio"]["ratio"] * own_s == pytest.approx(first["time_to_accuracy_s"])
    assert match["num_devices"]["typical"] == pytest.approx(2.0), "a machine matches itself"


def test_a_recipe_without_a_target_matches_nothing() -> None:
    refused = CliRunner().invoke(main, [*ASKED, "--recipe", "gpt3_pretraining", "--match", "cs-2"])
    assert refused.exit_code == 2
    assert "has neither tokens nor target_loss" in refused.output
