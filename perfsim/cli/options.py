"""What verbs are made of: their form, the options that several share, and names at the tabulator key."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
from click.shell_completion import CompletionItem

from perfsim.base.errors import InputError
from perfsim.base.files import check_file
from perfsim.base.sizes import MOST_SEQUENCES
from perfsim.cli.output import Answer, json_option, metered, prose, write_error
from perfsim.interop import WRITTEN
from perfsim.prediction.question import ASKED, Asker, Verify

Option = Callable[[Any], Any]
"""What adds to a verb."""
VERBS: list[click.Command] = []
"""Every verb, in the order of their definition."""


def verb(short_help: str, *examples: str, heading: str = "Examples:", parts: bool = False) -> Option:
    """Make a function a verb of its name, of `parts` or not, with one line of help and with examples."""
    # A terminal breaks long examples by itself, so that they are copied as one command.
    epilog = "\n".join(["\b", heading, *(f"  {example}" for example in examples)])

    def made(function: Callable[..., None]) -> click.Command:
        name = function.__name__.strip("_")
        cls = click.Group if parts else click.Command
        VERBS.append(click.command(name, cls=cls, short_help=short_help, epilog=epilog)(function))
        return VERBS[-1]

    return made


def count(name: str, words: str, least: int = 1, most: int | None = None, **known: Any) -> Option:
    """An option that is a whole number of this range."""
    return click.option(name, type=click.IntRange(least, most), help=words, **known)


def flag(name: str, words: str, *argument: str) -> Option:
    """An option without a value, for an argument of another name than its own."""
    return click.option(name, *argument, is_flag=True, help=words)


def text(name: str, metavar: str, words: str, default: str | None = "", **known: Any) -> Option:
    """An option that is a text."""
    return click.option(name, metavar=metavar, default=default, help=words, **known)


force = flag("--force", "Replace a file that another program wrote.")


# Names at the tabulator key.


def complete(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """A completion by the catalogue's names of a kind, and by files; by settings for `layout`."""
    if kind == "layout":
        return _complete_layout

    def names(_context: click.Context, _parameter: click.Parameter, start: str) -> list[CompletionItem]:
        from perfsim.catalog import default_catalog

        known = [name for name in default_catalog().names(kind) if name.startswith(start)]
        files = [CompletionItem(start, type="file")] if not known else []
        return [*(CompletionItem(name) for name in known), *files]

    return names


def _complete_layout(_context: click.Context, _option: click.Parameter, start: str) -> list[CompletionItem]:
    """The next setting of a layout that is not given yet, or its value where that is a word."""
    from perfsim.specs.layout import AXES, ParallelLayout
    from perfsim.strategies.schedules import SCHEDULES

    before, comma, item = start.rpartition(",")
    setting, equals, _ = item.partition("=")
    given = {part.partition("=")[0] for part in before.split(",")}
    items = []
    for name, kind in get_type_hints(ParallelLayout).items():
        short = AXES[name].short or name
        words = ("true", "false") if kind is bool else get_args(kind) if get_origin(kind) is Literal else ()
        words = tuple(SCHEDULES) if name == "schedule" else words
        if short not in given:
            items += ([f"{short}={word}" for word in words] * (short == setting)) if equals else [f"{short}="]
    return [CompletionItem(f"{before}{comma}{text}") for text in items if text.startswith(item)]


emit = click.option(
    "--emit",
    type=click.Choice(WRITTEN),
    default=None,
    help="Print the flags or the file with which this tool runs the layout.",
)
compare = text(
    "--compare",
    "A,B",
    "Only these strategies, e.g. 3d,weight-streaming.",
    callback=lambda _context, _option, names: [name.strip() for name in names.split(",") if name.strip()],
)


def verify(default: Verify | None, otherwise: str = "") -> Option:
    """How many products are checked; `otherwise` tells a default that is not the same for all."""
    help_text = f"Execute matrix products of the step in NumPy: none, some, or every class.{otherwise}"
    choices = click.Choice(get_args(Verify))
    return click.option("--verify", type=choices, default=default, show_default=True, help=help_text)


scheduler = text(
    "--scheduler", "ADDRESS", "Compute on the workers of this Dask scheduler, e.g. tcp://host:8786.", None
)


def asks(asker: Asker, *, required: bool = True) -> Option:
    """The options of a question, from its declaration; the verb gets those that are given as `asked`."""
    known = [entry for entry in ASKED.values() if asker in entry.by]
    ranges: dict[Any, Any] = {int: click.IntRange, float: click.FloatRange}
    options = []
    for entry in known:
        kind: Any = click.Choice(entry.choices) if entry.choices else str
        if entry.number:
            kind = ranges[entry.number](entry.least, entry.most)
        completed = "layout" if entry.name == "layout" else entry.kind
        options.append(
            click.option(
                *(f"--{name.replace('_', '-')}" for name in (entry.name, entry.synonym) if name),
                entry.name,
                type=kind,
                required=required and entry.required,
                metavar=entry.example or None,
                help=f"{entry.help}{entry.otherwise}",
                shell_complete=complete(completed) if completed else None,
            )
        )
        if entry.name == "batch":
            words = "Instead of --batch: sequences per GPU or CS-2."
            options.append(count("--batch-per-device", words, most=MOST_SEQUENCES))

    def decorate(verb: Callable[..., Any]) -> Any:
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

        return _with(asking, *options, changes)

    return decorate


def _pairs(_context: click.Context, option: click.Parameter, texts: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts as values of YAML; inside a description a number stays text: it may lack its unit."""
    from perfsim.catalog.yaml_tree import value_of

    given: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise click.UsageError(f"{option.opts[0]} {text}: write KEY=VALUE")
        try:
            read = value_of(value.removesuffix("/h") if option.name == "prices" else value)
        except InputError as error:
            raise click.UsageError(f"{option.opts[0]} {text}: {error.problems[0].message}") from None
        inside = option.name == "changes" and "." in key
        given[key] = value if inside and type(read) in (int, float) else read
    return given


def _pairs_option(argument: str, metavar: str, words: str, option: str = "--set") -> Option:
    words += " May be repeated."
    return click.option(option, argument, multiple=True, metavar=metavar, help=words, callback=_pairs)


changes = _pairs_option(
    "changes", "PATH=VALUE", "Change a value: recipe.precision=fp8, system.node.nic.bandwidth=50GB/s."
)
prices = _pairs_option(
    "prices", "SYSTEM=PRICE", "Price of a device-hour of a system, such as dgx-h100=2.50.", "--price"
)
given = _pairs_option("given", "KEY=VALUE", "A value that FILE lacks or computes, by its name in FILE.")


def path(name: str, help_text: str, checked: Callable[[Path, str], None] | None = check_file) -> Option:
    """The path of an output, `checked` before anything is computed."""

    def check(_context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
        if path is not None and checked is not None:
            checked(path, name)
        return path

    return click.option(name, type=click.Path(path_type=Path), help=help_text, callback=check)


def _with(verb: Callable[..., Any], *options: Option) -> Any:
    """The verb with these options, in this order."""
    return functools.reduce(lambda made, option: option(made), reversed(options), verb)


def limits(verb: Callable[..., Any]) -> Any:
    """`--max-events`, `--max-seconds` and `--engine`, and progress of a long simulation."""

    @functools.wraps(verb)
    def limited_verb(
        *args: Any, max_events: int | None, max_seconds: float | None, engine: Any, **kwargs: Any
    ) -> Any:
        from perfsim.base.limits import Limits, limited

        with (
            metered() as meter,
            limited(Limits(max_events, max_seconds, meter.tasks, meter.tell, engine)) as limits,
        ):
            answer = verb(*args, **kwargs)
            if limits.reached is not None:  # an answer that lacks what a limit has stopped
                raise limits.reached
            return answer

    most = "Simulate at most this many tasks, over all processes; a step with more is not started."
    engines = (
        "Follow tasks with SimPy, or with the compiled core: the same times to the bit. "
        "[default: simpy for reported steps of up to 50,000 tasks]"
    )
    seconds = "Compute for at most this many seconds, planning included."
    return _with(
        limited_verb,
        count("--max-events", most),
        click.option("--max-seconds", type=click.FloatRange(min=0.0), help=seconds),
        click.option("--engine", type=click.Choice(("simpy", "fast")), help=engines),
    )


@dataclass(frozen=True)
class How:
    """Who computes an answer, where it is written, and what is printed of it."""

    out: Path | None
    table: Path | None
    changes: dict[str, Any]
    prices: dict[str, Any]
    jobs: int | None
    scheduler: str | None
    dry_run: bool
    quiet: bool
    as_json: bool


def answers(out: str, rows: str, processes: str) -> Option:
    """The options of a verb that answers a file and gets them as `how`; its answer is printed and opened."""

    def check_table(path: Path, option: str) -> None:
        if path.suffix not in (".csv", ".parquet"):
            raise click.BadParameter(f"{path}: a table is written as .csv or .parquet", param_hint=option)
        check_file(path, option)

    options = (
        path("--out", out, None),
        path("--table", f"Also write {rows} as a .csv or .parquet FILE.", check_table),
        changes,
        prices,
        click.option("--as-of", metavar="DAY", help=f"{ASKED['as_of'].help} Also latest, equal."),
        click.option("--rank", type=click.Choice(ASKED["rank"].choices), help=ASKED["rank"].help),
        count("--jobs", f"Processes. [default: {processes}]"),
        scheduler,
        flag("--dry-run", "Print what would be computed, and stop."),
        flag("--open", "Open the report in the browser.", "opens"),
        flag("--quiet", "Print the comparison and the report's place only."),
        json_option,
        limits,
    )

    def decorate(verb: Callable[..., Any]) -> Any:
        @functools.wraps(verb)
        def answering(as_of: str | None, rank: str | None, opens: bool, **given: Any) -> None:
            asked = {"as_of": as_of, "rank": rank}
            given["changes"] |= {name: value for name, value in asked.items() if value is not None}
            how = How(**{entry.name: given.pop(entry.name) for entry in fields(How)})
            answer: Answer = verb(how=how, **given)
            short = how.quiet and answer.verdict
            printed = replace(answer, lines=lambda: prose(answer.verdict)) if short else answer
            printed.print(as_json=how.as_json)
            if opens and answer.page and click.launch(str(answer.page)) != 0:
                write_error(f"no browser was found: open {answer.page} in one\n")
            answer.check()

        return _with(answering, *options)

    return decorate


_BASH = (
    ("    local response\n", """\
    local response line="${COMP_LINE:0:COMP_POINT}" words prefix=""
    IFS=' ' read -ra words <<< "$line"
    [[ $line == *' ' ]] && words+=("")
    local last="${words[-1]}"
    [[ $COMP_WORDBREAKS == *=* && $last == *=* ]] && prefix="${last%=*}="
"""),
    ('COMP_WORDS="${COMP_WORDS[*]}"', 'COMP_WORDS="$line"'),
    ("COMP_CWORD=$COMP_CWORD", "COMP_CWORD=$((${#words[@]} - 1))"),
    ("COMPREPLY+=($value)", 'COMPREPLY+=("${value#"$prefix"}"); [[ $value == *= ]] && compopt -o nospace'),
)  # fmt: skip
"""What makes click's script for bash complete `--layout tp=8,pp=`: bash takes `=` for the end of a word."""


@verb(
    "Print what completes names in your shell.",
    "bash:  perfsim completion bash > ~/.perfsim-complete && echo '. ~/.perfsim-complete' >> ~/.bashrc",
    "zsh:   perfsim completion zsh > ~/.perfsim-complete && echo '. ~/.perfsim-complete' >> ~/.zshrc",
    "fish:  perfsim completion fish > ~/.config/fish/completions/perfsim.fish",
    heading="Once, in your shell:",
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def _completion(shell: str) -> None:
    """Print a script that completes verbs, options, models, systems and studies in SHELL."""
    from click.shell_completion import get_completion_class

    writer: Any = get_completion_class(shell)
    root = click.get_current_context().find_root().command
    source = writer(root, {}, "perfsim", "_PERFSIM_COMPLETE").source()
    for theirs, ours in _BASH if shell == "bash" else ():
        source = source.replace(theirs, ours)
    click.echo(source)
