"""Flags that perfsim emits for published runs are those of the runs, where their sources give them."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfsim.catalog import data_root, default_catalog
from perfsim.evidence.cases import CaseRows, StepCase
from perfsim.interop import emit

PUBLISHED: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parent / "published_flags.yaml").read_text(encoding="utf-8")
)
OF_LAYOUTS = ("-parallel-size", "-virtual-pipeline-stage", "recompute-", "fp8-", "fp4-")
"""Parts of the flags that a published list would have, if the run had them; a degree of 1 is no flag."""


def flags_of(text: str) -> dict[str, str]:
    """The flags of a command line, without dashes; those without a value have an empty one."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    flags: dict[str, str] = {}
    for word in shlex.split(lines):
        if word.startswith("--"):
            flags[name := word.removeprefix("--")] = ""
        else:
            flags[name] = f"{flags[name]} {word}".strip()
    return flags


@pytest.fixture(scope="module")
def cases() -> dict[str, StepCase]:
    catalog = default_catalog()
    files = (data_root() / "studies" / "validation" / f"{name}.yaml" for name in ("gpu", "modern"))
    read = (CaseRows.read(path, StepCase, catalog).cases for path in files)
    return {case.id: case for rows in read for case in rows if case.id in PUBLISHED["cases"]}


@pytest.mark.parametrize("name", PUBLISHED["cases"])
def test_a_published_run_is_emitted_with_its_own_flags(cases: dict[str, StepCase], name: str) -> None:
    row = PUBLISHED["cases"][name]
    published = flags_of(row["flags"])
    emitted = flags_of(emit("megatron", cases[name].placed(default_catalog()).plan))
    of_layouts = {flag for flag in emitted if any(part in flag for part in OF_LAYOUTS)}
    of_layouts -= {flag for flag in of_layouts if flag.endswith("-parallel-size") and emitted[flag] == "1"}
    differing = {flag for flag in {*published, *of_layouts} if emitted.get(flag) != published.get(flag)}
    assert differing == row.get("differs", {}).keys()


def test_fifteen_published_runs_are_compared_ten_of_them_of_today() -> None:
    modern = [name for name in PUBLISHED["cases"] if not name.startswith("megatron21")]
    assert len(modern) >= 10
    assert len(PUBLISHED["cases"]) - len(modern) >= 5
    assert {row["source"] for row in PUBLISHED["cases"].values()} == PUBLISHED["sources"].keys()
