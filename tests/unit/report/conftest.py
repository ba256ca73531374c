"""A study's result, made by `factory.py` next to this file."""

from types import ModuleType

import pytest

from perfsim.studies.answers import StudyResult


@pytest.fixture(scope="session")
def result(factory: ModuleType) -> StudyResult:
    return factory.study_result()


@pytest.fixture(scope="session")
def sparse(factory: ModuleType, result: StudyResult) -> StudyResult:
    """One of its two candidates has headline figures only, and never reaches the target."""
    return factory.empty_candidate(result)
