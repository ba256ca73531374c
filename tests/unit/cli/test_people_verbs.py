"""What people use at a terminal besides answers: checks, first files, terms, completion, colour, progress."""

import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import run

import pytest
from click.testing import Result

from perfsim.cli import VERBS, output
from perfsim.cli.output import metered, print_lines, write_error
from perfsim.specs.layout import AXES
from perfsim.strategies import STRATEGIES
from perfsim.strategies.schedules import SCHEDULES

Run = Callable[..., Result]
pytestmark = pytest.mark.usefixtures("elsewhere")


def test_a_first_study_has_no_mistake_and_says_what_to_do_next(perfsim: Run) -> None:
    written = perfsim("init", "mine.yaml", "--model", "gpt3_xl", "--system", "cs-2", "--devices", "2")
    assert written.exit_code == 0, written.stderr
    assert "perfsim check mine.yaml" in written.stdout
    checked = perfsim("check", "mine.yaml")
    assert checked.stdout.startswith("mine.yaml: study, no mistakes (gpt3_xl by "), checked.stderr
    assert "2 CS-2, weight-streaming" in checked.stdout
    assert perfsim("init", "mine.yaml").exit_code == 2, "nothing is overwritten"
    assert "ends in .yaml" in perfsim("init", "mine.txt").stderr, "no study is read from it"


def test_the_machine_that_a_first_study_has_in_comments_can_be_used(perfsim: Run) -> None:
    perfsim("init", "mine.yaml")
    text = Path("mine.yaml").read_text("utf-8")
    used = "\n".join(re.sub(r"^  # ", "  ", line) for line in text.splitlines())
    Path("own.yaml").write_text(used.replace("  My own machine", "  # My own machine"), "utf-8")
    checked = perfsim("check", "own.yaml")
    assert "64 My GPU, 3d" in " ".join(checked.stdout.split()), checked.stderr
    assert "llama2_70b by llm_2024" in checked.stdout, "as `run --model llama2_70b` trains it"


def test_check_names_the_candidates_to_which_the_run_gives_no_answer(perfsim: Run) -> None:
    candidates = (
        "[{strategy: 3d, system: dgx-a100-80gb, devices: 8, layout: 'tp=3,dp=2'},"
        " {strategy: weight-streaming, system: cs-2, devices: 1}]"
    )
    study = "extends: gpt3_20b\nmodel: gpt3_xl\nbatch_sizes: [64]\nsampling: {tasks: 0}\n"
    Path("mine.yaml").write_text(f"{study}candidates: {candidates}\n", "utf-8")
    checked = " ".join(perfsim("check", "mine.yaml").stdout.split())
    answer = json.loads(perfsim("study", "mine.yaml", "--json").stdout)
    (unanswered,) = answer["infeasible"]
    assert f"{unanswered['label']} (no answer: {unanswered['reason']})" in checked
    Path("mine.yaml").write_text(study + "candidates: " + candidates.partition(", {")[0] + "]\n", "utf-8")
    assert perfsim("check", "mine.yaml").stderr == perfsim("study", "mine.yaml").stderr != ""


CASES = """\
schema: 1
cases:
- {id: a, family: own, strategy: 3d, evidence: B, measured: {step_time_s: 0.5},
   system: {device: h100-sxm5-80gb, num_devices: 8, devices_per_node: 8},
   model: {num_layers: 4, hidden_size: 512, ffn_hidden_size: 64, num_attention_heads: 8, seq_length: 512,
     vocab_size: 50000},
   parallel: {data: 8}, training: {global_batch_size: 64}}
"""
ON_GPUS = "extends: gpt3_20b\ncandidates: [{strategy: 3d, system: dgx-a100-80gb, devices: 8}]\n"
MISTAKES = {
    "schema": (CASES.replace("schema: 1", "schema: 3"), "1:9: schema: must be less than or equal to 2"),
    "production of a case": (CASES.replace("own,", "own, production: 7,"), "3: case a: unknown key `pro"),
    "stages of a case": (CASES.replace("data: 8", "data: 8, pipeline_layout: x"), "7: case a: parallel.pipe"),
    "name of a case": (CASES.replace("id: a", "id: ''"), "3: case row 1: id: a name has 1 to 1000"),
    "container": (CASES.replace("own,", "own, container: new,"), "3: case a: container: "),
    "no cases": ("schema: 1\ncases: []\n", "2:8: cases: needs at least 1"),
    "device of measured steps": (
        CASES.replace("cases:", "cluster: mine\ncases:").replace("h100-sxm5-80gb", "\\0"),
        "4:3: unknown device or system",
    ),
    "price": (
        f"{ON_GPUS}prices: {{machines: {{dgx-a100-80g: {{device_hour: 2}}}}}}\n",
        "3:21: prices: unknown system 'd",
    ),
    "range": (f"{ON_GPUS}prices: {{pue: {{low: 2, typical: 1, high: 3}}}}\n", "pue: low 2, typical 1"),
    "production": (f"{ON_GPUS}production: 7\n", "3:13: production: "),
    "assumption": (f"{ON_GPUS}assumed: {{recipe.toknes: ours}}\n", "3:11: assumed: recipe.toknes: `toknes`"),
    "law": (f"{ON_GPUS}convergence: {{critical_batch_tokens: 1e6}}\n", "belongs to law constant"),
    "corpus": (
        f"{ON_GPUS}convergence: {{loss_scale: C4}}\n",
        "3:1: convergence: loss_scale is of a target_loss",
    ),
    "law of losses": (f"{ON_GPUS}convergence: {{loss_law: kaplam}}\n", "3:25: convergence.loss_law: unknown"),
    "precision": (
        f"{ON_GPUS}recipe: {{extends: gpt3_20b_chinchilla, precision: fp8}}\n",
        "2:37: a100-sxm4-80gb has no peak for fp8",
    ),
    "device": ("extends: dgx-a100-80gb\ndevice: wse-2\n", "2:9: device: `wse-2` is of kind wafer; a gpu-c"),
    "memory": ("extends: a100-sxm4-80gb\nmemory: {capacity: 0 B}\n", "2:20: memory.capacity: '0 B' is too s"),
    "waits": ("extends: gpu-cluster\nstragglers: {low: 0}\n", "2:19: stragglers.low: must be greater than"),
}


@pytest.mark.parametrize(("text", "part"), MISTAKES.values(), ids=list(MISTAKES))
def test_check_refuses_what_means_nothing_at_its_line(perfsim: Run, text: str, part: str) -> None:
    Path("mine.yaml").write_text(text, "utf-8")
    checked = perfsim("check", "mine.yaml")
    assert checked.exit_code == 2
    assert "mine.yaml:" in checked.stderr
    assert part in checked.stderr
    assert "a number is expected, not {" not in checked.stderr, "a mapping may stand there"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("hardware/systems/dgx-h100.yaml", "system"),
        ("hardware/devices/wse-2.yaml", "device"),
        ("hardware/links/ndr-400.yaml", "link"),
        ("workloads/models/gpt3_xl.yaml", "model"),
        ("workloads/recipes/chinchilla.yaml", "recipe"),
        ("studies/csx_scaling.yaml", "sweep"),
        ("csx_scaling", "sweep"),
        ("pile_law", "comparison"),
        ("studies/gpt3_20b.yaml", "study"),
        ("studies/validation/weight_streaming.yaml", "cases"),
        ("studies/validation/convergence.yaml", "convergence"),
    ],
)
def test_the_kind_of_a_file_is_told_by_its_keys(perfsim: Run, repository: Path, name: str, kind: str) -> None:
    result = perfsim("check", repository / name if "/" in name else name)
    assert f": {kind}, no mistakes" in result.stdout, result.stderr
    if kind in ("study", "sweep", "comparison"):
        Path("mine.yaml").write_text(f"extends: {Path(name).stem}\ntitle: mine\n", "utf-8")
        assert f"mine.yaml: {kind}, no mistakes" in perfsim("check", "mine.yaml").stdout


def test_a_scale_of_a_cluster_is_a_calibration_though_it_lists_cases(perfsim: Run, tmp_path: Path) -> None:
    step = "{id: a, measured_s: 2 s, predicted_s: 1 s, residual: 0.0}"
    steps = f"cases: [{step}, {step}]"
    (tmp_path / "ours.yaml").write_text(f"name: ours\nkind: cluster\ndevice: x100\nscale: 2.0\n{steps}\n")
    result = perfsim("check", tmp_path / "ours.yaml")
    assert "ours.yaml: calibration, no mistakes" in " ".join(result.stdout.split()), result.stderr


def test_a_term_is_explained_in_the_words_of_the_glossary(perfsim: Run) -> None:
    assert "model FLOPs of a step" in perfsim("explain", "mfu").stdout
    assert "twice the minimum" in " ".join(perfsim("explain", "critical", "batch").stdout.split())
    assert "time to accuracy" in " ".join(perfsim("explain").stdout.split())
    assert perfsim("explain", "frobnication").exit_code == 2


def test_every_word_of_a_layout_and_of_an_answer_is_explained(perfsim: Run) -> None:
    words = {axis.short for axis in AXES.values() if axis.short} | SCHEDULES.keys() | STRATEGIES.keys()
    words |= {"MFU", "HFU", "MoE", "FSDP", "HSDP", "bubble", "band"}
    words |= {"SwarmX", "MemoryX", "CS-2", "DGX", "NVL72"}
    assert {word for word in words if perfsim("explain", word).exit_code} == set()


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("perfsim exp", ["explain", "explorer"]),
        ("perfsim run --model gpt3_20", ["gpt3_20b"]),
        ("perfsim study whole", ["whole_run_20b"]),
        ("perfsim run --layout tp=8,schedule=zb1", ["zb1p"]),
        ("perfsim run --layout tp=8,sch", ["8,schedule="]),
        ("perfsim why --system cs-2-p", ["cs-2-peak"]),
    ],
)
def test_each_shell_has_a_script_and_bash_completes(perfsim: Run, line: str, completed: list[str]) -> None:
    """As readline calls the function; it inserts behind the last `=`, where a word begins for it."""
    for shell in ("bash", "zsh", "fish"):
        script = perfsim("completion", shell).stdout
        assert "_PERFSIM_COMPLETE" in script
        Path(f"complete.{shell}").write_text(script, "utf-8")
    Path("bin").mkdir()
    command = Path("bin/perfsim")
    code = "import perfsim.cli as c; c.main(prog_name='perfsim')"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}"\n')
    command.chmod(0o755)
    script = f"""
        compopt() {{ :; }}
        . ./complete.bash
        COMP_WORDBREAKS=$' =:' COMP_LINE='{line}' COMP_POINT={len(line)}
        _perfsim_completion perfsim
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    variables = {**os.environ, "PATH": f"{command.parent.resolve()}{os.pathsep}{os.environ['PATH']}"}
    done = run(["bash", "-c", script], capture_output=True, text=True, check=True, env=variables)
    assert done.stdout.split() == completed, done.stderr


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_has_a_help_that_is_not_cut_and_an_example(perfsim: Run, verb: object) -> None:
    name = getattr(verb, "name", "")
    assert f"perfsim {name}" in perfsim(name, "--help").stdout.partition("Options")[2]
    assert name in perfsim("--help").stdout.split()
    assert "..." not in perfsim("--help").stdout.partition("Commands:")[2]


def test_a_dry_run_of_a_study_says_what_would_be_computed(perfsim: Run) -> None:
    result = perfsim("study", "gpt3_20b", "--dry-run", "--compare", "3d")
    assert "on 1 candidate," in result.stdout
    assert "128 A100-80GB (16 DGX), 3d" in result.stdout
    document = json.loads(perfsim("study", "gpt3_20b", "--dry-run", "--compare", "3d", "--json").stdout)
    assert document == {"study": "gpt3_20b", "candidates": ["128 A100-80GB (16 DGX), 3d"]}
    other = perfsim("study", "gpt3_20b", "--dry-run", "--compare", "zero3")
    assert "128 A100-80GB (16 DGX), zero3" in other.stdout, "as the study itself takes it"
    assert not Path("reports").exists()
    Path("right.yaml").write_text("extends: gpt3_20b\nbatch_sizes: 16\n", "utf-8")
    assert "each with 1 batch" in perfsim("study", "right.yaml", "--dry-run").stdout, "16 without brackets"
    fixed = perfsim("study", "gpt3_20b", "--dry-run", "--set", "recipe.global_batch_size=64")
    assert "each with 1 batch" in fixed.stdout, "the recipe's"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


LINES = ["name  value", "-----------", " a        1", "*b        2", "serious: it is far", "Report: a.html"]


def test_colour_changes_no_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(LINES)
    plain = capsys.readouterr().out
    assert plain == "\n".join(LINES) + "\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_lines(LINES)
    coloured = capsys.readouterr().out
    assert coloured != plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    print_lines(LINES)
    assert capsys.readouterr().out == plain
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.delenv("NO_COLOR")
    for kind, shown in (("xterm-256color", coloured), ("dumb", plain)):
        monkeypatch.setenv("TERM", kind)
        monkeypatch.setattr("sys.stdout", screen := Terminal())
        print_lines(LINES)
        assert screen.getvalue() == shown


@pytest.mark.parametrize(
    ("stream", "encoding", "given", "written"),
    [
        (
            "stdout",
            "ascii",
            "3.1 \N{MULTIPLICATION SIGN} (2.9\N{EN DASH}3.4), café ≤ 5",
            "3.1 x (2.9-3.4), cafe <= 5",
        ),
        ("stdout", "ascii", "5 µs", "5 us"),
        ("stdout", "utf-8", "3.1 \N{MULTIPLICATION SIGN}", "3.1 \N{MULTIPLICATION SIGN}"),
        ("stdout", "utf-8", "a\x1b[31mb\x07", "a[31mb"),
        ("stderr", "ascii", "tensor 3 × pipeline 1 → 5", "tensor 3 x pipeline 1 -> 5"),
    ],
)
def test_text_for_a_terminal_without_utf8_keeps_its_meaning(
    monkeypatch: pytest.MonkeyPatch, stream: str, encoding: str, given: str, written: str
) -> None:
    screen = io.BytesIO()
    monkeypatch.setattr(f"sys.{stream}", io.TextIOWrapper(screen, encoding, write_through=True))
    if stream == "stdout":
        print_lines([given])
    else:
        write_error(f"{given}\n")
    assert screen.getvalue().decode(encoding) == f"{written}\n"


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal behind stderr, drawn on at once whenever there is a bar."""
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(output, "SECONDS_BETWEEN_DRAWINGS", 0.0)
    return screen


def test_one_bar_shows_what_takes_long_and_goes_before_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    monkeypatch.setattr(output, "SECONDS_BEFORE_A_BAR", 0.0)
    with metered() as meter:
        meter.tasks(10, 100)
        meter.tell("3 of 26 points, about 10 s left")
        print_lines(LINES)
        assert meter.bar is None
        meter.tell("4 of 26 candidates: 3d on 8 A100-80GB")
        assert meter.bar is not None
    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    for words in ("10/100", "3/26", "3d on 8 A100-80GB"):
        assert words in drawn
    assert meter.bar is None


def test_nothing_is_drawn_early_in_a_pipe_or_when_asked_to_be_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    with metered() as meter:
        meter.tell("1 of 2 points")
        monkeypatch.setattr(output, "SECONDS_BEFORE_A_BAR", 0.0)
        meter.quiet = True
        meter.tell("1 of 2 points")
        meter.quiet = False
        monkeypatch.setattr("sys.stderr", io.StringIO())
        meter.tell("1 of 2 points")
    assert screen.getvalue() == ""
