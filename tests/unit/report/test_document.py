"""The machine-readable answer."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from perfsim.report.document import document_text, plain
from perfsim.report.study import study_document
from perfsim.studies.answers import StudyResult


def test_the_order_of_a_mapping_does_not_show(result: StudyResult) -> None:
    first = result.candidates[0]
    turned = replace(first, layout=dict(reversed(list(first.layout.items()))))
    other = replace(result, candidates=(turned, *result.candidates[1:]))
    assert document_text(study_document(other)) == document_text(study_document(result))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_document_keeps_every_digit_and_what_is_not_finite_is_null(value: float) -> None:
    assert json.loads(document_text({"x": 0.1 + 0.2, "y": value})) == {"x": 0.1 + 0.2, "y": None}


def test_values_of_numpy_and_read_only_mappings_are_plain_json() -> None:
    value = MappingProxyType({"a": np.float64(0.5), "b": np.arange(3), "c": (np.int64(7), True, None)})
    assert json.dumps(plain(value)) == '{"a": 0.5, "b": [0, 1, 2], "c": [7, true, null]}'
