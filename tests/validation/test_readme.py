"""The README shows the recorded errors and what its command prints; `PERFSIM_README=1` writes both anew."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perfsim.prediction.bands import recorded_errors

README = Path(__file__).parents[2] / "README.md"
GROUPS = {
    "studies/validation/gpu.yaml": "A100 and H100, 2021 to 2023",
    "studies/validation/modern.yaml": "H100 to GB300, 2024 to 2026",
    "studies/validation/weight_streaming.yaml": "CS-2 (a software release left out)",
}


def check(part: str, expected: str) -> None:
    """What stands between the marks of a part, apart from empty lines at its ends."""
    start = f"<!-- {part}:start -->\n"
    before, _, after = README.read_text("utf-8").partition(start)
    shown, end, rest = after.partition(f"<!-- {part}:end -->")
    if os.environ.get("PERFSIM_README"):
        README.write_text(before + start + expected + end + rest, "utf-8")
    else:
        assert shown.strip() == expected.strip(), "run this test with PERFSIM_README=1"


def row(record: Mapping[str, Any]) -> str:
    shares = (record[name] for name in ("held_out_median_ape", "held_out_p90_ape", "baseline_median_ape"))
    name = GROUPS.get(record["family"], record["family"])
    return f"| {name} | {record['n']} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |"


def test_the_accuracy_in_the_readme_is_the_recorded_one() -> None:
    head = [
        "| published runs | scored | median error | nine in ten within | median error of the baseline |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    check("accuracy", "\n".join([*head, *map(row, recorded_errors())]) + "\n")


@pytest.mark.slow
def test_the_sample_in_the_readme_is_what_its_command_prints(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perfsim", "study", "gpt3_20b", "--compare", "3d,weight-streaming"]
    # Without an environment of its own a child inherits the COLUMNS that the readline library sets.
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    check("sample", f"```\n{done.stdout.strip()}\n```\n")
