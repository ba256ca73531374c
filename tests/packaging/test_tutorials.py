"""Every command, file and Python block of the tutorials, executed in its order in an empty folder."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfsim.cli import main

BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TUTORIALS = ("own_hardware", "planner", "ml_engineer", "researcher")


def gemms(repository: Path, folder: Path) -> None:
    """What `measure_gemms.py` writes on a GPU, from a roofline instead of a measurement."""
    spec = importlib.util.spec_from_file_location("measure_gemms", repository / "hardware/measure_gemms.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    rows = []
    for m, n, k in script.shapes():
        compute_s = 2 * m * n * k / (0.7 * 1600e12)
        memory_s = 2 * (m * n + n * k + m * k) / (0.8 * 6e12)
        rows.append((m, n, k, 4 + 1e6 * max(compute_s, memory_s)))
    with (folder / "gemms.csv").open("w", encoding="utf-8") as stream:
        script.write(rows, stream)


def run(line: str) -> None:
    command, _, target = line.partition(" > ")
    words = shlex.split(command)
    assert words[0] == "perfsim"
    result = CliRunner().invoke(main, words[1:])
    assert result.exit_code == 0, f"{line}\n{result.stdout}\n{result.stderr}"
    if target:
        Path(target).write_text(result.stdout, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_every_command_of_a_tutorial_works(
    name: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gemms(repository, tmp_path)
    for kind, body in BLOCK.findall((repository / f"docs/tutorials/{name}.md").read_text("utf-8")):
        language, _, rest = kind.partition(" ")
        if rest.startswith("file="):
            Path(rest.removeprefix("file=")).write_text(body, encoding="utf-8")
        elif language == "python":
            exec(compile(body, f"{name}.md", "exec"), {})  # noqa: S102  # the document's own code
        elif rest != "on-a-gpu":
            for line in body.strip().splitlines():
                run(line)


def test_every_tutorial_is_listed_and_tried(repository: Path) -> None:
    files = {path.stem for path in (repository / "docs/tutorials").glob("*.md")}
    assert files == set(TUTORIALS)
    listed = (repository / "docs/README.md").read_text("utf-8")
    assert all(f"(tutorials/{name}.md)" in listed for name in TUTORIALS)
