"""A study's result, made by `factory.py` beside this file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from perfsim.studies.result import StudyResult


@pytest.fixture(scope="session")
def factory() -> ModuleType:
    """The module that makes results; loaded by path, because tests are not a package."""
    spec = importlib.util.spec_from_file_location("report_factory", Path(__file__).with_name("factory.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def result(factory: ModuleType) -> StudyResult:
    return factory.study_result()


@pytest.fixture(scope="session")
def hostile(factory: ModuleType) -> StudyResult:
    return factory.hostile_result()


@pytest.fixture(scope="session")
def sparse(factory: ModuleType, result: StudyResult) -> StudyResult:
    """One of its two candidates has headline figures only, and never reaches the target."""
    return factory.empty_candidate(result)
