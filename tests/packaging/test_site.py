"""The reference is what the program says today, and the documentation builds as a site."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def written(repository: Path, *command: str | Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(repository), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=repository, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_reference_is_fresh(repository: Path, tmp_path: Path) -> None:
    written(repository, "docs/reference.py", tmp_path)
    pages = {path.name: path.read_text("utf-8") for path in tmp_path.glob("*.md")}
    stored = {path.name: path.read_text("utf-8") for path in (repository / "docs/reference").glob("*.md")}
    assert set(pages) == set(stored)
    stale = [name for name in pages if pages[name] != stored[name]]
    assert not stale, "run: python docs/reference.py"


def test_every_page_of_the_site_builds_and_every_link_leads_somewhere(
    repository: Path, tmp_path: Path
) -> None:
    """Needs the extra `[docs]`, which `[dev]` holds."""
    written(repository, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path)
    page = (tmp_path / "tutorials" / "own_hardware.html").read_text("utf-8")
    assert '<span class="filename">x100.yaml</span>' in page
    assert (tmp_path / "repository" / "ARCHITECTURE.html").is_file()
