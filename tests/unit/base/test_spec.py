from __future__ import annotations

from pathlib import Path

import pytest

from perfsim.base.errors import CatalogError
from perfsim.catalog import Catalog, data_root
from perfsim.studies.axes import load_sweep
from perfsim.studies.loading import load_study

CATALOG = Catalog([data_root()])

UNSAFE = {
    '"../../x"': "cannot contain `/`",
    "/etc/x": "cannot contain `/`",
    r'"a\\b"': "cannot contain `",
    '".."': "only dots and blanks",
    '" x"': "blanks at an end",
    '""': "has 1 to 1000 characters, not 0",
    r'"a\0b"': r"character U\+0000",
    r'"a\eb"': r"character U\+001B",
    r'"a\nb"': r"character U\+000A",
    r'"a\u202eb"': r"character U\+202E",
    "x" * 10_000: "has 1 to 1000 characters, not 10000",
    "ü" * 150: "at most 200 bytes",
}


@pytest.mark.parametrize("name", UNSAFE, ids=[name[:12] for name in UNSAFE])
def test_a_name_that_is_no_folder_is_refused_at_its_line(tmp_path: Path, name: str) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(f"extends: gpt3_20b\nname: {name}\n", encoding="utf-8")
    with pytest.raises(CatalogError, match=rf"study\.yaml:2:7: name: .*{UNSAFE[name]}"):
        load_study(str(study), CATALOG)
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(f"title: t\nname: {name}\nstudy: gpt3_20b\n", encoding="utf-8")
    with pytest.raises(CatalogError, match=rf"sweep\.yaml:2:7: name: .*{UNSAFE[name]}"):
        load_sweep(str(sweep), CATALOG)


@pytest.mark.parametrize("name", ["größe 20B (v2)", "...x", "a.b", "-x", "x" * 200])
def test_any_other_name_of_a_folder_is_taken(tmp_path: Path, name: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"extends: gpt3_20b\nname: '{name}'\n", encoding="utf-8")
    assert load_study(str(path), CATALOG).name == name


def test_names_of_other_descriptions_are_shown_in_one_line_but_need_no_folder() -> None:
    system = CATALOG.system("dgx-a100-80gb").with_(**{"node.nic.bandwidth": "400 Gb/s"})
    assert "400 Gb/s" in system.name
    with pytest.raises(CatalogError, match=r"name: .*U\+001B"):
        system.with_(name="\x1b[31mred")
