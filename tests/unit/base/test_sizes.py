"""Files that are refused: sizes past every bound, names that are no folder, thousands of mistakes."""

from collections.abc import Callable
from pathlib import Path

import pytest

import perfsim as ps
from perfsim.base.errors import CatalogError, LayoutError
from perfsim.base.sizes import MOST_LAYER_PASSES, passes_problem
from perfsim.catalog import default_catalog, parse_file, reader
from perfsim.catalog.yaml_tree import Node
from perfsim.evidence.cases import CaseFile
from perfsim.studies.loading import load_study, load_sweep
from perfsim.studies.spec import StudySpec

CASE = """\
schema: 1
cases:
- id: "large"
  family: "f"
  evidence: "A"
  system: {device: "a100-sxm4-80gb", num_devices: 8}
  model: {num_layers: 24, hidden_size: 1024, ffn_hidden_size: 4096, num_attention_heads: 16,
          vocab_size: 51200, seq_length: 2048}
  strategy: "3d"
  parallel: {data: 8}
  training: {global_batch_size: 64}
  measured: {step_time_s: 1.0}
"""
STUDY = """\
extends: gpt3_20b
model: gpt3_xl
candidates:
  - {strategy: 3d, system: dgx-a100-80gb, devices: [4]}
batch_sizes: [16]
"""
MESH = "{extends: mi300x-192gb, node: {devices: 257}}"
VOCABULARY = "model: {extends: gpt3_xl, vocab_size: 99999999999}"
MANY = ", ".join(str(number) for number in range(1, 300))


@pytest.mark.parametrize(
    ("text", "kind", "was", "now", "line", "said"),
    [
        (CASE, CaseFile, "num_layers: 24", "num_layers: 1000000000", 7, "equal to 4096, not 1000000000"),
        (CASE, CaseFile, "hidden_size: 1024", "hidden_size: 1000000000", 7, "equal to 1048576, not"),
        (CASE, CaseFile, "seq_length: 2048", "seq_length: 1000000000", 8, "equal to 16777216, not"),
        (CASE, CaseFile, "global_batch_size: 64", "global_batch_size: 1000000", 11, "equal to 131072, not"),
        (CASE, CaseFile, "num_devices: 8", "num_devices: 2000000", 6, "equal to 1048576, not"),
        (CASE, CaseFile, "data: 8", "data: 2000000", 10, "equal to 1048576, not"),
        (STUDY, StudySpec, "devices: [4]", "devices: [2000000]", 4, "equal to 1048576, not 2000000"),
        (STUDY, StudySpec, "batch_sizes: [16]", "batch_sizes: [2000000]", 5, "equal to 131072, not 2000000"),
        (STUDY, StudySpec, "[16]", f"[{MANY}]", 5, "at most 256 items"),
        (STUDY, StudySpec, "dgx-a100-80gb", MESH, 4, "a full mesh has at most 256 devices, not 257"),
        (STUDY, StudySpec, "model: gpt3_xl", VOCABULARY, 2, "equal to 16777216"),
    ],
)
def test_what_is_out_of_all_bounds_is_refused_at_its_line(
    text: str, kind: type, was: str, now: str, line: int, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "asked.yaml"
    path.write_text(text.replace(was, now, 1))
    with pytest.raises(CatalogError) as error:
        parse_file(path, kind, default_catalog())
    assert f"asked.yaml:{line}:" in str(error.value)
    assert said in str(error.value)


def test_a_step_with_too_many_passes_is_refused_before_it_is_written() -> None:
    layout = "tp=8,mbs=1,recompute=full"
    with pytest.raises(LayoutError, match=r"96 layers × 32768 micro-batches are 3145728 passes, at most"):
        ps.predict(model="gpt3_175b", system="dgx-a100-80gb", devices=8, layout=layout, batch=2**15)
    assert not passes_problem(96, MOST_LAYER_PASSES // 96)
    assert passes_problem(96, MOST_LAYER_PASSES // 96 + 1)


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
        load_study(str(study))
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(f"title: t\nname: {name}\nstudy: gpt3_20b\n", encoding="utf-8")
    with pytest.raises(CatalogError, match=rf"sweep\.yaml:2:7: name: .*{UNSAFE[name]}"):
        load_sweep(str(sweep))


@pytest.mark.parametrize("name", ["größe 20B (v2)", "...x", "a.b", "-x", "x" * 200])
def test_any_other_name_of_a_folder_is_taken(tmp_path: Path, name: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"extends: gpt3_20b\nname: '{name}'\n", encoding="utf-8")
    assert load_study(str(path)).name == name


def test_a_name_close_to_the_refused_one_is_proposed(refusal: Callable[[str], CatalogError]) -> None:
    said = str(refusal("extends: gpt3_20b\nname: runs/größe 20B:v2.1\n"))
    assert "write for example runs_größe 20B_v2.1" in said


def test_names_of_other_descriptions_are_shown_in_one_line_but_need_no_folder() -> None:
    system = default_catalog().system("dgx-a100-80gb").with_(**{"node.nic.bandwidth": "400 Gb/s"})
    assert "400 Gb/s" in system.name
    with pytest.raises(CatalogError, match=r"name: .*U\+001B"):
        system.with_(name="\x1b[31mred")


THOUSANDS = 2_000


@pytest.fixture
def refusal(tmp_path: Path) -> Callable[[str], CatalogError]:
    """How a study of this text is refused."""

    def refused(text: str) -> CatalogError:
        path = tmp_path / "study.yaml"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(CatalogError) as caught:
            load_study(str(path))
        return caught.value

    return refused


def test_thousands_of_unknown_keys_are_counted_and_only_the_shown_get_a_suggestion(
    refusal: Callable[[str], CatalogError], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []
    monkeypatch.setattr(reader, "did_you_mean", lambda word, _: looked_up.append(word) or "")
    error = refusal("extends: gpt3_20b\n" + "".join(f"key_{number}: 1\n" for number in range(THOUSANDS)))
    assert len(error.problems) == THOUSANDS
    assert str(error).endswith(f"\nand {THOUSANDS - 20:,} more")
    assert len(looked_up) == 20


def test_names_are_looked_up_until_a_file_has_1000_problems(refusal: Callable[[str], CatalogError]) -> None:
    candidate = "  - {strategy: 3d, system: nowhere, devices: [8]}\n"
    error = refusal("extends: gpt3_20b\ncandidates:\n" + candidate * THOUSANDS)
    assert 1_000 <= len(error.problems) <= 1_002


def test_a_refused_entry_of_a_list_is_one_complaint(refusal: Callable[[str], CatalogError]) -> None:
    problems = refusal("extends: gpt3_20b\nbatch_sizes: [many]\n").problems
    messages = [problem.message for problem in problems]
    assert "batch_sizes[0]: `many` is text, a number is expected" in messages
    assert not [message for message in messages if "at least 1" in message]


def test_a_description_extends_another_key_by_key() -> None:
    parent, _ = Node.parsed("a: {b: 1, c: {d: 2}}\ne: 3\n7: 4\nsources: {a: x, a.c: y, e: z, 7: w}")
    child, _ = Node.parsed("a: {c: 5}\nsources: {a.c: own}")
    merged = reader._extend(child, parent)
    sources = {"a.b": "x", "e": "z", "a.c": "own"}
    assert merged.plain() == {"a": {"b": 1, "c": 5}, "e": 3, 7: 4, "sources": sources}


@pytest.mark.parametrize("ending", ["", ".yaml"])
def test_a_name_longer_than_any_path_is_refused(refusal: Callable[[str], CatalogError], ending: str) -> None:
    said = "there is no file" if ending else "unknown study"
    assert f"study.yaml:1:10: extends: {said}" in str(refusal(f"extends: {'x' * 3_000}{ending}\n"))
