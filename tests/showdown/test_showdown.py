"""Simulators of training on the same published runs: who can express which, and how far off each is.

A simulator is a row of `studies/peers/peers.yaml` and a CSV of predicted seconds next to it. perfsim's
predictions leave the source of each run out of the fit. `make showdown` writes reports/showdown.md.
"""

import csv
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from pydantic import BaseModel, ConfigDict

from perfsim.catalog.catalog import data_root
from perfsim.cli import main

FOLDER = "studies/peers"
OURS = "perfsim"
MOST_MEDIAN = 0.08
"""No class of runs that perfsim predicts is missed by more in the median, left out."""

HEAD = """
Errors are absolute, in per cent of the measured step: median / 90th percentile / mean, over the runs that a
simulator can express. The column of perfsim next to each is of the very same runs, predicted with constants
that were fitted without the source of the run; in four families, whose device or framework has no other
source, without the runs of the same model on as many devices. perfsim was developed with these runs, and the
others did not have them except on their home rows: read the comparison with that in mind.
""".splitlines()


class Peer(BaseModel):
    """A simulator, and how its predictions were made."""

    model_config = ConfigDict(extra="forbid")

    name: str
    file: str
    version: str
    license: str
    source: str
    run: str
    other: str = ""
    checked: str
    home: list[str]


class Run(NamedTuple):
    """A published run with its class, and what each simulator says of it, by the simulator's name."""

    id: str
    kind: str
    family: str
    measured_s: float
    measured_gib: float | None
    seconds: dict[str, float]
    gib: dict[str, float]

    def error(self, name: str) -> float:
        return abs(self.seconds[name] / self.measured_s - 1)


class Row(NamedTuple):
    """One run of the CSV of a simulator: only id and seconds need a value."""

    seconds: float | None
    other_seconds: float | None
    peak_gib: float | None
    evaluation_s: float | None


def _number(text: str | None) -> float | None:
    return float(text) if text else None


def rows_of(path: Path) -> dict[str, Row]:
    """The rows of a simulator's CSV, by the id of the run; a column that it lacks has no values."""
    with path.open(encoding="utf-8", newline="") as file:
        return {
            row["id"]: Row(*(_number(row.get(name)) for name in Row._fields)) for row in csv.DictReader(file)
        }


def peers_of(folder: Path) -> dict[str, tuple[Peer, dict[str, Row]]]:
    """The simulators of a folder with their predictions, by name."""
    known = [Peer(**row) for row in yaml.safe_load((folder / "peers.yaml").read_text(encoding="utf-8"))]
    return {peer.name: (peer, rows_of(folder / peer.file)) for peer in known}


def runs_of(answer: Sequence[dict[str, Any]], folder: Path) -> list[Run]:
    """The scored runs of an answer of `validate --leave-out --json` that have a class in `runs.csv`."""
    with (folder / "runs.csv").open(encoding="utf-8", newline="") as file:
        kinds = {(row["file"], row["id"]): row["class"] for row in csv.DictReader(file)}
    peers = peers_of(folder)
    runs: list[Run] = []
    for result in answer:
        for case in result["cases"]:
            kind = kinds.get((result["file"], case["id"]))
            if kind is None:
                continue
            seconds: dict[str, float] = {}
            gib: dict[str, float] = {}
            # A file that feeds no fit has nothing to leave out.
            ours_s = case["predicted_s"] if case["left_out_s"] is None else case["left_out_s"]
            if ours_s is not None:
                seconds[OURS] = ours_s
            if case["predicted_peak_gib"] is not None:
                gib[OURS] = case["predicted_peak_gib"]
            for name, (peer, rows) in peers.items():
                row = rows.get(case["id"])
                if row is None:
                    continue
                if row.seconds is not None:
                    seconds[name] = row.seconds
                if row.other_seconds is not None:
                    seconds[f"{name}, {peer.other}"] = row.other_seconds
                if row.peak_gib is not None:
                    gib[name] = row.peak_gib
            measured = (case["measured_s"], case["measured_peak_gib"])
            runs.append(Run(case["id"], kind, case["family"], *measured, seconds, gib))
    return runs


def _three(errors: Sequence[float]) -> str:
    """Median, 90th percentile and mean in per cent."""
    figures = (np.median(errors), np.percentile(errors, 90), np.mean(errors))
    return " / ".join(f"{100 * float(figure):.1f}" for figure in figures)


def closer(runs: Sequence[Run], names: Sequence[str]) -> list[tuple[Run, str]]:
    """The runs on which another simulator is closer than perfsim, each with the closest."""
    found: list[tuple[Run, str]] = []
    for run in runs:
        both = [name for name in names if name in run.seconds]
        if OURS not in run.seconds or not both:
            continue
        best = min(both, key=run.error)
        if run.error(best) < run.error(OURS):
            found.append((run, best))
    return found


def _classes(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    lines = [
        "| class | simulator | can express | its error | perfsim on the same runs | its home rows |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    homes = {peer.name: set(peer.home) for peer, _ in peers_of(data_root() / FOLDER).values()}
    for kind in dict.fromkeys(run.kind for run in runs):
        of_kind = [run for run in runs if run.kind == kind]
        for name in (OURS, *names):
            able = [run for run in of_kind if name in run.seconds and OURS in run.seconds]
            if not able and "," in name:
                continue
            home = sum(run.family in homes.get(name.partition(",")[0], ()) for run in able)
            error = _three([run.error(name) for run in able]) if able else ""
            ours = _three([run.error(OURS) for run in able]) if able and name != OURS else ""
            lines.append(
                f"| {kind} | {name} | {len(able)} of {len(of_kind)} | {error} | {ours} | {home or ''} |"
            )
    return lines


def _memory(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    lines = ["| simulator | runs | its error | perfsim on the same runs |", "| --- | ---: | ---: | ---: |"]
    for name in names:
        able = [run for run in runs if run.measured_gib and name in run.gib and OURS in run.gib]
        if not able:
            continue
        errors = {
            who: [abs(run.gib[who] / run.measured_gib - 1) for run in able if run.measured_gib]
            for who in (name, OURS)
        }
        lines.append(f"| {name} | {len(able)} | {_three(errors[name])} | {_three(errors[OURS])} |")
    return lines


def page(runs: Sequence[Run], folder: Path, seconds_each: float) -> str:
    """How each was run, errors by class, memory, time of an evaluation, and where perfsim is worse."""
    peers = peers_of(folder)
    names = [
        name
        for peer, _ in peers.values()
        for name in (peer.name, *([f"{peer.name}, {peer.other}"] if peer.other else []))
    ]
    worse = closer(runs, names)
    compared = sum(OURS in run.seconds and any(name in run.seconds for name in names) for run in runs)
    speed = [
        f"| {name} | {np.median(times):.2g} ({min(times):.2g} to {max(times):.2g}) |"
        for name, (_, rows) in peers.items()
        if (times := [row.evaluation_s for row in rows.values() if row.evaluation_s])
    ]
    lines = [
        "# Training simulators on the same published runs",
        "",
        f"Made by `make showdown` from {len(runs)} scored runs of `studies/validation`.",
        *HEAD,
        "",
        f"**On {len(worse)} of {compared} runs that another simulator can express, it is closer.**",
        "",
        "| simulator | release | how it was run | how that was checked |",
        "| --- | --- | --- | --- |",
        *(
            f"| [{peer.name}]({peer.source}) | {peer.version} | {peer.run} | {peer.checked} |"
            for peer, _ in peers.values()
        ),
        "",
        "## Step time by class",
        "",
        *_classes(runs, names),
        "",
        "## Peak memory",
        "",
        *_memory(runs, [peer.name for peer, _ in peers.values()]),
        "",
        "## Seconds of one evaluation",
        "",
        "| simulator | median (range) |",
        "| --- | ---: |",
        *speed,
        f"| {OURS} | {seconds_each:.2g} (mean of `validate`, fits included, two processes) |",
        "",
        "## Where another is closer",
        "",
        "| run | class | closest | its error, % | perfsim's error, % |",
        "| --- | --- | --- | ---: | ---: |",
        *(
            f"| {run.id} | {run.kind} | {best} | {100 * run.error(best):.1f} | {100 * run.error(OURS):.1f} |"
            for run, best in worse
        ),
        "",
    ]
    return "\n".join(lines)


def _case(name: str, measured: float, left_out: float) -> dict[str, Any]:
    known = {"id": name, "family": "f", "measured_s": measured, "left_out_s": left_out, "predicted_s": None}
    return known | {"predicted_peak_gib": 10.0, "measured_peak_gib": 8.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs and a simulator whose CSV has ids and seconds only."""
    (tmp_path / "runs.csv").write_text("file,id,class\ng.yaml,one,dense\ng.yaml,two,dense\n")
    (tmp_path / "mine.csv").write_text("id,seconds\none,1.1\ntwo,\n")
    fields = dict.fromkeys(("version", "license", "source", "run", "checked"), "as is")
    peer = {"name": "Mine", "file": "mine.csv", "home": [], **fields}
    (tmp_path / "peers.yaml").write_text(yaml.safe_dump([peer]))
    return tmp_path


def test_a_csv_of_ids_and_seconds_is_a_column(folder: Path) -> None:
    answer = [{"file": "g.yaml", "cases": [_case("one", 1.0, 0.8), _case("two", 1.0, 0.9)]}]
    runs = runs_of(answer, folder)
    assert [sorted(run.seconds) for run in runs] == [["Mine", OURS], [OURS]]
    text = page(runs, folder, 0.1)
    assert "| dense | Mine | 1 of 2 | 10.0 / 10.0 / 10.0 | 20.0 / 20.0 / 20.0 |  |" in text
    assert "**On 1 of 1 runs" in text
    assert "| one | dense | Mine | 10.0 | 20.0 |" in text


def test_a_run_is_another_ones_only_where_its_error_is_smaller(folder: Path) -> None:
    answer = [{"file": "g.yaml", "cases": [_case("one", 1.0, 1.05)]}]
    assert closer(runs_of(answer, folder), ["Mine"]) == []


def test_every_recorded_prediction_is_of_a_scored_run_and_finite() -> None:
    folder = data_root() / FOLDER
    with (folder / "runs.csv").open(encoding="utf-8", newline="") as file:
        known = {row["id"] for row in csv.DictReader(file)}
    for peer, rows in peers_of(folder).values():
        assert set(rows) <= known, peer.name
        assert all(row.seconds is None or math.isfinite(row.seconds) for row in rows.values())
        assert any(row.seconds for row in rows.values()), peer.name


@pytest.mark.slow
def test_no_class_is_missed_by_much_and_the_page_is_written(repository: Path) -> None:
    began = time.perf_counter()
    result = CliRunner().invoke(main, ["validate", "--json"])
    elapsed = time.perf_counter() - began
    scored = sum(len(answer["cases"]) for answer in json.loads(result.stdout))
    result = CliRunner().invoke(main, ["validate", "--leave-out", "--json"])
    folder = data_root() / FOLDER
    runs = runs_of(json.loads(result.stdout), folder)
    for kind in {run.kind for run in runs}:
        errors = [run.error(OURS) for run in runs if run.kind == kind and OURS in run.seconds]
        assert np.median(errors) < MOST_MEDIAN, kind
    if named := os.environ.get("PERFSIM_SHOWDOWN"):
        (repository / named).write_text(page(runs, folder, elapsed / scored), encoding="utf-8")
