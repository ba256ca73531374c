"""A table is refused at the line that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsim.base.errors import InputError
from perfsim.evidence.tables import read_table


def test_a_table_that_is_not_utf_8_is_refused_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b"m,time\n1,\xff\n")
    with pytest.raises(InputError, match="is not a CSV table") as caught:
        read_table(path, ["m", "time"])
    assert caught.value.problems[0].line == 2
