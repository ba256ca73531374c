"""`perfsim sweep`: a grid of questions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfsim.cli.options import json_option, limits, out_option, table_option, workers_options
from perfsim.cli.output import print_json, print_lines, print_parts, write_error
from perfsim.errors import PerfsimError, PlanError
from perfsim.files import check_folder

if TYPE_CHECKING:
    from perfsim.api.sweeps import SweepAnswer


@click.command(short_help="Answer a grid of questions from a file.")
@click.argument("file", type=click.Path(path_type=Path))
@out_option("Folder for the report and the finished points. [default: reports/NAME]", None)
@table_option("the points")
@workers_options("all cores")
@click.option("--dry-run", is_flag=True, help="Print what would be computed, and stop.")
@json_option
@limits
def sweep(
    file: Path,
    out: Path | None,
    table: Path | None,
    jobs: int | None,
    scheduler: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Answer a grid of questions from FILE; finished points are kept and not computed again."""
    answer_sweep(
        str(file), out, as_json=as_json, table=table, jobs=jobs, scheduler=scheduler, dry_run=dry_run
    )


def answer_sweep(
    name: str,
    out: Path | None,
    *,
    as_json: bool,
    table: Path | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    dry_run: bool = False,
    only: Sequence[str] = (),
) -> None:
    """Run a sweep, write its report, print its answer; PlanError where no point has a plan."""
    from perfsim.api.sweeps import sweep as answer
    from perfsim.report.sweep.document import sweep_text
    from perfsim.report.terminal.sweep import sweep_lines
    from perfsim.sweeps.runner import STORE, load_sweep, only_strategies, plan_sweep

    asked = only_strategies(load_sweep(name), only)
    folder = out or Path("reports") / asked.name
    if dry_run:
        plan = plan_sweep(asked, folder / STORE, jobs)
        if as_json:
            print_json(plan.as_dict())
        else:
            print_lines([plan.line])
        return
    answered = answer(asked, folder=folder, jobs=jobs, scheduler=scheduler, progress=_tell)
    page = _saved(answered, folder)
    if table is not None:
        answered.save_table(table)
    if as_json:
        print_parts(sweep_text(answered.result, report=page))
    else:
        print_lines([*sweep_lines(answered.result), *([f"Report: {page}"] if page else [])])
    if not answered.feasible:
        raise PlanError("no point of the grid has a feasible plan")


def _saved(answered: SweepAnswer, folder: Path) -> str:
    """Write the report; on read-only media, where a complete sweep can be read, say that there is none."""
    try:
        check_folder(folder)
    except PerfsimError as error:
        _tell(f"no report is written: {error}")
        return ""
    return str(answered.save(folder))


def _tell(message: str) -> None:
    write_error(f"{message}\n")
