"""What ranks of one stage exchange inside a layer: keys and values, heads, and rows for experts.

Ranks that share sequences attend in parts. In a ring each block's scores enter a running softmax
[1805.02867], and gradients of keys and values travel one message behind them, to which every rank adds its
own. Rows travel to the ranks of their experts and back; where they went is kept in a buffer, so that they
come back to their places. Ranks that share an expert all-gather their rows, compute, and reduce-scatter the
results.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.proof.gpu_compute import GpuCompute
from perfsim.proof.layers import Attention, Kept, output
from perfsim.proof.operations import Gradients, Part, core, core_gradients, of_groups, scores
from perfsim.proof.parameters import Share
from perfsim.proof.program import Message, Values, summed
from perfsim.proof.tasks import (
    BACKWARD,
    FORWARD,
    At,
    Operation,
    Rows,
    Weighed,
    attention_begin,
    attention_end,
    attention_of,
    output_backward,
    passes,
)
from perfsim.work import Task

HEADS = 1
POSITIONS = 2
"""Axes of queries, keys and values."""


class _Pair(NamedTuple):
    """Keys and values, and their places."""

    k: Floats
    v: Floats
    places: tuple[int, ...]


class _Travelling(NamedTuple):
    """A message of a ring: keys and values, the gradients of earlier keys and values, or both."""

    pair: _Pair | None
    gradients: tuple[Floats, ...] | None = None

    @property
    def elements(self) -> int:
        """Numbers that are sent."""
        arrays = (*((self.pair.k, self.pair.v) if self.pair else ()), *(self.gradients or ()))
        return sum(int(array.size) for array in arrays)


class _Running(NamedTuple):
    """A softmax over the blocks so far: largest score, sum of exponentials, and sum of weighted values."""

    most: Floats
    total: Floats
    weighted: Floats


class _Ring(NamedTuple):
    """What the backward of a core in a ring reads: its output, and the log of the sum of exponentials."""

    context: Floats
    log_sum: Floats


class _Core(NamedTuple):
    """Arrays that an all-to-all exchanges, the core that made them, and gradients of weights with them."""

    arrays: Sequence[Floats]
    part: Part | None = None
    gradients: Gradients | None = None


class _Travelled(NamedTuple):
    """Rows on a rank, and how they came: from which place of the group each, and from which of its rows."""

    rows: Rows
    source: Ints
    place: Ints


def _running_softmax(q: Floats, pair: _Pair, share: Share, before: _Running | None) -> _Running:
    """Attend to one more block."""
    made = scores(q, pair.k, (share.places, pair.places), share)
    most = made.max(axis=-1, keepdims=True)
    if before is not None:
        most = np.maximum(most, before.most)
    e = np.exp(made - most)
    total = e.sum(axis=-1, keepdims=True)
    weighted = e @ of_groups(pair.v, share)
    if before is None:
        return _Running(most, total, weighted)
    scale = np.exp(before.most - most)
    return _Running(most, before.total * scale + total, before.weighted * scale + weighted)


def _own_pair(attention: Attention, share: Share) -> _Pair:
    """The keys and values of a rank itself."""
    _, k, v = attention.heads.values
    return _Pair(k, v, share.places)


def _qkv(at: At) -> tuple[Any, ...]:
    """Norm, queries, keys and values; a recompute reads the layer's input from what is saved."""
    made = attention_begin(at)
    return made, _Travelling(_own_pair(made, at.share))


def _block(at: At) -> tuple[Any, ...]:
    """The core on one block of keys and values, or on all positions of some heads."""
    share = at.share
    if isinstance(at.x[0], Attention):
        made, message, *before = at.x
        q = made.heads.values[0]
        return (_running_softmax(q, message.pair, share, before[0] if before else None),)
    # After the all-to-all a rank has some of the heads of its tensor peer.
    count = at.x[0][0].shape[HEADS]
    first = at.rank // share.tensor.of % (share.heads // count) * count
    part = at.run(partial(core, places=tuple(range(share.seq_length)), first_head=first), *at.x[0])
    return (_Core(part.values, part),)


def _output(at: At) -> tuple[Any, ...]:
    """The output projection."""
    done, made, *inner = at.x
    if isinstance(done, _Running):
        context = done.weighted / done.total
        kept: Any = _Ring(context, done.most + np.log(done.total))
    else:
        context, kept = done[0], inner[0].part
    part = at.run(output, context)
    at.keep("attention", made._replace(core=kept, output=part))
    return (part.value,)


def _output_backward(at: At) -> tuple[Any, ...]:
    """Gradient of the core's output."""
    d_context, gradients = output_backward(at)
    return (_Core([d_context], gradients=gradients),)


def _block_backward(at: At) -> tuple[Any, ...]:
    """Gradients of queries, keys and values by one block, or of all positions of some heads."""
    first, _, *later = at.x
    kept = attention_of(at)
    inner = kept.core
    if not isinstance(inner, _Ring):
        return _Core(inner.backward(at.w, first[0])[0]), None
    pair = later[0].pair if later else _own_pair(kept, at.share)
    q, d = kept.heads.values[0], first.arrays[0]
    made = scores(q, pair.k, (at.share.places, pair.places), at.share)
    delta = (d * inner.context).sum(axis=-1, keepdims=True)
    p = np.exp(made - inner.log_sum)
    queries, *others = core_gradients(p, d, (q, pair.k, pair.v), at.share, delta)
    return _Core((queries + later[1].arrays[0] if later else queries,)), tuple(others)


def _qkv_backward(at: At) -> Weighed:
    """The rest of the attention's backward, from the gradients of queries, keys and values."""
    _, __, begun, *arrived = at.x
    d_heads = (*arrived[0].arrays, *arrived[1].gradients) if len(arrived) > 1 else arrived[0]
    return attention_end(at, d_heads, begun.gradients)


IN_PARTS = {
    **passes("attention.qkv", Operation(_qkv, reads=("own", "embedding")), *FORWARD),
    **passes("attention.block", Operation(_block, reads=()), *FORWARD),
    **passes("attention.output", Operation(_output, quantity="attention"), *FORWARD),
    **passes("attention.output", Operation(_output_backward), *BACKWARD),
    **passes("attention.block", Operation(_block_backward, reads=()), *BACKWARD),
    **passes(
        "attention.qkv",
        Operation(_qkv_backward, "backward", ("own", "embedding"), "gradient", begins=False),
        *BACKWARD,
    ),
}
"""Operations of attention whose ranks share sequences."""


class GpuExchange(GpuCompute):
    """Compiles exchanges."""

    def ring_shift(self, task: Task) -> None:
        """Every rank sends to the next; what it sends is named by the tensor that it writes."""
        contents = task.work.writes[0].name

        def sent(rank: int, source: Any, *done: tuple[Floats, ...]) -> _Travelling:
            if isinstance(source, Kept) and source.attention is not None:
                source = _Travelling(_own_pair(source.attention, self.share(rank)))
            pair = source.pair if "keys_values" in contents else None
            if "gradients" not in contents:
                return _Travelling(pair)
            before = source.gradients
            if before is None:
                return _Travelling(pair, done[0])
            return _Travelling(pair, tuple(a + b for a, b in zip(before, done[0], strict=True)))

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            messages = [sent(rank, *inputs) for rank, inputs in zip(members, values, strict=True)]
            return [(messages[number - 1],) for number in range(len(members))]

        message = Message("exchanged", lambda _, made: int(made[0].elements))
        self.add(self.operands(), self.handle(), kernel, joined=True, message=message)

    def all_to_all(self, task: Task) -> None:
        """Exchange heads against positions: to all positions of some heads, or back."""
        gathers = task.work.writes[0].name == "heads"
        cut, joined = (HEADS, POSITIONS) if gathers else (POSITIONS, HEADS)

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            arrays = [
                value.heads.values if isinstance(value, Attention) else value.arrays for (value, *_) in values
            ]
            split = [[np.split(array, len(members), axis=cut) for array in own] for own in arrays]

            def of_member(number: int) -> tuple[Floats, ...]:
                received = zip(*([parts[number] for parts in own] for own in split), strict=True)
                return tuple(np.concatenate(parts, axis=joined) for parts in received)

            return [(of_member(number),) for number in range(len(members))]

        message = Message("exchanged", lambda _, made: sum(int(array.size) for array in made[0]))
        self.add(self.operands(), self.handle(), kernel, joined=True, message=message)

    # ------------------------------------------------------------------------------------ rows
    def rows_trade(self, task: Task) -> None:
        """An all-to-all: rows to the ranks of their experts, or back to where they came from."""
        route = self.cell("route of experts")

        def there(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            sent = [inputs[0] for inputs in values]
            arrived = [_gathered(sent, self.share(rank).own_experts) for rank in members]
            return [(own.rows, own) for own in arrived]

        def back(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            made = [inputs[0] for inputs in values]
            routes = [inputs[1] for inputs in values]
            return [(_returned(routes, made, number),) for number in range(len(members))]

        operand = self.operand(task.reads[0])
        if task.work.name.endswith("combine"):
            slots = Message("rows", lambda _, made: int(made[0].values.size))
            self.add([operand, route], self.handle(), back, joined=True, message=slots)
        else:
            message = Message("rows", lambda inputs, _: int(inputs[0].values.size))
            self.add([operand], [*self.handle(), route], there, joined=True, message=message)

    def rows_gather(self, task: Task) -> None:
        """Peers that share experts gather one another's rows."""

        def kernel(members: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            sent = [inputs[0] for inputs in values]
            bounds = np.cumsum([0, *(len(rows.expert) for rows in sent)])
            whole = Rows(*(np.concatenate(columns) for columns in zip(*sent, strict=True)))
            return [(whole, slice(bounds[n], bounds[n + 1])) for n in range(len(members))]

        message = Message("rows", lambda _, made: int(made[0].values.size))
        writes = [*self.handle(), self.cell("route of peers")]
        self.add([self.operand(task.reads[0])], writes, kernel, joined=True, message=message)

    def rows_scatter(self, task: Task) -> None:
        """The sum of what peers made of the rows, for each its own."""

        def kernel(_: Sequence[int], values: Sequence[Values]) -> list[tuple[Any, ...]]:
            total = summed([inputs[0].values for inputs in values])
            return [(Rows(total[inputs[1]], inputs[0].expert[inputs[1]]),) for inputs in values]

        message = Message("rows", lambda inputs, _: int(inputs[0].values.size))
        reads = [self.operand(task.reads[0]), self.cell("route of peers")]
        self.add(reads, self.handle(), kernel, joined=True, message=message)


def _gathered(sent: list[Rows], experts: range) -> _Travelled:
    """The rows of all members that these experts compute, in the order of the members."""
    chosen = [np.flatnonzero((rows.expert >= experts.start) & (rows.expert < experts.stop)) for rows in sent]
    own = [Rows(rows.values[places], rows.expert[places]) for rows, places in zip(sent, chosen, strict=True)]
    rows = Rows(*(np.concatenate(columns) for columns in zip(*own, strict=True)))
    source = np.repeat(np.arange(len(sent)), [len(places) for places in chosen])
    return _Travelled(rows, source, np.concatenate(chosen))


def _returned(routes: list[_Travelled], made: list[Rows], number: int) -> Rows:
    """What a member's rows became, in the order in which it sent them."""
    own = [route.source == number for route in routes]
    place = np.concatenate([route.place[mine] for route, mine in zip(routes, own, strict=True)])
    values = np.empty((len(place), made[0].values.shape[-1]))
    expert = np.empty(len(place), dtype=np.int64)
    values[place] = np.concatenate([rows.values[mine] for rows, mine in zip(made, own, strict=True)])
    expert[place] = np.concatenate([rows.expert[mine] for rows, mine in zip(made, own, strict=True)])
    return Rows(values, expert)


EXCHANGES = {
    "context_communication: send_recv": GpuExchange.ring_shift,
    "context_communication: all_to_all": GpuExchange.all_to_all,
    "expert_communication: all_to_all": GpuExchange.rows_trade,
    "expert_communication: all_gather": GpuExchange.rows_gather,
    "expert_communication: reduce_scatter": GpuExchange.rows_scatter,
}
"""Method for each exchange."""
