"""`perfsim diff`: two studies or two answers side by side."""

from __future__ import annotations

import click

from perfsim.cli.options import json_option, limits
from perfsim.cli.output import print_json, print_lines
from perfsim.cli.verb import Verb

EXAMPLES = """\b
Examples:
  perfsim diff gpt3_20b my_study.yaml
  perfsim diff before/summary.json after/summary.json
"""


@click.command(cls=Verb, short_help="What differs between two studies, and its effect.", epilog=EXAMPLES)
@click.argument("first")
@click.argument("second")
@json_option
@limits
def diff(first: str, second: str, as_json: bool) -> None:
    """Compare FIRST and SECOND: names or files of studies, or the summary.json of two answers.

    Studies are answered, and the first once more with each changed input alone. Answers are compared as they
    stand, with the inputs that differ between them.
    """
    from perfsim.api.explaining import diff as compare
    from perfsim.report.document import plain
    from perfsim.report.terminal.difference import difference_lines

    difference = compare(first, second)
    if as_json:
        print_json(plain(difference))
    else:
        print_lines(difference_lines(difference))
