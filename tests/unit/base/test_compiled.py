"""Machine code does what Python does, is kept on disk, and is loaded from there without numba."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfsim.base import compiled
from perfsim.base.compiled import Compiled, Laid
from perfsim.base.errors import PerfsimError

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


def test_arrays_in_any_order_are_read_as_they_lie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known = Compiled(fill)
    rows = np.array([[1.0, 2.5], [5.0, 7.0]])
    fixed = rows[0].copy()
    fixed.flags.writeable = False
    for column in (rows[0], rows[:, 0], rows[::-1, 1], fixed):
        for out in (np.zeros((2, 2)), np.zeros((2, 2), order="F"), np.zeros((2, 4))[:, ::2]):
            known((column, 4), out)
            assert out[:, 1].tolist() == [value * STEP + 4 for value in column.tolist()]


def test_few_entries_do_not_import_llvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine = compiled._machine()

    @cache
    def asked() -> Any:
        return machine

    monkeypatch.setattr(compiled, "_machine", asked)
    out = np.zeros((2, 2))
    for few, asks in ((out.size, 0), (out.size - 1, 1)):
        out[:] = 0.0
        Compiled(fill, few)((np.array([1.0, 2.5]), 4), out)
        assert out.tolist() == [[0.0, 7.0], [0.0, 11.5]]
        assert asked.cache_info().currsize == asks


def test_another_numba_for_arrays_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    longer = Laid(np.zeros((2, 2)))
    longer.words += bytes(8)
    with pytest.raises(PerfsimError, match="install another version"):
        Compiled(fill)((np.zeros(2), 4), longer)
