"""`perfsim explain`: terms of reports and messages, from the glossary."""

from __future__ import annotations

import click

from perfsim.cli.output import print_lines

EXAMPLES = """\b
Examples:
  perfsim explain mfu
  perfsim explain critical batch
"""


@click.command(short_help="Say what a term means, such as mfu.", epilog=EXAMPLES)
@click.argument("term", nargs=-1)
def explain(term: tuple[str, ...]) -> None:
    """Say what a TERM of reports and messages means, or list all terms."""
    from perfsim.report.glossary import explained, terms
    from perfsim.report.terminal.layout import paragraph, terminal_width

    width = terminal_width()
    if not term:
        print_lines(paragraph(f"perfsim explain TERM, where a term is one of: {', '.join(terms())}.", width))
        return
    lines = []
    for name, meaning in explained(" ".join(term)):
        lines += paragraph(f"{name}{'' if meaning.startswith('(') else ':'} {meaning}", width)
    print_lines(lines)
