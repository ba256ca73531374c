"""What all tests share: how hypothesis searches, and where the checkout is."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

# No deadline anywhere: a slow machine is not a wrong result. On CI the same examples each time.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout (or of the unpacked source distribution)."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def toys() -> ModuleType:
    """Small systems, models and prices, from `toys.py`; loaded by path, because tests are not a package."""
    spec = importlib.util.spec_from_file_location("perfsim_toys", Path(__file__).with_name("toys.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
