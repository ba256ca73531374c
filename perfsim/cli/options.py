"""What several verbs share: options, and checks of their values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from perfsim.base.files import check_file
from perfsim.base.sizes import MOST_DEVICES, MOST_SEQUENCES
from perfsim.cli.completion import complete, complete_layout, studies
from perfsim.cli.output import metered
from perfsim.interop import WRITTEN

Function = TypeVar("Function", bound=Callable[..., Any])

VERIFY = ("off", "sample", "full")

emit_option = click.option(
    "--emit",
    type=click.Choice(WRITTEN),
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
_QUESTION = (
    click.option(
        "--model",
        required=True,
        shell_complete=complete("model"),
        help="Name of the catalogue, a YAML file, or a file that `perfsim import` reads (config.json, ...).",
    ),
    click.option(
        "--system",
        required=True,
        shell_complete=complete("system"),
        help="Name of the catalogue, or a YAML file.",
    ),
    click.option(
        "--devices",
        "--num-csx",
        type=click.IntRange(1, MOST_DEVICES),
        required=True,
        help="Number of GPUs, or of CS-2 systems.",
    ),
    click.option("--strategy", default="", help="[default: the system's own]"),
    click.option(
        "--batch",
        type=click.IntRange(1, MOST_SEQUENCES),
        default=None,
        help="Global batch in sequences. [default: the recipe's, else 8 per device]",
    ),
    click.option(
        "--batch-per-device",
        type=click.IntRange(1, MOST_SEQUENCES),
        default=None,
        help="Instead of --batch: sequences per GPU or CS-2.",
    ),
    click.option(
        "--recipe",
        default=None,
        shell_complete=complete("recipe"),
        help="[default: llm_2021 or llm_2024, by the month in which the model was published]",
    ),
    click.option(
        "--memory-limit",
        type=click.FloatRange(0.0, 1.0, min_open=True),
        default=0.94,
        show_default=True,
        help="Share of a GPU's memory above which a planned layout is no answer unless nothing else fits.",
    ),
    click.option("--cluster", default="", metavar="FILE", help="Scale by this result of `calibrate steps`."),
)


def question_options(verb: Function) -> Function:
    """The options that say what is asked: model, machine, strategy, batch, recipe, memory limit, cluster."""
    for option in reversed(_QUESTION):
        verb = option(verb)
    return verb


def question_options_if_asked(verb: Function) -> Function:
    """The same for a verb that needs them with some of its other options only."""
    verb = question_options(verb)
    for option in getattr(verb, "__click_params__", ()):
        option.required = False
    return verb


def batch_of(batch: int | None, per_device: int | None, devices: int) -> int | None:
    """The global batch of the options; None where none is given."""
    if per_device is None:
        return batch
    if batch is not None:
        raise click.UsageError("give --batch (all devices together) or --batch-per-device, not both")
    return per_device * devices


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


def layout_option(help_text: str) -> Callable[[Function], Function]:
    """`--layout`, whose settings complete one after the other."""
    return click.option(
        "--layout", default="", metavar="tp=8,pp=4,mbs=1", shell_complete=complete_layout, help=help_text
    )


def study_argument(verb: Function) -> Function:
    """`STUDY`, with names of the catalogue at the tabulator key."""
    return click.argument("study", shell_complete=studies)(verb)


def shown_options(verb: Function) -> Function:
    """`--open` and `--quiet`: what becomes of the answer on the screen."""
    opened = click.option("--open", "opens", is_flag=True, help="Open the report in the browser.")
    quiet = click.option("--quiet", is_flag=True, help="Print the comparison and the report's place only.")
    return opened(quiet(verb))
