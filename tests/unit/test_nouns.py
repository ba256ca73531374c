"""How machines are called: devices by their noun, nodes where people count them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsim.catalog import default_catalog


@pytest.mark.parametrize(
    ("system", "devices", "words"),
    [
        ("dgx-a100-80gb", 128, "128 A100-80GB (16 DGX)"),
        ("dgx-a100-80gb", 4, "4 A100-80GB"),
        ("cs-2", 16, "16 CS-2"),
        ("cs-2", 1, "1 CS-2"),
        ("gb200-nvl72", 128, "128 GB200 (2 NVL72)"),
    ],
)
def test_a_machine_is_called_by_its_devices_and_the_nodes_that_they_fill(
    system: str, devices: int, words: str
) -> None:
    assert default_catalog().system(system).machine(devices) == words


def test_every_system_of_the_catalogue_has_a_noun() -> None:
    catalog = default_catalog()
    assert all(catalog.system(name).noun for name in catalog.names("system"))


def test_a_system_that_extends_another_does_not_inherit_what_its_devices_are_called(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nextends: dgx-h100\nnode: {devices: 4, nics: 4}\nassumed: {node: my own}\n",
        encoding="utf-8",
    )
    mine = default_catalog().system(str(path))
    assert mine.machine(128) == "128 devices of mine"
    assert mine.machine(1) == "1 device of mine"
    assert mine.with_(noun={"device": "H100", "node": "box"}).machine(8) == "8 H100 (2 box)"


def test_a_changed_system_under_another_name_is_not_called_as_the_original() -> None:
    system = default_catalog().system("cs-2")
    assert system.with_(io_ports=24).noun is None
    assert system.with_(name="cs-2", io_ports=24).machine(2) == "2 CS-2"
