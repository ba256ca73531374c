"""What all tests share: how hypothesis searches, and where the checkout is."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

import perfsim.testing.toys

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
    """Small systems, models and prices."""
    return perfsim.testing.toys
