"""Every verb that reads a file, on thousands of files that are wrong.

A verb may answer, or end with a message and an exit code of its own. It must not end in a traceback, take
over 20 s, answer with numbers that are none, or refuse a file without saying where. A slice runs with the
slow tests; with PERFSIM_FUZZ=FILE (`make fuzz`) all inputs run, and FILE gets a table.
"""

import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result

from perfsim.base.errors import PerfsimError
from perfsim.catalog import data_root
from perfsim.cli import main
from perfsim.interop.formats import import_file

SEED = 16
SLICE = 1_000
ALL = 20_000
MOST_SECONDS = 20.0
CODES = (0, 1, 2, 3, 4)
PAGE = """\
# Robustness

Made by `make fuzz`: every verb that reads a file, on mutations of every file of the catalogue, of files of
the other kinds and of samples of every format of `perfsim import`, and with each of their numbers replaced by
{numbers}.
A defect is a traceback, an unknown exit code, over 20 s, control characters or numbers that are none in the
output, the refusal of a file without a line, or of one that `perfsim check` accepts.

| inputs | number | answered | failed | refused | no plan | limit | check disagrees | slowest | defects |
|---|---|---|---|---|---|---|---|---|---|
{rows}

{whole} refusals are of a file, or of a question, as a whole and name no line:{kinds}.

{defects}
"""
_WHOLE = re.compile(
    r"cannot be read|no hardware has the constants|strategies on GPUs price models"
    r"|experts are not executed with|names no framework"
)


WRONG_NUMBERS = ("inf", "nan", "1e999", "1e300", "-1", "0")
NUMBERS = (*WRONG_NUMBERS, ".inf", "1e-300", "1e30", "0x" + "f" * 40)
VALUES = (
    *NUMBERS,
    *("''", "null", "true", "[]", "{}", "[1, 2]", "{a: 1}", "'12'", "1.5", "010", "2 s", "-5 GB/s", "1 GB"),
    *("../../x", r'"\0"', r'"\e[31m"', r'"\u202e"', "x" * 3000, "<script>"),
    *("&a 1", "*a", "!!int 3", "12:30:00"),
)
KEYS = ("x", "kind", "extends", "name", "<<", "1", "null", r'"\e"', "a" * 3000)
_SCALAR = re.compile(r"(?<=[:\[,-] )[^\[\]{},\n#]+|(?<=\[)[^\[\]{},\n#]+")
_NUMBER = re.compile(r"(?<=[ \[])-?\d[\d.e+-]*(?![\w-])")
_KEY = re.compile(r"[A-Za-z_][A-Za-z_.0-9]*(?=:)")
Job = tuple[str, str, bytes]
"""What a file is known by, its text, and what is read in its place."""


def _mutated(text: str, rng: random.Random) -> bytes:
    """The text with one to three changes, as bytes, of which in one of twenty a bit is wrong."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        text = rng.choice(_MUTATIONS)(text, rng)
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    if rng.random() < 0.05 and data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _replaced(pattern: re.Pattern[str], others: Sequence[str], text: str, rng: random.Random) -> str:
    """The text with one match of the pattern replaced by one of the others."""
    new = rng.choice(others)
    spans = [match.span() for match in pattern.finditer(text)]
    if not spans:
        return text
    start, end = rng.choice(spans)
    return text[:start] + new + text[end:]


_value = partial(_replaced, _SCALAR, VALUES)
_number = partial(_replaced, _NUMBER, NUMBERS)
_key = partial(_replaced, _KEY, KEYS)


def _line(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    number = rng.randrange(len(lines))
    other = rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            del lines[number]
        case 1:
            lines.insert(other, lines[number])
        case 2:
            lines[number], lines[other] = lines[other], lines[number]
        case 3:
            lines[number] = rng.choice((" ", "  ", "\t")) + lines[number]
        case 4:
            lines[number] = lines[number].strip() + "\n"
        case _:
            end = rng.choice((" {", " [", " ]", ": x", " '", ' "', " |"))
            lines[number] = lines[number].rstrip("\n") + end + "\n"
    return "".join(lines)


def _cut(text: str, rng: random.Random) -> str:
    cut = rng.randrange(len(text) + 1)
    match rng.randrange(4):
        case 0:
            return text[:cut]
        case 1:
            return text[:cut] + rng.choice("\x00\x1b\u202e\ufeff{}[]:,'\"#&*!|>%@`\t\r\n") + text[cut:]
        case 2:
            return text[:cut] + text[cut + rng.randrange(1, 12) :]
        case _:
            crossed = text.replace("\n", "\r\n")
            return rng.choice((crossed, "\ufeff" + text, text + text, text + "---\n" + text))


_MUTATIONS = (_value, _value, _value, _number, _number, _key, _line, _line, _cut)


def mutations(texts: Mapping[str, str], count: int, seed: int) -> Iterator[Job]:
    """So many mutations, of each text in turn; the same seed gives the same."""
    for number, (name, text) in zip(range(count), cycle(texts.items()), strict=False):
        yield name, text, _mutated(text, random.Random(f"{seed} {number}"))


def numbers_replaced(texts: Mapping[str, str]) -> Iterator[Job]:
    """The texts with each number replaced by each of `WRONG_NUMBERS`."""
    for name, text in texts.items():
        for match in _NUMBER.finditer(text):
            for number in WRONG_NUMBERS:
                yield name, text, f"{text[: match.start()]}{number}{text[match.end() :]}".encode()


class Outcome(NamedTuple):
    """What a verb made of an input."""

    target: str
    code: int
    seconds: float
    wrong: str = ""
    """What it must not do; empty where all is well."""
    whole: str = ""
    """The refusal of a file as a whole, which has no line."""


STEP = ("--batch", "16", "--json", "--max-seconds", "15")
WAFER = ("run", "--devices", "1", *STEP)
GPUS = ("run", "--devices", "8", "--layout", "tp=2,pp=2,dp=2,mbs=1", *STEP)
XL = ("--model", "gpt3_xl")
A100 = ("--system", "dgx-a100-80gb")


def targets() -> dict[str, str]:
    """The text of every file that a verb reads, by its name behind what `arguments_of` goes by."""
    root = data_root()
    paths = [(kind, path) for kind in FOLDERS for path in files(root / kind)]
    models = files(root / "workloads/models", "*.yaml")[::4]
    paths += [(verb, path) for path in models for verb in ("plan", "prove")]
    paths += [(verb, path) for verb, (pattern, _) in VERBS.items() for path in files(HERE, pattern)]
    return {f"{kind}/{path.name}": path.read_text("utf-8") for kind, path in paths}


def files(folder: Path, pattern: str = "*.*") -> list[Path]:
    return sorted(folder.glob(pattern)) if pattern else []


FOLDERS = (
    *("hardware/calibrations", "hardware/devices", "hardware/links", "hardware/systems"),
    *("hardware/wall_clocks", "studies", "workloads/models", "workloads/recipes", "workloads/runtimes"),
)


def arguments_of(target: str, text: str) -> tuple[Sequence[str], str]:
    """The arguments of the verb for a file, INPUT, and the text of another file, OTHER, that names it."""
    folder, _, file = target.rpartition("/")
    name = file.partition(".")[0]
    other = (*XL, "--system", "OTHER")
    match folder:
        case "hardware/devices":
            if name.startswith("wse"):
                return (*WAFER, *other), "extends: cs-2\ndevice: INPUT\n"
            base = "dgx-h100" if "h100" in name else "dgx-a100-80gb"
            return (*GPUS, *other), f"extends: {base}\ndevice: INPUT\n"
        case "hardware/links":
            kind = "scale_up" if name.startswith("nvlink") else "nic"
            return (*GPUS, *other), f"extends: dgx-a100-80gb\nnode: {{{kind}: INPUT}}\n"
        case "hardware/calibrations" if "kind: framework" in text:
            recipe = ("--recipe", "OTHER")
            return (*GPUS, *XL, *A100, *recipe), "extends: gpt3_pretraining\nframework: INPUT\n"
        case "hardware/calibrations" if "kind: wafer" in text:
            return (*WAFER, *other), "extends: cs-2\ndevice: {extends: wse-2, calibration: INPUT}\n"
        case "hardware/calibrations":
            named = "node: {scale_up: {extends: nvlink3, calibration: INPUT}}"
            if re.search("kind: gpu|extends: a100", text):
                named = "device: {extends: a100-sxm4-80gb, calibration: INPUT}"
            return (*GPUS, *other), f"extends: dgx-a100-80gb\n{named}\n"
        case "hardware/systems":
            step = GPUS if "kind: gpu-cluster" in text or "extends: dgx" in text else WAFER
            return (*step, *XL, "--system", "INPUT"), ""
        case "hardware/wall_clocks":
            machine = "3d, system: dgx-a100-80gb, devices: [8]"
            if re.search("system_kind: wafer|extends: cs-", text):
                machine = "weight-streaming, system: cs-2, devices: [1]"
            study = (
                "title: t\nquestion: q\nmodel: gpt3_xl\nrecipe: gpt3_20b_chinchilla\nbatch_sizes: [16]\n"
                f"sampling: {{tasks: 0}}\ncandidates: [{{strategy: {machine}, wall_clock: INPUT}}]\n"
            )
            return ("study", "OTHER", *OUT, "--max-seconds", "15"), study
        case "studies" if "grid:" in text or "variants:" in text:
            return ("sweep", "INPUT", "--dry-run", *OUT, "--max-seconds", "15"), ""
        case "studies":
            return ("study", "INPUT", *OUT, *SHORT), ""
    return VERBS[folder][1], ""


KINDS = {
    "hardware/devices": "device",
    "hardware/links": "link",
    "hardware/systems": "system",
    "hardware/wall_clocks": "wall_clock",
    **dict.fromkeys(("workloads/models", "plan", "prove"), "model"),
    "workloads/recipes": "recipe",
    "workloads/runtimes": "runtime",
    **dict.fromkeys(("validate", "calibrate-framework", "calibrate-wafer"), "cases"),
    "calibrate-steps": "measured",
    **dict.fromkeys(("studies", "study", "why", "diff"), "study"),
    "sweep": "sweep",
}
ACCEPTS = "check accepts it"
_ASKED = re.compile(r"times as long as predicted|names no framework|no log of a wafer|cannot determine")
"""What is refused for what is asked of it: no reading of the file alone tells."""


def kind_of(target: str, text: str) -> str:
    """The kind of a file as `check` calls it; empty for a file of another tool."""
    folder = target.rpartition("/")[0]
    if folder == "hardware/calibrations":
        return "framework" if "kind: framework" in text else "calibration"
    kind = KINDS.get(folder, "") if target.endswith(".yaml") else ""
    keys = {"sweep": r"grid|variants", "comparison": r"losses|speeds|equations"} if kind == "study" else {}
    keys |= {"convergence": r" +points"} if kind == "cases" else {}
    return next((other for other, key in keys.items() if re.search(rf"(?m)^({key}):", text)), kind)


HERE = Path(__file__).parent
SAMPLES = "../samples/foreign/"
LLAMA = str(HERE / SAMPLES / "llama31_8b_config.json")
SUMMARY = str(HERE / "files/answer_summary.json")
SHORT = ("--max-events", "1", "--max-seconds", "1")
OUT = ("--out", "INPUT.out")
PROOF = ("--layout", "tp=2,sp=true", "--devices", "2", "--batch", "2", "--orders", "0", "--json")
VERBS: dict[str, tuple[str, Sequence[str]]] = {
    "plan": ("", ("plan", "--model", "INPUT", *A100, "--devices", "8", *STEP)),
    "prove": ("", ("prove", "INPUT", *PROOF, "--max-seconds", "15")),
    "workloads/models": ("", (*WAFER, "--model", "INPUT", "--system", "cs-2")),
    "workloads/runtimes": ("", (*GPUS, *XL, *A100, "--runtime", "INPUT")),
    "workloads/recipes": ("", (*WAFER, *XL, "--system", "cs-2", "--recipe", "INPUT")),
    "validate": ("files/*_cases.yaml", ("validate", "INPUT", "--json", "--max-seconds", "15")),
    "calibrate-framework": ("files/step_cases.yaml", ("calibrate", "framework", "INPUT")),
    "calibrate-wafer": ("files/step_cases.yaml", ("calibrate", "wafer", "INPUT")),
    "calibrate-steps": ("files/measured_steps.yaml", ("calibrate", "steps", "INPUT")),
    "calibrate-log": (SAMPLES + "megatron_small.log", ("calibrate", "steps", "INPUT", *A100)),
    "calibrate-gemm": ("files/gemm_table.csv", ("calibrate", "gemm", "INPUT", "--device", "a100-sxm4-80gb")),
    "calibrate-collective": (
        "files/collective_table.csv",
        ("calibrate", "collective", "INPUT", "--link", "nvlink3"),
    ),
    "calibrate-convergence": ("files/convergence_*", ("calibrate", "convergence", "INPUT")),
    "calibrate-mllog": (SAMPLES + "mlperf_*.txt", ("calibrate", "convergence", "INPUT")),
    "why": ("files/disturbed_study.yaml", ("why", "INPUT", "--json", *SHORT)),
    "why-answer": ("files/answer_summary.json", ("why", "INPUT", *SHORT)),
    "diff": ("files/disturbed_study.yaml", ("diff", "gpt3_20b", "INPUT", *SHORT)),
    "diff-answer": ("files/answer_summary.json", ("diff", SUMMARY, "INPUT")),
    "import": (SAMPLES + "*.*", ("import", "INPUT", "--json")),
    "import-beside": (SAMPLES + "zero*.json", ("import", "INPUT", "--model", LLAMA, "--json")),
    "import-measured": (SAMPLES + "megatron_*.log", ("import", "INPUT", *A100)),
    "run-foreign": (SAMPLES + "*[blB].[ys]*", (*WAFER, "--model", "INPUT", "--system", "cs-2")),
    "study": ("files/*_study.yaml", ("study", "INPUT", *OUT, *SHORT)),
    "sweep": ("files/*_sweep.yaml", ("sweep", "INPUT", "--dry-run", *OUT, "--max-seconds", "15")),
}
"""By verb: the files, and its arguments; without a pattern `targets` has the files."""


def judged(job: Job) -> Outcome:
    """Run the verb on the input in a folder of its own, and say what is wrong with what it did."""
    target, text, data = job
    arguments, text_of_other = arguments_of(target, text)
    suffix = Path(target).suffix
    with TemporaryDirectory() as folder:  # the catalogue reads a path only once
        path = Path(folder) / f"input{suffix}"
        other = Path(folder) / "other.yaml"
        path.write_bytes(data)
        other.write_text(text_of_other.replace("INPUT", str(path)), encoding="utf-8")
        began_s = time.monotonic()
        command = [part.replace("INPUT", str(path)).replace("OTHER", str(other)) for part in arguments]
        result = CliRunner().invoke(main, command)
        seconds = time.monotonic() - began_s
        kind = kind_of(target, text)
        checked = CliRunner().invoke(main, ["check", str(path), "--kind", kind]) if kind else result
    wrong = _wrong(result) or _wrong(checked)
    if not wrong and (checked.exit_code, result.exit_code) in ((0, 1), (0, 2)):
        told = kind == "convergence" or _ASKED.search(result.stderr)
        wrong = "" if told else f"{ACCEPTS}: {result.stderr[-300:]}"
    if not wrong and seconds > MOST_SECONDS:
        wrong = f"took {seconds:.0f} s"
    whole = ""
    placed = rf"\w+\{suffix}:\d+|\w+\.(yaml|csv|json):\d+"
    if not wrong and result.exit_code == 2 and not re.search(placed, result.stderr):
        words = _WHOLE.search(result.stderr)
        whole, wrong = (words[0], "") if words else ("", f"no place: {result.stderr[:300]}")
    return Outcome(target, result.exit_code, seconds, wrong, whole)


def _wrong(result: Result) -> str:
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        return f"{type(error).__name__}: {str(error)[:200]}"
    if result.exit_code not in CODES:
        return f"exit code {result.exit_code}"
    if "Traceback" in result.stderr or {"\x1b", "\x00"} & {*result.stdout, *result.stderr}:
        return "a traceback or control characters are printed"
    constants: list[str] = []
    if result.exit_code == 0 and result.stdout.startswith("{"):
        try:
            json.loads(result.stdout, parse_constant=constants.append)
        except ValueError as loose:
            return f"no strict JSON: {loose}"
    return f"no strict JSON: {constants} in the answer" if constants else ""


def all_judged(jobs: Iterable[Job]) -> list[Outcome]:
    """The outcomes of all jobs, on every core."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
        return list(pool.map(judged, jobs, chunksize=20))


def table(outcomes: Sequence[Outcome], numbers: Sequence[Outcome]) -> str:
    """The page of `make fuzz`."""
    rows = []
    for name, group in (("mutations of files", outcomes), ("numbers replaced", numbers)):
        codes = Counter(outcome.code for outcome in group)
        counts = " | ".join(f"{codes[code]:,}" for code in CODES)
        slowest = max((outcome.seconds for outcome in group), default=0.0)
        wrong = sum(bool(outcome.wrong) for outcome in group)
        disagrees = sum(outcome.wrong.startswith(ACCEPTS) for outcome in group)
        rows.append(f"| {name} | {len(group):,} | {counts} | {disagrees} | {slowest:.1f} s | {wrong} |")
    both = (*outcomes, *numbers)
    defects = {f"- `{outcome.target}`: {outcome.wrong}" for outcome in both if outcome.wrong}
    kinds = Counter(outcome.whole for outcome in both if outcome.whole)
    text = PAGE.format(
        numbers=", ".join(WRONG_NUMBERS),
        rows="\n".join(rows),
        whole=f"{kinds.total():,}",
        kinds=",".join(f' "{words}" {count:,}' for words, count in kinds.most_common()),
        defects="\n".join(sorted(defects)),
    )
    return text.rstrip() + "\n"


@pytest.mark.slow
def test_no_file_ends_a_verb_in_anything_but_an_answer_or_words_with_a_place() -> None:
    page = os.environ.get("PERFSIM_FUZZ")
    texts = targets()
    outcomes = all_judged(mutations(texts, ALL if page else SLICE, SEED))
    numbers = all_judged(islice(numbers_replaced(texts), 0 if page else 39, None, 1 if page else 40))
    if page:
        Path(page).write_text(table(outcomes, numbers), encoding="utf-8")
    assert [outcome for outcome in (*outcomes, *numbers) if outcome.wrong] == []
    assert {0, 2} <= {outcome.code for outcome in outcomes}


@pytest.mark.parametrize("sample", files(HERE / SAMPLES, "*"), ids=lambda sample: sample.name)
def test_damage_ends_in_an_answer_or_a_refusal_that_names_the_file(tmp_path: Path, sample: Path) -> None:
    path = tmp_path / sample.name
    for _, _, data in mutations({sample.name: sample.read_text("utf-8")}, 40, 1):
        path.write_bytes(data)
        try:
            json.dumps(import_file(path).as_dict(), allow_nan=False)
        except PerfsimError as error:
            assert sample.name in str(error)  # noqa: PT017
