"""Prices of the command line reach tables and documents of studies, sweeps and questions asked backwards."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result


def test_a_price_gives_money_of_every_answer(perfsim: Callable[..., Result], elsewhere: Path) -> None:
    price = ("--price", "cs-2=30", "--out", "out", "--json")
    study = perfsim("study", "study.yaml", "--table", "t.csv", *price)
    assert study.exit_code == 0, study.stderr
    outcomes = json.loads(study.stdout)["decision"]["outcomes"]
    assert [own["money"] is not None for own in outcomes] == [False, True]
    sweep = perfsim("sweep", "sweep.yaml", "--table", "points.csv", *price)
    assert sweep.exit_code == 0, sweep.stderr
    points = [point for point in json.loads(sweep.stdout)["points"] if point["system"] == "cs-2"]
    rows = [
        row
        for row in csv.DictReader((elsewhere / "points.csv").read_text("utf-8").splitlines())
        if row["system"] == "cs-2"
    ]
    assert points
    for point, row in zip(points, rows, strict=True):
        assert point["cost"] == pytest.approx(30 * float(row["device_hours"]))
        assert (float(row["cost"]), float(row["energy_kwh"])) == (point["cost"], point["energy_kwh"])
        assert row["currency"] == point["currency"] == "USD"
    asked = ("--find", "devices", "--such-that", "cost <= 1e5", "--compare", "weight-streaming", *price)
    solved = perfsim("solve", "study.yaml", *asked)
    assert solved.exit_code == 0, solved.stderr
    assert {"candidate", "value", "range", "quantity", "reason", "nearest"} <= set(
        json.loads(solved.stdout)["solutions"][0]
    )
    wrong = perfsim("study", "study.yaml", "--price", "cs-3=30")
    assert wrong.exit_code == 2
    assert "did you mean `cs-2`" in wrong.stderr
