"""Rows of the catalogue for `perfsim show`."""

from __future__ import annotations

import pytest

from perfsim.api.inventory import SINGULAR, entry, names
from perfsim.base.errors import CatalogError, InputError
from perfsim.catalog import default_catalog
from perfsim.strategies import strategy_names


@pytest.mark.parametrize("kind", sorted(SINGULAR))
def test_a_list_has_every_name_with_its_description(kind: str) -> None:
    rows = names(kind)
    assert [row["name"] for row in rows] == default_catalog().names(SINGULAR[kind])
    assert all(row["description"] for row in rows), rows


def test_strategies_are_listed_with_what_they_run_on() -> None:
    rows = {row["name"]: row for row in names("strategies")}
    assert list(rows) == strategy_names()
    assert rows["3d"]["runs on"] == "gpu-cluster"
    assert rows["weight-streaming"]["runs on"] == "wafer-cluster"
    assert entry("strategies", "3d") == [rows["3d"]]


def test_an_entry_shows_values_as_written_with_their_sources() -> None:
    rows = {row["value of"]: row for row in entry("models", "gpt3_20b")}
    assert rows["num_layers"]["value"] == "44"
    assert "Cerebras" in rows["num_layers"]["source"]
    assert rows["vocab_size"]["value"] == "50257", "inherited values are shown too"


def test_a_system_is_shown_down_to_its_device() -> None:
    rows = {row["value of"]: row for row in entry("systems", "dgx-a100-80gb")}
    assert rows["device"]["value"] == "a100-sxm4-80gb"
    assert rows["device.memory.capacity"]["value"].startswith("80")
    assert rows["device.memory.capacity"]["source"]


@pytest.mark.parametrize("kind", ["systems", "devices", "models", "recipes"])
def test_every_figure_of_every_entry_has_a_source_or_a_reason(kind: str) -> None:
    for name in default_catalog().names(SINGULAR[kind]):
        for row in entry(kind, name):
            if row["value"][:1].isdigit():
                assert row["source"], (name, row)


def test_what_is_unknown_is_refused_with_the_nearest() -> None:
    with pytest.raises(CatalogError, match="did you mean `gpt3_20b`"):
        entry("models", "gpt3_20")
    with pytest.raises(InputError, match="did you mean `pipeline`"):
        entry("strategies", "pipelin")
    with pytest.raises(InputError, match="unknown kind 'links'; known: systems, devices"):
        entry("links", "nvlink3")
