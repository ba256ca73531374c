"""`perfsim show`: what the catalogue holds."""

from __future__ import annotations

from pathlib import Path

import click

from perfsim.cli.options import json_option
from perfsim.cli.output import print_json, print_lines, print_prose
from perfsim.cli.verb import Verb
from perfsim.sizes import MOST_DEVICES

KINDS = ("systems", "devices", "models", "recipes", "wall_clocks", "studies", "strategies")

COUNTED = {"num_devices": "devices", "vertices": "vertices", "edges": "edges"}


EXAMPLES = """\b
Examples:
  perfsim show models
  perfsim show systems dgx-h100
"""


@click.command(cls=Verb, short_help="List what the catalogue holds, with sources.", epilog=EXAMPLES)
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
    from perfsim.inventory import entry, names
    from perfsim.report.terminal.rows import row_lines

    rows = entry(kind, name) if name else names(kind)
    if as_json:
        print_json(rows)
    else:
        print_lines(row_lines(rows, title=name or kind))


def _write(kind: str, name: str | None, graph: Path, devices: int | None, *, as_json: bool) -> None:
    """Write the network of a system to a file, and say what is in it."""
    from perfsim.errors import InputError
    from perfsim.inventory import write_network

    if kind != "systems" or name is None:
        raise InputError("--graph writes the network of one system: perfsim show systems NAME --graph FILE")
    written = write_network(name, graph, devices)
    if as_json:
        print_json(written)
        return
    counts = ", ".join(f"{written[key]:,} {word}" for key, word in COUNTED.items())
    print_prose(f"{graph}: {name} with {counts}")
