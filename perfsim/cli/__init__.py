"""The command line: verbs that parse, call and print. Everything heavy loads inside a verb.

Exit codes: 0 done, 1 the run failed, 2 bad input, 3 no feasible plan, 4 stopped by a limit.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import click

from perfsim.cli.calibrate import calibrate
from perfsim.cli.options import limits, must_exist
from perfsim.cli.prove import prove
from perfsim.errors import InputError, PerfsimError, PlanError
from perfsim.sizes import MOST_DEVICES, MOST_SEQUENCES
from perfsim.version import __version__

INTERRUPTED = 130
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    # Matrices here are small: more BLAS threads only fight each other, and change the last bits.
    os.environ.setdefault(_variable, "1")
VERIFY = ("off", "sample", "full")
EXAMPLE = """\b
Start here:
  perfsim study gpt3_20b --compare 3d,weight-streaming
"""


class Refusing(click.Group):
    """A group whose verbs end in a message and an exit code, never in a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run a verb; PerfsimError carries its own exit code."""
        try:
            super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.exceptions.Abort:
            _refuse("interrupted before the end", INTERRUPTED)
        except click.ClickException as error:
            error.show()
            sys.exit(InputError.exit_code)
        except PerfsimError as error:
            _refuse(str(error), error.exit_code)
        except KeyboardInterrupt:
            _refuse("interrupted before the end", INTERRUPTED)
        except OSError as error:
            reason = error.strerror or str(error)
            _refuse(f"{reason}: {error.filename}" if error.filename else reason, 1)
        sys.exit(0)


def _refuse(message: str, code: int) -> NoReturn:
    click.echo(f"error: {message}", err=True)
    sys.exit(code)


def _print_json(text: str) -> None:
    """A document as UTF-8 whatever the terminal's encoding: programs read it."""
    click.echo(text.encode("utf-8"), nl=False)


def _print_lines(lines: Sequence[str]) -> None:
    """Lines for a person, in characters that the terminal has."""
    from perfsim.report.text import encodable

    click.echo(encodable("\n".join(lines), sys.stdout.encoding or "ascii"))


@click.group(cls=Refusing, epilog=EXAMPLE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="perfsim")
def main() -> None:
    """Predict how to train a model, on what, and how long until it is good."""


@main.command()
@click.argument("study")
@click.option("--compare", default="", metavar="A,B", help="Only these strategies, e.g. 3d,weight-streaming.")
@click.option(
    "--verify",
    type=click.Choice(VERIFY),
    default=None,
    help="Execute the step's matrix products with NumPy: some, or every class; the study's own if absent.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, help="Where to write; reports/STUDY if absent."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output, nothing else.")
@limits
def study(study: str, compare: str, verify: str | None, out: Path | None, as_json: bool) -> None:
    """Answer a STUDY: a name of the catalogue, or a YAML file; one with a grid or variants as a sweep."""
    from perfsim.sweep.runner import is_sweep

    names = [name.strip() for name in compare.split(",") if name.strip()]
    if is_sweep(study):
        if verify is not None:
            raise click.UsageError(f"--verify is for a study of candidates; {study} is a sweep")
        _answer_sweep(study, out, as_json=as_json, only=names)
        return
    from perfsim.prediction.verification import must_be_right
    from perfsim.report.page import write_report
    from perfsim.report.study.summary import summary_dict, summary_text, write_summary
    from perfsim.report.tables import terminal_table
    from perfsim.study.loading import load_study
    from perfsim.study.runner import run_study
    from perfsim.study.spec import with_verify

    spec = load_study(study)
    run = run_study(with_verify(spec, verify), names, _progress(quiet=as_json))
    folder = out or Path("reports") / spec.name
    trace_names = _write_traces(run, folder)
    page = write_report(run.result, folder, trace_name=trace_names[0] if trace_names else None)
    write_summary(run.result, folder / "summary.json")
    if as_json:
        _print_json(summary_text(summary_dict(run.result, report=str(page))))
    else:
        click.echo(terminal_table(run.result, encoding=sys.stdout.encoding or "ascii"))
        click.echo(f"Report: {page}")
    must_be_right(run.result.sampling.values())
    if run.stopped is not None:
        raise run.stopped


def _write_traces(run: Any, folder: Path) -> list[str]:
    """One trace for each candidate, named by strategy and devices."""
    from perfsim.interop.chrome import StepTrace

    names = []
    for each in run.answered:
        devices = each.question.devices
        name = f"trace_{each.evaluation.plan.strategy}_{devices}.json.gz"
        StepTrace(each.evaluation.trace).save(folder / name)
        names.append(name)
    return names


def _progress(*, quiet: bool) -> Any:
    def tell(what: str) -> None:
        if not quiet and sys.stderr.isatty():
            click.echo(f"... {what}", err=True)

    return tell


@main.command()
@click.option("--model", required=True, help="Name of the catalogue, or a YAML file.")
@click.option("--system", required=True, help="Name of the catalogue, or a YAML file.")
@click.option(
    "--devices",
    "--num-csx",
    type=click.IntRange(1, MOST_DEVICES),
    required=True,
    help="GPUs, or CS-2 systems.",
)
@click.option("--strategy", default="3d", show_default=True)
@click.option("--layout", default="", metavar="tp=8,pp=4,dp=4,mbs=1", help="The planner's choice if absent.")
@click.option(
    "--batch",
    type=click.IntRange(1, MOST_SEQUENCES),
    default=None,
    help="Sequences a step, all devices together; if absent the recipe's, else 8 a device.",
)
@click.option(
    "--batch-per-device",
    type=click.IntRange(1, MOST_SEQUENCES),
    default=None,
    help="Instead of --batch: sequences on each GPU or CS-2.",
)
@click.option("--recipe", default="gpt3_pretraining", show_default=True)
@click.option("--cluster", default="", metavar="FILE", help="Scale by this result of `calibrate steps`.")
@click.option(
    "--perturb",
    default="",
    metavar="straggler=1.3@rank5,jitter=0.02,seed=1",
    help="Disturb it: slow ranks, noise, dead=LINK, slow=0.5@LINK, mttf=8h,checkpoint=1h,restart=10min.",
)
@click.option(
    "--detail", type=click.Choice(["layer", "chunk"]), default="layer", help="How finely wafers stream."
)
@click.option(
    "--expand", default="", metavar="data.all_reduce=tree", help="Collectives as steps of a ring or tree."
)
@click.option("--trace", type=click.Path(path_type=Path), default=None, help="Write a Perfetto trace here.")
@click.option(
    "--verify",
    type=click.Choice(VERIFY),
    default="off",
    show_default=True,
    help="Execute the step's matrix products with NumPy: some, or every class.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
@limits
def run(
    model: str,
    system: str,
    devices: int,
    strategy: str,
    layout: str,
    batch: int | None,
    batch_per_device: int | None,
    recipe: str,
    cluster: str,
    detail: Any,
    perturb: str,
    expand: str,
    trace: Path | None,
    verify: str,
    as_json: bool,
) -> None:
    """Predict one step of one model on one system."""
    from perfsim.prediction.documents import run_document
    from perfsim.prediction.predict import predict
    from perfsim.prediction.question import question_named
    from perfsim.prediction.verification import must_be_right, verified

    if batch_per_device is not None:
        if batch is not None:
            raise click.UsageError("give --batch (all devices together) or --batch-per-device, not both")
        batch = batch_per_device * devices
    question = question_named(
        model, system, devices, strategy, layout, batch, recipe, cluster, detail, perturb, expand
    )
    prediction = predict(question)
    answer = run_document(prediction)
    sampled = verified(prediction, verify)
    if sampled is not None:
        answer["sampling"] = asdict(sampled)
    if trace is not None:
        prediction.trace.save(trace)
    if as_json:
        click.echo(json.dumps(answer, indent=2, sort_keys=True))
    else:
        from perfsim.report.point import point_lines

        _print_lines(point_lines(answer))
        if trace is not None:
            click.echo(f"Trace: {trace}")
    must_be_right([sampled] if sampled else [])


@main.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output, nothing else.")
@click.option("--worst", type=click.IntRange(min=0), default=10, show_default=True, help="Cases listed.")
@click.option("--record", is_flag=True, help="Keep the errors as what studies state; for a checkout.")
@click.option(
    "--page",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Directory for index.html and validation.md: the same with causes and ablation.",
)
@click.option(
    "--leave-out",
    is_flag=True,
    help="Predict each family of GPU runs (on the page) or release of wafer logs by a fit without it.",
)
def validate(
    files: tuple[Path, ...], as_json: bool, worst: int, record: bool, page: Path | None, leave_out: bool
) -> None:
    """Predict published runs (FILES, or the public cases) and print the errors beside a baseline."""
    from perfsim.published.plans import public_cases
    from perfsim.report.validation.terminal import validation_lines
    from perfsim.validation.validate import validate_file

    if leave_out and page is None and not files:
        raise click.UsageError(_NEEDS_PAGE)
    paths = files or tuple(public_cases())
    results = []
    for path in paths:
        must_exist(path)
        results.append(validate_file(path))
    if leave_out:
        _leave_releases_out(paths, results, page)
    if page is not None:
        _write_accuracy(paths, results, page, leaves_out=leave_out)
    if record:
        from perfsim.validation.held_out import held_out
        from perfsim.validation.record_accuracy import write_record
        from perfsim.validation.record_reached import write_reached

        steps = [each["kind"] == "step_time" for each in results]
        scores = {path.name: held_out(path) for path, of_steps in zip(paths, steps, strict=True) if of_steps}
        write_record(results, scores)
        write_reached()
    if as_json:
        document: Any = results[0] if len(results) == 1 else results
        click.echo(json.dumps(document, indent=2))
        return
    for result in results:
        _print_lines(validation_lines(result, worst))


_NEEDS_PAGE = "--leave-out of families of GPU runs is for the page: give --page DIR, or a file of wafer logs"


def _leave_releases_out(paths: Sequence[Path], results: Sequence[dict[str, Any]], page: Path | None) -> None:
    """Add to the result of each file of wafer logs what a fit without each release predicts."""
    from perfsim.validation.held_out import releases_left_out

    for path, result in zip(paths, results, strict=True):
        left_out = releases_left_out(path) if result["kind"] == "step_time" else None
        if left_out is not None:
            result["left_out"] = left_out
        elif page is None:
            raise click.UsageError(_NEEDS_PAGE)


def _write_accuracy(paths: tuple[Path, ...], results: list[Any], folder: Path, *, leaves_out: bool) -> None:
    from perfsim.report.validation.page import write_validation
    from perfsim.validation.accuracy_page import accuracy_page

    written = write_validation(accuracy_page(paths, results, leaves_out=leaves_out), folder)
    click.echo(f"Page: {written[0]}, {written[1]}", err=True)


@main.command()
@click.argument(
    "kind",
    type=click.Choice(["systems", "devices", "models", "recipes", "wall_clocks", "studies", "strategies"]),
)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output, nothing else.")
def show(kind: str, name: str | None, as_json: bool) -> None:
    """List what the catalogue holds, or print one entry with the source of each value."""
    from perfsim.cli.show import show_entry, show_list

    entries = show_entry(kind, name) if name else show_list(kind)
    if as_json:
        click.echo(json.dumps(entries, indent=2))
        return
    from perfsim.report.listing import listing

    _print_lines([listing(entries, title=name or kind)])


@main.command()
@click.argument("kind", required=False)
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, help="Folder for <kind>.schema.json files."
)
def schema(kind: str | None, out: Path | None) -> None:
    """Print or write the JSON Schema of a KIND of YAML file (device, model, study, ...), or of all."""
    from perfsim.cli.schemas import KINDS, schema_of, schema_text, write_schemas

    if out is not None:
        for path in write_schemas(out, [kind] if kind else KINDS):
            click.echo(f"Schema: {path}")
        return
    click.echo(schema_text(schema_of(kind) if kind else {each: schema_of(each) for each in KINDS}), nl=False)


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, help="Where to write; reports/NAME if absent."
)
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes; all cores if absent.")
@click.option("--dry-run", is_flag=True, help="Say what would be computed, and stop.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output, nothing else.")
@limits
def sweep(file: Path, out: Path | None, jobs: int | None, dry_run: bool, as_json: bool) -> None:
    """Answer a grid of questions from FILE; finished points are kept and not computed again."""
    _answer_sweep(str(file), out, as_json=as_json, jobs=jobs, dry_run=dry_run)


def _answer_sweep(
    name: str,
    out: Path | None,
    *,
    as_json: bool,
    jobs: int | None = None,
    dry_run: bool = False,
    only: Sequence[str] = (),
) -> None:
    from perfsim.report.study.summary import summary_text
    from perfsim.report.sweep.page import sweep_document, sweep_lines, write_sweep_report
    from perfsim.sweep.runner import STORE, load_sweep, only_strategies, plan_sweep, run_sweep

    asked = only_strategies(load_sweep(name), only)
    folder = out or Path("reports") / asked.name
    store = folder / STORE
    if dry_run:
        plan = plan_sweep(asked, store, jobs)
        if as_json:
            _print_json(summary_text(plan.as_dict()))
        else:
            click.echo(plan.line)
        return
    result = run_sweep(asked, store, jobs=jobs, tell=_tell)
    page = write_sweep_report(result, folder)
    if as_json:
        _print_json(summary_text(sweep_document(result, report=str(page))))
    else:
        click.echo("\n".join(sweep_lines(result, encoding=sys.stdout.encoding or "ascii")))
        click.echo(f"Report: {page}")
    if not result.feasible:
        raise PlanError("no point of the grid has a feasible plan")


def _tell(message: str) -> None:
    click.echo(message, err=True)


main.add_command(calibrate)
main.add_command(prove)
