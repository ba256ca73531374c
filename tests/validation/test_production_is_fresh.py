"""The recorded production ratios are what the published runs give with today's model."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from perfsim.catalog import Catalog, data_root
from perfsim.evidence.record import production_record
from perfsim.studies.answers import RECORD


def test_recorded_production_ratios_are_those_of_the_published_runs() -> None:
    kept = json.loads(files("perfsim.studies").joinpath(RECORD).read_text(encoding="utf-8"))
    rows = production_record(Catalog([data_root()]))
    assert [row["name"] for row in rows] == [row["name"] for row in kept]
    for row, old in zip(rows, kept, strict=True):
        assert row["ratio"] == pytest.approx(old["ratio"], rel=1e-3), "run perfsim validate --record"
        assert row["published_tokens_per_s_per_device"] == old["published_tokens_per_s_per_device"]
