"""Machine code does what Python does, is kept on disk, and is loaded from there without numba."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfsim.base import compiled
from perfsim.base.compiled import Compiled, Laid

STEP = 3


def stepped(value: float) -> float:
    return value * STEP


def fill(table: tuple[Any, int], out: Any) -> None:
    column, offset = table
    for place in range(len(column)):
        out[place, 1] = stepped(column[place]) + offset


def filled(*, laid: bool = False) -> list[list[float]]:
    table: Any = (np.array([1.0, 2.5]), 4)
    out = np.zeros((2, 2))
    Compiled(fill)(Laid(table) if laid else table, out)
    return out.tolist()


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("fill-*") if path.is_file()]


def test_machine_code_is_kept_by_all_that_it_is_made_of_and_loaded_without_numba(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert filled() == [[0.0, 7.0], [0.0, 11.5]]
    assert len(files(tmp_path)) == 1
    with monkeypatch.context() as lacking:
        lacking.setitem(sys.modules, "numba", None)
        assert filled(laid=True) == [[0.0, 7.0], [0.0, 11.5]]
    monkeypatch.setattr(sys.modules[__name__], "STEP", 5)
    assert filled() == [[0.0, 9.0], [0.0, 16.5]]
    assert len(files(tmp_path)) == 2
    monkeypatch.setattr(compiled, "IS_INSTALLED", False)
    assert filled() == [[0.0, 9.0], [0.0, 16.5]]
