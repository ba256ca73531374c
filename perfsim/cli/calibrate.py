"""`perfsim calibrate`: constants from your own measurements."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import click

from perfsim.cli.options import out_option
from perfsim.cli.output import print_lines, write_error
from perfsim.cli.progress import metered
from perfsim.cli.verb import VerbGroup
from perfsim.errors import InputError, refused_values, within_floats
from perfsim.files import check_folder, must_exist
from perfsim.sizes import MOST_DEVICES

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


EXAMPLES = """\b
Examples:
  perfsim calibrate script > measure_gemms.py && python measure_gemms.py > gemms.csv
  perfsim calibrate gemm gemms.csv --device h100-sxm5-80gb --out mine.yaml
  perfsim calibrate collective all_reduce.txt all_gather.txt --link nvlink4 --out links.yaml
  perfsim calibrate steps measured.yaml --out cluster.yaml
"""


@click.group(cls=VerbGroup, short_help="Fit constants to your own measurements.", epilog=EXAMPLES)
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
    from perfsim.fitting.calibrate import calibrate_gemm

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
    from perfsim.fitting.calibrate import calibrate_collectives

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
    from perfsim.fitting.calibrate import calibrate_framework

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
    from perfsim.fitting.calibrate import calibrate_steps

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
    from perfsim.fitting.calibrate import calibrate_wafer

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
    from perfsim.fitting.calibrate import calibrate_convergence

    for path in files:
        must_exist(path)
    print_lines(calibrate_convergence(files, tokens_per_example, kind, out))
