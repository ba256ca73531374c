"""The reference is what the program says today, the documentation builds as a site, and the tour runs."""

import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

MOST_CELLS = 16


@pytest.mark.slow
def test_the_reference_is_fresh(must_run: Callable, repository: Path, tmp_path: Path) -> None:
    must_run(sys.executable, "docs/reference.py", tmp_path, cwd=repository, PYTHONPATH=repository)
    pages = {path.name: path.read_text("utf-8") for path in tmp_path.glob("*.md")}
    stored = {path.name: path.read_text("utf-8") for path in (repository / "docs/reference").glob("*.md")}
    assert set(pages) == set(stored)
    stale = [name for name in pages if pages[name] != stored[name]]
    assert not stale, "run: python docs/reference.py"


@pytest.mark.slow
def test_every_page_builds_and_no_link_breaks(must_run: Callable, repository: Path, tmp_path: Path) -> None:
    """Needs the extra `[docs]`, which `[dev]` holds."""
    build = ("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path)
    must_run(sys.executable, *build, cwd=repository, PYTHONPATH=repository, NO_MKDOCS_2_WARNING="1")
    page = (tmp_path / "tutorials" / "own_hardware.html").read_text("utf-8")
    assert '<span class="filename">x100.yaml</span>' in page
    assert (tmp_path / "repository" / "ARCHITECTURE.html").is_file()


@pytest.fixture(scope="module")
def tour(repository: Path) -> nbformat.NotebookNode:
    return nbformat.read(repository / "studies" / "tour.ipynb", as_version=4)


def test_the_tour_is_short_and_holds_no_stored_output(tour: nbformat.NotebookNode) -> None:
    assert len(tour.cells) <= MOST_CELLS
    assert not any(cell.get("outputs") for cell in tour.cells)


@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
@pytest.mark.slow
def test_the_tour_runs_from_end_to_end(tour: nbformat.NotebookNode, tmp_path: Path) -> None:
    """Every cell runs in a folder of its own, and every code cell but the first shows something."""
    NotebookClient(tour, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    code = [cell for cell in tour.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in code)
    assert not list(tmp_path.iterdir())
