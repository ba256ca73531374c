"""Every command, file and Python block of README and docs, executed in its order in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from perfsim.cli import main

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests" / "samples"
GENERATED = ROOT / "docs" / "reference"
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md") if GENERATED not in path.parents)
DOCUMENTS = ("README.md", *(path.relative_to(ROOT).as_posix() for path in PAGES))
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SET_UP = {
    "make": "the check of the project runs it",
    "python3": "test_wheel_elsewhere.py makes an environment and installs into it",
    ".": "as python3",
    "pip": "as python3",
    "jupyter": "test_site.py runs the notebook",
    "mkdocs": "test_site.py builds the site",
    "git": "needs a repository",
}
"""Programs of blocks `sh set-up`, which prepare a machine, and who tries them instead."""
READERS_FILES = {
    "config.json": "foreign/llama31_8b_config.json",
    "train.sh": "foreign/megatron_175b.sh",
    "train.log": "foreign/megatron_small.log",
}
"""Files that a reader brings along."""


class Block(NamedTuple):
    """A fenced block: its language, what follows that, and its text."""

    language: str
    rest: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Its lines without comments."""
        lines = (re.split(r"(?:^|\s)#", line)[0].strip() for line in self.text.splitlines())
        return [line for line in lines if line]


def blocks(name: str) -> list[Block]:
    """The blocks of a document, without the answer that test_readme.py compares with its command's."""
    text = re.sub(
        r"<!-- sample:start -->.*<!-- sample:end -->", "", (ROOT / name).read_text("utf-8"), flags=re.DOTALL
    )
    return [Block(*kind.partition(" ")[::2], body) for kind, body in FENCE.findall(text)]


def unknown_to_this_file(block: Block) -> list[str]:
    """What of a block no test executes: a language, or the lines of other programs."""
    match block.language, block.rest:
        case ("yaml" | "json", rest) if rest.startswith("file="):
            return []
        case ("python", "" | "on-a-cluster") | ("sh", "on-a-gpu" | "on-a-cluster"):
            return []  # test_dask_cluster.py has a cluster on one machine
        case "", "":
            return [line for line in block.commands if not line.startswith("perfsim ")]
        case "sh", "set-up":
            return [line for line in block.commands if line.split()[0] not in SET_UP]
    return [f"{block.language} {block.rest}"]


def perfsim(line: str) -> None:
    command, _, target = line.partition(" > ")
    result = CliRunner().invoke(main, shlex.split(command)[1:])
    assert result.exit_code == 0, f"{line}\n{result.stdout}\n{result.stderr}"
    if target:
        Path(target).write_text(result.stdout, encoding="utf-8")


def on_a_gpu(line: str) -> None:
    """A measurement, by a stand-in for PyTorch or by a stored output of nccl-tests."""
    command, _, target = line.partition(" > ")
    program, *arguments = shlex.split(command)
    if program == "python":
        env = {**os.environ, "PYTHONPATH": str(SAMPLES / "no_gpu")}
        with Path(target).open("w", encoding="utf-8") as stream:
            subprocess.run([sys.executable, *arguments], env=env, stdout=stream, check=True)
    else:
        shutil.copy(SAMPLES / "nccl" / f"{program.removesuffix('_perf')}.txt", target)


def execute(name: str, block: Block) -> None:
    if block.rest.startswith("file="):
        Path(block.rest.removeprefix("file=")).write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        code = compile(block.text, name, "exec")
        if not block.rest:
            exec(code, {})  # noqa: S102  # the document's own code
    elif block.rest not in ("set-up", "on-a-cluster"):
        for line in block.commands:
            on_a_gpu(line) if block.rest else perfsim(line)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_block_of_a_document_is_left_out(name: str) -> None:
    assert not [line for block in blocks(name) for line in unknown_to_this_file(block)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in DOCUMENTS if blocks(name)])
def test_every_block_of_a_document_works(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given, sample in READERS_FILES.items():
        shutil.copy(SAMPLES / sample, tmp_path / given)
    for block in blocks(name):
        execute(name, block)


def test_every_page_is_listed(repository: Path) -> None:
    listed = (repository / "docs/README.md").read_text("utf-8")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    unlisted = {"README.md", *(page for page in pages if page.startswith("decisions/0"))}
    assert not [page for page in pages if page not in unlisted and f"({page})" not in listed]
