"""`perfsim calibrate`: constants from your own measurements."""

from __future__ import annotations

from pathlib import Path

import click

from perfsim.cli.options import must_exist, out_option

source_option = click.option(
    "--source", default="", metavar="ID", help="Source id of the measurements. [default: the file's name]"
)
yaml_option = out_option("YAML file to write. [default: standard output]")


@click.group(short_help="Fit constants to your own measurements.")
def calibrate() -> None:
    """Fit constants of a device, a link or a cluster to your own measurements."""


@calibrate.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--device", required=True, help="Catalogue name of the measured device.")
@yaml_option
@source_option
def gemm(table: Path, device: str, out: Path | None, source: str) -> None:
    """Fit the GEMM model to TABLE, a CSV of m, n, k, time_us."""
    from perfsim.fitting.calibrate import calibrate_gemm

    must_exist(table)
    click.echo(calibrate_gemm(table, device, out, source=source))


@calibrate.command(short_help="Fit the collective model to tables of measurements.")
@click.argument("tables", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--link", required=True, help="Catalogue name of the measured link.")
@yaml_option
@source_option
def collective(tables: tuple[Path, ...], link: str, out: Path | None, source: str) -> None:
    """Fit the collective model to TABLES, CSVs of collective, num_gpus, bytes, time_us."""
    from perfsim.fitting.calibrate import calibrate_collectives

    for table in tables:
        must_exist(table)
    click.echo(calibrate_collectives(list(tables), link, out, source=source))


@calibrate.command(short_help="Fit host times and sustained ceilings to whole steps.")
@click.argument("cases", type=click.Path(path_type=Path))
@click.option("--device", default=None, help="Only runs on this device of the catalogue. [default: all]")
@out_option("Folder for the YAML. [default: standard output]")
@click.option("--device-only", is_flag=True, help="Keep the framework's constants.")
@source_option
def framework(cases: Path, device: str | None, out: Path | None, device_only: bool, source: str) -> None:
    """Fit host launch times, and the sustained ceiling of each GPU, to whole steps in CASES."""
    from perfsim.fitting.calibrate import calibrate_framework

    must_exist(cases)
    click.echo(calibrate_framework(cases, device, out, device_only=device_only, source=source))


@calibrate.command(short_help="Fit one scale for your cluster to steps measured on it.")
@click.argument("measured", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--system", default="", help="Catalogue name of the machine that wrote the logs.")
@yaml_option
def steps(measured: tuple[Path, ...], system: str, out: Path | None) -> None:
    """Fit one scale for your cluster to steps that you MEASURED on it.

    MEASURED is a YAML file of two or three steps, or one or several logs of Megatron-LM, with --system.
    """
    from perfsim.fitting.calibrate import calibrate_steps

    for path in measured:
        must_exist(path)
    text, warning = calibrate_steps(measured, out, system)
    click.echo(text)
    if warning:
        click.echo(f"warning: {warning}", err=True)


@calibrate.command(short_help="Fit a wafer's efficiency by software release to logs.")
@click.argument("cases", type=click.Path(path_type=Path))
@click.option("--device", default="wse-2", show_default=True, help="Catalogue name of the wafer.")
@yaml_option
@source_option
def wafer(cases: Path, device: str, out: Path | None, source: str) -> None:
    """Fit a wafer's efficiency for each software release to the logs in CASES."""
    from perfsim.fitting.calibrate import calibrate_wafer

    must_exist(cases)
    click.echo(calibrate_wafer(cases, device, out, source=source))
