"""What all tests share: how hypothesis searches, where the checkout is, and results of studies."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

import perfsim.testing.toys

# No deadline anywhere: a slow machine is not a wrong result. On CI the same examples each time.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
# Tests of the terminal name the width they want; a process without a terminal has the default one.
os.environ.pop("COLUMNS", None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout (or of the unpacked source distribution)."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def toys() -> ModuleType:
    """Small systems, models and prices."""
    return perfsim.testing.toys


@pytest.fixture(scope="session")
def factory() -> ModuleType:
    """The module that makes results of studies; loaded by path, because tests are not a package."""
    path = Path(__file__).parent / "unit" / "report" / "factory.py"
    spec = importlib.util.spec_from_file_location("report_factory", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def point_keys() -> frozenset[str]:
    """What the JSON interface says of every point."""
    return frozenset(
        {
            "model",
            "strategy",
            "system",
            "num_devices",
            "layout",
            "global_batch_size",
            "step_time_s",
            "tokens_per_s",
            "mfu",
            "bubble_fraction",
            "exposed_communication_fraction",
            "peak_memory_bytes",
        }
    )


@pytest.fixture(scope="session")
def candidate_keys(point_keys: frozenset[str]) -> frozenset[str]:
    """What it says of every candidate of a study, whose model stands beside the candidates."""
    of_accuracy = {"steps", "time_to_accuracy_s", "time_to_accuracy_band_s"}
    return (point_keys - {"model"}) | of_accuracy
