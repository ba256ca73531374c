"""The command line of `perfsim prove`: execute schedules, hold them against serial training."""

from __future__ import annotations

import sys

import click

from perfsim.errors import PerfsimError
from perfsim.sizes import MOST_DEVICES, MOST_SEQUENCES

MOST_ORDERS = 10_000


@click.command()
@click.argument("target", metavar="MODEL|STUDY")
@click.option("--strategy", default="", help="Only this strategy; of a --layout 3d if absent.")
@click.option(
    "--layout",
    default="",
    metavar="tp=2,pp=4,schedule=zb1p",
    help="This layout; all strategies and schedules of the catalogue if absent.",
)
@click.option(
    "--devices", type=click.IntRange(1, MOST_DEVICES), default=None, help="As many as --layout needs."
)
@click.option(
    "--batch", type=click.IntRange(1, MOST_SEQUENCES), default=None, help="Sequences a step, for a --layout."
)
@click.option("--orders", type=click.IntRange(0, MOST_ORDERS), default=10, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output, nothing else.")
def prove(
    target: str,
    strategy: str,
    layout: str,
    devices: int | None,
    batch: int | None,
    orders: int,
    seed: int,
    as_json: bool,
) -> None:
    """Execute schedules in NumPy and compare them with serial training.

    The graph that a strategy writes for a layout is written for a small model with as many stages, ranks
    and micro-batches, checked for missing dependencies, and executed over two optimizer steps in the
    simulated order and in random ones. Loss, every gradient and every updated weight must be those of
    serial training. Without --layout: every strategy, schedule, ZeRO stage and recompute mode of the
    catalogue with MODEL's architecture, or the layouts with which STUDY answers.
    """
    import json

    from perfsim.report.proof import proof_lines
    from perfsim.report.text import encodable
    from perfsim.study.proving.prove import Request, prove_all

    def tell(what: str) -> None:
        if not as_json and sys.stderr.isatty():
            click.echo(f"... {what}", err=True)

    request = Request(target, strategy, layout, devices, batch, orders, seed)
    answer = prove_all(request, tell).as_dict()
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        click.echo(encodable("\n".join(proof_lines(answer)), sys.stdout.encoding or "ascii"))
    if not answer["passed"]:
        raise PerfsimError(f"{target}: at least one layout does not compute what serial training does")
