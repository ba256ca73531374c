"""The answer that the README shows is the one that its command gives; `PERFSIM_README=1` writes it anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
START = "<!-- sample:start -->"
END = "<!-- sample:end -->"


@pytest.mark.slow
def test_the_sample_in_the_readme_is_what_its_command_prints(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perfsim", "study", "gpt3_20b", "--compare", "3d,weight-streaming"]
    # Without an environment of its own a child inherits the COLUMNS that the readline library sets.
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    before, _, shown = README.read_text(encoding="utf-8").partition(START)
    sample, _, after = shown.partition(END)
    if os.environ.get("PERFSIM_README"):
        README.write_text(f"{before}{START}\n```\n{done.stdout.strip()}\n```\n{END}{after}", encoding="utf-8")
        return
    sample = sample.strip().removeprefix("```\n").removesuffix("\n```")
    assert done.stdout.strip() == sample.strip(), "put what the command prints between the marks in README.md"
