"""`perfsim why`: what limits each candidate of a study, and what would help."""

from __future__ import annotations

import click

from perfsim.cli.options import json_option, limits
from perfsim.cli.output import print_json, print_lines

EXAMPLES = """\b
Examples:
  perfsim why gpt3_20b
  perfsim why reports/gpt3_20b/summary.json
"""


@click.command(short_help="What limits the candidates, and what would help.", epilog=EXAMPLES)
@click.argument("study")
@click.option("--compare", default="", metavar="A,B", help="Only these strategies, e.g. 3d,weight-streaming.")
@json_option
@limits
def why(study: str, compare: str, as_json: bool) -> None:
    """Explain the candidates of a STUDY: a name, a YAML file, or the summary.json of its answer.

    Each change is predicted again at the best batch, with the layout that is best with it.
    """
    from perfsim.api.explaining import why as explain_study
    from perfsim.report.document import plain
    from perfsim.report.terminal.why import why_lines

    names = [name.strip() for name in compare.split(",") if name.strip()]
    explained = explain_study(study, names)
    if as_json:
        print_json({"candidates": plain(explained)})
    else:
        print_lines(why_lines(explained))
