"""`perfsim explain`: terms of reports and messages, from the glossary."""

from __future__ import annotations

import click

from perfsim.cli.output import print_prose
from perfsim.cli.verb import Verb

EXAMPLES = """\b
Examples:
  perfsim explain mfu
  perfsim explain critical batch
"""


@click.command(cls=Verb, short_help="Say what a term means, such as mfu.", epilog=EXAMPLES)
@click.argument("term", nargs=-1)
def explain(term: tuple[str, ...]) -> None:
    """Say what a TERM of reports and messages means, or list all terms."""
    from perfsim.report.glossary import explained, terms

    if not term:
        print_prose(f"perfsim explain TERM, where a term is one of: {', '.join(terms())}.")
        return
    entries = explained(" ".join(term))
    print_prose(*(f"{name}{'' if meaning.startswith('(') else ':'} {meaning}" for name, meaning in entries))
