"""Rules of the house that no linter knows; each message says what to do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SKIPPED_FOLDERS = {"__pycache__", "build", "dist", "node_modules"}
# Top folders of somebody's own machine; as parts, so that this file does not name them itself.
MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(?:" + "|".join(("work", "root", "home")) + r")/[\w.]")


def files_of(repository: Path) -> Iterator[Path]:
    """What belongs to the project: no caches, environments, builds or reports that studies wrote."""
    for top in sorted(repository.iterdir()):
        if top.name.startswith(".") and top.name not in {".ci", ".gitignore"}:
            continue
        if (top / "pyvenv.cfg").exists():
            continue
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            parts = path.relative_to(repository).parts
            written_by_a_study = parts[0] == "reports" and len(parts) > 2
            if path.is_file() and not written_by_a_study and not SKIPPED_FOLDERS & set(parts):
                yield path


def test_the_package_holds_no_assert(sources: dict[Path, ast.Module]) -> None:
    nodes = ((path, node) for path, tree in sources.items() for node in ast.walk(tree))
    asserts = [f"{path}:{node.lineno}" for path, node in nodes if isinstance(node, ast.Assert)]
    assert not asserts, "python -O removes assert: raise an error of perfsim.errors instead"


def test_every_module_starts_with_a_docstring_whose_first_line_says_what_it_is(
    sources: dict[Path, ast.Module],
) -> None:
    firsts = {path: (ast.get_docstring(tree) or "").partition("\n")[0] for path, tree in sources.items()}
    silent = [f"{path}: {first!r}" for path, first in firsts.items() if not first.endswith((".", ":", "?"))]
    assert not silent, "write one full sentence on the first line of the module's docstring"


def test_no_file_names_a_path_of_somebodys_machine(repository: Path) -> None:
    assert all(
        map(MACHINE_PATH.search, ("open('/" + "work/x')", "see /" + "root/.cache", "=/" + "home/me/x"))
    )
    spared = "https://example.org/work/x net" + "/work/ ~/work/x $HOME/work/x a /workloads/ folder"
    assert not MACHINE_PATH.search(spared)
    guilty = []
    for path in files_of(repository):
        text = path.read_bytes().decode("utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            if MACHINE_PATH.search(line):
                guilty.append(f"{path.relative_to(repository)}:{number}: {line.strip()[:100]}")
    assert not guilty, "the project must work in any folder: use a relative path or a temporary one"
