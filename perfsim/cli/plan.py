"""`perfsim plan`: the layouts that may be the fastest, and what runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfsim.cli.options import (
    batch_of,
    emit_option,
    json_option,
    limits,
    out_option,
    question_options,
    scheduler_option,
)
from perfsim.cli.output import print_json, print_lines
from perfsim.cli.verb import Verb
from perfsim.files import check_folder

OBJECTIVES = ("step-time", "time-to-accuracy", "cost")
"""The values of `perfsim.studies.shortlist.Objective`, which is not loaded for a help text."""


EXAMPLES = """\b
Examples:
  perfsim plan --model gpt3_175b --system dgx-a100-80gb --devices 512 --batch 192
  perfsim plan --model gpt3_20b --system dgx-h100 --devices 64 --emit megatron
  perfsim plan --model gpt3_20b --system dgx-a100-80gb --devices 128 --match cs-2
"""


@click.command(
    cls=Verb, short_help="List the layouts that may be fastest; emit what runs one.", epilog=EXAMPLES
)
@question_options
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default=OBJECTIVES[0],
    show_default=True,
    help="time-to-accuracy: also the best batch, where none is given. cost: device-hours.",
)
@click.option(
    "--shown", type=click.IntRange(min=1), default=5, show_default=True, help="Layouts to list at most."
)
@click.option(
    "--match",
    "rival",
    default="",
    metavar="SYSTEM",
    help="How many devices of this system are at the recipe's target on the same day.",
)
@out_option("Folder for a page of the shortlist.", check_folder)
@emit_option
@scheduler_option
@json_option
@limits
def plan(
    devices: int,
    batch: int | None,
    batch_per_device: int | None,
    cluster: str,
    objective: Any,
    rival: str,
    out: Path | None,
    emit: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """List the layouts that may be the fastest, and what would tell them apart."""
    from perfsim.api.planning import plan as answer_plan
    from perfsim.report.terminal.plan import match_lines, plan_lines

    answer = answer_plan(
        devices=devices,
        batch=batch_of(batch, batch_per_device, devices),
        cluster=cluster or None,
        objective="time-to-accuracy" if rival else objective,
        **asked,
    )
    matched = answer.match(rival) if rival else None
    emitted = {} if emit is None else {"emitted": answer.emit(emit)}
    page = {} if out is None else {"report": str(answer.save(out))}
    if as_json:
        print_json(answer.document(matched) | emitted | page)
    elif emitted:
        print_lines(emitted["emitted"].splitlines())
    else:
        print_lines([*plan_lines(answer.result), *match_lines(answer.result, matched)])
    if page and not as_json:
        print_lines([f"Report: {page['report']}"])
