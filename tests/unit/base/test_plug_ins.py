"""Plug-ins that cannot be used: one line that names the entry point, and no other verb is affected."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from perfsim.base.errors import blamed, check_own
from perfsim.base.units import format_quantity
from perfsim.cli import main
from perfsim.specs.hardware import _plugin_classes

Install = Callable[..., None]

STEP = "run --model gpt3_xl --devices 1 --system"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package `mine` with this code, whose entry point `mine` is `mine:Mine` of this group."""

    def install(group: str, code: str, name: str = "mine") -> None:
        (tmp_path / "mine.py").write_text(code, encoding="utf-8")
        info = tmp_path / "mine-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[perfsim.{group}]\n{name} = mine:Mine\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        forget()

    def forget() -> None:
        _plugin_classes.cache_clear()
        check_own.cache_clear()

    yield install
    sys.modules.pop("mine", None)
    forget()


def perfsim(line: str) -> Result:
    return CliRunner().invoke(main, line.split())


UNUSABLE = {
    "cannot be imported": ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
    "is no class": ("Mine = 7", "TypeError: 'int' object is not callable"),
    "raises": ("def Mine(): raise ValueError('two\\nlines')", "ValueError: two lines"),
    "ends the process": ("raise SystemExit(0)", "SystemExit: 0"),
    "is not there": ("Other = 1", "AttributeError: "),
}


@pytest.mark.parametrize("code", UNUSABLE)
def test_a_strategy_that_cannot_be_used_is_one_line_and_only_its_own(install: Install, code: str) -> None:
    install("strategies", UNUSABLE[code][0])
    refused = perfsim(f"{STEP} cs-2 --strategy mine")
    assert refused.exit_code == 1
    said = rf"\(mine:Mine\) cannot be used: {re.escape(UNUSABLE[code][1])}"
    assert re.fullmatch(rf"error: the plug-in 'mine' .*{said}.*\n", refused.stderr)
    assert perfsim(f"{STEP} cs-2").exit_code == 0
    listed = perfsim("show strategies")
    assert listed.exit_code == 0
    assert "weight-streaming" in listed.stdout
    assert "cannot be used" in " ".join(listed.stdout.split())


@pytest.mark.parametrize("code", UNUSABLE)
def test_an_unusable_machine_is_refused_at_its_system(install: Install, tmp_path: Path, code: str) -> None:
    # The class of systems is all that reading asks of a machine, and a function or a number has none.
    install("machines", UNUSABLE[code][0])
    assert perfsim(f"{STEP} cs-2").exit_code == 0
    assert perfsim("show systems").exit_code == 0
    system = tmp_path / "system.yaml"
    system.write_text("kind: mine\ndevice: wse-2\n", encoding="utf-8")
    refused = perfsim(f"{STEP} {system}")
    assert refused.exit_code == 2
    assert re.search(r"system\.yaml:1:1: .*the plug-in 'mine' of perfsim\.machines", refused.stderr)


FAILING = """
from perfsim.strategies.streaming.strategy import WeightStreaming

class Mine(WeightStreaming):
    def {method}:
        {body}
"""
SCREEN = "screen(self, job, topology, costs)"
ESTIMATE = "estimate_s(self, plan, duration)"
FAILED = "the plug-in 'mine' of .* failed: "


@pytest.mark.parametrize(
    ("method", "body", "message"),
    [
        (SCREEN, "raise KeyError('x')", f"{FAILED}KeyError: 'x'"),
        (SCREEN, "raise SystemExit(0)", f"{FAILED}SystemExit: 0"),
        (SCREEN, "return 7 .nothing", f"{FAILED}AttributeError"),
        (ESTIMATE, "return float('nan')", ".*estimates a step time of nan for dp=1"),
        (ESTIMATE, "return -1.0", ".*estimates a step time of -1 for dp=1"),
        (ESTIMATE, "return float('inf')", ".*estimates a step time of inf for dp=1"),
    ],
)
def test_bad_plans_of_a_strategy_are_one_line(install: Install, method: str, body: str, message: str) -> None:
    install("strategies", FAILING.format(method=method, body=body))
    refused = perfsim(f"{STEP} cs-2 --strategy mine")
    assert refused.exit_code == 1
    assert re.fullmatch(f"error: {message}.*\n", refused.stderr, re.DOTALL)


@pytest.mark.parametrize(
    ("room", "name"), [("strategies", "weight-streaming"), ("machines", "wafer-cluster")]
)
def test_a_plug_in_of_a_built_in_name_is_refused_with_both(install: Install, room: str, name: str) -> None:
    install(room, "class Mine: ...", name)
    refused = perfsim(f"{STEP} cs-2")
    assert refused.exit_code == 2
    assert f"the plug-in '{name}' of perfsim.{room} (mine:Mine) and perfsim.{room} has" in refused.stderr


def test_a_strategy_without_part_of_the_protocol_is_refused_by_what_it_lacks(install: Install) -> None:
    known = "class Mine:\n    name = summary = 'mine'\n    system_kind = 'gpu-cluster'\n"
    install("strategies", f"{known}    layouts = plan = estimate_s = None\n")
    refused = perfsim(f"{STEP} cs-2 --strategy mine")
    assert "'mine' of perfsim.strategies (mine:Mine) has no screen, emit" in " ".join(refused.stderr.split())


def test_a_plug_in_is_not_blamed_for_what_others_raise(install: Install) -> None:
    install("strategies", "class Mine: ...")
    with pytest.raises(KeyError) as caught:
        format_quantity(1.0, "no dimension")
    assert blamed(caught.value) == ""
