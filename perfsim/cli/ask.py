"""The verbs that ask: `run`, `plan`, `study` and `sweep`."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click

from perfsim.base.errors import PerfsimError, PlanError
from perfsim.base.files import check_folder, must_be_ours, writing
from perfsim.cli import options
from perfsim.cli.output import Answer, must, prints, progress, prose, write_error
from perfsim.prediction.question import Objective

_NO_PLAN = "no point of the grid has a feasible plan"


@options.verb(
    "Predict one step of one model on one system.",
    "perfsim run --model gpt3_20b --system cs-2 --devices 4 --batch 512",
    "perfsim run --model llama2_70b --system dgx-h100 --devices 64 --layout tp=8,pp=4,dp=2,mbs=1",
    "perfsim run --model config.json --system dgx-h100 --devices 8 --trace step.json",
)
@options.asks("run")
@options.path(
    "--trace", "Write a Perfetto trace here; a name with .et gives Chakra traces, one file a class of ranks."
)
@options.verify("off")
@options.force
@options.emit
@options.limits
@prints
def _run(asked: dict[str, Any], trace: Path | None, verify: str, emit: str | None, force: bool) -> Answer:
    """Predict one step of one model on one system."""
    from perfsim.api.questions import predict
    from perfsim.prediction.verification import SamplingSpec, must_be_right, sample_step
    from perfsim.report.terminal import run_lines

    if trace is not None and not force:
        must_be_ours(trace, "--trace", b'{"displayTimeUnit"', b"\x1f\x8b")
    prediction = predict(**asked)
    sampled = sample_step(prediction.run, SamplingSpec.model_validate({"mode": verify}))
    if trace is not None:
        prediction.trace.save(trace)
    emitted = {"emitted": prediction.emit(emit)} if emit else {}
    sampling = {} if sampled is None else {"sampling": sampled}
    traced = [f"Trace: {trace}"] if trace else []
    return Answer(
        lambda: prediction.document() | sampling | emitted,
        lambda: emitted["emitted"].splitlines() if emitted else [*run_lines(prediction, sampled), *traced],
        lambda: must_be_right(sampling.values()),
    )


@options.verb(
    "List the layouts that may be fastest; emit what runs one.",
    "perfsim plan --model gpt3_175b --system dgx-a100-80gb --devices 512 --batch 192",
    "perfsim plan --model gpt3_20b --system dgx-h100 --devices 64 --emit megatron",
)
@options.asks("plan")
@click.option(
    "--objective",
    type=click.Choice(get_args(Objective)),
    default="step-time",
    show_default=True,
    help="time-to-accuracy: also the best batch, where none is given. cost: device-hours.",
)
@options.count("--shown", "Layouts to list at most.", default=5, show_default=True)
@options.path("--out", "Folder for a page of the shortlist.", check_folder)
@options.emit
@options.scheduler
@options.limits
@prints
def _plan(asked: dict[str, Any], objective: Any, out: Path | None, emit: str | None, **how: Any) -> Answer:
    """List the layouts that may be the fastest, and what would tell them apart."""
    from perfsim.api.planning import plan as answer_plan
    from perfsim.report.plan import plan_lines

    answer = answer_plan(**asked, objective=objective, **how)
    emitted = {} if emit is None else {"emitted": answer.emit(emit)}
    page = "" if out is None else str(answer.save(out))
    return Answer(
        lambda: answer.document(page) | emitted,
        lambda: emitted["emitted"].splitlines() if emitted else plan_lines(answer),
        page=page,
    )


@options.verb(
    "Answer a study: which machine is first, and why.",
    "perfsim study gpt3_20b --compare 3d,weight-streaming --open",
    "perfsim study my_study.yaml --out my_reports",
    "perfsim study gpt3_20b --json > answer.json",
)
@click.argument("study", shell_complete=options.complete("study"))
@options.compare
@options.verify(None, " [default: the study's]")
@options.answers(
    "Folder for the report. [default: reports/STUDY]",
    "every batch that was tried, or the points of a sweep,",
    "1, or all cores for a sweep",
)
def _study(study: str, compare: list[str], verify: Any, how: options.How) -> Answer:
    """Answer a STUDY: a name of the catalogue, or a YAML file.

    A study with a grid or variants is answered as a sweep, as `perfsim sweep` does. A comparison of published
    figures with a law or with equations is answered as a table.
    """
    check_folder(how.out or Path("reports"), "--out" if how.out else "the default of --out,")
    from perfsim.studies.loading import kind_of_study  # refuses a folder before anything heavy

    kind = kind_of_study(study)
    if kind == "comparison":
        return _answer_comparison(study, how)
    if kind == "sweep":
        if verify is not None:
            raise click.UsageError(f"--verify is for a study of candidates; {study} is a sweep")
        return _answer_sweep(study, compare, how)
    if how.dry_run:
        return _planned(study, compare, how)
    from perfsim.api.answers import study as answer_study
    from perfsim.report.study import study_lines

    answer = answer_study(
        study,
        compare,
        verify=verify,
        changes=how.changes,
        prices=how.prices,
        progress=progress(quiet=how.as_json or how.quiet),
        jobs=how.jobs or 1,
        scheduler=how.scheduler,
    )
    page = answer.save(how.out or Path("reports") / answer.study)
    if how.table is not None:
        answer.batch_curve.save(how.table)
    document = partial(answer.document, str(page))
    return Answer(document, lambda: study_lines(answer), answer.check, page, answer.verdict)


def _planned(study: str, names: list[str], how: options.How) -> Answer:
    """What a study would compute: its candidates and batches."""
    from perfsim.report.text import counted
    from perfsim.studies.loading import load_study

    spec = load_study(study, changes=how.changes).compared(names)
    machines = [point.label for point in spec.points]
    given = (1,) if spec.recipe.batch_over(1) else spec.batch_sizes
    batches = "several batches" if given == "auto" else counted(len(given), "batch", "batches")
    candidates = counted(len(machines), "candidate")
    told = (
        f"{spec.name}: {spec.model.name} by {spec.recipe.name} on {candidates}, each with {batches}",
        *(f"  {machine}" for machine in machines),
        "Nothing was computed; without --dry-run a candidate takes a few seconds.",
    )
    return Answer(lambda: {"study": spec.name, "candidates": machines}, lambda: prose(*told))


def _answer_comparison(name: str, how: options.How) -> Answer:
    """Answer a comparison and write its page; it plans no machine, so there is nothing to choose."""
    from perfsim.report.table import plain
    from perfsim.report.validation import comparison_lines, write_comparison
    from perfsim.studies.comparisons import comparison

    if how.dry_run:
        told = f"{name}: a comparison of published figures; nothing was computed"
        return Answer(lambda: {"study": name}, lambda: prose(told))
    result = comparison(name)
    with writing(how.out or Path("reports") / result.name) as folder:
        page = write_comparison(result, folder)
    document = {**plain(result), "report": str(page)}
    return Answer(lambda: document, lambda: comparison_lines(result), page=page, verdict=result.verdict)


@options.verb(
    "Ask backwards: which value meets a condition.",
    "perfsim solve gpt3_20b --find devices --such-that 'days <= 14'",
    "perfsim solve gpt3_20b --find recipe.tokens --such-that 'cost <= 2e5' --price dgx-a100-80gb=1.50",
    "perfsim solve --find model.num_parameters --such-that 'days <= 30' --system dgx-h100 --devices 512 "
    "--set recipe.tokens_per_parameter=20",
)
@click.argument("study", required=False, shell_complete=options.complete("study"))
@options.text(
    "--find", "PATH", "A path of --set, devices, batch, layout or model.num_parameters.", None, required=True
)
@click.option(
    "--such-that",
    multiple=True,
    metavar="CONDITION",
    help="'days <= 14', 'memory <= 70 GiB', 'days(3d) == days(16 CS-2)'. May be repeated.",
)
@options.text("--minimise", "QUANTITY", "What the value makes least, e.g. days or cost.")
@options.compare
@options.asks("study", required=False)
@options.prices
@options.path("--out", "Folder for a page with the curve.", check_folder)
@options.count("--jobs", "Processes. [default: all cores]")
@options.limits
@prints
def _solve(study: str | None, asked: dict[str, Any], out: Path | None, **more: Any) -> Answer:
    """Find the value at which the candidates of a STUDY meet conditions; without one, of the --system.

    Quantities are days, hours, cost, cost_per_1e9_tokens, device_hours, energy_kwh, carbon_kg, power, memory,
    loss, and the columns step_time_s, time_to_accuracy_s, global_batch_size, mfu, steps and tokens_per_s.
    Typical inputs meet the conditions at the value that is told, 90 % of the draws at the one next to it.
    """
    from perfsim.api.answers import solve
    from perfsim.report.solve import solve_lines

    answer = solve(study, changes=asked, progress=progress(), **more)
    page = "" if out is None else str(answer.save(out))
    lacking = PlanError(f"no value of {answer.find} has a feasible plan")
    check = partial(must, answer.sweep.feasible, lacking)
    return Answer(partial(answer.document, page), lambda: solve_lines(answer), check, page)


@options.verb(
    "Answer a grid of questions from a file.",
    "perfsim sweep studies/capacity_20b.yaml --dry-run",
    "perfsim sweep studies/capacity_20b.yaml --jobs 4 --table points.csv",
)
@click.argument("file", type=click.Path(path_type=Path))
@options.answers(
    "Folder for the report and the finished points. [default: reports/NAME]", "the points", "all cores"
)
def _sweep(file: Path, how: options.How) -> Answer:
    """Answer a grid of questions from FILE; finished points are kept and not computed again."""
    return _answer_sweep(str(file), [], how)


@options.verb(
    "Write a page with sliders over a sweep, which works offline.",
    "perfsim explorer --out my_page",
    "perfsim explorer capacity_20b --price dgx-a100-80gb=1.60 --price cs-2=9",
)
@click.argument("sweep", default="explorer", shell_complete=options.complete("study"))
@options.path("--out", "Folder for the page and the finished points. [default: reports/SWEEP/explorer]", None)
@options.changes
@options.prices
@options.count("--jobs", "Processes. [default: all cores]")
@options.limits
@prints
def _explorer(
    sweep: str, out: Path | None, changes: dict[str, Any], prices: dict[str, Any], jobs: int | None
) -> Answer:
    """Answer a SWEEP (by default studies/explorer.yaml) or a study, and write one page to explore it.

    The page has a slider for each setting, a choice of machines with their devices, and prices: it says how
    long the chosen point takes, who is as early and costs least, and who is first for as much money an hour.
    """
    from perfsim.api.answers import sweep as answer_sweep
    from perfsim.report.explorer import write_explorer
    from perfsim.studies.loading import Sweep, kind_of_study, load_study, load_sweep

    is_sweep = kind_of_study(sweep) == "sweep"
    asked = load_sweep(sweep, None, changes) if is_sweep else Sweep.of(load_study(sweep, None, changes))
    folder = out or Path("reports") / asked.name / "explorer"
    check_folder(folder)
    answered = answer_sweep(asked, prices=prices, folder=folder, jobs=jobs, progress=progress(in_a_log=True))
    must(answered.feasible, PlanError(_NO_PLAN))
    page = str(write_explorer(answered, folder))
    counts = f"{len(answered.points):,} points, {len(answered.feasible):,} with a plan"
    document = {"sweep": asked.name, "points": len(answered.points), "report": page}
    return Answer(lambda: document, lambda: prose(counts), page=page)


def _answer_sweep(name: str, strategies: list[str], how: options.How) -> Answer:
    """Run a sweep and write its report; PlanError where no point has a plan."""
    from perfsim.api.answers import sweep as answer_sweep
    from perfsim.report.sweep import sweep_lines, sweep_text
    from perfsim.studies.loading import load_sweep
    from perfsim.studies.runner import STORE, plan_sweep

    asked = load_sweep(name, changes=how.changes).only(strategies)
    folder = how.out or Path("reports") / asked.name
    if how.dry_run:
        planned = plan_sweep(asked, folder / STORE, how.jobs)
        return Answer(lambda: asdict(planned), lambda: prose(planned.line))
    tell = progress(quiet=how.quiet, in_a_log=True)
    answered = answer_sweep(
        asked, prices=how.prices, folder=folder, jobs=how.jobs, scheduler=how.scheduler, progress=tell
    )
    page = ""
    try:
        check_folder(folder)
    except PerfsimError as error:  # a complete sweep can be read from media that cannot be written to
        write_error(f"no report is written: {error}\n")
    else:
        page = str(answered.save(folder))
    if how.table is not None:
        answered.save_table(how.table)
    check = partial(must, answered.feasible, PlanError(_NO_PLAN))
    document = partial(sweep_text, answered, report=page)
    return Answer(document, lambda: sweep_lines(answered), check, page, answered.verdict)
