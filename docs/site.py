"""Hooks of mkdocs: documents outside `docs/` become pages, and links to them lead there."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    *(f"{folder}/README.md" for folder in ("hardware", "reports", "studies", "workloads")),
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "reports").glob("*.md"))),
)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```(\w+) (?:file=(\S+)|[\w-]+)$", re.MULTILINE)
PLACE = "repository/"
"""Folder of the site with the documents from outside `docs/`."""


def on_files(files: Files, config: Any) -> Files:
    """Add the documents of the repository to those of `docs/`."""
    for name in dict.fromkeys(OUTSIDE):
        files.append(File.generated(config, PLACE + name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_options: Any) -> str:
    """Point links at pages of the site; what is no page keeps its text alone."""
    source = PurePosixPath(page.file.src_uri)
    outside = source.is_relative_to(PLACE)
    folder = source.relative_to(PLACE).parent if outside else PurePosixPath("docs") / source.parent

    def moved(link: re.Match[str]) -> str:
        text, target, anchor = link.group(1), link.group(2), link.group(3) or ""
        path = os.path.normpath(folder / target)
        if path in OUTSIDE:
            place = PLACE + path
        elif path.startswith("docs/") and path.endswith(".md"):
            place = path.removeprefix("docs/")
        else:
            return text
        return f"[{text}]({os.path.relpath(place, source.parent)}{anchor})"

    words = FENCE.sub(_fence, LINK.sub(moved, markdown))
    return words.replace("](docs/report.png)", f"]({os.path.relpath('report.png', source.parent)})")


def _fence(fence: re.Match[str]) -> str:
    """The head of a block, with the name of its file as a title; the tests' own words are left out."""
    title = f' title="{fence.group(2)}"' if fence.group(2) else ""
    return f"```{fence.group(1)}{title}"
