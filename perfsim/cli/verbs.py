"""The verbs that ask nothing new: fits, checks, lists, proofs and explanations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfsim.api import inventory
from perfsim.base.errors import InputError, PerfsimError, UnknownNameError, refused_values, within_floats
from perfsim.base.files import check_file, check_folder, must_be_ours, write_file, writing
from perfsim.base.sizes import MOST_DEVICES, MOST_SEQUENCES
from perfsim.cli import options
from perfsim.cli.output import Answer, metered, must, print_lines, prints, progress, prose, write_error
from perfsim.interop import FORMATS
from perfsim.prediction.question import ASKED

if TYPE_CHECKING:
    from perfsim.evidence.left_out import LeavingOut
    from perfsim.specs.calibration import Calibration, RunKind


_source_option = options.text("--source", "ID", "Source id of the measurements. [default: the file's name]")
_FILE = "YAML file to write. [default: standard output]"
_FOLDER = "Folder for the YAML. [default: standard output]"


_files = partial(click.argument, type=click.Path(path_type=Path))
"""An argument of one file or several; what reads them refuses those that are not there."""


@options.verb(
    "Fit constants to your own measurements.",
    "perfsim calibrate script > measure_gemms.py && python measure_gemms.py > gemms.csv",
    "perfsim calibrate gemm gemms.csv --device h100-sxm5-80gb --out mine.yaml",
    "perfsim calibrate collective all_reduce.txt all_gather.txt --link nvlink4 --out links.yaml",
    "perfsim calibrate steps measured.yaml --out cluster.yaml",
    parts=True,
)
def _calibrate() -> None:
    """Fit constants of a device, a link, a cluster or a training run to your own measurements."""


def _part(short_help: str, *, folder: bool = False) -> Callable[[Callable[..., Sequence[Calibration]]], Any]:
    """A part of `calibrate`, named as its function, which gets its options except --out and returns fits."""

    def made(function: Callable[..., Sequence[Calibration]]) -> Any:
        @wraps(function)
        def fitted(out: Path | None, **given: Any) -> None:
            from pydantic import ValidationError

            from perfsim.base.limits import Limits, limited
            from perfsim.evidence.fitting import delivered
            from perfsim.specs.calibration import ClusterCalibration, ConvergenceCalibration

            try:
                with metered() as meter, limited(Limits(tell=meter.tasks, say=meter.tell)):
                    for own in within_floats(function)(**given):
                        place = out / f"{own.name}.yaml" if out and folder else out
                        print_lines([delivered(own, place)])
                        told = [f"{name}: {fit.words}" for name, fit in own.fit.items()]
                        if isinstance(own, ConvergenceCalibration):
                            told = [own.description, *own.notes]
                        if isinstance(own, ClusterCalibration):
                            told = prose(own.note)
                        print_lines(told if out else [])
            except ValidationError as error:
                wrong = refused_values(error.errors())[0]
                raise InputError(
                    f"no hardware has the constants that fit these measurements: {wrong}"
                ) from None

        # With `folder`, --out is one, for a file of each fit.
        option = options.path("--out", _FOLDER, check_folder) if folder else options.path("--out", _FILE)
        return _calibrate.command(function.__name__.strip("_"), short_help=short_help)(option(fitted))

    return made


@_calibrate.command("script", short_help="Print a PyTorch script that writes a table for gemm.")  # type: ignore[untyped-decorator]  # a group
def _script() -> None:
    """Print a script that times matrix products on your GPU with PyTorch, as a table for `calibrate gemm`."""
    from perfsim.catalog import data_root

    click.echo((data_root() / "hardware" / "measure_gemms.py").read_text("utf-8"), nl=False)


@_part("Fit the GEMM model to a table of products.")
@_files("table")
@click.option("--device", required=True, help="Name, or file, of the measured device.")
@click.option("--like", default="", help="Calibration whose tiles are scaled, for a table with `precision`.")
@_source_option
def _gemm(table: Path, device: str, like: str, source: str) -> list[Calibration]:
    """Fit the GEMM model to TABLE, a CSV of m, n, k, time_us and, with --like, precision."""
    from perfsim.catalog import default_catalog
    from perfsim.evidence.gemm_fit import gpu_calibration

    catalog = default_catalog()
    base = catalog.load("calibration", like) if like else None
    return [gpu_calibration(table, catalog.device(device), base, source=source)]


@_part("Fit the collective model to tables of measurements.")
@_files("tables", nargs=-1, required=True)
@click.option("--link", required=True, help="Name, or file, of the measured link.")
@_source_option
def _collective(tables: tuple[Path, ...], link: str, source: str) -> list[Calibration]:
    """Fit the collective model to TABLES: outputs of nccl-tests on one node, or CSVs.

    A CSV has the columns collective, num_gpus, bytes, time_us. Several files fit several operations and
    numbers of GPUs together: all_reduce_perf, all_gather_perf, reduce_scatter_perf, alltoall_perf.
    """
    from perfsim.catalog import default_catalog
    from perfsim.evidence.collective_fit import link_calibration

    return [link_calibration(tables, default_catalog().load("link", link), source=source)]


@_part("Fit host times and sustained ceilings to whole steps.", folder=True)
@_files("cases", nargs=-1, required=True)
@click.option("--device", help="Only runs on this device of the catalogue. [default: all]")
@options.flag("--device-only", "Keep the framework's constants.")
@click.option("--only", multiple=True, metavar="CONSTANT", help="Fit only this constant; may be repeated.")
@options.count("--most-devices", "Leave out larger runs.", most=MOST_DEVICES, default=MOST_DEVICES)
@_source_option
def _framework(cases: tuple[Path, ...], device: str | None, **more: Any) -> Sequence[Calibration]:
    """Fit host launch times, and the sustained ceiling of each GPU, to whole steps in CASES."""
    from perfsim.evidence.step_fit import fit_steps

    return fit_steps(cases, device, **more)


@_part("Fit one scale for your cluster to steps measured on it.")
@_files("measured", nargs=-1, required=True)
@click.option("--system", default="", help="Name, or file, of the machine that wrote the logs.")
def _steps(measured: tuple[Path, ...], system: str) -> list[Calibration]:
    """Fit one scale for your cluster to steps that you MEASURED on it.

    MEASURED is a YAML file of two or three steps, or one or several logs of Megatron-LM, with --system.
    """
    from perfsim.evidence.own_runs import fit_cluster

    calibration = fit_cluster(measured, system)
    if calibration.is_wide:
        write_error(f"warning: {calibration.note}\n")
    return [calibration]


@_part("Fit what products, attention and rows of a wafer take to logs.")
@_files("cases")
@click.option("--device", default="wse-2", show_default=True, help="Catalogue name of the wafer.")
@_source_option
def _wafer(cases: Path, device: str, source: str) -> list[Calibration]:
    """Fit the constants of a wafer and the growth per software release to the logs in CASES."""
    from perfsim.evidence.step_fit import fit_wafer

    return [fit_wafer(cases, device, source=source)]


@_part("Fit the critical batch to your own runs.")
@_files("files", nargs=-1, required=True)
@click.option(
    "--tokens-per-example",
    type=float,
    default=1.0,
    show_default=True,
    help="Tokens of what a batch counts; 2048 for sequences of 2048 tokens.",
)
@click.option(
    "--kind",
    "run_kind",
    type=click.Choice(["pre-training", "warm-start", "fine-tuning"]),
    default="pre-training",
    show_default=True,
    help="Kind of the runs.",
)
def _convergence(files: tuple[Path, ...], tokens_per_example: float, run_kind: RunKind) -> list[Calibration]:
    """Fit E_min and the critical batch to FILES: a CSV, a file of a convergence case, or MLPerf logs.

    A CSV has the columns batch and steps (or examples) to the target, or tokens and b_simple (a log of the
    gradient noise scale). A study names the result: `convergence: {law: fitted, fit: ./FILE.yaml}`.
    """
    from perfsim.evidence.own_runs import fit_convergence

    return [fit_convergence(files, tokens_per_example, run_kind)]


@options.verb(
    "List all mistakes of a file; nothing is run.",
    "perfsim check my_study.yaml",
    "perfsim check my_cluster.yaml my_gpu.yaml",
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--kind", default="", help="device, system, model, ... [default: told by the file's keys]")
@prints
def _check(files: tuple[Path, ...], kind: str) -> Answer:
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
    return Answer(
        lambda: [{"file": each.file, "kind": each.kind, "holds": each.words} for each in checked],
        lambda: prose(*(f"{each.file}: {each.kind}, no mistakes ({each.words})" for each in checked)),
    )


@options.verb(
    "What differs between two studies, and its effect.",
    "perfsim diff gpt3_20b my_study.yaml",
    "perfsim diff before/summary.json after/summary.json",
)
@click.argument("first")
@click.argument("second")
@options.limits
@prints
def _diff(first: str, second: str) -> Answer:
    """Compare FIRST and SECOND: names or files of studies, or the summary.json of two answers.

    Studies are answered, and the first once more with each changed input alone. Answers are compared as they
    stand, with the inputs that differ between them.
    """
    from perfsim.api.tools import diff as compare
    from perfsim.report.terminal import difference_lines

    difference = compare(first, second)
    return Answer(lambda: difference, lambda: difference_lines(difference))


@options.verb("Say what a term means, such as mfu.", "perfsim explain mfu", "perfsim explain critical batch")
@click.argument("term", nargs=-1)
def _explain(term: tuple[str, ...]) -> None:
    """Say what a TERM of reports and messages means, or list all terms."""
    from perfsim.catalog import data_root

    text = (data_root() / "docs" / "glossary.md").read_text("utf-8")
    entries = {}
    for name, body in re.findall(r"(?ms)^- \*\*(.+?)\*\*:?\s*(.*?)(?=^- \*\*|^#|\Z)", text):
        linked = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(body.split()))
        # Where a term is defined is for readers of the code.
        meaning = re.sub(r"\s*\(`[a-z_.`, ]+`\)", "", linked)
        entries[name] = meaning.replace("**", "").replace("`", "").strip()
    if not term:
        print_lines(prose(f"perfsim explain TERM, where a term is one of: {', '.join(entries)}."))
        return
    words = re.split(r"[-_ ]", " ".join(term).casefold())
    pattern = re.compile(rf"\b{'[- ]'.join(map(re.escape, words))}s?\b")
    known = {name: meaning for name, meaning in entries.items() if meaning}
    named = [name for name in known if pattern.search(name.casefold())]
    shown = named or [name for name, meaning in known.items() if pattern.search(meaning.casefold())]
    if not shown:
        raise UnknownNameError("term", " ".join(term), list(entries))
    for name in shown:
        print_lines(prose(f"{name}{'' if known[name].startswith('(') else ':'} {known[name]}"))


_PARTS = ("model", "recipe", "measured", "convergence")


@options.verb(
    "Read a model or a run of another tool.",
    "perfsim import config.json --out my_model.yaml",
    "perfsim import pretrain.sh --part recipe",
)
@_files("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(FORMATS),
    metavar="NAME",
    help="Format of FILE, such as megatron. [default: recognised by its content]",
)
@click.option("--part", type=click.Choice(_PARTS), help="What to write. [default: the model]")
@click.option("--model", default="", help="Model of a FILE without one: of the catalogue, or a config.json.")
@click.option("--system", default="", help="Machine on which the steps of a log were measured.")
@options.given
@options.path("--out", _FILE)
@options.force
@prints
def _import(
    files: tuple[Path, ...],
    format_name: str | None,
    part: str | None,
    out: Path | None,
    force: bool,
    **given: Any,
) -> Answer:
    """Read a model, a recipe or measured steps from FILE of another tool, as YAML of perfsim.

    Formats: config.json of Hugging Face; scripts and logs of Megatron-LM; YAML of the Cerebras Model Zoo,
    NeMo, Megatron-Bridge and GPT-NeoX; TOML or log of torchtitan; DeepSpeed JSON with a config.json; one or
    several MLPerf logs; Chakra traces, for a summary. The output says how many parameters the model has,
    which keys were not used, and what perfsim cannot express.
    """
    from perfsim.interop.formats import import_file

    if out is not None and not force:
        must_be_ours(out, "--out", b"# Imported from")
    result = import_file(files[0], format_name or "", part=part or "", more=files[1:], **given)
    if out is None:
        return Answer(result.as_dict, lambda: result.text().rstrip().splitlines())
    with writing(out) as path:
        write_file(path, result.text())
    return Answer(result.as_dict, lambda: [f"{result.kind} from {result.format}: {out}", *result.remarks()])


_TEMPLATE = """\
# A study for perfsim. Check it:   perfsim check {file}
#                      Answer it:  perfsim study {file} --open
title: {model} on my machine
question: How long does my machine take, and would another one be faster?

# A name (perfsim show models) or a YAML file, which perfsim import makes of a config.json.
model: {model}

# How it is trained. Each line below replaces a value of the recipe that is extended (perfsim show recipes).
recipe:
  extends: {recipe}
  seq_length: {length: <19}# tokens of a sequence
  # precision: bf16              # or fp16, fp8
  # runtime: megatron_core       # what runs it (perfsim show runtimes)
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
"""


@options.verb(
    "Write a commented study to begin with.",
    "perfsim init my_study.yaml",
    "perfsim init my_study.yaml --model llama2_70b --system dgx-h100 --devices 64",
)
@click.argument("file", type=click.Path(path_type=Path), default="my_study.yaml")
@click.option("--model", default="llama2_70b", show_default=True, shell_complete=options.complete("model"))
@click.option(
    "--recipe", help="[default: the recipe of the model's year]", shell_complete=options.complete("recipe")
)
@click.option("--system", default="dgx-h100", show_default=True, shell_complete=options.complete("system"))
@options.count("--devices", "", most=MOST_DEVICES, default=64, show_default=True)
def _init(file: Path, model: str, recipe: str | None, system: str, devices: int) -> None:
    """Write a commented study to FILE, which `perfsim study FILE` answers as it is."""
    from perfsim.catalog import default_catalog
    from perfsim.machines import strategy_for
    from perfsim.prediction.question import usual_recipe

    if file.exists():
        raise InputError(f"{file} is there already; name another file")
    if file.suffix not in (".yaml", ".yml"):
        raise InputError(f"{file} is no YAML file, whose name ends in .yaml", "try my_study.yaml")
    check_file(file, "FILE")
    catalog = default_catalog()
    shape = catalog.model(model)
    recipe = recipe or usual_recipe(shape)
    length = min(catalog.recipe(recipe).seq_length, shape.max_position_embeddings)
    strategy = strategy_for("", catalog.system(system)).name
    names = {"model": model, "recipe": recipe, "length": length, "system": system, "strategy": strategy}
    write_file(file, _TEMPLATE.format(file=file, devices=devices, **names))
    print_lines(prose(f"{file}: edit it, then `perfsim check {file}` and `perfsim study {file} --open`"))


@options.verb(
    "Compare schedules with serial training, in NumPy.",
    "perfsim prove gpt3_xl --strategy 3d --layout tp=2,pp=4,schedule=zb1p",
)
@click.argument("target", metavar="MODEL|STUDY")
@click.option("--strategy", default="", help="Only this strategy. [default: all; 3d for a --layout]")
@options.text(
    "--layout",
    "tp=8,pp=4,mbs=1",
    "Only this layout. [default: all strategies and schedules of the catalogue]",
    shell_complete=options.complete("layout"),
)
@options.count("--devices", "Number of devices. [default: what --layout needs]", most=MOST_DEVICES)
@options.count("--batch", "Global batch of a --layout.", most=MOST_SEQUENCES)
@options.count("--orders", "Random orders of execution. [default: 10]", 0, 10_000)
@options.count("--seed", "Seed of weights and random orders. [default: 0]", 0, 2**32 - 1)
@options.changes
@options.path(
    "--mutations", "Insert faults into these schedules instead, and write here (Markdown) which are detected."
)
@options.count("--every", "Of --mutations: try every N-th fault only.")
@options.limits
@prints
def _prove(
    orders: int | None, seed: int | None, mutations: Path | None, every: int | None, **asked: Any
) -> Answer:
    """Execute schedules in NumPy and compare them with serial training.

    The graph that a strategy writes for a layout is written for a small model with the same numbers of
    stages, ranks and micro-batches, checked for missing dependencies, and executed over two optimizer
    steps, in the simulated order and in random ones. Loss, gradients and updated weights must equal those
    of serial training. Without --layout: every strategy, schedule, ZeRO stage and recompute mode of the
    catalogue with MODEL's architecture, or the layouts that STUDY chooses. --mutations tests how many
    faults such a proof detects.
    """
    from perfsim.proof.faults import try_plans
    from perfsim.proof.prove import DEFAULT_ORDERS, Request, plans_of, prove_all
    from perfsim.report.terminal import mutations_page, mutations_sentence, proof_lines

    if mutations is None and every is not None:
        raise InputError("--every belongs to --mutations: it says which share of the faults is tried")
    if mutations is not None and (orders is not None or seed is not None):
        raise InputError("--orders and --seed belong to proofs: --mutations tries each fault in one order")
    request = Request(**asked, orders=DEFAULT_ORDERS if orders is None else orders, seed=seed or 0)
    if mutations is None:
        proof = prove_all(request, progress()).as_dict()
        wrong = f"{request.target}: at least one layout does not compute what serial training does"
        check = partial(must, proof["passed"], PerfsimError(wrong))
        return Answer(lambda: proof, lambda: proof_lines(proof), check)
    found = try_plans(request.target, plans_of(request), every or 1, progress())
    write_file(mutations, mutations_page(found))
    missed = f"{request.target}: a fault was missed: {'; '.join(found['unexplained'][:1])}"
    check = partial(must, found["passed"], PerfsimError(missed))
    return Answer(lambda: found, lambda: [mutations_sentence(found), f"wrote {mutations}"], check)


@options.verb(
    "Print or write JSON Schemas of the YAML files.", "perfsim schema study", "perfsim schema --out .schemas"
)
@click.argument("kind", required=False)
@options.path("--out", "Folder for <kind>.schema.json files. [default: standard output]", check_folder)
def _schema(kind: str | None, out: Path | None) -> None:
    """Print or write the JSON Schema of a KIND of YAML file (device, model, study, ...), or of all."""
    from perfsim.api.tools import KINDS, schema_of, schema_text

    schemas = {name: schema_of(name) for name in ([kind] if kind else KINDS)}
    if out is None:
        click.echo(schema_text(schemas[kind] if kind else schemas), nl=False)
        return
    for name, schema in schemas.items():
        path = write_file(out / f"{name}.schema.json", schema_text(schema))
        print_lines([f"Schema: {path}"])


@options.verb(
    "List what the catalogue holds, with sources.", "perfsim show models", "perfsim show systems dgx-h100"
)
@click.argument("kind", type=click.Choice(inventory.KINDS))
@click.argument("name", required=False)
@options.path("--graph", "Write the network of a system: .graphml, .dot or .gv.")
@options.count("--devices", "Of so many devices.  [default: two nodes]", most=MOST_DEVICES)
@prints
def _show(kind: str, name: str | None, graph: Path | None, devices: int | None) -> Answer:
    """List what the catalogue holds, or print one entry with the source of each value."""
    from perfsim.report.table import Table

    if graph is None:
        rows = inventory.entry(kind, name) if name else inventory.names(kind)
        table = Table.of(list(rows[0]), (row.values() for row in rows))
        return Answer(lambda: rows, lambda: table.lines(whole_names=True))
    if kind != "systems" or name is None:
        raise InputError("--graph writes the network of one system: perfsim show systems NAME --graph FILE")
    made = inventory.write_network(name, graph, devices)
    counts = f"{made['num_devices']:,} devices, {made['vertices']:,} vertices, {made['edges']:,} edges"
    return Answer(lambda: made, lambda: prose(f"{graph}: {name} with {counts}"))


@options.verb(
    "Compare predictions with published runs.", "perfsim validate", "perfsim validate my_runs.yaml --worst 20"
)
@_files("files", nargs=-1)
@options.count("--worst", "Number of cases to list, largest errors first.", 0, default=10, show_default=True)
@options.flag("--record", "Write the errors into the package, for studies to quote; for a checkout.")
@options.path("--page", "Also write index.html and validation.md here, with an ablation.", check_folder)
@options.flag(
    "--leave-out",
    "Also predict each family of GPU runs and each model of wafer logs by a fit without it; takes minutes.",
)
@options.flag("--strict", "End with 1 where any case cannot be predicted. [default: where none can be]")
@options.limits
@prints
def _validate(
    files: tuple[Path, ...], worst: int, record: bool, page: Path | None, leave_out: bool, strict: bool
) -> Answer:
    """Predict published runs (FILES, or the public cases) and compare the errors with a baseline."""
    from perfsim.api.tools import validate as answer
    from perfsim.evidence.cases import published_cases
    from perfsim.report.validation import validation_lines

    paths = files or tuple(published_cases())
    results = [dict(answer(path).document) for path in paths]
    steps = [pair for pair in zip(paths, results, strict=True) if pair[1]["kind"] == "step_time"]
    if leave_out and not steps:
        raise click.UsageError("--leave-out is for files of step times")
    known: dict[str, Sequence[LeavingOut]] = {}
    if page is not None:
        from perfsim.evidence.ablation import accuracy_of
        from perfsim.report.validation import write_validation

        accuracy = accuracy_of(paths, results, leaves_out=leave_out)
        convergence = [result for result in results if result["kind"] == "convergence"]
        written = write_validation(accuracy, convergence, page)
        write_error(f"Page: {written[0]}, {written[1]}\n")
        known = {step.result["file"]: step.leaving for step in accuracy}
    if leave_out or record:
        from perfsim.catalog import default_catalog
        from perfsim.evidence.cases import CaseRows, StepCase
        from perfsim.evidence.left_out import LeavingOut
        from perfsim.evidence.record import write_records

        catalog = default_catalog()
        for path, result in steps:
            if not known.get(path.name):
                known[path.name] = LeavingOut.by_kind(CaseRows.read(path, StepCase).cases, catalog)
            if leave_out:
                result["left_out"] = LeavingOut.document(known[path.name])
        if record:
            write_records(results, known)
    return Answer(
        lambda: results[0] if len(results) == 1 else results,
        lambda: [line for result in results for line in validation_lines(result, worst)],
        partial(_must_predict, results, strict),
    )


def _must_predict(results: Sequence[Mapping[str, Any]], strict: bool) -> None:
    """Raises PerfsimError where no case of a file could be predicted; when strict, where one could not be."""
    for result in results:
        failed = len(result["failed"])
        if failed and (strict or failed == result["count"]):
            raise PerfsimError(f"{result['file']}: {failed} of {result['count']} cases cannot be predicted")


@options.verb(
    "What limits the candidates, and what would help; or explains a measured step.",
    "perfsim why gpt3_20b",
    "perfsim why reports/gpt3_20b/summary.json",
    "perfsim why --measured 5.4s --model gpt3_xl --system dgx-a100-80gb --devices 16",
)
@click.argument("study", required=False, default="")
@options.compare
@options.text(
    "--measured", "5.4s", "Rank the inputs that would explain this step of --model on --system and --devices."
)
@options.asks("run", required=False)
@options.limits
@prints
def _why(study: str, compare: list[str], measured: str, asked: dict[str, Any]) -> Answer:
    """Explain the candidates of a STUDY: a name, a YAML file, or the summary.json of its answer.

    Each change is predicted again at the best batch, with the layout that is best with it. Options change the
    study, as --set does. With --measured,
    explain the gap between the step that `perfsim run` predicts for the same options and a measured one.
    """
    from perfsim.api.tools import why, why_measured
    from perfsim.report.table import plain
    from perfsim.report.terminal import gap_lines, why_lines

    missing = [f"--{name}" for name, entry in ASKED.items() if entry.required and name not in asked]
    if measured and (study or missing):
        words = f"it needs {', '.join(missing)}" if missing else "it takes no STUDY"
        raise click.UsageError(f"--measured explains one step of one model on one system; {words}")
    if measured:
        gap = why_measured(measured, **asked)
        return Answer(lambda: plain(gap) | {"inside_band": gap.inside}, lambda: gap_lines(gap))
    if not study:
        raise click.UsageError("name a STUDY, or give --measured with --model, --system and --devices")
    explained = why(study, compare, asked)
    return Answer(lambda: {"candidates": explained}, lambda: why_lines(explained))
