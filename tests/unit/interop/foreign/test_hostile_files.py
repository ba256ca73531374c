"""Damaged files of every format end in an answer or a refusal, never in another error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfsim.base.errors import PerfsimError
from perfsim.interop.formats import import_file
from perfsim.testing.hostile import hostile_inputs

SAMPLES = sorted(path.name for path in (Path(__file__).parents[3] / "samples/foreign").iterdir())


@pytest.mark.parametrize("name", SAMPLES)
def test_damage_ends_in_an_answer_or_a_refusal_that_names_the_file(
    repository: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    text = (repository / "tests/samples/foreign" / name).read_text("utf-8")
    for _, data in hostile_inputs([(name, text)], 40, 1):
        path.write_bytes(data)
        refusal = None
        try:
            answer = import_file(path)
        except PerfsimError as error:
            refusal = str(error)
        if refusal is None:
            json.dumps(answer.as_dict(), allow_nan=False)
        else:
            assert name in refusal
