"""`perfsim validate`: predictions against published runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfsim.cli.options import json_option, limits, path_option
from perfsim.cli.output import print_json, print_lines, write_error
from perfsim.cli.verb import Verb
from perfsim.files import check_folder, must_exist

if TYPE_CHECKING:
    from perfsim.validation.leave_out import LeftOut

EXAMPLES = """\b
Examples:
  perfsim validate
  perfsim validate my_runs.yaml --worst 20
"""


@click.command(cls=Verb, short_help="Compare predictions with published runs.", epilog=EXAMPLES)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@json_option
@click.option(
    "--worst",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Number of cases to list, largest errors first.",
)
@click.option(
    "--record", is_flag=True, help="Write the errors into the package, for studies to quote; for a checkout."
)
@path_option(
    "--page",
    "Also write index.html and validation.md here, with likely causes and an ablation.",
    check_folder,
)
@click.option(
    "--leave-out",
    is_flag=True,
    help="Also predict each family of GPU runs and each release of wafer logs by a fit without it; takes "
    "minutes.",
)
@limits
def validate(
    files: tuple[Path, ...], as_json: bool, worst: int, record: bool, page: Path | None, leave_out: bool
) -> None:
    """Predict published runs (FILES, or the public cases) and print the errors beside a baseline."""
    from perfsim.api.validating import validate as answer
    from perfsim.published.plans import public_cases
    from perfsim.report.terminal.validation import validation_lines

    paths = files or tuple(public_cases())
    for path in paths:
        must_exist(path)
    results = [dict(answer(path).document) for path in paths]
    steps = [pair for pair in zip(paths, results, strict=True) if pair[1]["kind"] == "step_time"]
    if leave_out and not steps:
        raise click.UsageError("--leave-out is for files of step times")
    left_out_rows: dict[str, Sequence[LeftOut]] = {}
    if page is not None:
        from perfsim.report.validation.page import write_validation
        from perfsim.validation.accuracy_page import accuracy_page

        accuracy = accuracy_page(paths, results, leaves_out=leave_out)
        written = write_validation(accuracy, page)
        write_error(f"Page: {written[0]}, {written[1]}\n")
        outside = [step.outside for step in accuracy.steps]
        left_out_rows = {step.result["file"]: step.left_out for step in accuracy.steps}
    elif leave_out:
        from perfsim.validation.held_out import left_out

        outside = [left_out(path) for path, _ in steps]
    if leave_out:
        for (_, result), scores in zip(steps, outside, strict=True):
            result["left_out"] = scores
    if record:
        from perfsim.validation.record import write_records

        write_records(paths, results, left_out_rows)
    if as_json:
        print_json(results[0] if len(results) == 1 else results)
        return
    for result in results:
        print_lines(validation_lines(result, worst))
