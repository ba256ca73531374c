"""Build hook: carries the YAML of the repository's top level into the wheel.

Runs only inside a build; perfsim itself never imports it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DATA_FOLDERS = ("hardware", "workloads", "studies")
DATA_FILES = ("docs/glossary.md",)


class CatalogueHook(BuildHookInterface[Any]):
    """Adds each data folder to a standard wheel as `perfsim/_data/<folder>`.

    An editable wheel (`version == "editable"`) gets nothing: there the folders are read where they
    stand, so an edit counts at once.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return
        for folder in DATA_FOLDERS:
            build_data["force_include"][str(Path(self.root, folder))] = f"perfsim/_data/{folder}"
        for file in DATA_FILES:
            build_data["force_include"][str(Path(self.root, file))] = f"perfsim/_data/{file}"
