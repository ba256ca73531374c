"""JSON Schemas against the YAML that perfsim takes and refuses."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from perfsim.api.inventory import SINGULAR, entry, names
from perfsim.api.tools import KINDS, schema_of
from perfsim.base.errors import CatalogError, InputError
from perfsim.catalog import KINDS as CATALOGUED
from perfsim.catalog import data_root, default_catalog
from perfsim.catalog.schema import yaml_schema
from perfsim.catalog.yaml_tree import Node
from perfsim.cli import main
from perfsim.specs.hardware import LinkSpec
from perfsim.strategies import strategy_names


@cache
def validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(schema_of(kind))


def written(path: Path) -> Any:
    """A file as it stands, before `extends` and names are followed."""
    return Node.read(path)[0].plain()


def kind_of_file(folder: str, data: Any) -> str:
    if folder == "studies" and "study" in data:
        return "sweep"
    if folder == "studies" and {"losses", "speeds", "equations"} & set(data):
        return "comparison"
    if folder == "studies/validation":
        return "convergence" if "points" in data["cases"][0] else "cases"
    return next(kind for kind, listed in CATALOGUED.items() if listed.folder == folder)


FILES = [
    (folder, path)
    for folder in (*(kind.folder for kind in CATALOGUED.values()), "studies/validation")
    for path in sorted((data_root() / folder).glob("*.yaml"))
]
SHAPE = {"num_layers": 24, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16}
CASE = {
    "id": "one",
    "system": {"device": "a100-sxm4-80gb", "num_devices": 8, "inter_node": "1600 Gb/s"},
    "model": {**SHAPE, "vocab_size": 51200, "seq_length": 2048},
    "strategy": "3d",
    "parallel": {"data": 8},
    "training": {"global_batch_size": 64},
    "measured": {"step_time_s": 1.0},
}
MEASURED = {"schema": 1, "cluster": "ours", "cases": [CASE]}


def wrong(kind: str, data: Any) -> list[str]:
    """The paths of what a schema refuses, innermost."""
    paths = []
    for error in validator(kind).iter_errors(data):
        leaves = [error]
        while leaves[0].context:
            leaves = [inner for leaf in leaves for inner in (leaf.context or [leaf])]
        paths += [leaf.json_path for leaf in leaves]
    return paths


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_is_itself_valid_and_the_same_on_every_run(kind: str) -> None:
    schema = validator(kind).schema
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert json.dumps(schema) == json.dumps(schema_of(kind))


@pytest.mark.parametrize(("folder", "path"), FILES, ids=lambda value: Path(value).name)
def test_every_file_of_the_catalogue_is_valid(folder: str, path: Path) -> None:
    data = written(path)
    assert wrong(kind_of_file(folder, data), data) == []


def test_there_is_a_file_of_every_kind_but_a_users_own_measurements() -> None:
    assert {kind_of_file(folder, written(path)) for folder, path in FILES} == set(KINDS) - {"measured"}


def test_a_file_of_measured_steps_may_leave_out_what_only_published_runs_have() -> None:
    assert wrong("measured", MEASURED) == []
    no_cluster = {"schema": 1, "cases": [CASE]}
    assert wrong("cases", no_cluster) == []
    assert wrong("measured", no_cluster), "a scale belongs to a cluster"


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("model", "num_layers", 10**9),
        ("training", "global_batch_size", 10**6),
        ("system", "inter_node", 2e11),
        ("measured", "step_time_s", 0),
    ],
)
def test_an_editor_refuses_a_size_that_a_run_would_be_refused_for(part: str, name: str, value: Any) -> None:
    case = CASE | {part: CASE[part] | {name: value}}
    assert set(wrong("measured", MEASURED | {"cases": [case]})) == {f"$.cases[0].{part}.{name}"}


LINK = {"name": "l", "bandwidth": "100 Gb/s", "latency": "1 us"}


@pytest.mark.parametrize("value", [12.5e9, 100, "100", "100 GB", "Gb/s", "-1 Gb/s", None, True])
def test_a_rate_without_its_unit_is_refused(value: Any) -> None:
    assert wrong("link", LINK) == []
    assert wrong("link", LINK | {"bandwidth": value}) == ["$.bandwidth"]


def test_a_description_may_be_named_or_stand_in_the_file_with_no_unknown_key() -> None:
    system = written(data_root() / "hardware/systems/dgx-a100-80gb.yaml")
    for nic in ("hdr-200", "./my-nic.yaml", {k: LINK[k] for k in ("bandwidth", "latency")}):
        assert wrong("system", system | {"node": system["node"] | {"nic": nic}}) == []
    assert wrong("system", system | {"node": system["node"] | {"nic": {"bandwidth": "100 Gb/s"}}})
    assert wrong("link", LINK | {"bandwith": "1 GB/s"}) == ["$"]
    reasons = {"sources": {"bandwidth": "x"}, "assumed": {"latency": "measured by us"}}
    assert wrong("link", LINK | reasons) == []


def test_only_what_extends_another_may_be_incomplete_and_a_list_replaces_it_whole() -> None:
    changes = {"num_layers": 44, "sources": {"num_layers": "a-source"}}
    assert wrong("model", {"extends": "gpt3_xl", **changes}) == []
    assert "'hidden_size' is a required property" in [
        error.message for error in validator("model").iter_errors(changes)
    ]
    nested = {"extends": "dgx-a100-80gb", "node": {"nic": {"bandwidth": "400 Gb/s"}}}
    assert wrong("system", nested) == []
    nested["node"]["nic"]["bandwith"] = "400 Gb/s"
    assert wrong("system", nested)
    study = {"extends": "gpt3_20b", "candidates": [{"strategy": "3d", "devices": [8]}]}
    assert wrong("study", study) == ["$.candidates[0]"]


def test_the_key_kind_chooses_what_a_system_is() -> None:
    system = written(data_root() / "hardware/systems/cs-2.yaml")
    assert wrong("system", system) == []
    gpus = {**system, "kind": "gpu-cluster"}
    assert any("'node' is a required property" in e.message for e in validator("system").iter_errors(gpus))
    del system["kind"]
    assert any("'kind' is a required property" in e.message for e in validator("system").iter_errors(system))


def test_a_sweep_varies_any_field_by_a_list_of_values() -> None:
    sweep = written(data_root() / "studies/capacity_20b.yaml")
    sweep["grid"]["recipe.global_batch_size"] = 96
    assert len(wrong("sweep", sweep)) == 1
    sweep["grid"]["recipe.global_batch_size"] = [96]
    assert wrong("sweep", sweep) == []


def test_a_class_has_its_words_for_editors_and_holds_nothing_that_it_does_not_need() -> None:
    definitions = schema_of("device")["$defs"]
    assert definitions["MemorySpec"]["properties"]["cache"]["description"] == "Size of its last-level cache."
    assert definitions["quantity.bytes"]["examples"] == ["10 GB"]
    schema = yaml_schema("link", (LinkSpec,))
    assert "DeviceSpec" not in schema["$defs"]
    assert "quantity.watts" not in schema["$defs"]


def test_the_verb_prints_one_or_all_writes_files_and_names_the_nearest_kind(tmp_path: Path) -> None:
    link = schema_of("link")
    one = CliRunner().invoke(main, ["schema", "link"])
    assert json.loads(one.output) == link
    assert set(json.loads(CliRunner().invoke(main, ["schema"]).output)) == set(KINDS)
    CliRunner().invoke(main, ["schema", "--out", str(tmp_path / "schemas")])
    assert {path.name for path in (tmp_path / "schemas").iterdir()} == {f"{k}.schema.json" for k in KINDS}
    assert json.loads((tmp_path / "schemas" / "link.schema.json").read_text("utf-8")) == link
    with pytest.raises(InputError, match="did you mean `device`"):
        schema_of("devices")


# Rows of the catalogue for `perfsim show`.


@pytest.mark.parametrize("kind", sorted(SINGULAR))
def test_a_list_has_every_name_with_its_description(kind: str) -> None:
    rows = names(kind)
    assert [row["name"] for row in rows] == default_catalog().names(SINGULAR[kind])
    assert all(row["description"] for row in rows), rows


def test_strategies_are_listed_with_what_they_run_on_and_the_unknown_is_refused_with_the_nearest() -> None:
    rows = {row["name"]: row for row in names("strategies")}
    assert list(rows) == strategy_names()
    assert rows["3d"]["runs on"] == "gpu-cluster"
    assert rows["weight-streaming"]["runs on"] == "wafer-cluster"
    assert entry("strategies", "3d") == [rows["3d"]]
    with pytest.raises(CatalogError, match="did you mean `gpt3_20b`"):
        entry("models", "gpt3_20")
    with pytest.raises(InputError, match="did you mean `pipeline`"):
        entry("strategies", "pipelin")
    with pytest.raises(InputError, match="unknown kind 'links'; known: systems, devices"):
        entry("links", "nvlink3")


@pytest.mark.parametrize(
    ("kind", "name", "path", "value", "source"),
    [
        ("models", "gpt3_20b", "num_layers", "44", "Cerebras"),
        ("models", "gpt3_20b", "vocab_size", "50257", ""),  # inherited
        ("systems", "dgx-a100-80gb", "device", "a100-sxm4-80gb", ""),
        ("systems", "dgx-a100-80gb", "device.memory.capacity", "80", "assumed"),
    ],
)
def test_an_entry_has_values_and_sources(kind: str, name: str, path: str, value: str, source: str) -> None:
    (row,) = [row for row in entry(kind, name) if row["value of"] == path]
    assert row["value"].startswith(value)
    assert source in row["source"]
