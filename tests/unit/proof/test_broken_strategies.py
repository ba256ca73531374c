"""A strategy that is broken anywhere ends in a fault with its task and tensor, never in a traceback."""

import inspect
import json
import sys
import textwrap
from typing import Any

import pytest
from click.testing import CliRunner

from perfsim.cli import main
from perfsim.strategies.streaming import passes
from perfsim.strategies.streaming.passes import _PassRecorder
from perfsim.strategies.three_d.emission import StepWriter
from perfsim.strategies.three_d.pipeline import StagePass

BROKEN = {
    "a broadcast that reads nothing": (
        (_PassRecorder, "_stream", "lane, [load]", "lane, reads"),
        ("--strategy", "weight-streaming", "--layout", "dp=2"),
        ("embedding.broadcast", "in step 1"),
    ),
    "a reduction of the next layer": (
        (StagePass, "_reduce", "stage.first_layer + layer", "stage.first_layer + layer + 1"),
        ("--layout", "tp=2,pp=2,dp=2"),
        ("data.all_reduce", "layer"),
    ),
    "a step that reads what no pass writes": (
        (StepWriter, "_reduce", "num_microbatches - 1", "num_microbatches - 2"),
        ("--layout", "tp=2,pp=2,dp=2"),
        ("writes no output 'reduced0'", "its template writes weight_gradients"),
    ),
    "an error of the strategy's own": (
        (StepWriter, "_update", "norm = ", "norm = gradients[9] or "),
        ("--layout", "dp=2"),
        ("perfsim.strategies.three_d.", "IndexError: list index"),
    ),
}
"""A line of a method as one who breaks it would write it, the layout to prove, and what its fault names."""


@pytest.mark.parametrize(("edit", "arguments", "named"), BROKEN.values(), ids=list(BROKEN))
def test_what_is_broken_is_named_with_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, edit: tuple[Any, ...], arguments: tuple[str, ...], named: tuple[str, ...]
) -> None:
    owner, name, old, new = edit
    source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    assert source.count(old) == 1, source
    scope = dict(vars(sys.modules[owner.__module__]))
    exec("from __future__ import annotations\n" + source.replace(old, new), scope)  # noqa: S102
    monkeypatch.setattr(owner, name, scope[name])
    monkeypatch.setattr(passes, "_recorded", passes._recorded.__wrapped__)  # else others see what is broken
    prove = ["prove", "gpt3_20b", "--orders", "1", *arguments]
    for form in ((), ("--json",)):
        run = CliRunner().invoke(main, [*prove, *form])
        assert run.exit_code == 1, run.output
        assert isinstance(run.exception, SystemExit)
    answer = json.loads(run.stdout)
    assert answer["passed"] is False
    ((layout,),) = (of["layouts"] for of in answer["strategies"].values())
    assert (layout["max_relative_error"] is None) is (owner is not StagePass), "that one can be executed"
    for part in named:
        assert part in layout["faults"][0]
