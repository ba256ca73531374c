"""Plans for what is written for other tools and read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perfsim.catalog import Catalog
from perfsim.prediction.planner import plan_of
from perfsim.prediction.question import Question
from perfsim.specs.recipe import RUNTIME_FIELDS
from perfsim.strategies import Plan


@pytest.fixture
def planned() -> Callable[..., Plan]:
    """Plans a given layout, whether it fits or not."""
    catalog = Catalog()

    def plan(
        layout: str,
        *,
        model: str = "gpt3_20b",
        system: str = "dgx-a100-80gb",
        devices: int = 64,
        **recipe: Any,
    ) -> Plan:
        paths = {f"runtime.{key}" if key in RUNTIME_FIELDS else key: recipe[key] for key in recipe}
        asked = catalog.recipes["gpt3_pretraining"].with_(**paths)
        question = Question(
            model=catalog.models[model],
            recipe=asked,
            system=catalog.systems[system],
            devices=devices,
            strategy="",
            batch=192,
            layout=layout,
            must_fit=False,
        )
        return plan_of(question)

    return plan
