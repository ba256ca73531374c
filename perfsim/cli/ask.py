"""`perfsim plan`: the layouts that may be the fastest, and what runs them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfsim.base.errors import PerfsimError, PlanError
from perfsim.base.files import check_folder
from perfsim.cli.options import (
    VERIFY,
    batch_of,
    emit_option,
    json_option,
    layout_option,
    limits,
    out_option,
    path_option,
    question_options,
    scheduler_option,
    shown_options,
    study_argument,
    table_option,
    workers_options,
)
from perfsim.cli.output import (
    open_page,
    print_answer,
    print_json,
    print_lines,
    print_parts,
    print_prose,
    progress,
    write_error,
)
from perfsim.cli.verb import Verb

if TYPE_CHECKING:
    from perfsim.api.answers import SweepAnswer


# `perfsim run`: one step of one model on one system.

RUN_EXAMPLES = """\b
Examples:
  perfsim run --model gpt3_20b --system cs-2 --devices 4 --batch 512
  perfsim run --model llama2_70b --system dgx-h100 --devices 64 --layout tp=8,pp=4,dp=2,mbs=1
  perfsim run --model config.json --system dgx-h100 --devices 8 --trace step.json
"""


@click.command(cls=Verb, epilog=RUN_EXAMPLES)
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
    from perfsim.api.questions import predict
    from perfsim.prediction.prediction import run_document
    from perfsim.prediction.verification import must_be_right, verified
    from perfsim.report.terminal import run_lines

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


# `perfsim sweep`: a grid of questions.

SWEEP_EXAMPLES = """\b
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


@click.command(cls=Verb, short_help="Answer a grid of questions from a file.", epilog=SWEEP_EXAMPLES)
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
    shown = Shown(as_json, opens, quiet)
    work = Work(jobs, scheduler, dry_run)
    answer_sweep(str(file), out, shown, work, table=table)


def answer_sweep(name: str, out: Path | None, shown: Shown, work: Work, *, table: Path | None = None) -> None:
    """Run a sweep, write its report, print its answer; PlanError where no point has a plan."""
    from perfsim.api.answers import sweep as answer
    from perfsim.report.sweep import sweep_text
    from perfsim.report.sweep import sweep_lines
    from perfsim.studies.sweep import STORE, load_sweep, only_strategies, plan_sweep

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


# `perfsim study`: which machine trains a model, and how long it takes.

STUDY_EXAMPLES = """\b
Examples:
  perfsim study gpt3_20b --compare 3d,weight-streaming --open
  perfsim study my_study.yaml --out my_reports
  perfsim study gpt3_20b --json > answer.json
"""


@click.command(cls=Verb, short_help="Answer a study: which machine is first, and why.", epilog=STUDY_EXAMPLES)
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
    from perfsim.studies.comparisons import is_comparison
    from perfsim.studies.sweep import is_sweep

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
    from perfsim.api.answers import study as answer_study
    from perfsim.report.study import study_lines

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
    from perfsim.api.answers import comparison, save_comparison
    from perfsim.report.document import plain
    from perfsim.report.validation import comparison_lines

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


OBJECTIVES = ("step-time", "time-to-accuracy", "cost")
"""The values of `perfsim.studies.shortlist.Objective`, which is not loaded for a help text."""


PLAN_EXAMPLES = """\b
Examples:
  perfsim plan --model gpt3_175b --system dgx-a100-80gb --devices 512 --batch 192
  perfsim plan --model gpt3_20b --system dgx-h100 --devices 64 --emit megatron
  perfsim plan --model gpt3_20b --system dgx-a100-80gb --devices 128 --match cs-2
"""


@click.command(
    cls=Verb, short_help="List the layouts that may be fastest; emit what runs one.", epilog=PLAN_EXAMPLES
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
    from perfsim.api.questions import plan as answer_plan
    from perfsim.report.plan import match_lines, plan_lines

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
