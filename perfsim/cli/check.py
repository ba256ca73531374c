"""`perfsim check`: all mistakes of a file, and nothing computed."""

from __future__ import annotations

from pathlib import Path

import click

from perfsim.cli.options import json_option
from perfsim.cli.output import print_json, print_prose
from perfsim.cli.verb import Verb
from perfsim.errors import InputError

EXAMPLES = """\b
Examples:
  perfsim check my_study.yaml
  perfsim check my_cluster.yaml my_gpu.yaml
"""


@click.command(cls=Verb, short_help="List all mistakes of a file; nothing is run.", epilog=EXAMPLES)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--kind", default="", help="device, system, model, ... [default: told by the file's keys]")
@json_option
def check(files: tuple[Path, ...], kind: str, as_json: bool) -> None:
    """Read each FILE with all that it names, and list every mistake; nothing is run.

    Exit code 2 if there is any.
    """
    from perfsim.api.checking import check as check_file

    checked, problems = [], []
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
