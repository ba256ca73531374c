"""Wheel, source distribution and editable install carry what they should, and nothing else."""

import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def below(root: Path, pattern: str = "*") -> set[str]:
    """Files under `root`, without caches, as the archive names them."""
    files = (path for path in root.rglob(pattern) if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(root).as_posix() for path in files}


def contents(wheel: Path) -> dict[str, int]:
    """Name to checksum of each member, the list of members itself left out."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            item.filename: item.CRC for item in archive.infolist() if not item.filename.endswith("RECORD")
        }


def test_the_wheel_holds_the_package_and_the_catalogue_and_no_more(wheel: Path, repository: Path) -> None:
    expected = {f"perfsim/{name}" for name in below(repository / "perfsim")}
    for folder in ("hardware", "workloads", "studies"):
        expected |= {f"perfsim/_data/{folder}/{name}" for name in below(repository / folder)}
    expected.add("perfsim/_data/docs/glossary.md")
    members = contents(wheel)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in members)
    held = {name for name in members if ".dist-info/" not in name}
    assert held == expected
    assert "perfsim/_data/studies/gpt3_20b.yaml" in held
    assert "perfsim/py.typed" in held, "type checkers ignore the annotations of a package without it"


def test_the_source_distribution_holds_what_testing_needs_and_makes_the_wheel_of_the_checkout(
    wheel: Path, repository: Path, tmp_path: Path, build: Callable[..., Path]
) -> None:
    assert contents(build(tmp_path)) == contents(wheel)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.split("/", 1)[1] for name in archive.getnames()}
    tests = {f"tests/{name}" for name in below(repository / "tests", "*.py")}
    documents = {"LICENSE", "README.md", "ARCHITECTURE.md", "docs/glossary.md"}
    assert tests | documents | {"Makefile", ".ci/run", "hatch_build.py"} <= held


def test_an_editable_install_reads_the_checkout_and_exposes_only_the_package(
    repository: Path, tmp_path: Path, must_run: Callable
) -> None:
    must_run(sys.executable, "-m", "venv", tmp_path)
    python = tmp_path / "bin" / "python"
    must_run(python, "-m", "pip", "install", "--quiet", "--no-deps", "editables", "--editable", repository)
    probe = (
        "from importlib.util import find_spec\n"
        "print(find_spec('perfsim').origin)\n"
        "others = ('hardware', 'workloads', 'studies', 'tests', 'reports')\n"
        "print([name for name in others if find_spec(name)])\n"
    )
    origin, others = must_run(python, "-c", probe).stdout.splitlines()
    assert Path(origin) == repository / "perfsim" / "__init__.py"
    assert others == "[]"
    assert not (repository / "perfsim" / "_data").exists()


def test_two_builds_of_a_wheel_are_identical(wheel: Path, tmp_path: Path, build: Callable[..., Path]) -> None:
    assert build(tmp_path, "--wheel").read_bytes() == wheel.read_bytes()
