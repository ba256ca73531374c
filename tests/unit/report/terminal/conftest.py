"""A terminal of 100 columns, whatever the tests run in."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
