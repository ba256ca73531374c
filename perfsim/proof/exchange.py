"""What ranks of one stage exchange inside a layer: keys and values, heads, and rows for experts.

In a ring, gradients of keys and values travel one message behind them, and every rank adds its own. Rows
travel to the ranks of their experts and back; where they went is kept in a buffer, so that they come back to
their places. Ranks that share an expert all-gather their rows, compute, and reduce-scatter the results.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from perfsim.base.arrays import Ints
from perfsim.proof.compute import own_pair
from perfsim.proof.operations import HEADS
from perfsim.proof.parameters import Share
from perfsim.proof.program import Tensor, Values, summed
from perfsim.work import Work

POSITIONS = 2
"""Axis of queries, keys and values."""


def _ring_shift(work: Work, shares: Sequence[Share], values: Sequence[Values]) -> list[tuple[Any, ...]]:
    """Every rank sends to the next; what it sends is named by the tensor that it writes."""
    contents = work.writes[0].name

    def sent(share: Share, source: Tensor, *done: Tensor) -> Tensor:
        message: Tensor = {}
        if "keys_values" in contents:
            pair = own_pair(source["saved"], share) if "saved" in source else source
            message = {name: pair[name] for name in ("k", "v", "positions")}
        if "gradients" in contents:
            made = done[0]
            message |= {name: source[name] + made[name] if name in source else made[name] for name in made}
        return message

    messages = [sent(share, *inputs) for share, inputs in zip(shares, values, strict=True)]
    return [(messages[number - 1],) for number in range(len(values))]


def _all_to_all(work: Work, _: Sequence[Share], values: Sequence[Values]) -> list[tuple[Any, ...]]:
    """Exchange heads against positions: to all positions of some heads, or back."""
    gathers = work.writes[0].name == "heads"
    cut, joined = (HEADS, POSITIONS) if gathers else (POSITIONS, HEADS)
    split = [
        {name: np.split(array, len(values), axis=cut) for name, array in tensor.items()}
        for tensor, *_ in values
    ]
    return [
        ({name: np.concatenate([own[name][member] for own in split], axis=joined) for name in split[0]},)
        for member in range(len(values))
    ]


class _Route(NamedTuple):
    """How rows came to a rank: from which member of the group each, and from which of its rows."""

    source: Ints
    row: Ints


def _rows_there(_: Work, shares: Sequence[Share], values: Sequence[Values]) -> list[tuple[Any, ...]]:
    """Rows to the ranks of their experts, in the order of the members; peers that share experts have all."""
    sent: list[Tensor] = [inputs[0] for inputs in values]
    arrived: list[tuple[Any, ...]] = []
    for share in shares:
        chosen = [np.flatnonzero(np.isin(rows["expert"], share.own_experts)) for rows in sent]
        made = {
            name: np.concatenate([rows[name][own] for rows, own in zip(sent, chosen, strict=True)])
            for name in sent[0]
        }
        source = np.repeat(np.arange(len(sent)), [len(own) for own in chosen])
        arrived.append((made, _Route(source, np.concatenate(chosen))))
    return arrived


def _rows_back(work: Work, shares: Sequence[Share], values: Sequence[Values]) -> list[tuple[Any, ...]]:
    """What became of the rows of each member, in the order in which it sent them.

    Peers that share experts have a summand of every row, others have other rows.
    """
    returned: list[tuple[Any, ...]] = []
    for member in range(len(shares)):
        own = [route.source == member for _, route in values]
        parts = [
            {name: array[mine] for name, array in rows.items()}
            for (rows, _), mine in zip(values, own, strict=True)
        ]
        if work.op == "reduce_scatter":
            returned.append((parts[0] | {"rows": summed([rows["rows"] for rows in parts])},))
            continue
        sent_as = [route.row[mine] for (_, route), mine in zip(values, own, strict=True)]
        order = np.argsort(np.concatenate(sent_as))
        returned.append(({name: np.concatenate([rows[name] for rows in parts])[order] for name in parts[0]},))
    return returned


class _Exchange(NamedTuple):
    """An exchange among ranks, and what its message counts."""

    run: Callable[[Work, Sequence[Share], Sequence[Values]], list[tuple[Any, ...]]]
    """From the work, and each member's share and values read, to the values that each writes."""
    content: Literal["exchanged", "rows"]
    sent: Literal["read", "made"]
    keeps: str = ""
    """The buffer of the route that it writes."""
    follows: str = ""
    """The buffer of the route that it reads."""


OF_EXPERTS = "route of experts"
OF_PEERS = "route of peers"
EXCHANGES: Mapping[str, _Exchange] = {
    "context.send_recv": _Exchange(_ring_shift, "exchanged", "made"),
    "context.all_to_all": _Exchange(_all_to_all, "exchanged", "made"),
    "experts.dispatch": _Exchange(_rows_there, "rows", "read", keeps=OF_EXPERTS),
    "experts.combine": _Exchange(_rows_back, "rows", "made", follows=OF_EXPERTS),
    "experts.all_gather": _Exchange(_rows_there, "rows", "made", keeps=OF_PEERS),
    "experts.reduce_scatter": _Exchange(_rows_back, "rows", "read", follows=OF_PEERS),
}
"""Exchanges by the name of their work."""
