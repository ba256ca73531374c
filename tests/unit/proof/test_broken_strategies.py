"""A strategy that is broken anywhere ends in a fault with its task and tensor, never in a traceback."""

from __future__ import annotations

import inspect
import json
import sys
import textwrap
from typing import Any

import pytest
from click.testing import CliRunner

from perfsim.cli import main
from perfsim.strategies.streaming.passes import _PassRecorder
from perfsim.strategies.three_d.emission import StepWriter
from perfsim.strategies.three_d.pipeline import StagePass

MODEL = "gpt3_20b"


def edit(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """Change the source of a method, as one who breaks it would."""
    source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    assert source.count(old) == 1, source
    scope = dict(vars(sys.modules[owner.__module__]))
    exec("from __future__ import annotations\n" + source.replace(old, new), scope)  # noqa: S102
    monkeypatch.setattr(owner, name, scope[name])


def proof(*arguments: str) -> tuple[dict[str, Any], str]:
    """The only layout's document, and the text of its first fault; the exit code is 1 in both forms."""
    text = CliRunner().invoke(main, ["prove", MODEL, "--orders", "1", *arguments])
    assert text.exit_code == 1, text.output
    assert isinstance(text.exception, SystemExit)
    run = CliRunner().invoke(main, ["prove", MODEL, "--orders", "1", "--json", *arguments])
    assert run.exit_code == 1
    answer = json.loads(run.stdout)
    assert answer["passed"] is False
    (of,) = answer["strategies"].values()
    (layout,) = of["layouts"]
    return layout, layout["faults"][0]


def test_a_broadcast_that_reads_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    edit(monkeypatch, _PassRecorder, "_stream", "lane, [load]", "lane, reads")
    layout, fault = proof("--strategy", "weight-streaming", "--layout", "dp=2")
    assert "embedding.broadcast" in fault
    assert "in step 1" in fault
    assert layout["max_relative_error"] is None


def test_a_reduction_of_the_next_layer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    edit(monkeypatch, StagePass, "_reduce", "stage.first_layer + layer", "stage.first_layer + layer + 1")
    _, fault = proof("--layout", "tp=2,pp=2,dp=2")
    assert "data.all_reduce" in fault
    assert "layer" in fault


def test_a_step_that_reads_what_no_pass_writes_names_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    edit(monkeypatch, StepWriter, "_reduce", "num_microbatches - 1", "num_microbatches - 2")
    _, fault = proof("--layout", "tp=2,pp=2,dp=2")
    assert "writes no output 'reduced0'" in fault
    assert "its template writes" in fault


def test_an_error_of_the_strategys_own_names_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    edit(monkeypatch, StepWriter, "_update", "norm = ", "norm = gradients[9] or ")
    _, fault = proof("--layout", "dp=2")
    assert "perfsim.strategies.three_d." in fault
    assert "IndexError: list index" in fault
