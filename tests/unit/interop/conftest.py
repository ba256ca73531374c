"""Plans for what is written for other tools, and imports of texts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfsim.catalog import Catalog
from perfsim.interop.formats import Imported, import_file
from perfsim.prediction.planner import plan_of
from perfsim.prediction.question import Question
from perfsim.specs.recipe import RUNTIME_FIELDS
from perfsim.specs.trainers import ANY
from perfsim.strategies import Plan


@pytest.fixture
def planned() -> Callable[..., Plan]:
    """Plans a given layout, whether it fits or not, and whatever release it needs."""
    catalog = Catalog()

    def plan(
        layout: str,
        *,
        model: str = "gpt3_20b",
        system: str = "dgx-a100-80gb",
        devices: int = 64,
        runs_on: str | None = ANY,
        batch: int = 192,
        **recipe: Any,
    ) -> Plan:
        paths = {f"runtime.{key}" if key in RUNTIME_FIELDS else key: recipe[key] for key in recipe}
        changed = catalog.recipe("gpt3_pretraining").with_(**paths)
        question = Question(
            model=catalog.model(model),
            recipe=changed,
            system=catalog.system(system),
            devices=devices,
            strategy="",
            batch=batch,
            layout=layout,
            must_fit=False,
            runs_on=runs_on,
        )
        return plan_of(question)

    return plan


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Imported]:
    """Imports a text, or keys written as JSON, which YAML contains, from a file of that name."""

    def read_back(content: Any, name: str = "file.yaml", **options: Any) -> Imported:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1), "utf-8")
        return import_file(path, **options)

    return read_back
