"""The verbs of `perfsim calibrate`: constants from measurements of your own."""

from __future__ import annotations

from pathlib import Path

import click

from perfsim.cli.options import must_exist

source_option = click.option(
    "--source", default="", metavar="ID", help="Source id of the measurements; the file's name if absent."
)


@click.group()
def calibrate() -> None:
    """Fit constants of a device, a link or a cluster to measurements of your own."""


@calibrate.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--device", required=True, help="Device of the catalogue that was measured.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, help="YAML to write; standard output if absent."
)
@source_option
def gemm(table: Path, device: str, out: Path | None, source: str) -> None:
    """Fit the GEMM model to TABLE, a CSV of m, n, k, time_us."""
    from perfsim.fitting.calibrate import calibrate_gemm

    must_exist(table)
    click.echo(calibrate_gemm(table, device, out, source=source))


@calibrate.command()
@click.argument("tables", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--link", required=True, help="Link of the catalogue that was measured.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, help="YAML to write; standard output if absent."
)
@source_option
def collective(tables: tuple[Path, ...], link: str, out: Path | None, source: str) -> None:
    """Fit collectives to TABLES, CSVs of collective, num_gpus, bytes, time_us."""
    from perfsim.fitting.calibrate import calibrate_collectives

    for table in tables:
        must_exist(table)
    click.echo(calibrate_collectives(list(tables), link, out, source=source))


@calibrate.command()
@click.argument("cases", type=click.Path(path_type=Path))
@click.option("--device", required=True, help="Device of the catalogue that the runs were made on.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=None,
    help="Directory for the YAML.",
)
@click.option("--device-only", is_flag=True, help="Leave the framework's constants as they are.")
@source_option
def framework(cases: Path, device: str, out: Path | None, device_only: bool, source: str) -> None:
    """Fit host launch times and the sustained ceiling of DEVICE to whole steps in CASES."""
    from perfsim.fitting.calibrate import calibrate_framework

    must_exist(cases)
    click.echo(calibrate_framework(cases, device, out, device_only=device_only, source=source))


@calibrate.command()
@click.argument("measured", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, help="YAML to write; standard output if absent."
)
def steps(measured: Path, out: Path | None) -> None:
    """Fit one scale of your cluster to two or three steps that you MEASURED there."""
    from perfsim.fitting.calibrate import calibrate_steps

    must_exist(measured)
    text, warning = calibrate_steps(measured, out)
    click.echo(text)
    if warning:
        click.echo(f"warning: {warning}", err=True)


@calibrate.command()
@click.argument("cases", type=click.Path(path_type=Path))
@click.option("--device", default="wse-2", show_default=True, help="Wafer of the catalogue.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, help="YAML to write; standard output if absent."
)
@source_option
def wafer(cases: Path, device: str, out: Path | None, source: str) -> None:
    """Fit a wafer's efficiency by release of its software to the logs in CASES."""
    from perfsim.fitting.calibrate import calibrate_wafer

    must_exist(cases)
    click.echo(calibrate_wafer(cases, device, out, source=source))
