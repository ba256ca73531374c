"""What several verbs share: options, and checks of their values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from perfsim.base.files import check_file
from perfsim.base.sizes import MOST_SEQUENCES
from perfsim.cli.completion import complete, complete_layout, studies
from perfsim.cli.output import metered
from perfsim.prediction.question import ASKED, Asked, Asker

Function = TypeVar("Function", bound=Callable[..., Any])

VERIFY = ("off", "sample", "full")

TOOLS = ("megatron", "deepspeed", "torchtitan", "modelzoo")
"""The names of `perfsim.interop.emit.TOOLS`, which is not loaded for a help text."""

emit_option = click.option(
    "--emit",
    type=click.Choice(TOOLS),
    default=None,
    help="Print the flags or the file with which this tool runs the layout.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on standard output, nothing else."
)


scheduler_option = click.option(
    "--scheduler",
    metavar="ADDRESS",
    default=None,
    help="Compute on the workers of this Dask scheduler, e.g. tcp://host:8786.",
)


def asks(asker: Asker, *, required: bool = True) -> Callable[[Function], Any]:
    """The options of a question, from its declaration; the verb gets those that are given as `asked`."""
    known = [entry for entry in ASKED.values() if asker in entry.by]

    def decorate(verb: Function) -> Any:
        @functools.wraps(verb)
        def asking(*args: Any, batch_per_device: int | None, changes: dict[str, Any], **options: Any) -> Any:
            asked = {entry.name: options.pop(entry.name) for entry in known}
            asked = {name: value for name, value in asked.items() if value is not None} | changes
            if batch_per_device is not None:
                if "batch" in asked:
                    raise click.UsageError(
                        "give --batch (all devices together) or --batch-per-device, not both"
                    )
                asked["batch"] = batch_per_device * asked.get("devices", 1)
            return verb(*args, asked=asked, **options)

        decorated = set_option(asking)
        for entry in reversed(known):
            if entry.name == "batch":
                decorated = click.option(
                    "--batch-per-device",
                    type=click.IntRange(1, MOST_SEQUENCES),
                    help="Instead of --batch: sequences per GPU or CS-2.",
                )(decorated)
            decorated = _option_of(entry, required=required and entry.required)(decorated)
        return decorated

    return decorate


def _option_of(entry: Asked, *, required: bool) -> Callable[[Function], Function]:
    """The option of one field of a question."""
    ranges: dict[Any, Any] = {int: click.IntRange, float: click.FloatRange}
    if entry.choices:
        kind: Any = click.Choice(entry.choices)
    else:
        kind = ranges[entry.number](entry.least, entry.most) if entry.number else str
    names = [f"--{name.replace('_', '-')}" for name in (entry.name, entry.synonym) if name]
    completed = complete_layout if entry.name == "layout" else complete(entry.kind) if entry.kind else None
    return click.option(
        *names,
        entry.name,
        type=kind,
        required=required,
        metavar=entry.example or None,
        help=f"{entry.help}{entry.otherwise}",
        shell_complete=completed,
    )


def _pairs(_context: click.Context, option: click.Parameter, texts: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts as values of YAML."""
    from perfsim.catalog.yaml_tree import ScalarError, resolve_plain

    given: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise click.UsageError(f"{option.opts[0]} {text}: write KEY=VALUE")
        try:
            given[key] = resolve_plain(value)
        except ScalarError as error:
            raise click.UsageError(f"{option.opts[0]} {text}: {error}") from None
    return given


def pairs_option(argument: str, metavar: str, help_text: str) -> Callable[[Function], Function]:
    """`--set KEY=VALUE`, which may be repeated."""
    return click.option("--set", argument, multiple=True, metavar=metavar, help=help_text, callback=_pairs)


set_option = pairs_option(
    "changes",
    "PATH=VALUE",
    "Change a value, such as recipe.precision=fp8 or system.node.nics=4. May be repeated.",
)


def out_option(
    help_text: str, checked: Callable[[Path, str], None] | None = check_file
) -> Callable[[Function], Function]:
    """`--out PATH`, refused before anything is computed where it cannot be written to."""
    return path_option("--out", help_text, checked)


def path_option(
    name: str, help_text: str, checked: Callable[[Path, str], None] | None = check_file
) -> Callable[[Function], Function]:
    """The path of an output, `checked` before anything is computed."""

    def check(_context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
        if path is not None and checked is not None:
            checked(path, name)
        return path

    return click.option(name, type=click.Path(path_type=Path), default=None, help=help_text, callback=check)


def table_option(rows: str) -> Callable[[Function], Function]:
    """`--table FILE`."""
    return path_option("--table", f"Also write {rows} as a .csv or .parquet FILE.", _check_table)


def _check_table(path: Path, option: str) -> None:
    if path.suffix not in (".csv", ".parquet"):
        raise click.BadParameter(f"{path}: a table is written as .csv or .parquet", param_hint=option)
    check_file(path, option)


def limits(verb: Function) -> Function:
    """`--max-events` and `--max-seconds`, and progress of a long simulation."""

    @click.option(
        "--max-events",
        type=click.IntRange(min=1),
        default=None,
        help="Simulate at most this many tasks, over all processes; a step with more is not started.",
    )
    @click.option(
        "--max-seconds",
        type=click.FloatRange(min=0.0),
        default=None,
        help="Compute for at most this many seconds, planning included.",
    )
    @functools.wraps(verb)
    def limited_verb(*args: Any, max_events: int | None, max_seconds: float | None, **kwargs: Any) -> Any:
        from perfsim.engine.limits import Limits, limited

        with (
            metered() as meter,
            limited(Limits(max_events, max_seconds, meter.tasks, meter.items)) as limits,
        ):
            answer = verb(*args, **kwargs)
            if limits.reached is not None:  # an answer that lacks what a limit has stopped
                raise limits.reached
            return answer

    return limited_verb  # type: ignore[return-value]  # the same verb with two more options


def workers_options(processes: str) -> Callable[[Function], Function]:
    """`--jobs` and `--scheduler`: who computes; `processes` is the default of the first."""

    def options(verb: Function) -> Function:
        jobs = click.option(
            "--jobs", type=click.IntRange(min=1), default=None, help=f"Processes. [default: {processes}]"
        )
        return scheduler_option(jobs(verb))

    return options


def study_argument(verb: Function) -> Function:
    """`STUDY`, with names of the catalogue at the tabulator key."""
    return click.argument("study", shell_complete=studies)(verb)


def shown_options(verb: Function) -> Function:
    """`--open` and `--quiet`: what becomes of the answer on the screen."""
    opened = click.option("--open", "opens", is_flag=True, help="Open the report in the browser.")
    quiet = click.option("--quiet", is_flag=True, help="Print the comparison and the report's place only.")
    return opened(quiet(verb))
