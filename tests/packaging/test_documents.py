"""What the documents tell a newcomer to type exists, and what they link to is there."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = tuple(sorted(path.name for path in (ROOT / "docs/decisions").glob("[0-9]*.md")))
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
    "hardware/README.md",
    "reports/README.md",
    "studies/README.md",
    "workloads/README.md",
)
MOST_WORDS_OF_THE_ARCHITECTURE = 2000
MOST_LINES_OF_A_DECISION = 18
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATH_IN_CODE = re.compile(r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|md|yaml|ipynb|toml)))`")
"""A file, or a folder with a slash at its end, of the repository or of the package."""
WRITTEN = re.compile(r"(?:^```\w+ file=|^perfsim .* (?:--out|>) |^perfsim init )(\S+)", re.MULTILINE)
"""A file that a reader of a document has written by following it."""
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#]+)")


def commands(text: str, program: str) -> list[str]:
    """Lines of the fenced blocks that start with `program`, comments cut off."""
    lines = (line.split("#")[0].strip() for block in FENCE.findall(text) for line in block.splitlines())
    return [line for line in lines if line.startswith(f"{program} ")]


def test_the_command_line_has_every_verb_and_option_that_the_documents_show(must_run: Callable) -> None:
    shown: dict[str, set[str]] = {}
    texts = [(ROOT / name).read_text("utf-8") for name in DOCUMENTS]
    for command in (command for text in texts for command in commands(text, "perfsim")):
        verb = re.findall(r"^perfsim (calibrate \w+|\S+)", command)[0]
        shown.setdefault(verb, set()).update(re.findall(r"--[a-z][a-z-]*", command))
    assert {"study", "run", "validate", "sweep", "show"} <= set(shown)
    for verb, options in shown.items():
        known = must_run(sys.executable, "-m", "perfsim", *verb.split(), "--help").stdout
        assert not {option for option in options if option not in known}, f"unknown to perfsim {verb}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_make_target_link_and_path_of_a_document_is_there(name: str) -> None:
    document = ROOT / name
    text = document.read_text("utf-8")
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for command in commands(text, "make"):
        assert {word for word in command.split()[1:] if word.isalpha()} <= targets, command
    assert [target for target in LINK.findall(text) if not (document.parent / target).exists()] == []
    folders = (ROOT, ROOT / "perfsim", document.parent)
    named = set(PATH_IN_CODE.findall(text)) - set(WRITTEN.findall(text))
    assert [path for path in named if not any((folder / path).exists() for folder in folders)] == []


def test_every_module_that_the_glossary_names_exists() -> None:
    names = re.findall(r"`(perfsim(?:\.\w+)+)`", (ROOT / "docs/glossary.md").read_text("utf-8"))
    assert names
    for name in names:
        path = ROOT / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists(), name


def test_the_architecture_is_short_lists_the_rooms_as_the_layers_do_and_links_to_the_glossary() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (layers,) = (contract["layers"] for contract in contracts["contracts"] if contract["id"] == "layers")
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    assert len(text.split()) <= MOST_WORDS_OF_THE_ARCHITECTURE, "move details to docs/decisions"
    assert "(docs/glossary.md)" in text
    assert "(../ARCHITECTURE.md)" in (ROOT / "docs/glossary.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    assert [re.findall(r"\w+", row) for row in rows] == [re.findall(r"\w+", layer) for layer in layers]


@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_has_context_decision_and_consequence_and_is_short(name: str) -> None:
    text = (ROOT / "docs/decisions" / name).read_text("utf-8")
    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == ["Context", "Decision", "Consequence"]
    assert len(text.splitlines()) <= MOST_LINES_OF_A_DECISION


def test_the_index_lists_every_decision_by_its_title() -> None:
    folder = ROOT / "docs/decisions"
    listed = re.findall(r"^- \[(.*)\]\((.*)\)$", (folder / "README.md").read_text("utf-8"), re.MULTILINE)
    heads = [(folder / name).read_text("utf-8").splitlines()[0].removeprefix("# ") for name in DECISIONS]
    assert listed == list(zip(heads, DECISIONS, strict=True))


def test_the_check_runs_the_test_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) <= 120, "it fits in one sitting"
    assert {command for command in commands(readme, "make") if "test" in command} == {"make test"}
    script = (ROOT / ".ci/run").read_text("utf-8")
    assert re.search(r"^ *tests default .*\bmake test$", script, re.MULTILINE)


def test_every_key_of_a_json_document_has_a_meaning() -> None:
    """`docs/reference.py` refuses keys without one, and `test_site.py` refuses a page that is not its."""
    page = (ROOT / "docs" / "reference" / "json.md").read_text("utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 400
    assert [key for key, *_, words in rows if len(words.strip("| ").split()) < 2] == []
