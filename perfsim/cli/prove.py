"""The command line of `perfsim prove`: execute schedules, hold them against serial training."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfsim.errors import InputError, PerfsimError
from perfsim.sizes import MOST_DEVICES, MOST_SEQUENCES

if TYPE_CHECKING:
    from perfsim.proof.prove import Request

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
@click.option(
    "--orders",
    type=click.IntRange(0, MOST_ORDERS),
    default=None,
    help="Random orders. [default: 10]",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=None, help="Of weights and orders. [default: 0]"
)
@click.option(
    "--mutations",
    type=click.Path(dir_okay=False),
    default=None,
    metavar="FILE",
    help="Put faults into these schedules instead, and write to FILE (Markdown) which of them are found.",
)
@click.option("--every", type=click.IntRange(1), default=None, help="Of --mutations: one fault in so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output, nothing else.")
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

    The graph that a strategy writes for a layout is written for a small model with as many stages, ranks
    and micro-batches, checked for missing dependencies, and executed over two optimizer steps in the
    simulated order and in random ones. Loss, every gradient and every updated weight must be those of
    serial training. Without --layout: every strategy, schedule, ZeRO stage and recompute mode of the
    catalogue with MODEL's architecture, or the layouts with which STUDY answers. --mutations says what
    such a proof would find.
    """
    from perfsim.proof.prove import DEFAULT_ORDERS, Request

    if mutations is None and every is not None:
        raise InputError("--every is of --mutations: it says how many of the faults are tried")
    if mutations is not None and (orders is not None or seed is not None):
        raise InputError("--orders and --seed are of proofs: --mutations tries each fault in one order")

    def tell(what: str) -> None:
        if not as_json and sys.stderr.isatty():
            click.echo(f"... {what}", err=True)

    orders = DEFAULT_ORDERS if orders is None else orders
    request = Request(target, strategy, layout, devices, batch, orders, seed or 0)
    if mutations is None:
        _prove(request, tell, as_json=as_json)
    else:
        _mutate(request, Path(mutations), every or 1, tell, as_json=as_json)


def _prove(request: Request, tell: Callable[[str], None], *, as_json: bool) -> None:
    from perfsim.proof.prove import prove_all
    from perfsim.report.proof import proof_lines

    answer = prove_all(request, tell).as_dict()
    _say(answer, proof_lines(answer), as_json=as_json)
    if not answer["passed"]:
        raise PerfsimError(
            f"{request.target}: at least one layout does not compute what serial training does"
        )


def _mutate(request: Request, page: Path, every: int, tell: Callable[[str], None], *, as_json: bool) -> None:
    from perfsim.proof.caught import try_plans
    from perfsim.proof.prove import plans_of
    from perfsim.report.mutations import mutations_page, mutations_sentence

    if not page.parent.is_dir():
        raise InputError(f"--mutations {page}: there is no folder {page.parent}")
    found = try_plans(request.target, plans_of(request), every, tell)
    page.write_text(mutations_page(found), encoding="utf-8")
    _say(found, [mutations_sentence(found), f"wrote {page}"], as_json=as_json)
    if not found["passed"]:
        raise PerfsimError(f"{request.target}: a fault was missed: {found['unexplained'][0]}")


def _say(answer: dict[str, Any], lines: Sequence[str], *, as_json: bool) -> None:
    from perfsim.report.text import encodable

    text = json.dumps(answer, indent=2) if as_json else "\n".join(lines)
    click.echo(text if as_json else encodable(text, sys.stdout.encoding or "ascii"))
