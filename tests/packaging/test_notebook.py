from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

MOST_CELLS = 16


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
