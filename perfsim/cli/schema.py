"""`perfsim schema`: JSON Schemas of the YAML files."""

from __future__ import annotations

from pathlib import Path

import click

from perfsim.cli.options import out_option
from perfsim.cli.output import print_lines
from perfsim.cli.verb import Verb
from perfsim.files import check_folder

EXAMPLES = """\b
Examples:
  perfsim schema study
  perfsim schema --out .schemas
"""


@click.command(cls=Verb, short_help="Print or write JSON Schemas of the YAML files.", epilog=EXAMPLES)
@click.argument("kind", required=False)
@out_option("Folder for <kind>.schema.json files. [default: standard output]", check_folder)
def schema(kind: str | None, out: Path | None) -> None:
    """Print or write the JSON Schema of a KIND of YAML file (device, model, study, ...), or of all."""
    from perfsim.schemas import KINDS, schema_of, schema_text, write_schemas

    if out is not None:
        for path in write_schemas(out, [kind] if kind else KINDS):
            print_lines([f"Schema: {path}"])
        return
    document = schema_of(kind) if kind else {name: schema_of(name) for name in KINDS}
    click.echo(schema_text(document), nl=False)
