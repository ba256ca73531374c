"""`perfsim study`: which machine trains a model, and how long it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfsim.cli.options import (
    VERIFY,
    json_option,
    limits,
    out_option,
    shown_options,
    study_argument,
    table_option,
    workers_options,
)
from perfsim.cli.output import open_page, print_answer, print_json, print_prose, progress
from perfsim.cli.sweep import Shown, Work, answer_sweep
from perfsim.cli.verb import Verb
from perfsim.files import check_folder

EXAMPLES = """\b
Examples:
  perfsim study gpt3_20b --compare 3d,weight-streaming --open
  perfsim study my_study.yaml --out my_reports
  perfsim study gpt3_20b --json > answer.json
"""


@click.command(cls=Verb, short_help="Answer a study: which machine is first, and why.", epilog=EXAMPLES)
@study_argument
@click.option("--compare", default="", metavar="A,B", help="Only these strategies, e.g. 3d,weight-streaming.")
@click.option(
    "--verify",
    type=click.Choice(VERIFY),
    default=None,
    help="Execute matrix products of the step in NumPy: none, some, or every class. [default: the study's]",
)
@out_option("Folder for the report. [default: reports/STUDY]", check_folder)
@table_option("every batch that was tried, or the points of a sweep,")
@workers_options("1, or all cores for a sweep")
@click.option("--dry-run", is_flag=True, help="Print what would be computed, and stop.")
@shown_options
@json_option
@limits
def study(
    study: str,
    compare: str,
    verify: Any,
    out: Path | None,
    table: Path | None,
    jobs: int | None,
    scheduler: str | None,
    dry_run: bool,
    opens: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Answer a STUDY: a name of the catalogue, or a YAML file.

    A study with a grid or variants is answered as a sweep, as `perfsim sweep` does. A comparison of published
    figures with a law or with equations is answered as a table.
    """
    from perfsim.studies.comparisons.spec import is_comparison
    from perfsim.sweeps.runner import is_sweep

    if out is None:
        check_folder(Path("reports"), "the default of --out,")
    names = [name.strip() for name in compare.split(",") if name.strip()]
    if is_comparison(study):
        _answer_comparison(study, out, Shown(as_json=as_json, opens=opens, quiet=quiet), dry_run=dry_run)
        return
    if is_sweep(study):
        if verify is not None:
            raise click.UsageError(f"--verify is for a study of candidates; {study} is a sweep")
        shown = Shown(as_json=as_json, opens=opens, quiet=quiet)
        work = Work(jobs=jobs, scheduler=scheduler, dry_run=dry_run, only=names)
        answer_sweep(study, out, shown, work, table=table)
        return
    if dry_run:
        print_prose(*_planned(study, names))
        return
    from perfsim.api.studies import study as answer_study
    from perfsim.report.terminal.study import study_lines

    tell = progress(quiet=as_json or quiet)
    answer = answer_study(study, names, verify=verify, progress=tell, jobs=jobs or 1, scheduler=scheduler)
    page = answer.save(out or Path("reports") / answer.result.study)
    if table is not None:
        answer.batch_curve.save(table)
    if as_json:
        print_json(answer.document(report=str(page)))
    else:
        print_answer(lambda: study_lines(answer.result), answer.verdict, page, quiet=quiet)
    if opens:
        open_page(page)
    answer.check()


def _answer_comparison(name: str, out: Path | None, shown: Shown, *, dry_run: bool) -> None:
    """Print a comparison and write its page; it plans no machine, so there is nothing to choose."""
    from perfsim.api.comparisons import comparison, save_comparison
    from perfsim.report.document import plain
    from perfsim.report.terminal.comparison import comparison_lines

    if dry_run:
        print_prose(f"{name}: a comparison of published figures; nothing was computed")
        return
    result = comparison(name)
    page = save_comparison(result, out or Path("reports") / result.name)
    if shown.as_json:
        print_json({**plain(result), "report": str(page)})
    else:
        print_answer(lambda: comparison_lines(result), result.verdict, page, quiet=shown.quiet)
    if shown.opens:
        open_page(page)


def _planned(study: str, names: list[str]) -> list[str]:
    """What a study would compute: its candidates and batches."""
    from perfsim.report.text import counted
    from perfsim.studies.loading import load_study

    spec = load_study(study)
    kept = [own for own in spec.candidates if not names or own.strategy in names]
    machines = [f"  {own.label(devices)}" for own in kept for devices in own.devices]
    count = 0 if spec.batch_sizes == "auto" else len(spec.batch_sizes)
    batches = counted(count, "batch", "batches") if count else "batches around the critical one"
    asked = f"{spec.model.name} by {spec.recipe.name} on {counted(len(machines), 'candidate')}"
    return [
        f"{spec.name}: {asked}, each with {batches}",
        *machines,
        "Nothing was computed; without --dry-run a candidate takes a few seconds.",
    ]
