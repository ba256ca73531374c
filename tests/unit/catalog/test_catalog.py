import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel, ConfigDict

from perfsim.base.errors import CatalogError, Problem
from perfsim.catalog import KINDS, Catalog, LocatedMapping, data_root, default_catalog, parse_file, yaml_tree
from perfsim.catalog.catalog import Row
from perfsim.catalog.yaml_tree import Node
from perfsim.specs.hardware import GpuClusterSpec, WaferClusterSpec
from perfsim.specs.model import TransformerConfig
from perfsim.specs.recipe import Recipe

SystemSpec = GpuClusterSpec | WaferClusterSpec

FILES = {
    "hardware/devices/gpu-a.yaml": """
        name: gpu-a
        kind: gpu
        peak: {bf16: 300 TFLOP/s, fp32: 20 TFLOP/s}
        memory: {capacity: 80 GiB, bandwidth: 2 TB/s}
        compute_units: 100
        sources: {peak: paper, memory: paper}
        assumed: {compute_units: a guess}
    """,
    "hardware/devices/gpu-b.yaml": """
        extends: gpu-a
        memory: {capacity: 40 GiB}
        assumed: {memory.capacity: half of the other}
    """,
    "hardware/links/wire.yaml": """
        name: wire
        bandwidth: 400 Gb/s
        latency: 1 us
        sources: {bandwidth: paper, latency: paper}
    """,
    "hardware/systems/box.yaml": """
        name: box
        kind: gpu-cluster
        device: gpu-a
        node: {devices: 8, scale_up: wire, nics: 8, nic: wire}
        fabric: {nodes_per_leaf: 20, switch_latency: 100 ns}
        sources: {device: paper, node: paper, fabric: paper}
    """,
    "hardware/sources.yaml": """
        paper: {title: A paper, url: "https://example.org/paper"}
    """,
    "workloads/models/tiny.yaml": """
        name: tiny
        num_layers: 2
        hidden_size: 64
        num_attention_heads: 4
        ffn_hidden_size: 256
        vocab_size: 1000
        max_position_embeddings: 128
        sources: {num_layers: paper}
    """,
    "workloads/recipes/plain.yaml": """
        name: plain
        seq_length: 128
    """,
    "studies/which.yaml": """
        model: tiny
        recipe: {extends: plain, tokens: 3e8}
        systems: [box]
    """,
}


class Degrees(BaseModel):
    """A part of a study that has no file of its own."""

    model_config = ConfigDict(extra="forbid")
    tensor: int = 1


class Question(BaseModel):
    """A study as another layer would define it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    model: TransformerConfig
    recipe: Recipe
    systems: list[SystemSpec]
    layouts: dict[str, Degrees] = {}
    seed: int = 0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        write(tmp_path / name, text)
    return tmp_path


@pytest.fixture
def catalog(root: Path) -> Catalog:
    return Catalog([root])


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
    return path


def problems(call: Callable[[], object]) -> tuple[Problem, ...]:
    with pytest.raises(CatalogError) as caught:
        call()
    return caught.value.problems


def places(listed: tuple[Problem, ...]) -> list[tuple[int, int]]:
    return [(problem.line, problem.column) for problem in listed]


@pytest.fixture(params=["libyaml", "pure"])
def either_loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with libyaml and as on a machine without it."""
    if request.param == "pure":
        monkeypatch.setattr(yaml_tree, "_Loader", yaml.SafeLoader)


@pytest.mark.usefixtures("either_loader")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e8", 3e8),
        (".5", 0.5),
        ("-3", -3),
        ("0", 0),
        ("0x1F", 31),
        ("0o17", 15),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("on", "on"),
        ("12:30:00", "12:30:00"),
        ("2022-06-22", "2022-06-22"),
        ("1_000", "1_000"),
        ("1e5x", "1e5x"),
        ('"010"', "010"),
        ("'3e8'", "3e8"),
        ("80 GiB", "80 GiB"),
        ("r1.7", "r1.7"),
        ("=", "="),
    ],
)
def test_scalar_means_what_people_read(text: str, value: object) -> None:
    root, listed = Node.parsed(f"key: {text}\n")
    assert not listed
    read = root.plain()["key"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.usefixtures("either_loader")
@pytest.mark.parametrize(
    ("text", "line_and_column", "said"),
    [
        ("a: 1\nb: 010\n", (2, 4), "begins with a zero"),
        ("a: 1\nb: -007.5\n", (2, 4), "begins with a zero"),
        ("a: 1\nb: .inf\n", (2, 4), "not a finite number"),
        ("a: 1\nb: 1e999\n", (2, 4), "not a finite number"),
        ("a: 1\nb: " + "9" * 5000 + "\n", (2, 4), "5000 characters"),
        ("a: 1\nb: 2\na: 3\n", (3, 1), "`a` stands here again, first in line 1"),
        ("x:\n  a: 1\n  a: 2\n", (3, 3), "`a` stands here again, first in line 2"),
        ("a: &x 1\nb: *x\n", (2, 4), "aliases"),
        ("a: {c: 1}\n<<: {b: 2}\n", (2, 1), "merge keys"),
        ("a: !thing 1\n", (1, 4), "tag !thing is not supported"),
        ("a: !!python/name:os.system x\n", (1, 4), "is not supported"),
        ("a: !!str 12\n", (1, 4), "tag !!str is not supported"),
        ("? [1, 2]\n: 3\n", (1, 3), "a key must be"),
        ("a: b: c\n", (1, 5), "stand in one column"),
        ("a: 1\n b: 2\n", (2, 3), "stand in one column"),
        ("a:\n\t- b\n", (2, 1), "with spaces"),
        ("a: [1, 2\n", (2, 1), ""),
        ("a: 'x\n", (2, 1), ""),
        ("a: @x\n", (1, 4), "a sign such as @"),
        ("a: 1\nb: \x01\n", (2, 4), "the character U+0001 is not allowed"),
        ("--- {a: 1}\n--- {b: 2}\n", (2, 1), "a second document"),
        ("- 1\n- 2\n", (1, 1), "a mapping (key: value) is expected"),
        ("", (1, 0), "is empty"),
    ],
)
def test_what_is_wrong_has_its_place_and_fix(text: str, line_and_column: tuple[int, int], said: str) -> None:
    try:
        _, listed = Node.parsed(text, "some.yaml")
    except CatalogError as error:
        listed = [*error.problems]
    (problem,) = listed
    assert said in problem.message + problem.help
    assert (problem.file, problem.line, problem.column) == ("some.yaml", *line_and_column)


@pytest.mark.usefixtures("either_loader")
@pytest.mark.parametrize("text", ["a: " + "[" * 50_000, "- " * 50_000 + "x", "{a: " * 50_000], ids=range(3))
def test_absurd_nesting_is_refused_and_ends_no_process(text: str) -> None:
    with pytest.raises(CatalogError, match="levels deep"):
        Node.parsed(text)


def test_a_byte_that_is_no_text_is_refused_and_a_byte_order_mark_is_no_part_of_a_key(tmp_path: Path) -> None:
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"a: \xff\xfe")
    (problem,) = problems(lambda: LocatedMapping.read(path, "study", Catalog([tmp_path])))
    assert (problem.line, problem.message) == (1, "the byte 0xff is not UTF-8 text")
    path.write_bytes("\ufeffname: x\n".encode())
    assert LocatedMapping.read(path, "study", Catalog([tmp_path])).data == {"name": "x"}


def test_names_become_descriptions_in_si(catalog: Catalog) -> None:
    system = catalog.system("box")
    assert (system.device.memory.capacity, system.node.nic.bandwidth) == (80 * 2**30, 50e9)
    assert system.device is catalog.device("gpu-a")
    assert catalog.names("system") == ["box"]


@pytest.mark.parametrize(
    ("kind", "name", "said", "proposed"),
    [
        ("device", "gpu-c", "unknown device `gpu-c`", "known: gpu-a, gpu-b"),
        ("device", "GPU-A", "unknown device `GPU-A`", "did you mean `gpu-a`?"),
        ("model", "tinny", "unknown model `tinny`", "did you mean `tiny`?"),
        ("study", "wich", "unknown study `wich`", "did you mean `which`?"),
        ("devices", "gpu-a", "unknown kind `devices`", "did you mean `device`?"),
        ("model", "./absent.yaml", "there is no file absent.yaml", ""),
        ("model", "config.json", "there is no file config.json", ""),
        ("model", "some-org/Tiny", "there is no file some-org/Tiny", "the catalogue has `tiny`"),
    ],
)
def test_unknown_name_is_refused_with_the_nearest(
    catalog: Catalog, kind: str, name: str, said: str, proposed: str
) -> None:
    (problem,) = problems(lambda: catalog.load(kind, name))
    assert said in problem.message
    assert proposed in problem.help


def test_a_model_of_another_tool_is_refused_with_the_command_that_writes_its_yaml(
    root: Path, catalog: Catalog
) -> None:
    own = write(root / "mine" / "config.json", '{"num_hidden_layers": 2}')
    (problem,) = problems(lambda: catalog.load("model", "./config.json", near=own.parent))
    assert problem.message == f"`{own}` is no model: files of a model end in .yaml"
    assert problem.help == f"write its YAML: perfsim import {own} --out {own.with_suffix('.yaml')}"


def test_a_path_reads_the_file_next_to_the_one_that_names_it(root: Path, catalog: Catalog) -> None:
    write(root / "mine" / "fast.yaml", "bandwidth: 900 GB/s\nlatency: 1 us\n")
    path = write(root / "mine" / "my-box.yaml", "extends: box\nnode: {scale_up: ./fast.yaml}\n")
    system = catalog.system(str(path))
    assert (system.name, system.node.scale_up.name) == ("my-box", "fast")
    assert (system.node.scale_up.bandwidth, system.node.nic.bandwidth) == (900e9, 50e9)


def test_path_variable_adds_roots_and_earlier_hide_later(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = root / "mine"
    write(mine / "workloads/models/tiny.yaml", FILES["workloads/models/tiny.yaml"].replace(": 2\n", ": 5\n"))
    monkeypatch.setenv("PERFSIM_PATH", f"{mine}{os.pathsep}{root}")
    catalog = default_catalog()
    assert catalog.roots == (mine, root, data_root())
    assert (catalog.model("tiny").num_layers, catalog.device("gpu-a").compute_units) == (5, 100)
    assert "gpt3_20b" in catalog.names("model")
    assert default_catalog() is catalog


def test_all_errors_of_a_file_come_at_once_at_their_places(root: Path, catalog: Catalog) -> None:
    path = write(
        root / "hardware/devices/bad.yaml",
        """
        name: bad
        kind: gpuu
        peak:
          bf16: 312
          fp99: 1 TFLOP/s
        memory:
          capacity: 80 GB/s
          bandwith: 2039 GB/s
        compute_units: true
        powr: 400 W
        power: 0400
        powr: 300 W
        """,
    )
    listed = problems(lambda: catalog.device("bad"))
    assert [(problem.line, problem.column, problem.message.split(":")[0]) for problem in listed] == [
        (2, 7, "kind"),
        (4, 9, "peak.bf16"),
        (5, 3, "peak.fp99"),
        (6, 1, "`bandwidth` is missing in memory"),
        (7, 13, "memory.capacity"),
        (8, 3, "unknown key `bandwith` in memory"),
        (9, 16, "compute_units"),
        (10, 1, "unknown key `powr`"),
        (11, 8, "0400 begins with a zero"),
        (12, 1, "the key `powr` stands here again, first in line 10"),
    ]
    helps = {problem.line: problem.help for problem in listed}
    assert "did you mean `gpu`?" in helps[2]
    assert "did you mean '312 TFLOP/s'?" in helps[4]
    assert "did you mean '80 GB'?" in helps[7]
    assert "did you mean `bandwidth`?" in helps[8]
    assert "did you mean `power`?" in helps[10]
    assert all(problem.excerpt in path.read_text(encoding="utf-8").splitlines() for problem in listed)


@pytest.mark.parametrize(
    ("file", "text", "line_and_column", "said"),
    [
        ("links/cable", "name: wire\nbandwidth: 1 GB/s\nlatency: 1 us\n", (1, 7), "write name: cable"),
        ("links/slow", "name: slow\nlatency: 1 us\n", (1, 1), "`extends: NAME` of a link that has it"),
        ("systems/odd", "name: odd\nkind: gpu-clutser\n", (2, 7), "did you mean `gpu-cluster`?"),
        ("systems/even", "name: even\n", (1, 1), "`kind` is missing"),
        ("links/loop", "extends: nobody\n", (1, 10), "unknown link `nobody`"),
        ("links/loop", "extends: loop\n", (1, 10), "extends this file in turn"),
        ("links/loop", "extends: [wire]\n", (1, 10), "the name of one other description"),
        ("models/odd", "extends: tiny\nnum_attention_heads: 5\n", (2, 1), "hidden_size 64 is not a multiple"),
        ("models/odd", "extends: tiny\nnum_attention_heads: 5\n", (2, 1), "that divides it is 4"),
    ],
)
def test_a_wrong_file_is_refused_at_its_place(
    root: Path, catalog: Catalog, file: str, text: str, line_and_column: tuple[int, int], said: str
) -> None:
    kind, name = file.split("s/")
    write(root / KINDS[kind].folder / f"{name}.yaml", text)
    (problem,) = problems(lambda: catalog.load(kind, name))
    assert (problem.line, problem.column) == line_and_column
    assert said in problem.message + problem.help


def test_errors_of_a_file_that_is_named_or_extended_keep_their_own_file(root: Path, catalog: Catalog) -> None:
    write(root / "hardware/links/wire.yaml", "name: wire\nbandwidth: 400\nlatency: 1 us\n")
    tiny = FILES["workloads/models/tiny.yaml"].replace("vocab_size: 1000", "vocab_size: many")
    write(root / "workloads/models/tiny.yaml", tiny)
    write(root / "workloads/models/deep.yaml", "extends: tiny\nnum_layers: 0\n")
    listed = problems(lambda: catalog.system("box")) + problems(lambda: catalog.model("deep"))
    reported = {(Path(problem.file).name, problem.line) for problem in listed}
    assert reported == {("wire.yaml", 2), ("tiny.yaml", 6), ("deep.yaml", 2)}


def test_a_child_overrides_deeply_and_provenance_follows_the_value(root: Path, catalog: Catalog) -> None:
    device = catalog.device("gpu-b")
    assert (device.memory.capacity, device.memory.bandwidth) == (40 * 2**30, 2e12)
    assert (device.name, device.peak) == ("gpu-b", catalog.device("gpu-a").peak)
    rows = {row.path: row for row in catalog.describe("gpu-b", "device")}
    paper = ("2 TB/s", "A paper <https://example.org/paper>", "paper", False)
    assert rows["memory.bandwidth"] == Row("memory.bandwidth", *paper)
    guess = ("40 GiB", "assumed: half of the other", "", True)
    assert rows["memory.capacity"] == Row("memory.capacity", *guess)
    assert rows["compute_units"].assumed
    write(root / "workloads/models/deep.yaml", "extends: tiny\nnum_layers: 9\n")
    changed = {row.path: row for row in catalog.describe("deep", "model")}["num_layers"]
    assert (changed.source_or_assumption, catalog.model("deep").sources) == ("", {})


def test_study_file_uses_the_same_machinery(root: Path, catalog: Catalog) -> None:
    path = write(root / "studies/later.yaml", "extends: which\nseed: 7\n")
    question = parse_file(path, Question, catalog)
    assert (question.name, question.seed) == ("later", 7)
    assert question.model is catalog.model("tiny")
    assert (question.recipe.tokens, question.recipe.seq_length) == (3e8, 128)
    assert [system.name for system in question.systems] == ["box"]
    write(root / "ours.yaml", "extends: tiny\nnum_layers: 9\n")
    path = write(root / "mine.yaml", "model: {extends: ./ours.yaml}\nrecipe: plain\nsystems: [box]\n")
    assert parse_file(path, Question, catalog).model.name == "ours (changed)", "a folder has this name"
    (root / "sub").mkdir()
    write(root / "sub/ours.yaml", "extends: tiny\nnum_layers: 5\n")
    path = write(root / "sub/nearer.yaml", "extends: ../mine.yaml\nseed: 7\n")
    assert parse_file(path, Question, catalog).model.num_layers == 9, "a path belongs to its file"


def test_errors_deep_in_a_study_have_their_places(root: Path, catalog: Catalog) -> None:
    path = write(
        root / "bad.yaml",
        """
        model: tiny
        recipe: {extends: plain, tokns: 3e8}
        systems: [box, bax]
        layouts:
          first: {tensor: true}
          second: {tensr: 2}
        seed: 1.5
        """,
    )
    listed = problems(lambda: parse_file(path, Question, catalog))
    assert places(listed) == [(2, 26), (3, 16), (5, 19), (6, 12), (7, 7)]
    assert "did you mean `tokens`?" in listed[0].help
    assert "did you mean `box`?" in listed[1].help
    assert "did you mean `tensor`?" in listed[3].help


def test_override_changes_values_and_says_so(catalog: Catalog) -> None:
    changes = {"node.nics": 4, "node.nic.bandwidth": "100 GB/s", "device": "gpu-b"}
    system = catalog.override(catalog.system("box"), changes)
    assert system.node.inter_node_bytes_per_s == 400e9
    assert system.device == catalog.device("gpu-b")
    assert system.assumed["node.nics"] == "set by the question"
    assert catalog.system("box").assumed == {}
    assert catalog.system("box", **{"device.memory.bandwidth": 1e12}).device.memory.bandwidth == 1e12


@pytest.mark.parametrize(
    ("path", "value", "said", "proposed"),
    [
        ("node.nicks", 4, "`nicks` is not a field", "did you mean `nics`?"),
        ("nodes", 4, "`nodes` is not a field", "did you mean `node`?"),
        ("node.nics.many", 4, "`many` is not a field", ""),
        ("power.node.typical", 4, "`node` is not a field", "known: low"),
        ("device", "gpu-z", "unknown device `gpu-z`", "known: gpu-a"),
        ("node.nic.bandwidth", "100 GB", "node.nic.bandwidth: '100 GB'", "'100 GB/s'"),
        ("node.nics", -1, "node.nics: ", ""),
    ],
)
def test_impossible_override_is_refused(
    catalog: Catalog, path: str, value: object, said: str, proposed: str
) -> None:
    (problem,) = problems(lambda: catalog.override(catalog.system("box"), {path: value}))
    assert said in problem.message
    assert proposed in problem.help


def test_deep_description_holds_what_it_names(catalog: Catalog) -> None:
    paths = [row.path for row in catalog.describe("box", "system", deep=True)]
    assert paths.index("device") < paths.index("device.memory.capacity") < paths.index("node.devices")
    assert "node.nic.bandwidth" in paths


@pytest.mark.parametrize("file", ["gpu-a", "gpu-b"], ids=["what its device extends", "its device"])
def test_a_description_follows_its_files(root: Path, catalog: Catalog, file: str) -> None:
    write(root / "hardware/systems/two.yaml", "extends: box\ndevice: gpu-b\nsources: {device: paper}\n")
    before = catalog.system("two")
    assert catalog.system("two") is before
    text = FILES[f"hardware/devices/{file}.yaml"].replace("300 TFLOP/s", "310 TFLOP/s")
    write(root / f"hardware/devices/{file}.yaml", text.replace("40 GiB", "41 GiB"))
    assert catalog.system("two") != before


def test_sources_are_read_or_refused_together(root: Path, catalog: Catalog) -> None:
    assert catalog.sources()["paper"].title == "A paper"
    write(root / "hardware/sources.yaml", "paper: {titel: A paper}\nother: 3\n")
    assert len(problems(Catalog([root]).sources)) == 3
