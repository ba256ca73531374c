"""`perfsim import`: files of other tools as YAML of perfsim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfsim.cli.options import json_option, out_option
from perfsim.cli.output import print_json, print_lines

FORMATS = ("huggingface",)
"""The names of `perfsim.interop.foreign.formats.FORMATS`, which is not loaded for a help text."""
PARTS = ("model", "recipe", "convergence")


@click.command(name="import", short_help="Read a model or a run from a file of another tool.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_name",
    type=click.Choice(FORMATS),
    default=None,
    help="Format of FILE. [default: recognised by its content]",
)
@click.option("--part", type=click.Choice(PARTS), default=None, help="What to write. [default: the model]")
@out_option("YAML file to write. [default: standard output]")
@json_option
def import_(file: Path, format_name: Any, part: Any, out: Path | None, as_json: bool) -> None:
    """Read a model, a recipe or measured steps from FILE of another tool, as YAML of perfsim.

    The output says how many parameters the model has, which keys were not used, and what perfsim cannot
    express.
    """
    from perfsim.api.importing import import_file
    from perfsim.api.naming import writing

    result = import_file(file, format_name or "", part=part or "")
    if out is not None:
        with writing(out) as path:
            path.write_text(result.text(), encoding="utf-8")
    if as_json:
        print_json(result.as_dict())
    elif out is None:
        print_lines(result.text().rstrip().splitlines())
    else:
        print_lines([f"{result.kind} from {result.format}: {out}", *result.remarks()])
