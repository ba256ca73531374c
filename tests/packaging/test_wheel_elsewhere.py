"""A wheel in a new environment, far from any checkout, answers the main question."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

Run = Callable[..., Any]

MAIN_STUDY = ("study", "gpt3_20b", "--compare", "3d,weight-streaming", "--json")
ONE_GPU = ("--system", "mi300x-192gb", "--devices", "1", "--strategy", "3d")
EIGHT_GPUS = ("--system", "dgx-a100-80gb", "--devices", "8", "--strategy", "3d")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory, must_run: Run) -> Path:
    """The folder of the programs of an environment into which only the wheel was installed."""
    venv = tmp_path_factory.mktemp("installed")
    must_run(sys.executable, "-m", "venv", venv)
    must_run(venv / "bin" / "python", "-m", "pip", "install", "--quiet", wheel)
    return venv / "bin"


@pytest.fixture(scope="module")
def answer(installed: Path, must_run: Run) -> str:
    return must_run(installed / "perfsim", *MAIN_STUDY).stdout


def test_the_main_study_prints_one_json_with_every_key(answer: str, candidate_keys: frozenset[str]) -> None:
    document: dict[str, Any] = json.loads(answer)
    assert document["study"] == "gpt3_20b"
    machines = {(candidate["strategy"], candidate["num_devices"]) for candidate in document["candidates"]}
    assert machines == {("3d", 128), *(("weight-streaming", count) for count in (1, 4, 16))}
    assert document["report"]
    for candidate in document["candidates"]:
        assert set(candidate) >= candidate_keys
        low, high = candidate["time_to_accuracy_band_s"]
        assert 0 < low <= candidate["time_to_accuracy_s"] <= high
        assert candidate["step_time_s"] > 0
        assert 0 < candidate["mfu"] < 1


def test_a_plug_in_checks_its_strategy_by_a_wheel_without_pytest(installed: Path, must_run: Run) -> None:
    probe = (
        "from perfsim.strategies.three_d.strategy import ThreeD\n"
        "from perfsim.testing import check_strategy\n"
        "check_strategy(ThreeD('mine', ('data',), 'a strategy of another package'))\n"
    )
    must_run(installed / "python", "-c", probe)


def test_python_without_asserts_gives_the_same_bytes(answer: str, installed: Path, must_run: Run) -> None:
    assert must_run(installed / "python", "-O", "-m", "perfsim", *MAIN_STUDY).stdout == answer


@pytest.mark.parametrize(
    ("arguments", "code", "explanation"),
    [
        (["show", "systems"], 0, ""),
        (["run", "--model", "gpt3_xl", *EIGHT_GPUS, "--layout", "tp=3"], 2, "3"),
        (["study", "broken.yaml"], 2, "broken.yaml:"),
        (["run", "--model", "gpt3_175b", *ONE_GPU], 3, ""),
    ],
)
def test_every_end_has_its_exit_code_and_no_traceback(
    installed: Path, must_run: Run, tmp_path: Path, arguments: list[str], code: int, explanation: str
) -> None:
    (tmp_path / "broken.yaml").write_text("name: broken\nmodel: [gpt3_20b\n", "utf-8")
    done = must_run(installed / "perfsim", *arguments, cwd=tmp_path, code=code)
    assert "Traceback" not in done.stderr
    assert explanation in done.stderr
