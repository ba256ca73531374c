"""`perfsim run`: one step of one model on one system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfsim.cli.options import (
    VERIFY,
    batch_of,
    emit_option,
    json_option,
    layout_option,
    limits,
    path_option,
    question_options,
)
from perfsim.cli.output import print_json, print_lines
from perfsim.cli.verb import Verb

EXAMPLES = """\b
Examples:
  perfsim run --model gpt3_20b --system cs-2 --devices 4 --batch 512
  perfsim run --model llama2_70b --system dgx-h100 --devices 64 --layout tp=8,pp=4,dp=2,mbs=1
  perfsim run --model config.json --system dgx-h100 --devices 8 --trace step.json
"""


@click.command(cls=Verb, epilog=EXAMPLES)
@question_options
@layout_option("[default: chosen by the planner]")
@click.option(
    "--perturb",
    default="",
    metavar="straggler=1.3@rank5,jitter=0.02,seed=1",
    help="Perturb the step: slow ranks, jitter, dead=LINK, slow=0.5@LINK; or fail: mttf=8h with "
    "checkpoint=1h and restart=10min.",
)
@click.option(
    "--detail",
    type=click.Choice(["layer", "chunk"]),
    default="layer",
    show_default=True,
    help="Granularity in which wafers stream weights.",
)
@click.option(
    "--expand",
    default="",
    metavar="data.all_reduce=tree",
    help="Simulate collectives as the steps of a ring or a tree.",
)
@path_option(
    "--trace", "Write a Perfetto trace here; a name with .et gives Chakra traces, one file a class of ranks."
)
@click.option(
    "--verify",
    type=click.Choice(VERIFY),
    default="off",
    show_default=True,
    help="Execute matrix products of the step in NumPy: none, some, or every class.",
)
@emit_option
@json_option
@limits
def run(
    model: str,
    system: str,
    devices: int,
    strategy: str,
    layout: str,
    batch: int | None,
    batch_per_device: int | None,
    recipe: str | None,
    memory_limit: float,
    cluster: str,
    detail: Any,
    perturb: str,
    expand: str,
    trace: Path | None,
    verify: str,
    emit: str | None,
    as_json: bool,
) -> None:
    """Predict one step of one model on one system."""
    from perfsim.api.predicting import predict
    from perfsim.prediction.documents import run_document
    from perfsim.prediction.verification import must_be_right, verified
    from perfsim.report.terminal.run import run_lines

    prediction = predict(
        model=model,
        system=system,
        devices=devices,
        strategy=strategy,
        layout=layout,
        batch=batch_of(batch, batch_per_device, devices),
        recipe=recipe,
        memory_limit=memory_limit,
        cluster=cluster or None,
        perturb=perturb or None,
        detail=detail,
        expand=expand,
    )
    sampled = verified(prediction, verify)
    if trace is not None:
        prediction.trace.save(trace)
    emitted = {"emitted": prediction.emit(emit)} if emit else {}
    if as_json:
        sampling = {} if sampled is None else {"sampling": sampled}
        print_json(run_document(prediction) | sampling | emitted)
    elif emitted:
        print_lines(emitted["emitted"].splitlines())
    else:
        print_lines([*run_lines(prediction, sampled), *([f"Trace: {trace}"] if trace else [])])
    must_be_right([sampled] if sampled else [])
