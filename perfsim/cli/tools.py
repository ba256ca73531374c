"""`perfsim why`: what limits each candidate of a study, or what would explain a measured step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import click

from perfsim.base.errors import InputError, PerfsimError, refused_values, within_floats
from perfsim.base.files import check_file, check_folder, must_exist, write_file
from perfsim.base.sizes import MOST_DEVICES, MOST_SEQUENCES
from perfsim.cli.completion import complete
from perfsim.cli.options import (
    batch_of,
    json_option,
    layout_option,
    limits,
    out_option,
    path_option,
    question_options_if_asked,
)
from perfsim.cli.output import metered, print_json, print_lines, print_prose, progress, write_error
from perfsim.cli.verb import Verb, VerbGroup
from perfsim.interop import CHAKRA, READ

if TYPE_CHECKING:
    from perfsim.evidence.left_out import LeftOut
    from perfsim.proof.prove import Request


# `perfsim calibrate`: constants from your own measurements.

Given = ParamSpec("Given")
source_option = click.option(
    "--source", default="", metavar="ID", help="Source id of the measurements. [default: the file's name]"
)
yaml_option = out_option("YAML file to write. [default: standard output]")


def fitted(verb: Callable[Given, None]) -> Callable[Given, None]:
    """A verb that refuses measurements from which constants follow that no hardware has."""

    @wraps(verb)
    def checked(*args: Given.args, **kwargs: Given.kwargs) -> None:
        from pydantic import ValidationError

        from perfsim.engine.limits import Limits, limited

        try:
            with metered() as meter, limited(Limits(tell=meter.tasks, tell_items=meter.items)):
                within_floats(verb)(*args, **kwargs)
        except ValidationError as error:
            wrong = refused_values(error.errors())[0]
            raise InputError(f"no hardware has the constants that fit these measurements: {wrong}") from None

    return checked


CALIBRATE_EXAMPLES = """\b
Examples:
  perfsim calibrate script > measure_gemms.py && python measure_gemms.py > gemms.csv
  perfsim calibrate gemm gemms.csv --device h100-sxm5-80gb --out mine.yaml
  perfsim calibrate collective all_reduce.txt all_gather.txt --link nvlink4 --out links.yaml
  perfsim calibrate steps measured.yaml --out cluster.yaml
"""


@click.group(cls=VerbGroup, short_help="Fit constants to your own measurements.", epilog=CALIBRATE_EXAMPLES)
def calibrate() -> None:
    """Fit constants of a device, a link, a cluster or a training run to your own measurements."""


@calibrate.command(short_help="Print a PyTorch script that writes a table for gemm.")
def script() -> None:
    """Print a script that times matrix products on your GPU with PyTorch, as a table for `calibrate gemm`."""
    from perfsim.catalog import data_root

    click.echo((data_root() / "hardware" / "measure_gemms.py").read_text("utf-8"), nl=False)


@calibrate.command(short_help="Fit the GEMM model to a table of products.")
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--device", required=True, help="Name, or file, of the measured device.")
@click.option("--like", default="", help="Calibration whose tiles are scaled, for a table with `precision`.")
@yaml_option
@source_option
@fitted
def gemm(table: Path, device: str, like: str, out: Path | None, source: str) -> None:
    """Fit the GEMM model to TABLE, a CSV of m, n, k, time_us and, with --like, precision."""
    from perfsim.evidence.calibrate import calibrate_gemm

    must_exist(table)
    print_lines([calibrate_gemm(table, device, out, source=source, like=like)])


@calibrate.command(short_help="Fit the collective model to tables of measurements.")
@click.argument("tables", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--link", required=True, help="Name, or file, of the measured link.")
@yaml_option
@source_option
@fitted
def collective(tables: tuple[Path, ...], link: str, out: Path | None, source: str) -> None:
    """Fit the collective model to TABLES: outputs of nccl-tests on one node, or CSVs.

    A CSV has the columns collective, num_gpus, bytes, time_us. Several files fit several operations and
    numbers of GPUs together: all_reduce_perf, all_gather_perf, reduce_scatter_perf, alltoall_perf.
    """
    from perfsim.evidence.calibrate import calibrate_collectives

    for table in tables:
        must_exist(table)
    print_lines([calibrate_collectives(list(tables), link, out, source=source)])


@calibrate.command(short_help="Fit host times and sustained ceilings to whole steps.")
@click.argument("cases", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--device", default=None, help="Only runs on this device of the catalogue. [default: all]")
@out_option("Folder for the YAML. [default: standard output]", check_folder)
@click.option("--device-only", is_flag=True, help="Keep the framework's constants.")
@click.option("--only", multiple=True, metavar="CONSTANT", help="Fit only this constant; may be repeated.")
@click.option(
    "--most-devices",
    type=click.IntRange(1, MOST_DEVICES),
    default=MOST_DEVICES,
    help="Leave out larger runs.",
)
@source_option
@fitted
def framework(
    cases: tuple[Path, ...],
    device: str | None,
    out: Path | None,
    device_only: bool,
    only: tuple[str, ...],
    most_devices: int,
    source: str,
) -> None:
    """Fit host launch times, and the sustained ceiling of each GPU, to whole steps in CASES."""
    from perfsim.evidence.calibrate import calibrate_framework

    for path in cases:
        must_exist(path)
    text = calibrate_framework(
        cases, device, out, device_only=device_only, only=only, most_devices=most_devices, source=source
    )
    print_lines([text])


@calibrate.command(short_help="Fit one scale for your cluster to steps measured on it.")
@click.argument("measured", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--system", default="", help="Catalogue name of the machine that wrote the logs.")
@yaml_option
@fitted
def steps(measured: tuple[Path, ...], system: str, out: Path | None) -> None:
    """Fit one scale for your cluster to steps that you MEASURED on it.

    MEASURED is a YAML file of two or three steps, or one or several logs of Megatron-LM, with --system.
    """
    from perfsim.evidence.calibrate import calibrate_steps

    for path in measured:
        must_exist(path)
    text, warning = calibrate_steps(measured, out, system)
    print_lines([text])
    if warning:
        write_error(f"warning: {warning}\n")


@calibrate.command(short_help="Fit a wafer's efficiency by software release to logs.")
@click.argument("cases", type=click.Path(path_type=Path))
@click.option("--device", default="wse-2", show_default=True, help="Catalogue name of the wafer.")
@yaml_option
@source_option
@fitted
def wafer(cases: Path, device: str, out: Path | None, source: str) -> None:
    """Fit a wafer's efficiency for each software release to the logs in CASES."""
    from perfsim.evidence.calibrate import calibrate_wafer

    must_exist(cases)
    print_lines([calibrate_wafer(cases, device, out, source=source)])


@calibrate.command(short_help="Fit the critical batch to your own runs.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--tokens-per-example",
    type=float,
    default=1.0,
    show_default=True,
    help="Tokens of what a batch counts; 2048 for sequences of 2048 tokens.",
)
@click.option(
    "--kind",
    type=click.Choice(["pre-training", "warm-start", "fine-tuning"]),
    default="pre-training",
    show_default=True,
    help="Kind of the runs.",
)
@yaml_option
@fitted
def convergence(files: tuple[Path, ...], tokens_per_example: float, kind: str, out: Path | None) -> None:
    """Fit E_min and the critical batch to FILES: a CSV, a file of a convergence case, or MLPerf logs.

    A CSV has the columns batch and steps (or examples) to the target, or tokens and b_simple (a log of the
    gradient noise scale). A study names the result: `convergence: {law: fitted, fit: ./FILE.yaml}`.
    """
    from perfsim.evidence.calibrate import calibrate_convergence

    for path in files:
        must_exist(path)
    print_lines(calibrate_convergence(files, tokens_per_example, kind, out))


# `perfsim check`: all mistakes of a file, and nothing computed.

CHECK_EXAMPLES = """\b
Examples:
  perfsim check my_study.yaml
  perfsim check my_cluster.yaml my_gpu.yaml
"""


@click.command(cls=Verb, short_help="List all mistakes of a file; nothing is run.", epilog=CHECK_EXAMPLES)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--kind", default="", help="device, system, model, ... [default: told by the file's keys]")
@json_option
def check(files: tuple[Path, ...], kind: str, as_json: bool) -> None:
    """Read each FILE with all that it names, and list every mistake; nothing is run.

    Exit code 2 if there is any.
    """
    from perfsim.api.tools import check as check_file

    checked = []
    problems = []
    for path in files:
        try:
            checked.append(check_file(path, kind))
        except InputError as error:
            problems += list(error.problems)
    if problems:
        raise InputError(problems)
    if as_json:
        print_json([{"file": own.file, "kind": own.kind, "holds": own.words} for own in checked])
    else:
        print_prose(*(f"{own.file}: {own.kind}, no mistakes ({own.words})" for own in checked))


# `perfsim diff`: two studies or two answers side by side.

DIFF_EXAMPLES = """\b
Examples:
  perfsim diff gpt3_20b my_study.yaml
  perfsim diff before/summary.json after/summary.json
"""


@click.command(cls=Verb, short_help="What differs between two studies, and its effect.", epilog=DIFF_EXAMPLES)
@click.argument("first")
@click.argument("second")
@json_option
@limits
def diff(first: str, second: str, as_json: bool) -> None:
    """Compare FIRST and SECOND: names or files of studies, or the summary.json of two answers.

    Studies are answered, and the first once more with each changed input alone. Answers are compared as they
    stand, with the inputs that differ between them.
    """
    from perfsim.api.tools import diff as compare
    from perfsim.report.document import plain
    from perfsim.report.terminal import difference_lines

    difference = compare(first, second)
    if as_json:
        print_json(plain(difference))
    else:
        print_lines(difference_lines(difference))


# `perfsim explain`: terms of reports and messages, from the glossary.

EXPLAIN_EXAMPLES = """\b
Examples:
  perfsim explain mfu
  perfsim explain critical batch
"""


@click.command(cls=Verb, short_help="Say what a term means, such as mfu.", epilog=EXPLAIN_EXAMPLES)
@click.argument("term", nargs=-1)
def explain(term: tuple[str, ...]) -> None:
    """Say what a TERM of reports and messages means, or list all terms."""
    from perfsim.report.glossary import explained, terms

    if not term:
        print_prose(f"perfsim explain TERM, where a term is one of: {', '.join(terms())}.")
        return
    entries = explained(" ".join(term))
    print_prose(*(f"{name}{'' if meaning.startswith('(') else ':'} {meaning}" for name, meaning in entries))


# `perfsim import`: files of other tools as YAML of perfsim.

FORMATS = (*READ, CHAKRA)
PARTS = ("model", "recipe", "measured", "convergence")


IMPORT_EXAMPLES = """\b
Examples:
  perfsim import config.json --out my_model.yaml
  perfsim import pretrain.sh --part recipe
"""


@click.command(
    cls=Verb, name="import", short_help="Read a model or a run of another tool.", epilog=IMPORT_EXAMPLES
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_name",
    type=click.Choice(FORMATS),
    metavar="NAME",
    default=None,
    help=f"Format of FILE: {', '.join(FORMATS)}. [default: recognised by its content]",
)
@click.option("--part", type=click.Choice(PARTS), default=None, help="What to write. [default: the model]")
@click.option("--model", default="", help="Model of a FILE without one: of the catalogue, or a config.json.")
@click.option("--system", default="", help="Machine on which the steps of a log were measured.")
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="KEY=VALUE",
    help="A value that FILE lacks or computes, by its name in FILE. May be repeated.",
)
@out_option("YAML file to write. [default: standard output]")
@json_option
def import_(
    files: tuple[Path, ...],
    format_name: Any,
    part: Any,
    model: str,
    system: str,
    given: Sequence[str],
    out: Path | None,
    as_json: bool,
) -> None:
    """Read a model, a recipe or measured steps from FILE of another tool, as YAML of perfsim.

    Formats: config.json of Hugging Face; scripts and logs of Megatron-LM; YAML of the Cerebras Model Zoo,
    NeMo, Megatron-Bridge and GPT-NeoX; TOML or log of torchtitan; DeepSpeed JSON beside a config.json; MLPerf
    logs, of which several may be given; Chakra traces, for a summary. The output says how many parameters the
    model has, which keys were not used, and what perfsim cannot express.
    """
    from perfsim.api.questions import writing
    from perfsim.api.tools import import_file

    result = import_file(
        files[0],
        format_name or "",
        part=part or "",
        model=model,
        system=system,
        given=_given(given),
        more=files[1:],
    )
    if out is not None:
        with writing(out) as path:
            write_file(path, result.text())
    if as_json:
        print_json(result.as_dict())
    elif out is None:
        print_lines(result.text().rstrip().splitlines())
    else:
        print_lines([f"{result.kind} from {result.format}: {out}", *result.remarks()])


def _given(texts: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts as values of YAML."""
    from perfsim.catalog.yaml_tree import ScalarError, resolve_plain

    given: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise click.UsageError(f"--set {text}: write KEY=VALUE")
        try:
            given[key] = resolve_plain(value)
        except ScalarError as error:
            raise click.UsageError(f"--set {text}: {error}") from None
    return given


# `perfsim init`: a commented study to begin with.

INIT_EXAMPLES = """\b
Examples:
  perfsim init my_study.yaml
  perfsim init my_study.yaml --model llama2_70b --system dgx-h100 --devices 64
"""
TEMPLATE = """\
# A study for perfsim. Check it:   perfsim check {file}
#                      Answer it:  perfsim study {file} --open
title: {model} on my machine
question: How long does my machine take, and would another one be faster?

# A name (perfsim show models), a YAML file, or a config.json of Hugging Face.
model: {model}

# How it is trained. Each line below replaces a value of the recipe that is extended (perfsim show recipes).
recipe:
  extends: {recipe}
  # seq_length: 4096             # tokens of a sequence
  # precision: bf16              # or fp16, fp8
  # attention: flash             # or standard
  # dropout: false
  # global_batch_size: 512       # sequences; without it the best batch is searched
  tokens: 400e9                  # until the target is reached, with a small batch

# The machines to compare. Several numbers of devices: [8, 16, 32].
candidates:
  - {{strategy: {strategy}, system: {system}, devices: [{devices}]}}
  # My own machine, as its differences from one of the catalogue (perfsim show systems {system}):
  # - strategy: {strategy}
  #   system:
  #     extends: {system}
  #     name: my-cluster
  #     noun: {{device: My GPU}}   # what people call one of its devices
  #     node: {{nics: 4}}
  #     assumed: {{node.nics: as delivered}}
  #   devices: [{devices}]
  # - {{strategy: weight-streaming, system: cs-2, devices: [4]}}

batch_sizes: auto
sampling: {{tasks: 4}}             # matrix products of a step that are executed, as a check

# Every value needs a source or a reason; these are yours.
assumed:
  model: my question
  recipe: my question
  candidates: my question
  batch_sizes: each machine at its own best batch
  sampling: a quick check
"""


@click.command(cls=Verb, short_help="Write a commented study to begin with.", epilog=INIT_EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path), default="my_study.yaml")
@click.option("--model", default="llama2_70b", show_default=True, shell_complete=complete("model"))
@click.option("--recipe", default="gpt3_pretraining", show_default=True, shell_complete=complete("recipe"))
@click.option("--system", default="dgx-h100", show_default=True, shell_complete=complete("system"))
@click.option("--devices", type=click.IntRange(1, MOST_DEVICES), default=64, show_default=True)
def init(file: Path, model: str, recipe: str, system: str, devices: int) -> None:
    """Write a commented study to FILE, which `perfsim study FILE` answers as it is."""
    from perfsim.catalog import default_catalog
    from perfsim.machines import strategy_for

    if file.exists():
        raise InputError(f"{file} is there already; name another file")
    check_file(file, "FILE")
    catalog = default_catalog()
    for kind, name in (("model", model), ("recipe", recipe), ("system", system)):
        catalog.load(kind, name)
    strategy = strategy_for("", catalog.system(system)).name
    names = {"model": model, "recipe": recipe, "system": system, "strategy": strategy}
    write_file(file, TEMPLATE.format(file=file, devices=devices, **names))
    print_prose(f"{file}: edit it, then `perfsim check {file}` and `perfsim study {file} --open`")


# `perfsim prove`: execute schedules and compare them with serial training.

MOST_ORDERS = 10_000


PROVE_EXAMPLES = """\b
Examples:
  perfsim prove gpt3_xl --strategy 3d --layout tp=2,pp=4,schedule=zb1p
"""


@click.command(
    cls=Verb, short_help="Compare schedules with serial training, in NumPy.", epilog=PROVE_EXAMPLES
)
@click.argument("target", metavar="MODEL|STUDY")
@click.option("--strategy", default="", help="Only this strategy. [default: all; 3d for a --layout]")
@layout_option("Only this layout. [default: all strategies and schedules of the catalogue]")
@click.option(
    "--devices",
    type=click.IntRange(1, MOST_DEVICES),
    default=None,
    help="Number of devices. [default: what --layout needs]",
)
@click.option(
    "--batch", type=click.IntRange(1, MOST_SEQUENCES), default=None, help="Global batch of a --layout."
)
@click.option(
    "--orders",
    type=click.IntRange(0, MOST_ORDERS),
    default=None,
    help="Random orders of execution. [default: 10]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=None,
    help="Seed of weights and random orders. [default: 0]",
)
@click.option(
    "--mutations",
    type=click.Path(dir_okay=False),
    default=None,
    metavar="FILE",
    help="Insert faults into these schedules instead, and write to FILE (Markdown) which are detected.",
)
@click.option(
    "--every", type=click.IntRange(1), default=None, help="Of --mutations: try every N-th fault only."
)
@json_option
@limits
def prove(
    target: str,
    strategy: str,
    layout: str,
    devices: int | None,
    batch: int | None,
    orders: int | None,
    seed: int | None,
    mutations: str | None,
    every: int | None,
    as_json: bool,
) -> None:
    """Execute schedules in NumPy and compare them with serial training.

    The graph that a strategy writes for a layout is written for a small model with the same numbers of
    stages, ranks and micro-batches, checked for missing dependencies, and executed over two optimizer
    steps, in the simulated order and in random ones. Loss, gradients and updated weights must equal those
    of serial training. Without --layout: every strategy, schedule, ZeRO stage and recompute mode of the
    catalogue with MODEL's architecture, or the layouts that STUDY chooses. --mutations tests how many
    faults such a proof detects.
    """
    from perfsim.proof.prove import DEFAULT_ORDERS, Request

    if mutations is None and every is not None:
        raise InputError("--every belongs to --mutations: it says which share of the faults is tried")
    if mutations is not None and (orders is not None or seed is not None):
        raise InputError("--orders and --seed belong to proofs: --mutations tries each fault in one order")
    orders = DEFAULT_ORDERS if orders is None else orders
    request = Request(target, strategy, layout, devices, batch, orders, seed or 0)
    tell = progress(quiet=as_json)
    if mutations is None:
        _prove(request, tell, as_json=as_json)
    else:
        _mutate(request, Path(mutations), every or 1, tell, as_json=as_json)


def _prove(request: Request, tell: Callable[[str], None], *, as_json: bool) -> None:
    from perfsim.proof.prove import prove_all
    from perfsim.report.terminal import proof_lines

    answer = prove_all(request, tell).as_dict()
    if as_json:
        print_json(answer)
    else:
        print_lines(proof_lines(answer))
    if not answer["passed"]:
        raise PerfsimError(
            f"{request.target}: at least one layout does not compute what serial training does"
        )


def _mutate(request: Request, page: Path, every: int, tell: Callable[[str], None], *, as_json: bool) -> None:
    from perfsim.proof.faults import try_plans
    from perfsim.proof.prove import plans_of
    from perfsim.report.mutations import mutations_page, mutations_sentence

    if not page.parent.is_dir():
        raise InputError(f"--mutations {page}: there is no folder {page.parent}")
    answer = try_plans(request.target, plans_of(request), every, tell)
    write_file(page, mutations_page(answer))
    if as_json:
        print_json(answer)
    else:
        print_lines([mutations_sentence(answer), f"wrote {page}"])
    if not answer["passed"]:
        raise PerfsimError(f"{request.target}: a fault was missed: {answer['unexplained'][0]}")


# `perfsim schema`: JSON Schemas of the YAML files.

SCHEMA_EXAMPLES = """\b
Examples:
  perfsim schema study
  perfsim schema --out .schemas
"""


@click.command(cls=Verb, short_help="Print or write JSON Schemas of the YAML files.", epilog=SCHEMA_EXAMPLES)
@click.argument("kind", required=False)
@out_option("Folder for <kind>.schema.json files. [default: standard output]", check_folder)
def schema(kind: str | None, out: Path | None) -> None:
    """Print or write the JSON Schema of a KIND of YAML file (device, model, study, ...), or of all."""
    from perfsim.api.tools import KINDS, schema_of, schema_text, write_schemas

    if out is not None:
        for path in write_schemas(out, [kind] if kind else KINDS):
            print_lines([f"Schema: {path}"])
        return
    document = schema_of(kind) if kind else {name: schema_of(name) for name in KINDS}
    click.echo(schema_text(document), nl=False)


# `perfsim show`: what the catalogue holds.

KINDS = ("systems", "devices", "models", "recipes", "wall_clocks", "studies", "strategies")

COUNTED = {"num_devices": "devices", "vertices": "vertices", "edges": "edges"}


SHOW_EXAMPLES = """\b
Examples:
  perfsim show models
  perfsim show systems dgx-h100
"""


@click.command(cls=Verb, short_help="List what the catalogue holds, with sources.", epilog=SHOW_EXAMPLES)
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name", required=False)
@click.option(
    "--graph",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the network of a system: .graphml, .dot or .gv.",
)
@click.option(
    "--devices",
    type=click.IntRange(1, MOST_DEVICES),
    help="Of so many devices.  [default: those of two nodes]",
)
@json_option
def show(kind: str, name: str | None, graph: Path | None, devices: int | None, as_json: bool) -> None:
    """List what the catalogue holds, or print one entry with the source of each value."""
    if graph is not None:
        _write(kind, name, graph, devices, as_json=as_json)
        return
    from perfsim.api.inventory import entry, names
    from perfsim.report.terminal import row_lines

    rows = entry(kind, name) if name else names(kind)
    if as_json:
        print_json(rows)
    else:
        print_lines(row_lines(rows, title=name or kind))


def _write(kind: str, name: str | None, graph: Path, devices: int | None, *, as_json: bool) -> None:
    """Write the network of a system to a file, and say what is in it."""
    from perfsim.api.inventory import write_network
    from perfsim.base.errors import InputError

    if kind != "systems" or name is None:
        raise InputError("--graph writes the network of one system: perfsim show systems NAME --graph FILE")
    written = write_network(name, graph, devices)
    if as_json:
        print_json(written)
        return
    counts = ", ".join(f"{written[key]:,} {word}" for key, word in COUNTED.items())
    print_prose(f"{graph}: {name} with {counts}")


# `perfsim validate`: predictions against published runs.

VALIDATE_EXAMPLES = """\b
Examples:
  perfsim validate
  perfsim validate my_runs.yaml --worst 20
"""


@click.command(cls=Verb, short_help="Compare predictions with published runs.", epilog=VALIDATE_EXAMPLES)
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
    from perfsim.api.tools import validate as answer
    from perfsim.evidence.plans import public_cases
    from perfsim.report.terminal_study import validation_lines

    paths = files or tuple(public_cases())
    for path in paths:
        must_exist(path)
    results = [dict(answer(path).document) for path in paths]
    steps = [pair for pair in zip(paths, results, strict=True) if pair[1]["kind"] == "step_time"]
    if leave_out and not steps:
        raise click.UsageError("--leave-out is for files of step times")
    left_out_rows: dict[str, Sequence[LeftOut]] = {}
    if page is not None:
        from perfsim.evidence.accuracy_page import accuracy_page
        from perfsim.report.validation import write_validation

        accuracy = accuracy_page(paths, results, leaves_out=leave_out)
        written = write_validation(accuracy, page)
        write_error(f"Page: {written[0]}, {written[1]}\n")
        outside = [step.outside for step in accuracy.steps]
        left_out_rows = {step.result["file"]: step.left_out for step in accuracy.steps}
    elif leave_out:
        from perfsim.evidence.left_out import left_out

        outside = [left_out(path) for path, _ in steps]
    if leave_out:
        for (_, result), scores in zip(steps, outside, strict=True):
            result["left_out"] = scores
    if record:
        from perfsim.evidence.record import write_records

        write_records(paths, results, left_out_rows)
    if as_json:
        print_json(results[0] if len(results) == 1 else results)
        return
    for result in results:
        print_lines(validation_lines(result, worst))


NEEDED = ("model", "system", "devices")
WHY_EXAMPLES = """\b
Examples:
  perfsim why gpt3_20b
  perfsim why reports/gpt3_20b/summary.json
  perfsim why --measured 5.4s --model gpt3_xl --system dgx-a100-80gb --devices 16
"""


@click.command(
    cls=Verb,
    short_help="What limits the candidates, and what would help; or explains a measured step.",
    epilog=WHY_EXAMPLES,
)
@click.argument("study", required=False, default="")
@click.option("--compare", default="", metavar="A,B", help="Only these strategies, e.g. 3d,weight-streaming.")
@click.option(
    "--measured",
    default="",
    metavar="5.4s",
    help="Rank the inputs that would explain this step of --model on --system and --devices.",
)
@question_options_if_asked
@layout_option("[default: chosen by the planner]")
@json_option
@limits
def why(study: str, compare: str, measured: str, as_json: bool, **asked: Any) -> None:
    """Explain the candidates of a STUDY: a name, a YAML file, or the summary.json of its answer.

    Each change is predicted again at the best batch, with the layout that is best with it. With --measured,
    explain the gap between the step that `perfsim run` predicts for the same options and a measured one.
    """
    if measured:
        _why_measured(study, measured, asked, as_json=as_json)
    elif not study:
        raise click.UsageError("name a STUDY, or give --measured with --model, --system and --devices")
    elif given := [name for name in NEEDED if asked[name]]:
        raise click.UsageError(f"--{given[0]} belongs to --measured; a STUDY names its own")
    else:
        _why_study(study, compare, as_json=as_json)


def _why_study(study: str, compare: str, *, as_json: bool) -> None:
    from perfsim.api.tools import why as explain_study
    from perfsim.report.document import plain
    from perfsim.report.terminal import why_lines

    names = [name.strip() for name in compare.split(",") if name.strip()]
    explained = explain_study(study, names)
    if as_json:
        print_json({"candidates": plain(explained)})
    else:
        print_lines(why_lines(explained))


def _why_measured(study: str, measured: str, asked: dict[str, Any], *, as_json: bool) -> None:
    from perfsim.api.tools import why_measured
    from perfsim.report.document import plain
    from perfsim.report.terminal import gap_lines

    missing = [f"--{name}" for name in NEEDED if not asked[name]]
    if study or missing:
        words = f"it needs {', '.join(missing)}" if missing else "it takes no STUDY"
        raise click.UsageError(f"--measured explains one step of one model on one system; {words}")
    batch = batch_of(asked.pop("batch"), asked.pop("batch_per_device"), asked["devices"])
    asked["cluster"] = asked["cluster"] or None
    explained = why_measured(measured, batch=batch, **asked)
    if as_json:
        print_json(plain(explained) | {"inside_band": explained.inside})
    else:
        print_lines(gap_lines(explained))
