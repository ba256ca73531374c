"""What every verb prints fits terminals of 60 to 200 columns, with and without colour, and cuts no name."""

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfsim.api.answers import StudyAnswer, SweepAnswer
from perfsim.cli import VERBS, main

WIDTHS = (60, 80, 120, 200)
SHELLS = ("bash", "zsh", "fish")
COPIED = ("1 in full: --layout", "Report: ", "Trace: ", "    perfsim ", *(f"    {name}: " for name in SHELLS))
"""Lines that are copied as a whole, such as the place of a file, or an example."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
SYSTEM = ("--system", "dgx-a100-80gb")
POINT = ("--model", "gpt3_xl", *SYSTEM, "--devices", "8", "--batch", "16")
ANSWERS = {
    "calibrate": ("calibrate", "--help"),
    "check": ("check", "study.yaml"),
    "completion": ("completion", "--help"),
    "diff": ("diff", "reports/small/summary.json", "reports/small/summary.json"),
    "explain": ("explain",),
    "explorer": ("explorer", "sweep.yaml", "--jobs", "1"),
    "import": ("import", "--help"),
    "init": ("init", "a_study_with_a_long_name.yaml"),
    "plan": ("plan", *SYSTEM, "--model", "gpt3_20b", "--devices", "64", "--batch", "64", "--shown", "4"),
    "prove": ("prove", "gpt3_xl", "--layout", "dp=2"),
    "run": ("run", *POINT),
    "schema": ("schema", "--help"),
    "show": ("show", "systems", "dgx-h100"),
    "solve": ("solve", "study.yaml", "--find", "devices", "--such-that", "days <= 3000"),
    "study": ("study", "study.yaml"),
    "sweep": ("sweep", "sweep.yaml", "--jobs", "1"),
    "validate": ("validate", "--help"),
    "why": ("why", "--measured", "5s", *POINT),
}
"""A quick answer of each verb; what it needs is made by those before it in the order of `VERBS`."""
COMPUTED_ONCE = (
    ("perfsim.api.answers", "study"),
    ("perfsim.api.answers", "sweep"),
    ("perfsim.api.answers", "solve"),
    ("perfsim.api.questions", "predict"),
    ("perfsim.api.planning", "plan"),
    ("perfsim.api.tools", "why_measured"),
    ("perfsim.proof.prove", "prove_all"),
)
"""Functions whose first answer is drawn at every width."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with an answered study and sweep; no verb computes its answer twice."""
    path = tmp_path_factory.mktemp("widths")
    for name in ("study.yaml", "sweep.yaml"):
        text = (Path(__file__).parent / name).read_text("utf-8")
        (path / name).write_text(text.replace("devices: [4]", 'devices: 4, layout: "dp=4,mbs=1"'), "utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(path)
        for module, name in COMPUTED_ONCE:
            patched.setattr(f"{module}.{name}", _once(getattr(import_module(module), name)))
        for verb in ("study", "sweep"):
            assert CliRunner().invoke(main, [*ANSWERS[verb], "--quiet"]).exit_code == 0
        for kind in (StudyAnswer, SweepAnswer):
            patched.setattr(kind, "save", lambda _answer, folder: folder / "index.html")
        yield path


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, computed at its first call only."""
    answers: list[Any] = []

    def answered(*args: Any, **kwargs: Any) -> Any:
        if not answers:
            answers.append(function(*args, **kwargs))
        return answers[0]

    return answered


@pytest.fixture
def lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What a verb prints at a width, without its colours."""
    monkeypatch.chdir(folder)

    def printed(arguments: tuple[str, ...], width: int) -> list[str]:
        environment = {"COLUMNS": str(width), "FORCE_COLOR": "1", "NO_COLOR": None}
        help_width = min(width, 80) - 2  # as click chooses it on a terminal
        result = CliRunner().invoke(
            main, list(arguments), env=environment, prog_name="perfsim", terminal_width=help_width
        )
        assert result.exit_code == 0, result.output
        Path("a_study_with_a_long_name.yaml").unlink(missing_ok=True)
        return COLOUR.sub("", result.stdout).splitlines()

    return printed


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "arguments",
    sorted({("--help",), *((verb.name, "--help") for verb in VERBS), *ANSWERS.values()}),
    ids=" ".join,
)
def test_no_line_of_an_answer_or_of_a_help_is_wider_than_the_terminal(
    lines: Callable[..., list[str]], arguments: tuple[str, ...], width: int
) -> None:
    printed = [line for line in lines(arguments, width) if not line.startswith(COPIED)]
    assert max(map(len, printed)) <= width
    assert not [line for line in printed if re.search(r"\w[~\u2026]|[a-z0-9_]\.\.\.$", line)], "a name is cut"


@pytest.mark.parametrize("verb", ["show", "run", "plan", "why", "explain", "check"])
def test_a_narrow_terminal_shows_every_word_of_a_wide_one(lines: Callable[..., list[str]], verb: str) -> None:
    narrow = "".join(lines(ANSWERS[verb], 60)).replace(" ", "")
    wide = re.findall(r"[A-Za-z0-9_]{3,}", "\n".join(lines(ANSWERS[verb], 200)))
    assert not [name for name in wide if len(name) < 30 and not name.isdigit() and name not in narrow]


def test_every_verb_has_an_answer_here() -> None:
    assert set(ANSWERS) == {verb.name for verb in VERBS}
