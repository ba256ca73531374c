"""`perfsim show`: what the catalogue holds."""

from __future__ import annotations

import click

from perfsim.cli.options import json_option
from perfsim.cli.output import print_json, print_lines

KINDS = ("systems", "devices", "models", "recipes", "wall_clocks", "studies", "strategies")


@click.command(short_help="List what the catalogue holds, with sources.")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name", required=False)
@json_option
def show(kind: str, name: str | None, as_json: bool) -> None:
    """List what the catalogue holds, or print one entry with the source of each value."""
    from perfsim.inventory import entry, names
    from perfsim.report.terminal.rows import row_lines

    rows = entry(kind, name) if name else names(kind)
    if as_json:
        print_json(rows)
    else:
        print_lines(row_lines(rows, title=name or kind))
