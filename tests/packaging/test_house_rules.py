"""Rules of the house that no linter knows, and what the distribution declares; messages say what to do."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points, metadata, version
from pathlib import Path

import perfsim

IMPORT_NAMES = {"pyyaml": "yaml", "protobuf": "google"}
"""Distributions whose import name differs from their own."""

BROUGHT_ALONG = {"pydantic_core"}
"""The second half of a declared distribution, which its documentation tells users to import."""


def import_name(requirement: str) -> str:
    name = re.split(r"[^\w-]", requirement, maxsplit=1)[0].lower()
    return IMPORT_NAMES.get(name, name.replace("-", "_"))


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def at_module_level(tree: ast.Module) -> ast.Module:
    """The statements that run on import; what is inside a function or `if TYPE_CHECKING` does not."""
    kept = [node for node in tree.body if not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.If))]
    return ast.Module(body=kept, type_ignores=[])


def test_the_distribution_has_the_version_of_the_package_and_its_command() -> None:
    assert version("perfsim") == perfsim.__version__
    assert metadata("perfsim")["License-Expression"] == "Apache-2.0"
    (script,) = entry_points(group="console_scripts", name="perfsim")
    assert script.value == "perfsim.__main__:main"
    assert callable(script.load())


def test_imports_are_declared_used_and_extras_late(repository: Path, sources: dict[Path, ast.Module]) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text("utf-8"))["project"]
    core = {import_name(requirement) for requirement in project["dependencies"]}
    extras = [name for group in project["optional-dependencies"].values() for name in group]
    always = core | BROUGHT_ALONG | {"perfsim"} | set(sys.stdlib_module_names)
    known = always | set(map(import_name, extras))
    imports = {path: set(imported(tree)) for path, tree in sources.items()}
    unknown = {f"{path}: {name}" for path, names in imports.items() for name in names - known}
    assert not unknown, "imported but not in pyproject.toml"
    at_once = {path: set(imported(at_module_level(tree))) - always for path, tree in sources.items()}
    eager = {f"{path}: {name}" for path, names in at_once.items() for name in names}
    assert not eager, "a plain install lacks these: import them inside the function that needs them"
    unused = core - set().union(*imports.values())
    assert not unused, "declared in pyproject.toml but imported nowhere: remove them"


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


def test_the_docstring_of_every_module_says_first_what_it_is(sources: dict[Path, ast.Module]) -> None:
    firsts = {path: (ast.get_docstring(tree) or "").partition("\n")[0] for path, tree in sources.items()}
    silent = [f"{path}: {first!r}" for path, first in firsts.items() if not first.endswith((".", ":", "?"))]
    assert not silent, "write one full sentence on the first line of the module's docstring"


def test_no_file_names_a_path_of_somebodys_machine(repository: Path) -> None:
    assert all(
        map(MACHINE_PATH.search, ("open('/" + "work/x')", "see /" + "root/.cache", "=/" + "home/me/x"))
    )
    spared = "https://example.org/work/x net" + "/work/ ~/work/x $HOME/work/x a /workloads/ folder"
    assert not MACHINE_PATH.search(spared)
    texts = {path: path.read_bytes().decode("utf-8", errors="replace") for path in files_of(repository)}
    guilty = [
        f"{path.relative_to(repository)}:{number}: {line.strip()[:100]}"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if MACHINE_PATH.search(line)
    ]
    assert not guilty, "the project must work in any folder: use a relative path or a temporary one"
