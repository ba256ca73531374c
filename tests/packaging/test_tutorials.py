"""Documents: every block of README and docs, executed in its order, and what they name exists."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from perfsim.cli import main

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests" / "samples"
GENERATED = ROOT / "docs" / "reference"
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md") if GENERATED not in path.parents)
EXECUTED = ("README.md", *(path.relative_to(ROOT).as_posix() for path in PAGES))
DOCUMENTS = (
    *("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"),
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
    *(f"{folder}/README.md" for folder in ("hardware", "reports", "studies", "workloads")),
)
DECISIONS = tuple(sorted(path.name for path in (ROOT / "docs/decisions").glob("[0-9]*.md")))
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


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def blocks(name: str) -> list[Block]:
    """The blocks of a document, without the answer that test_readme.py compares with its command's."""
    text = re.sub(r"<!-- sample:start -->.*<!-- sample:end -->", "", text_of(name), flags=re.DOTALL)
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


@pytest.mark.parametrize("name", EXECUTED)
def test_no_block_of_a_document_is_left_out(name: str) -> None:
    assert not [line for block in blocks(name) for line in unknown_to_this_file(block)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXECUTED if blocks(name)])
def test_every_block_of_a_document_works(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given, sample in READERS_FILES.items():
        shutil.copy(SAMPLES / sample, tmp_path / given)
    for block in blocks(name):
        execute(name, block)


def test_every_page_is_listed() -> None:
    listed = text_of("docs/README.md")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    unlisted = {"README.md", *(page for page in pages if page.startswith("decisions/0"))}
    assert not [page for page in pages if page not in unlisted and f"({page})" not in listed]


MOST_WORDS_OF_THE_ARCHITECTURE = 2000
MOST_LINES_OF_A_DECISION = 18
PATH_IN_CODE = re.compile(r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|md|yaml|ipynb|toml)))`")
"""A file, or a folder with a slash at its end, of the repository or of the package."""
WRITTEN = re.compile(r"(?:^```\w+ file=|^perfsim .* (?:--out|>) |^perfsim init )(\S+)", re.MULTILINE)
"""A file that a reader of a document has written by following it."""
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#]+)")


def commands(name: str, program: str) -> list[str]:
    """Lines of the blocks of a document that start with `program`."""
    lines = (line for block in blocks(name) for line in block.commands)
    return [line for line in lines if line.startswith(f"{program} ")]


def test_the_command_line_has_every_verb_and_option_that_the_documents_show() -> None:
    shown: dict[str, set[str]] = {}
    for command in (command for name in DOCUMENTS for command in commands(name, "perfsim")):
        verb = re.findall(r"^perfsim (calibrate \w+|\S+)", command)[0]
        shown.setdefault(verb, set()).update(re.findall(r"--[a-z][a-z-]*", command))
    assert {"study", "run", "validate", "sweep", "show"} <= set(shown)
    for verb, options in shown.items():
        known = CliRunner().invoke(main, [*verb.split(), "--help"]).stdout
        assert not {option for option in options if option not in known}, f"unknown to perfsim {verb}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_make_target_link_and_path_of_a_document_is_there(name: str) -> None:
    document = ROOT / name
    text = text_of(name)
    targets = set(re.findall(r"^([a-z]+):", text_of("Makefile"), re.MULTILINE))
    for command in commands(name, "make"):
        assert {word for word in command.split()[1:] if word.isalpha()} <= targets, command
    assert [target for target in LINK.findall(text) if not (document.parent / target).exists()] == []
    folders = (ROOT, ROOT / "perfsim", document.parent)
    named = set(PATH_IN_CODE.findall(text)) - set(WRITTEN.findall(text))
    assert [path for path in named if not any((folder / path).exists() for folder in folders)] == []


def test_every_module_that_the_glossary_names_exists() -> None:
    names = re.findall(r"`(perfsim(?:\.\w+)+)`", text_of("docs/glossary.md"))
    assert names
    for name in names:
        path = ROOT / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists(), name


def test_the_architecture_is_short_lists_the_rooms_as_the_layers_do_and_links_to_the_glossary() -> None:
    contracts = tomllib.loads(text_of("pyproject.toml"))["tool"]["importlinter"]
    (layers,) = (contract["layers"] for contract in contracts["contracts"] if contract["id"] == "layers")
    text = text_of("ARCHITECTURE.md")
    assert len(text.split()) <= MOST_WORDS_OF_THE_ARCHITECTURE, "move details to docs/decisions"
    assert "(docs/glossary.md)" in text
    assert "(../ARCHITECTURE.md)" in text_of("docs/glossary.md")
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    assert [re.findall(r"\w+", row) for row in rows] == [re.findall(r"\w+", layer) for layer in layers]


@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_has_context_decision_and_consequence_and_is_short(name: str) -> None:
    text = text_of(f"docs/decisions/{name}")
    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == ["Context", "Decision", "Consequence"]
    assert len(text.splitlines()) <= MOST_LINES_OF_A_DECISION


def test_the_index_lists_every_decision_by_its_title() -> None:
    folder = ROOT / "docs/decisions"
    listed = re.findall(r"^- \[(.*)\]\((.*)\)$", (folder / "README.md").read_text("utf-8"), re.MULTILINE)
    heads = [(folder / name).read_text("utf-8").splitlines()[0].removeprefix("# ") for name in DECISIONS]
    assert listed == list(zip(heads, DECISIONS, strict=True))


def test_the_check_runs_the_test_command_of_the_readme() -> None:
    assert len(text_of("README.md").splitlines()) <= 120, "it fits in one sitting"
    assert {command for command in commands("README.md", "make") if "test" in command} == {"make test"}
    script = text_of(".ci/run")
    assert re.search(r"^ *tests default .*\bmake test$", script, re.MULTILINE)


def test_every_key_of_a_json_document_has_a_meaning() -> None:
    """`docs/reference.py` refuses keys without one, and `test_site.py` refuses a page that is not its."""
    page = text_of("docs/reference/json.md")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 400
    assert [key for key, *_, words in rows if len(words.strip("| ").split()) < 2] == []
