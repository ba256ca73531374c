"""`perfsim sweep`: a grid of questions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfsim.cli.options import (
    json_option,
    limits,
    out_option,
    shown_options,
    table_option,
    workers_options,
)
from perfsim.cli.output import (
    open_page,
    print_answer,
    print_json,
    print_parts,
    print_prose,
    progress,
    write_error,
)
from perfsim.cli.verb import Verb
from perfsim.errors import PerfsimError, PlanError
from perfsim.files import check_folder

if TYPE_CHECKING:
    from perfsim.api.sweeps import SweepAnswer


EXAMPLES = """\b
Examples:
  perfsim sweep studies/capacity_20b.yaml --dry-run
  perfsim sweep studies/capacity_20b.yaml --jobs 4 --table points.csv
"""


@dataclass(frozen=True)
class Shown:
    """What becomes of an answer on the screen."""

    as_json: bool = False
    opens: bool = False
    quiet: bool = False


@dataclass(frozen=True)
class Work:
    """Who computes a sweep, and how much of it."""

    jobs: int | None = None
    scheduler: str | None = None
    dry_run: bool = False
    only: Sequence[str] = ()


@click.command(cls=Verb, short_help="Answer a grid of questions from a file.", epilog=EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path))
@out_option("Folder for the report and the finished points. [default: reports/NAME]", None)
@table_option("the points")
@workers_options("all cores")
@click.option("--dry-run", is_flag=True, help="Print what would be computed, and stop.")
@shown_options
@json_option
@limits
def sweep(
    file: Path,
    out: Path | None,
    table: Path | None,
    jobs: int | None,
    scheduler: str | None,
    dry_run: bool,
    opens: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Answer a grid of questions from FILE; finished points are kept and not computed again."""
    shown, work = Shown(as_json, opens, quiet), Work(jobs, scheduler, dry_run)
    answer_sweep(str(file), out, shown, work, table=table)


def answer_sweep(name: str, out: Path | None, shown: Shown, work: Work, *, table: Path | None = None) -> None:
    """Run a sweep, write its report, print its answer; PlanError where no point has a plan."""
    from perfsim.api.sweeps import sweep as answer
    from perfsim.report.sweep.document import sweep_text
    from perfsim.report.terminal.sweep import sweep_lines
    from perfsim.sweeps.runner import STORE, load_sweep, only_strategies, plan_sweep

    asked = only_strategies(load_sweep(name), work.only)
    folder = out or Path("reports") / asked.name
    if work.dry_run:
        plan = plan_sweep(asked, folder / STORE, work.jobs)
        if shown.as_json:
            print_json(plan.as_dict())
        else:
            print_prose(plan.line)
        return
    tell = _told(quiet=shown.quiet)
    answered = answer(asked, folder=folder, jobs=work.jobs, scheduler=work.scheduler, progress=tell)
    page = _saved(answered, folder)
    if table is not None:
        answered.save_table(table)
    if shown.as_json:
        print_parts(sweep_text(answered.result, report=page))
    else:
        print_answer(lambda: sweep_lines(answered.result), answered.verdict, page, quiet=shown.quiet)
    if shown.opens and page:
        open_page(Path(page))
    if not answered.feasible:
        raise PlanError("no point of the grid has a feasible plan")


def _saved(answered: SweepAnswer, folder: Path) -> str:
    """Write the report; on read-only media, where a complete sweep can be read, say that there is none."""
    try:
        check_folder(folder)
    except PerfsimError as error:
        write_error(f"no report is written: {error}\n")
        return ""
    return str(answered.save(folder))


def _told(*, quiet: bool) -> Callable[[str], None]:
    """Progress as a bar on a terminal, as lines in a log."""
    bar = progress(quiet=quiet)
    return bar if quiet or sys.stderr.isatty() else lambda message: write_error(f"{message}\n")
