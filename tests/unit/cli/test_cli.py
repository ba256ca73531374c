"""The command line: what each verb prints, and how each kind of mistake ends."""

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from perfsim import __version__
from perfsim.catalog import data_root

HERE = Path(__file__).parent
STUDY, SWEEP = ((HERE / f"{name}.yaml").read_text("utf-8") for name in ("study", "sweep"))
WAFERS = ("run", "--model", "gpt3_xl", "--system", "cs-2", "--strategy", "weight-streaming")
GPUS = ("run", "--model", "gpt3_xl", "--system", "dgx-a100-80gb", "--strategy", "3d")
NO_HOST = "mi300x-192gb"
"""A system without a host to offload to."""
CASES = data_root() / "studies" / "validation" / "weight_streaming.yaml"
CONFIG = HERE.parents[1] / "samples" / "foreign" / "llama31_8b_config.json"
IMPORT = ("import", str(CONFIG))

Run = Callable[..., Result]
pytestmark = pytest.mark.usefixtures("elsewhere")


def refused(result: Result, code: int, *parts: str) -> None:
    """Ends with this exit code, in words on stderr that hold these parts; stdout stays empty."""
    assert result.exit_code == code, (result.stderr, result.exception)
    assert isinstance(result.exception, SystemExit), "a refusal, not an error that escaped"
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr


def document(result: Result) -> Any:
    """The one JSON document that is all of stdout."""
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


STOPPED = ((*WAFERS, "--devices", "2"), ("study", "study.yaml"), ("sweep", "sweep.yaml", "--jobs", "1"))


@pytest.mark.parametrize(
    "arguments",
    [
        *((*verb, "--max-events", "3") for verb in STOPPED),
        *((*verb, "--max-seconds", "0") for verb in STOPPED),
        ("prove", "gpt3_xl", "--strategy", "data", "--max-seconds", "0"),
        ("prove", "gpt3_xl", "--strategy", "data", "--mutations", "page.md", "--max-seconds", "0"),
        ("validate", CASES, "--max-seconds", "0"),
        ("sweep", "sweep.yaml", "--dry-run", "--max-seconds", "0"),
        ("plan", *GPUS[1:5], "--devices", "8", "--batch", "16", "--max-seconds", "0"),
    ],
    ids=lambda arguments: " ".join(map(str, arguments))[-50:],
)
def test_a_limit_ends_every_computing_verb_with_its_exit_code(perfsim: Run, arguments: Sequence[str]) -> None:
    refused(perfsim(*arguments), 4, "stopped after", arguments[-2])


def test_the_first_words_say_version_usage_and_where_to_start(perfsim: Run) -> None:
    assert "perfsim study gpt3_20b --compare 3d,weight-streaming" in perfsim("--help").stdout
    assert perfsim("--version").stdout == f"perfsim, version {__version__}\n"
    refused(perfsim(), 2, "Usage: ", "study", "validate")
    refused(perfsim("calibrate"), 2, "Usage: ", "gemm")


EIGHT = (*GPUS, "--devices", "8")
LAYOUT = (*EIGHT, "--layout")
LARGE = (*EIGHT, "--model", "gpt3_175b")
PLAN = ("plan", *EIGHT[1:5], "--devices", "8", "--batch", "16")
BROKEN = """\
title: x
question: q
model: gpt3_xl
recipe: {extends: gpt3_20b_chinchilla, seq_length: -1}
candidates: [{strategy: weight-streaming, system: cs-2, devices: many}]
batch_sizes: 16x
"""
FILES = {
    "a.yaml": "num_layers: two\nhidden_size: 8\nvocab: 3\n",
    "b.yaml": "kind: gpu-cluster\ndevice: nothing\nnode: {devices: 0}\n",
    "big.yaml": STUDY.replace("gpt3_xl", "gpt3_175b").replace("dgx-a100-80gb", NO_HOST),
    "broken.yaml": BROKEN,
    "empty.json": "{}",
    "no_tokens.yaml": "extends: gpt3_20b\nrecipe: {extends: gpt3_pretraining}\n",
    "odd.yaml": "extends: gpt3_xl\nnum_layers: many\n",
    "outside.yaml": "extends: gpt3_20b\ntokens: 1e9\ncandidates: [{strategy: 3d, system: cs-2, gpus: 8}]\n",
    "law.yaml": "extends: gpt3_20b\nconvergence: {law: given_length, tokens: 2e10}\n",
    "table.csv": "m,n\n1,2\n",
    "torn.json": "{\n",
    "torn.yaml": "title: [\n",
    "untitled.yaml": "study: gpt3_20b\n",
}
REFUSED: dict[int, list[tuple[tuple[str, ...], tuple[str, ...]]]] = {
    2: [
        (("stduy",), ("No such command 'stduy'; did you mean `perfsim study`?",)),
        (("gallery",), ("No such command 'gallery'; known: ", "study, ")),
        (("compare", "a", "b"), ("No such command 'compare'; did you mean `perfsim diff`?",)),
        (("study",), ("Missing argument 'STUDY'",)),
        (("show",), ("Missing argument",)),
        (("show", "systms"), ("'systms' is not one of 'systems', 'devices'", "Did you mean 'systems'?")),
        (("run", "--model", "gpt3_xl"), ("Missing option '--system'",)),
        (GPUS, ("Missing option '--devices'",)),
        ((*GPUS, "--devices", "eight"), ("'eight' is no whole number from 1 to 1,048,576.",)),
        ((*GPUS, "--devices", "0"), ("0 is not in the range",)),
        ((*GPUS, "--devices", "1000000000"), ("is not in the range",)),
        ((*EIGHT, "--batch", "-1"), ("-1 is not in the range",)),
        ((*EIGHT, "--batch", "100000000000"), ("is not in the range",)),
        ((*EIGHT, "--layuot", "tp=8"), ("No such option",)),
        ((*EIGHT, "--emit", "megatro"), ("'megatro' is not one of", "Did you mean 'megatron'?")),
        ((*EIGHT, "--max-seconds", "soon"), ("'soon' is no number from 0 on.",)),
        (
            ("solve", "study.yaml", "--find", "system.node.nic", "--such-that", "days<=9"),
            ("'hdr-200' is no number and no choice", "system.node.nic.bandwidth"),
        ),
        (
            ("solve", "study.yaml", "--find", "candidates", "--such-that", "days<=9"),
            ("`candidates` cannot be changed", "known: batch, model"),
        ),
        (("solve", "study.yaml", "--find", "devices", "--such-that", "days<=9 parsecs"), ("mean '9 d'?",)),
        (("validate", "--worst", "-1"), ("-1 is not in the range",)),
        (("validate", "absent.yaml"), ("absent.yaml: there is no such file",)),
        (("validate", str(CASES.with_name("convergence.yaml")), "--leave-out"), ("step times",)),
        (("validate", "."), ("is a directory; a file is expected",)),
        (("validate", "study.yaml", "--json"), ("study.yaml:1:", "`cases` is missing")),
        (("sweep", "x.yaml", "--jobs", "0"), ("0 is not in the range",)),
        (("sweep", "absent.yaml"), ("absent.yaml",)),
        (("sweep", "untitled.yaml"), ("`title` is missing\n    study: gpt3_20b\n",)),
        (("sweep", "torn.yaml"), ("torn.yaml:", "malformed YAML")),
        (("study", "bytes.yaml"), ("bytes.yaml", "not UTF-8")),
        (("validate", "bytes.yaml"), ("bytes.yaml", "not UTF-8")),
        (("prove", "latin.yaml"), ("latin.yaml:2: ", "is not UTF-8 text")),
        (("study", "gpt3_20"), ("unknown study `gpt3_20`", "did you mean `gpt3_20b`")),
        (("study", "absent.yaml"), ("there is no file", "absent.yaml")),
        (("check", "gpt3_20"), ("unknown study `gpt3_20`", "did you mean `gpt3_20b`")),
        (("check", "no_tokens.yaml"), ("no_tokens.yaml:2:1: recipe", "--set recipe.tokens=400e9")),
        (("check", "odd.yaml"), ("odd.yaml:2:13: num_layers", "`many` is text")),
        (("sweep", "pile_law"), ("pile_law.yaml:1:1: this is a comparison; a sweep is expected",)),
        (("import", "/dev/null"), ("/dev/null: is no regular file",)),
        (("study", "study.yaml", "--as-of", "soon"), ("error: as_of: 'soon' is no date",)),
        (("solve", "study.yaml", "--find", "device", "--such-that", "days<=9"), ("did you mean `devices`",)),
        (("study", "study.yaml", "--compare", "3d,weight"), ("unknown strategy 'weight'",)),
        (("calibrate", "collective", "absent.csv", "--link", "nvlink4"), ("absent.csv: there is no such",)),
        ((*EIGHT, "--model", "gpt3_20bb"), ("unknown model `gpt3_20bb`", "did you mean `gpt3_20b`")),
        ((*EIGHT, "--model", "absent.yaml"), ("there is no file", "absent.yaml")),
        ((*EIGHT, "--system", "dgx-a100-80g"), ("unknown system", "did you mean `dgx-a100-80gb`")),
        ((*EIGHT, "--strategy", "pipelin"), ("unknown strategy 'pipelin'", "did you mean `pipeline`")),
        ((*EIGHT, "--strategy", "weight-streaming"), ("runs on a wafer-cluster; dgx-a100-80gb is a",)),
        ((*EIGHT, "--recipe", "gpt3"), ("unknown recipe `gpt3`", "gpt3_pretraining")),
        ((*GPUS, "--devices", "12"), ("12",)),
        (
            (*LAYOUT, "tp=3,pp=5,dp=7,mbs=3", "--batch", "10"),
            ("is 105 devices, the question has 8", "num_attention_heads 16"),
        ),
        ((*LAYOUT, "tp=1.5"), ("'1.5' is not a whole number",)),
        ((*LAYOUT, "tpp=8,mbs=x,dp=0"), ("tpp", "'x'", "0 is less than 1")),
        ((*PLAN, "--objective", "time-to-accuracy"), ("neither tokens nor target_loss",)),
        ((*PLAN, "--memory-limit", "1.5"), ("memory-limit",)),
        ((*EIGHT, "--set", "system.node.nic.bandwidth=400"), ("bandwidth: 400 has no", "mean '400 GB/s'")),
        (("study", "gpt3_20b", "--set", "system.device.peak.bf16=312e12"), ("312 TFLOP/s",)),
        (("study", "gpt3_20b", "--set", "batch_sizes=[512"), ("--set batch_sizes=[512: malformed YAML",)),
        (("study", "gpt3_20b", "--set", "batch_sizes=[1, 0]"), ("batch_sizes[1]: must be greater",)),
        (
            ("study", "gpt3_20b", "--set", "convergence.ramp=[{share: 2, batch: 1}]"),
            ("ramp[0].share: must be less",),
        ),
        ((*PLAN, "--set", "power_cap=500"), ("power_cap: 500 is no text", "such as 500kW")),
        (("solve", *EIGHT[1:5], "--find", "devices", "--such-that", "days<=9"), ("neither tokens nor",)),
        (("import", "absent.json"), ("absent.json: there is no such file",)),
        ((*IMPORT, "--part", "recipe"), ("no recipe in this file of Hugging Face config.json",)),
        ((*IMPORT, "--set", "rope"), ("--set rope: write KEY=VALUE",)),
        ((*IMPORT, "--set", "hidden_size=010"), ("begins with a zero",)),
        ((*IMPORT, "--set", "vocab_size=0"), ("vocab_size: 0 is out of range",)),
        ((*IMPORT, "--format", "nemo"), ("num_layers is missing",)),
        ((*IMPORT, "--part", "measured"), ("add --system NAME",)),
        (("study", "broken.yaml"), ("seq_length: must be greater than or equal to 1, not -1",)),
        (("check", "broken.yaml"), ("batch_sizes: `16x` stands where a list is", "number alone: 16")),
        (("check", "a.yaml", "b.yaml"), ("a.yaml:1", "a.yaml:3", "b.yaml:2", "b.yaml:3")),
        (("check", "folder"), ("folder: is a directory; a file is expected",)),
        (("check", "table.csv"), ("table.csv: is no YAML",)),
        (("study", "folder"), ("`folder` is no study: files of a study end in .yaml",)),
        (("study", "."), ("`.` is no study",)),
        (("study", "table.csv"), ("`table.csv` is no study",)),
        ((*EIGHT, "--model", "folder"), ("`folder` is no model",)),
        ((*EIGHT, "--perturb", "straggler=x"), ("a whole number is missing",)),
        ((*EIGHT, "--perturb", "mttf=8h"), ("unknown name",)),
        ((*EIGHT, "--tp", "8"), ("No such option '--tp'. Write --layout tp=VALUE.",)),
        (("plan", *EIGHT[1:], "--layout", "tp=8"), ("perfsim run has it; a study takes --set",)),
        ((*EIGHT, "--precision", "fp8"), ("Write --set recipe.precision=VALUE.",)),
        ((*EIGHT, "--gpus", "8"), ("Write --devices VALUE.",)),
        ((*EIGHT, "--set", "seq_length=8"), ("'seq_length' cannot be asked", "write recipe.seq_length")),
        (
            ("study", "gpt3_20b", "--set", "precision=fp8"),
            ("`precision` cannot be", "write recipe.precision"),
        ),
        (("check", "outside.yaml"), ("write it in recipe: {tokens: ...}", "gpus is called `devices` here")),
        (("check", "law.yaml"), ("unknown key `tokens` in convergence", "write it in recipe: {tokens: ...}")),
        ((*EIGHT, "--set", "recipe.precision=int8"), ("`int8` is not one of fp32, tf32",)),
        ((*EIGHT, "--model", "gpt4"), ("help: 72 names are known: perfsim show models",)),
        (("why", "empty.json"), ("is no answer of `perfsim study --json`: study is missing",)),
        (("why", "torn.json"), ("torn.json:2", "is not valid JSON")),
        (("why", "pile_law"), ("this is a comparison; a study is expected",)),
        (("diff", "gpt3_20b", "capacity_20b"), ("this is a sweep", "perfsim study capacity_20b")),
        (
            ("calibrate", "gemm", "bytes.yaml", "--device", "a100-sxm4-80gb"),
            ("bytes.yaml:1: the byte 0xff is not UTF-8 text",),
        ),
    ],
    3: [
        (
            (*LARGE, "--layout", "tp=8"),
            (
                "does not fit: stage 0 needs",
                "of 80 GiB",
                "optimizer",
                "try pipeline 1 → 8 and ",
                "which fits",
            ),
        ),
        (
            ("run", "--model", "llama31_70b", "--system", "dgx-h100", "--devices", "2", "--batch", "24"),
            ("zero_stage 1 → 2, which fits with --runs-on any",),
        ),
        (
            (*LARGE, "--system", NO_HOST),
            ("no plan fits: strategy 3d, 8 MI300X", "closest: ", "stage 0 needs", "try "),
        ),
        ((*PLAN, "--model", "gpt3_175b", "--system", NO_HOST), ("no plan fits",)),
        (
            ("study", "big.yaml", "--compare", "3d", "--json"),
            ("no plan fits: strategy 3d, 4 MI300X", "over memory", "closest: "),
        ),
    ],
}


@pytest.mark.parametrize(
    ("code", "arguments", "parts"),
    [(code, *case) for code, cases in REFUSED.items() for case in cases],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, tuple) else str(value),
)
def test_what_cannot_be_answered_ends_in_words_and_its_exit_code(
    perfsim: Run, elsewhere: Path, code: int, arguments: Sequence[str], parts: Sequence[str]
) -> None:
    for name, text in FILES.items():
        (elsewhere / name).write_text(text, "utf-8")
    (elsewhere / "bytes.yaml").write_bytes(b"\xff\xfe\x00name")
    (elsewhere / "latin.yaml").write_bytes(STUDY.encode("latin-1"))
    (elsewhere / "folder").mkdir()
    result = perfsim(*arguments)
    refused(result, code, *parts)
    assert result.stderr.count("`16x`") <= 1, "neither a number nor a list is one problem"
    foreign = ("Field required", "nput should", "invalid literal", "could not convert", "codec", "Error(")
    assert not [words for words in foreign if words in result.stderr]


def test_a_point_executes_its_products_where_that_is_asked(perfsim: Run) -> None:
    point = (*WAFERS, "--model", "cerebras_gpt_111m", "--devices", "1", "--batch", "4", "--json")
    assert "sampling" not in document(perfsim(*point))
    full, some = (document(perfsim(*point, "--verify", mode))["sampling"] for mode in ("full", "sample"))
    assert full["passed"]
    assert full["flop_share"] == pytest.approx(1.0)
    assert full["tasks_sampled"] > some["tasks_sampled"]
    refused(perfsim(*point, "--verify", "all"), 2, "'off', 'sample', 'full'")


def test_a_study_as_json_has_the_keys_of_the_interface_and_the_digits_of_a_run_and_leaves_its_files(
    perfsim: Run, elsewhere: Path, candidate_keys: frozenset[str]
) -> None:
    out = elsewhere / "new" / "folder"
    result = perfsim("study", "study.yaml", "--compare", "weight-streaming, 3d", "--out", out, "--json")
    answer = document(result)
    assert result.stderr == ""
    assert (answer["study"], answer["title"]) == ("small", "Ein größeres Modell")
    assert [candidate["strategy"] for candidate in answer["candidates"]] == ["weight-streaming", "3d"]
    for candidate in answer["candidates"]:
        assert set(candidate) >= candidate_keys
        assert "timeline" not in candidate, "it is left to the trace"
        assert isinstance(candidate["layout"], dict)
        low, high = candidate["time_to_accuracy_band_s"]
        assert low < candidate["time_to_accuracy_s"] < high
    assert Path(answer["report"]) == out / "index.html"
    traces = {"trace_dgx-a100-80gb_4_3d.json.gz", "trace_cs-2_1_weight-streaming.json.gz"}
    assert {path.name for path in out.iterdir()} == {"index.html", "summary.json", "candidates.csv", *traces}
    for path in out.glob("trace_*.json.gz"):
        assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    written = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert written | {"report": answer["report"]} == answer
    recipe = ("--recipe", "gpt3_20b_chinchilla", "--batch", "16")
    step = document(perfsim(*WAFERS, "--devices", "1", *recipe, "--json"))
    for name in ("step_time_s", "mfu", "tokens_per_s", "peak_memory_bytes", "step_breakdown_s"):
        assert answer["candidates"][0][name] == step[name]


ALIASES = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]\n" for n in range(12))
TAGS = ("!!float x", "2024-13-45", "9" * 5_000, "[" * 500, '!!int ""', "!!bool x", "!!timestamp x")


@pytest.mark.parametrize("verb", ["check", "import"])
@pytest.mark.parametrize("text", [ALIASES, *(f"a: {value}\n" for value in TAGS)])
def test_a_yaml_trap_is_refused_with_its_file(perfsim: Run, elsewhere: Path, verb: str, text: str) -> None:
    (elsewhere / "odd.yaml").write_text(text, encoding="utf-8")
    refused(perfsim(verb, "odd.yaml"), 2, "odd.yaml")


def test_systems_may_be_counted_by_num_csx(perfsim: Run) -> None:
    by_devices = document(perfsim(*WAFERS, "--devices", "2", "--batch", "16", "--json"))
    assert document(perfsim(*WAFERS, "--num-csx", "2", "--batch", "16", "--json")) == by_devices
    assert by_devices["num_devices"] == 2


def test_control_characters_of_names_are_written_out(perfsim: Run, elsewhere: Path) -> None:
    raw = "\x1b[31mred\x07\u202e"
    study = STUDY.replace("gpt3_xl", '"\\e[31mred\\a\\u202e"')
    (elsewhere / "study.yaml").write_text(study, encoding="utf-8")
    for name in ("study.yaml", f"{raw}.yaml", raw):
        result = perfsim("study", name)
        assert result.exit_code == 2
        assert r"\u{1b}[31mred\u{7}\u{202e}" in result.stderr
        assert not {*"\x1b\x07\u202e"} & {*result.output}


def test_measurements_that_no_hardware_makes_are_refused(perfsim: Run, elsewhere: Path) -> None:
    rows = [f"{128 * i},{128 * i},{128 * j},{10.0 * i}\n" for i in range(1, 9) for j in range(1, 9)]
    table = elsewhere / "table.csv"
    table.write_text("m,n,k,time_us\n" + "".join(rows) + "1e300,1,1,1\n64,64,64,1e-300\n")
    calibrate = ("calibrate", "gemm", table, "--device", "a100-sxm4-80gb")
    refused(
        perfsim(*calibrate), 2, "table.csv:66: m must be from 1 to 1e+09", ":67: time_us must be from 0.001"
    )


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_an_answer_that_cannot_be_printed_is_no_success(elsewhere: Path, more: Sequence[str]) -> None:
    command = [sys.executable, "-m", "perfsim", "show", "models", *more]
    shell = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command]
    closed = subprocess.run(shell, cwd=elsewhere, capture_output=True, text=True, check=False)
    assert closed.returncode == 1
    assert closed.stderr == "error: standard output is closed: the answer cannot be printed\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("study", "gpt3_20b", "--out", "file"),
        (*WAFERS, "--devices", "1", "--trace", "file/trace.json"),
        ("validate", "--page", "file"),
        ("schema", "--out", "file"),
        ("calibrate", "wafer", "study.yaml", "--out", "."),
        (*WAFERS, "--devices", "1", "--trace", "."),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_computed(
    perfsim: Run, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str]
) -> None:
    (elsewhere / "file").write_text("mine")
    for module in ("perfsim.studies.loading", "perfsim.prediction.prediction", "perfsim.evidence.score"):
        monkeypatch.setitem(sys.modules, module, None)
    result = perfsim(*arguments)
    refused(result, 2)
    assert re.search(r"error: --(out|trace|page) .*(is no folder|is a folder)", result.stderr)
    assert (elsewhere / "file").read_text() == "mine"


def test_validation_of_files_as_json_is_a_list_with_the_keys_of_the_interface(perfsim: Run) -> None:
    batches, answer = document(perfsim("validate", CASES.with_name("convergence.yaml"), CASES, "--json"))
    assert (batches["file"], answer["file"]) == ("convergence.yaml", "weight_streaming.yaml")
    assert (answer["count"], len(answer["cases"]), answer["failed"]) == (20, 20, [])
    scored = [case for case in answer["cases"] if case["evidence"] != "C"]
    held = [case["band_s"][0] <= case["measured_s"] <= case["band_s"][1] for case in scored]
    assert answer["summary"]["band_coverage"] == sum(held) / len(held)
    assert set(answer["scaling"]) == {"source", "runs", "efficiencies", "explanations"}
    for case in answer["cases"]:
        assert set(case) == {
            *("id", "family", "evidence", "measured_s", "predicted_s", "error", "inferred"),
            *("band_s", "left_out_s", "unlikeness", "hidden_communication", "ignored"),
            *("measured_peak_gib", "predicted_peak_gib", "asked_s"),
        }
        low, high = case["band_s"]
        assert case["left_out_s"] is None or low < case["left_out_s"] < high
        assert case["error"] == pytest.approx(case["predicted_s"] / case["measured_s"] - 1)


def test_a_system_with_a_common_store_shows_its_tiers_over_all_servers(perfsim: Run) -> None:
    """Twelve servers of 1,128 GiB and 150 GB/s, each with 100 TB of flash at 12.5 GB/s."""
    shown = document(perfsim("show", "systems", "cs-3-memoryx-14tb", "--json"))
    tiers = {row["value of"]: row["value"] for row in shown if row["value of"].startswith("MemoryX")}
    assert tiers == {"MemoryX DRAM": "14.5 TB at 1.8 TB/s", "MemoryX flash": "1.2 PB at 150 GB/s"}
    assert "MemoryX" not in perfsim("show", "systems", "dgx-h100").stdout


def test_the_network_of_a_system_is_written_as_a_graph(perfsim: Run, elsewhere: Path) -> None:
    said = perfsim("show", "systems", "cs-2", "--graph", "cs.dot", "--devices", "4")
    assert said.stdout.startswith("cs.dot: cs-2 with 4 devices")
    assert (elsewhere / "cs.dot").read_text().startswith("digraph")
    written = document(perfsim("show", "systems", "cs-2", "--graph", "cs.dot", "--devices", "4", "--json"))
    assert [written[key] for key in ("file", "system", "num_devices")] == ["cs.dot", "cs-2", 4]
    refused(perfsim("show", "systems", "cs-2", "--graph", "cs.png"), 2, ".graphml, .dot, .gv")
    refused(perfsim("show", "models", "gpt3_20b", "--graph", "cs.dot"), 2, "show systems NAME --graph")


def test_a_sweep_as_json_tells_progress_on_stderr_only(perfsim: Run, elsewhere: Path) -> None:
    plan = document(perfsim("sweep", "sweep.yaml", "--dry-run", "--json"))
    assert not (elsewhere / "reports" / "sweep" / "index.html").exists()
    assert "4" in [str(value) for value in plan.values()]
    result = perfsim("sweep", "sweep.yaml", "--jobs", "1", "--json")
    answer = document(result)
    assert len(answer["points"]) == 4
    assert result.stderr
    assert Path(answer["report"]).is_file()
    again = perfsim("sweep", "sweep.yaml", "--jobs", "1")
    assert again.exit_code == 0
    assert again.stdout.splitlines()[-1] == f"Report: {answer['report']}"


@pytest.mark.parametrize(
    ("reason", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "error: interrupted"),
        (MemoryError(), 1, "error: the computer has too little memory"),
        (OSError(28, "No space left on device"), 1, "error: No space left on device\n"),
    ],
    ids=["interrupt", "memory", "disk"],
)
def test_what_stops_a_verb_from_outside_is_told_in_words(
    perfsim: Run, monkeypatch: pytest.MonkeyPatch, reason: BaseException, code: int, said: str
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise reason

    monkeypatch.setattr("perfsim.api.answers.run_study", stopped)
    monkeypatch.setattr("perfsim.api.questions.predict", stopped)
    for verb in (("study", "study.yaml", "--json"), (*WAFERS, "--devices", "1")):
        result = perfsim(*verb)
        refused(result, code)
        assert said in result.stderr


def test_a_reader_that_leaves_early_is_no_error_to_tell() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "perfsim", "show", "models", "gpt3_20b"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


def test_run_prints_what_runs_the_layout(perfsim: Run) -> None:
    point = (*GPUS, "--devices", "8", "--batch", "16", "--layout", "tp=2,dp=4,mbs=2", "--emit")
    result = perfsim(*point, "megatron")
    assert "--tensor-model-parallel-size 2" in result.stdout.splitlines()
    emitted = document(perfsim(*point, "deepspeed", "--json"))["emitted"]
    assert json.loads(emitted)["train_micro_batch_size_per_gpu"] == 2
    refused(perfsim(*point, "modelzoo"), 2, "trains on wafers")


@pytest.mark.parametrize("system", [NO_HOST, "mi355x-288gb"])
def test_one_device_of_a_mesh_without_links_is_answered(perfsim: Run, system: str) -> None:
    result = perfsim("run", "--model", "gpt3_xl", "--system", system, "--devices", "1", "--json")
    assert document(result)["step_time_s"] > 0


def _row(name: str, **parallel: int) -> str:
    """A measured step on 8 H100 as a row of a case file."""
    model = "num_layers: 4, hidden_size: 512, ffn_hidden_size: 64, num_attention_heads: 8, seq_length: 512"
    degrees = ", ".join(f"{axis}: {degree}" for axis, degree in parallel.items())
    return f"""
- id: {name}
  family: own
  source: {{title: own}}
  strategy: 3d
  system: {{device: h100-sxm5-80gb, num_devices: 8, devices_per_node: 8, inter_node: 3200 Gb/s}}
  model: {{{model}, vocab_size: 50000}}
  evidence: B
  parallel: {{{degrees}}}
  training: {{micro_batch_size: 1, global_batch_size: 64, precision: bf16}}
  measured: {{step_time_s: 0.5}}"""


EXITS = (
    (0, "validate some.yaml"),
    (0, "check good.yaml"),
    (1, "validate none.yaml"),
    (1, "validate some.yaml --strict"),
    (2, "check some.yaml"),
    (2, "run --model gpt3_xl --system dgx-h100 --devices 8 --trace theirs.json"),
    (2, "import config.json --out theirs.json"),
    (2, "solve --find devices --such-that days<=9 --model gpt3_xl --system dgx-h100"),
    (3, "run --model gpt3_175b --system dgx-h100 --devices 8"),
    (3, "solve huge.yaml --find recipe.tokens --such-that days<=9"),
    (4, "validate good.yaml --max-seconds 0"),
)


@pytest.mark.parametrize(("code", "line"), EXITS)
def test_verbs_end_with_codes_of_the_reference(perfsim: Run, repository: Path, code: int, line: str) -> None:
    good, bad = _row("good", data=8), _row("bad", data=7)
    for name, rows in (("good", good), ("none", bad), ("some", good + bad)):
        Path(f"{name}.yaml").write_text(f"schema: 1\ncases:{rows}\n", encoding="utf-8")
    Path("theirs.json").write_text("theirs", encoding="utf-8")
    machines = "candidates: [{strategy: data, system: mi300x-192gb, devices: 1}]"
    reasons = "assumed: {model: ours, candidates: ours}"
    huge = f"extends: gpt3_20b\nmodel: gpt3_175b\n{machines}\n{reasons}\n"
    Path("huge.yaml").write_text(huge, encoding="utf-8")
    Path("config.json").write_bytes(CONFIG.read_bytes())
    assert perfsim(*line.split()).exit_code == code
    assert Path("theirs.json").read_text(encoding="utf-8") == "theirs"
    table = (repository / "docs/howto/continuous.md").read_text(encoding="utf-8")
    assert {*map(int, re.findall(r"(?m)^\| (\d+) \|", table))} == {130, *(row[0] for row in EXITS)}


def test_what_a_verb_wrote_itself_or_is_forced_to_replace_is_replaced(perfsim: Run) -> None:
    Path("model.yaml").write_text("theirs", encoding="utf-8")
    assert perfsim(*IMPORT, "--out", "model.yaml", "--force").exit_code == 0
    assert perfsim(*IMPORT, "--out", "model.yaml").exit_code == 0
    assert perfsim(*GPUS, "--devices", "8", "--trace", "step.json").exit_code == 0
    assert perfsim(*GPUS, "--devices", "8", "--trace", "step.json").exit_code == 0
