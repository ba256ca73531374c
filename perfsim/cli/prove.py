"""`perfsim prove`: execute schedules and compare them with serial training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfsim.cli.options import json_option, layout_option, limits
from perfsim.cli.output import print_json, print_lines, progress
from perfsim.cli.verb import Verb
from perfsim.errors import InputError, PerfsimError
from perfsim.files import write_file
from perfsim.sizes import MOST_DEVICES, MOST_SEQUENCES

if TYPE_CHECKING:
    from perfsim.proof.prove import Request

MOST_ORDERS = 10_000


EXAMPLES = """\b
Examples:
  perfsim prove gpt3_xl --strategy 3d --layout tp=2,pp=4,schedule=zb1p
"""


@click.command(cls=Verb, short_help="Compare schedules with serial training, in NumPy.", epilog=EXAMPLES)
@click.argument("target", metavar="MODEL|STUDY")
@click.option("--strategy", default="", help="Only this strategy. [default: all; 3d for a --layout]")
@layout_option("Only this layout. [default: all strategies and schedules of the catalogue]")
@click.option(
    "--devices",
    type=click.IntRange(1, MOST_DEVICES),
    default=None,
    help="Number of devices. [default: what --layout needs]",
)
@click.option(
    "--batch", type=click.IntRange(1, MOST_SEQUENCES), default=None, help="Global batch of a --layout."
)
@click.option(
    "--orders",
    type=click.IntRange(0, MOST_ORDERS),
    default=None,
    help="Random orders of execution. [default: 10]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=None,
    help="Seed of weights and random orders. [default: 0]",
)
@click.option(
    "--mutations",
    type=click.Path(dir_okay=False),
    default=None,
    metavar="FILE",
    help="Insert faults into these schedules instead, and write to FILE (Markdown) which are detected.",
)
@click.option(
    "--every", type=click.IntRange(1), default=None, help="Of --mutations: try every N-th fault only."
)
@json_option
@limits
def prove(
    target: str,
    strategy: str,
    layout: str,
    devices: int | None,
    batch: int | None,
    orders: int | None,
    seed: int | None,
    mutations: str | None,
    every: int | None,
    as_json: bool,
) -> None:
    """Execute schedules in NumPy and compare them with serial training.

    The graph that a strategy writes for a layout is written for a small model with the same numbers of
    stages, ranks and micro-batches, checked for missing dependencies, and executed over two optimizer
    steps, in the simulated order and in random ones. Loss, gradients and updated weights must equal those
    of serial training. Without --layout: every strategy, schedule, ZeRO stage and recompute mode of the
    catalogue with MODEL's architecture, or the layouts that STUDY chooses. --mutations tests how many
    faults such a proof detects.
    """
    from perfsim.proof.prove import DEFAULT_ORDERS, Request

    if mutations is None and every is not None:
        raise InputError("--every belongs to --mutations: it says which share of the faults is tried")
    if mutations is not None and (orders is not None or seed is not None):
        raise InputError("--orders and --seed belong to proofs: --mutations tries each fault in one order")
    orders = DEFAULT_ORDERS if orders is None else orders
    request = Request(target, strategy, layout, devices, batch, orders, seed or 0)
    tell = progress(quiet=as_json)
    if mutations is None:
        _prove(request, tell, as_json=as_json)
    else:
        _mutate(request, Path(mutations), every or 1, tell, as_json=as_json)


def _prove(request: Request, tell: Callable[[str], None], *, as_json: bool) -> None:
    from perfsim.proof.prove import prove_all
    from perfsim.report.terminal.proof import proof_lines

    answer = prove_all(request, tell).as_dict()
    if as_json:
        print_json(answer)
    else:
        print_lines(proof_lines(answer))
    if not answer["passed"]:
        raise PerfsimError(
            f"{request.target}: at least one layout does not compute what serial training does"
        )


def _mutate(request: Request, page: Path, every: int, tell: Callable[[str], None], *, as_json: bool) -> None:
    from perfsim.proof.detection import try_plans
    from perfsim.proof.prove import plans_of
    from perfsim.report.mutations import mutations_page, mutations_sentence

    if not page.parent.is_dir():
        raise InputError(f"--mutations {page}: there is no folder {page.parent}")
    answer = try_plans(request.target, plans_of(request), every, tell)
    write_file(page, mutations_page(answer))
    if as_json:
        print_json(answer)
    else:
        print_lines([mutations_sentence(answer), f"wrote {page}"])
    if not answer["passed"]:
        raise PerfsimError(f"{request.target}: a fault was missed: {answer['unexplained'][0]}")
