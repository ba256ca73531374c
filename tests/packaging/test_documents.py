"""What the documents tell a newcomer to type exists, and what they link to is there."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "docs/glossary.md",
    "reports/README.md",
    "studies/README.md",
)
FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#]+)")


def commands(text: str, program: str) -> list[str]:
    """Lines of the fenced blocks that start with `program`, comments cut off."""
    lines = (line.split("#")[0].strip() for block in FENCE.findall(text) for line in block.splitlines())
    return [line for line in lines if line.startswith(f"{program} ")]


def verbs_with_options(repository: Path) -> dict[str, set[str]]:
    """Every perfsim verb that a document shows, with all options shown for it."""
    shown: dict[str, set[str]] = {}
    for name in DOCUMENTS:
        for command in commands((repository / name).read_text("utf-8"), "perfsim"):
            verb = command.split()[1]
            shown.setdefault(verb, set()).update(re.findall(r"--[a-z][a-z-]*", command))
    return shown


def test_the_command_line_has_every_verb_and_option_that_the_documents_show(
    repository: Path, must_run: Callable
) -> None:
    shown = verbs_with_options(repository)
    assert {"study", "run", "validate", "sweep", "show"} <= set(shown)
    for verb, options in shown.items():
        known = must_run(sys.executable, "-m", "perfsim", verb, "--help").stdout
        assert not {option for option in options if option not in known}, f"unknown to perfsim {verb}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_make_target_that_a_document_shows_exists(repository: Path, name: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (repository / "Makefile").read_text("utf-8"), re.MULTILINE))
    for command in commands((repository / name).read_text("utf-8"), "make"):
        wanted = {word for word in command.split()[1:] if word.isalpha()}
        assert wanted <= targets, command


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_relative_link_of_a_document_leads_somewhere(repository: Path, name: str) -> None:
    document = repository / name
    dead = [
        target
        for target in LINK.findall(document.read_text("utf-8"))
        if not (document.parent / target).exists()
    ]
    assert not dead


def test_every_module_that_the_glossary_names_exists(repository: Path) -> None:
    names = re.findall(r"`(perfsim(?:\.\w+)+)`", (repository / "docs/glossary.md").read_text("utf-8"))
    assert names
    for name in names:
        path = repository / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists(), name


def test_the_readme_fits_in_one_sitting(repository: Path) -> None:
    assert len((repository / "README.md").read_text("utf-8").splitlines()) <= 120
