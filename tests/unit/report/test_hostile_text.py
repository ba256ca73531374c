"""Text of files reaches the terminal, the page, the summary and the trace as text, never as anything else."""

import csv
import gzip
import json
import unicodedata
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from perfsim.cli import main

HOSTILE = r"</script><script>alert(1)</script><img src=x onerror=alert(2)> {{7*7}} \e[31m\a\u202e\u0085 =1+1"
STUDY = f"""\
name: hostile
title: "{HOSTILE}"
question: "{HOSTILE}"
description: "{HOSTILE}"
assumed: {{batch_sizes: "{HOSTILE}"}}
model: {{extends: gpt3_xl, description: "{HOSTILE}", assumed: {{num_layers: "{HOSTILE}"}}, num_layers: 4}}
recipe: {{extends: gpt3_20b_chinchilla, description: "{HOSTILE}", dropout: false,
  assumed: {{dropout: "{HOSTILE}"}}}}
candidates:
- strategy: weight-streaming
  system: {{extends: cs-2, name: "<b>alert</b>", description: "{HOSTILE}", io_ports: 10,
    assumed: {{io_ports: "{HOSTILE}"}}}}
  devices: [1]
  production: {{low: 0.5, typical: 0.6, high: 0.7, source: "{HOSTILE}"}}
batch_sizes: [16]
sampling: {{tasks: 0}}
"""
SWEEP = f"""\
name: hostile
title: "{HOSTILE}"
question: "{HOSTILE}"
study: study.yaml
grid: {{recipe.seq_length: [1024]}}
variants:
  "<i>alert</i>": {{recipe.dropout: true}}
  "=alert()": {{recipe.dropout: false}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(STUDY, encoding="utf-8")
    Path("sweep.yaml").write_text(SWEEP, encoding="utf-8")


@pytest.mark.parametrize("verb", ["study", "sweep"])
def test_hostile_text_stays_text_everywhere(verb: str, factory: ModuleType) -> None:
    result = CliRunner().invoke(main, [verb, f"{verb}.yaml", "--out", "out"])
    assert result.exit_code == 0, result.stderr
    assert "alert" in result.stdout
    strange = {char for char in result.stdout + result.stderr if unicodedata.category(char)[0] == "C"}
    assert strange <= {"\n"}
    tags = factory.tags(Path("out/index.html").read_text(encoding="utf-8"))
    assert not {"img", "b", "i"} & {tag for tag, _ in tags}
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
    assert json.loads(Path("out/summary.json").read_text(encoding="utf-8"))["title"].startswith("</script>")
    for trace in Path("out").glob("*.json.gz"):
        assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]


def test_hostile_text_is_text_in_tables() -> None:
    sweep = ("sweep", "sweep.yaml", "--out", "out", "--jobs", "1")
    for name in ("rows.csv", "rows.parquet"):
        result = CliRunner().invoke(main, [*sweep, "--table", name])
        assert result.exit_code == 0, result.stderr
    with Path("rows.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["variant"] for row in rows] == ["<i>alert</i>", "'=alert()"]
    assert {row["system"] for row in rows} == {"<b>alert</b>"}
    assert all(None not in row and None not in row.values() for row in rows), "a row of another width"
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = parquet.read_table("rows.parquet").to_pydict()
    assert columns["variant"] == ["<i>alert</i>", "=alert()"]
    assert columns["step_time_s"] == [float(row["step_time_s"]) for row in rows]
