"""Prices of the command line reach tables and documents of studies, sweeps and questions asked backwards."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from perfsim.catalog import default_catalog
from perfsim.specs.prices import GIVEN
from perfsim.studies.loading import load_study


def test_a_price_gives_money_of_every_answer(perfsim: Callable[..., Result], elsewhere: Path) -> None:
    price = ("--price", "cs-2=30/h", "--out", "out", "--json")
    study = perfsim("study", "study.yaml", "--table", "t.csv", *price)
    assert study.exit_code == 0, study.stderr
    outcomes = json.loads(study.stdout)["decision"]["outcomes"]
    assert [own["money"] is not None for own in outcomes] == [False, True]
    rows = list(csv.DictReader((elsewhere / "out" / "candidates.csv").read_text("utf-8").splitlines()))
    for own, row in zip(outcomes, rows, strict=True):
        for name in ("equal_power_s", "equal_price_s", "equal_time_devices", "cost_per_1e9_tokens"):
            assert row[name] == ("" if own[name] is None else str(own[name]))
    lines = perfsim("study", "study.yaml", "--out", "out", *price[:2]).stdout
    for row in rows:
        assert f" {float(row['tokens_per_s_per_device']):,.0f} " in lines
    sweep = perfsim("sweep", "sweep.yaml", "--table", "points.csv", *price)
    assert sweep.exit_code == 0, sweep.stderr
    points = [point for point in json.loads(sweep.stdout)["points"] if point["system"] == "cs-2"]
    lines = (elsewhere / "points.csv").read_text("utf-8").splitlines()
    rows = [row for row in csv.DictReader(lines) if row["system"] == "cs-2"]
    assert points
    for point, row in zip(points, rows, strict=True):
        assert point["cost"] == pytest.approx(30 * float(row["device_hours"]))
        assert (float(row["cost"]), float(row["energy_kwh"])) == (point["cost"], point["energy_kwh"])
        assert row["currency"] == point["currency"] == "USD"
    asked = ("--find", "devices", "--such-that", "cost <= 1e5", "--compare", "weight-streaming", *price)
    solved = perfsim("solve", "study.yaml", *asked)
    assert solved.exit_code == 0, solved.stderr
    (first, *_) = json.loads(solved.stdout)["solutions"]
    assert {"candidate", "value", "range", "quantity", "reason", "nearest"} <= set(first)
    wrong = perfsim("study", "study.yaml", "--price", "cs-3=30")
    assert wrong.exit_code == 2
    assert "did you mean `cs-2`" in wrong.stderr
    bare = "extends: gpt3_20b\nprices: {machines: {cs-2: 60}}\n"
    (elsewhere / "bare.yaml").write_text(bare, encoding="utf-8")
    assert "its keys are device_hour, purchase, years" in perfsim("check", "bare.yaml").stderr


def test_every_verb_takes_prices_and_one_price_wins(perfsim: Callable[..., Result], elsewhere: Path) -> None:
    """A price of a machine that is not asked about does no harm."""
    own = "currency: EUR\nmachines: {cs-2: {device_hour: 20}, dgx-h100: {device_hour: 1}}\npue: 1.5\n"
    (elsewhere / "ours.yaml").write_text(own, encoding="utf-8")
    asked = ("--set", "prices=./ours.yaml", "--json")
    plain = json.loads(perfsim("study", "study.yaml", "--out", "plain", "--json").stdout)["decision"]
    answer = json.loads(perfsim("study", "study.yaml", "--out", "out", *asked).stdout)["decision"]
    assert answer["currency"] == "EUR"
    wafers = answer["outcomes"][1]
    assert wafers["money"]["typical"] == pytest.approx(20 * wafers["device_hours"]["typical"])
    free = plain["outcomes"][1]["energy_kwh"]["typical"]
    assert wafers["energy_kwh"]["typical"] == pytest.approx(1.5 * free)
    swept = perfsim("sweep", "sweep.yaml", "--out", "swept", "--price", "cs-2=40", *asked)
    points = [point for point in json.loads(swept.stdout)["points"] if point["system"] == "cs-2"]
    assert points
    for point in points:
        assert point["currency"] == "EUR"
        assert point["cost"] == pytest.approx(40 * point["bill"]["device_hours"]["typical"])
    find = ("--find", "price.device_hour", "--such-that", "cost <= 100", "--compare", "weight-streaming")
    solved = perfsim("solve", "study.yaml", *find, *asked)
    assert solved.exit_code == 0, solved.stderr
    assert json.loads(solved.stdout)["currency"] == "EUR"
    machine = ("--model", "cerebras_gpt_111m", "--recipe", "gpt3_20b_chinchilla", "--system", "cs-2")
    alone = perfsim("solve", *find[:4], *machine, "--batch", "64", *asked)
    assert alone.exit_code == 0, alone.stderr


def test_a_swept_price_moves_money_and_energy_of_its_machine_alone(
    perfsim: Callable[..., Result], elsewhere: Path
) -> None:
    grid = "grid: {prices.machines.cs-2.device_hour: [10, 30], prices.pue: [1, 2]}"
    path = elsewhere / "priced.yaml"
    path.write_text(f"title: A grid\nstudy: study.yaml\n{grid}\n", encoding="utf-8")
    answer = perfsim("sweep", "priced.yaml", "--table", "points.csv", "--out", "out", "--json")
    assert answer.exit_code == 0, answer.stderr
    points = json.loads(answer.stdout)["points"]
    assert [point["system"] for point in points] == [*["dgx-a100-80gb"] * 2, *["cs-2"] * 4]
    assert [point["cost"] is None for point in points] == [True] * 2 + [False] * 4
    wafers = points[2:]
    assert [one["cost"] / wafers[0]["cost"] for one in wafers] == pytest.approx([1, 1, 3, 3])
    assert [one["energy_kwh"] / wafers[0]["energy_kwh"] for one in wafers] == pytest.approx([1, 2, 1, 2])
    rows = list(csv.DictReader((elsewhere / "points.csv").read_text("utf-8").splitlines()))
    assert [row["cost"] for row in rows[2:]] == [str(one["cost"]) for one in wafers]
    lines = perfsim("sweep", "priced.yaml", "--out", "out").stdout
    page = (elsewhere / "out" / "index.html").read_text("utf-8")
    for one in wafers:
        assert f"{one['cost']:,.0f} USD" in lines
        assert f"{one['cost']:,.0f} USD" in page
    twice = perfsim("sweep", "priced.yaml", "--price", "cs-2=3")
    assert (twice.exit_code, "swept and priced" in twice.stderr) == (2, True)
    variants = "variants: {now: {}, cheap: {prices.machines.cs-2.device_hour: 3}}"
    path.write_text(f"title: Variants\nstudy: study.yaml\n{variants}\n", encoding="utf-8")
    assert "swept and priced" in perfsim("sweep", "priced.yaml", "--price", "cs-2=3").stderr


def test_the_examples_are_prices_with_a_date_and_a_source_and_no_default() -> None:
    examples = default_catalog().load("prices", "examples")
    assert all(price.date and price.source != GIVEN for price in examples.machines.values())
    assert not load_study("gpt3_20b").prices.machines
