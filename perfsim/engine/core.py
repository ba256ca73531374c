"""The compiled core: the rules of `engine.simpy_engine` over columns, to the bit the same, and far faster.

Tasks under way stand in a heap by the time at which they end. At each instant all tasks that end now are
taken out, and the tasks that waited for them begin; then `engine.rules` sets the rates. numba compiles the
functions when they are first used and keeps them on disk, so they are plain loops over the columns of
`Tables` and of `_State`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit

from perfsim.base.arrays import Bools, Floats, Ints
from perfsim.engine import rules
from perfsim.engine.tables import NONE, TOLERANCE, UNIT, Tables, excess

F = TypeVar("F", bound=Callable[..., Any])


def _compiled(function: F) -> F:
    """The same function in machine code, kept on disk."""
    return cast(F, njit(cache=True)(function))


longest_path = _compiled(rules.longest_path)
_excess = _compiled(excess)
_fill = _compiled(rules.fill)
_reached = _compiled(rules.reached)


class _State(NamedTuple):
    """A run under way; groups are the flows, then the devices."""

    clock: Floats
    """By `_NOW` and the names below it: an array, so that functions can change its entries."""
    tally: Ints
    """Numbers by `_READY` and the names below it."""
    start_s: Floats
    end_s: Floats
    due_s: Floats
    """When each task under way ends at its present rate."""
    heap: Ints
    """Tasks under way by `due_s`."""
    place: Ints
    """Where each task stands in the heap; -1: nowhere."""
    missing: Ints
    ready: Ints
    """Tasks that begin at this instant."""
    fresh: Ints
    """Tasks that have begun at this instant and whose rate others decide."""
    left_s: Floats
    rate: Floats
    since_s: Floats
    head: Ints
    """The first task under way of each group; `after` and `before` link the others to it."""
    after: Ints
    before: Ints
    live: Ints
    """Tasks under way of each flow."""
    fraction: Floats
    changed_flows: Ints
    flow_changed: Bools
    hot: Bools
    limit: Floats
    seen_link: Bools
    seen_flow: Bools
    touched: Ints
    by_link: Floats
    """Scratch columns of `rules.fill`."""
    taken: Ints
    """What communication takes from each device, in 1 / UNIT; shape (devices, 2)."""
    slowing: Floats
    changed_devices: Ints
    device_changed: Bools


_READY = 0
_FRESH = 1
_HEAP = 2
_FLOWS = 3
_DEVICES = 4
_EVENTS = 5
_HOT = 6
"""Entries of `_State.tally`: tasks in `ready`, `fresh` and `heap`, flows and devices that have changed, all
events, and links that are contended."""
_NOW = 0
_HOT_SINCE = 1
_CONTENDED = 2
"""Entries of `_State.clock`: the present instant, since when links are contended, and for how long before."""


def _begun(tables: Tables, start_s: Floats, end_s: Floats) -> _State:
    """The state before the first instant."""
    tasks = len(tables.duration_s)
    flows = len(tables.weight)
    links = len(tables.capacity)
    devices = tables.num_devices
    start_s[:] = -1.0
    end_s[:] = -1.0
    return _State(
        clock=np.zeros(3),
        tally=np.zeros(7, dtype=np.int64),
        start_s=start_s,
        end_s=end_s,
        due_s=np.full(tasks, np.inf),
        heap=np.empty(tasks, dtype=np.int64),
        place=np.full(tasks, NONE),
        missing=tables.missing.copy(),
        ready=np.empty(tasks, dtype=np.int64),
        fresh=np.empty(tasks, dtype=np.int64),
        left_s=np.zeros(tasks),
        rate=np.zeros(tasks),
        since_s=np.zeros(tasks),
        head=np.full(flows + devices, NONE),
        after=np.full(tasks, NONE),
        before=np.full(tasks, NONE),
        live=np.zeros(flows, dtype=np.int64),
        fraction=np.ones(flows),
        changed_flows=np.empty(flows, dtype=np.int64),
        flow_changed=np.zeros(flows, dtype=np.bool_),
        hot=np.zeros(links, dtype=np.bool_),
        limit=tables.capacity * (1.0 + TOLERANCE),
        seen_link=np.zeros(links, dtype=np.bool_),
        seen_flow=np.zeros(flows, dtype=np.bool_),
        touched=np.empty(flows, dtype=np.int64),
        by_link=np.zeros((4, links)),
        taken=np.zeros((devices, 2), dtype=np.int64),
        slowing=np.zeros((devices, 2)),
        changed_devices=np.empty(devices, dtype=np.int64),
        device_changed=np.zeros(devices, dtype=np.bool_),
    )


# ------------------------------------------------------------------------------ the heap of ends
@_compiled
def _sift_up(state: _State, at: int) -> int:
    """Move the task at a place toward the top, as far as its end is earlier; its new place."""
    heap = state.heap
    task = heap[at]
    while at > 0:
        above = (at - 1) >> 1
        if state.due_s[heap[above]] <= state.due_s[task]:
            break
        heap[at] = heap[above]
        state.place[heap[at]] = at
        at = above
    heap[at] = task
    state.place[task] = at
    return at


@_compiled
def _sift_down(state: _State, at: int) -> None:
    """Move the task at a place away from the top, as far as its end is later."""
    heap = state.heap
    size = state.tally[_HEAP]
    task = heap[at]
    while 2 * at + 1 < size:
        below = 2 * at + 1
        if below + 1 < size and state.due_s[heap[below + 1]] < state.due_s[heap[below]]:
            below += 1
        if state.due_s[heap[below]] >= state.due_s[task]:
            break
        heap[at] = heap[below]
        state.place[heap[at]] = at
        at = below
    heap[at] = task
    state.place[task] = at


@_compiled
def _set_due(state: _State, task: int, due_s: float) -> None:
    """Have a task end at another time, or for the first time at some."""
    state.due_s[task] = due_s
    at = state.place[task]
    if at == NONE:
        at = state.tally[_HEAP]
        state.tally[_HEAP] += 1
        state.heap[at] = task
    _sift_down(state, _sift_up(state, at))


@_compiled
def _pop(state: _State) -> int:
    """Take out the task that ends first."""
    task = state.heap[0]
    state.tally[_HEAP] -= 1
    state.place[task] = NONE
    if state.tally[_HEAP]:
        state.heap[0] = state.heap[state.tally[_HEAP]]
        _sift_down(state, 0)
    return int(task)


# ------------------------------------------------------------------------------ starts and ends
@_compiled
def _take(tables: Tables, state: _State, kind: int, sign: int) -> None:
    """Take the shares of a kind from its devices (`sign` 1), or leave them (-1)."""
    for at in range(tables.occupied.first[kind], tables.occupied.first[kind + 1]):
        device = tables.occupied.values[at]
        state.taken[device, 0] += sign * tables.taken[kind, 0]
        state.taken[device, 1] += sign * tables.taken[kind, 1]
        if not state.device_changed[device]:
            state.device_changed[device] = True
            state.changed_devices[state.tally[_DEVICES]] = device
            state.tally[_DEVICES] += 1


@_compiled
def _change_flow(state: _State, flow: int, sign: int) -> None:
    """One task more (`sign` 1) or less (-1) of a flow."""
    state.live[flow] += sign
    if not state.flow_changed[flow]:
        state.flow_changed[flow] = True
        state.changed_flows[state.tally[_FLOWS]] = flow
        state.tally[_FLOWS] += 1


@_compiled
def _group(tables: Tables, kind: int) -> int:
    """The group of tasks that get their rates together; -1 for tasks that take their own time."""
    if tables.flow[kind] != NONE:
        return int(tables.flow[kind])
    if tables.device[kind] != NONE:
        return int(len(tables.weight) + tables.device[kind])
    return NONE


@_compiled
def _start(tables: Tables, state: _State, task: int) -> None:
    """Begin a task now."""
    kind = tables.kind[task]
    state.start_s[task] = state.clock[_NOW]
    state.tally[_EVENTS] += 1
    _take(tables, state, kind, 1)
    if tables.flow[kind] != NONE:
        _change_flow(state, tables.flow[kind], 1)
    if _group(tables, kind) == NONE:
        _set_due(state, task, state.clock[_NOW] + tables.duration_s[task])
    else:
        state.left_s[task] = tables.duration_s[task]
        state.fresh[state.tally[_FRESH]] = task
        state.tally[_FRESH] += 1


@_compiled
def _end(tables: Tables, state: _State, task: int) -> None:
    """End a task now; tasks that waited for it alone are ready."""
    kind = tables.kind[task]
    state.end_s[task] = state.clock[_NOW]
    state.tally[_EVENTS] += 1
    _take(tables, state, kind, -1)
    if tables.flow[kind] != NONE:
        _change_flow(state, tables.flow[kind], -1)
    group = _group(tables, kind)
    if group != NONE:
        if state.before[task] != NONE:
            state.after[state.before[task]] = state.after[task]
        else:
            state.head[group] = state.after[task]
        if state.after[task] != NONE:
            state.before[state.after[task]] = state.before[task]
    for at in range(tables.waiting.first[task], tables.waiting.first[task + 1]):
        follower = tables.waiting.values[at]
        state.missing[follower] -= 1
        if state.missing[follower] == 0:
            state.ready[state.tally[_READY]] = follower
            state.tally[_READY] += 1


# ------------------------------------------------------------------------- the end of an instant
@_compiled
def _proceed(state: _State, task: int, rate: float) -> None:
    """Run a task at this rate from now on."""
    now_s = state.clock[_NOW]
    state.left_s[task] -= (now_s - state.since_s[task]) * state.rate[task]
    state.since_s[task] = now_s
    state.rate[task] = rate
    if rate > 0.0:
        _set_due(state, task, now_s + max(0.0, state.left_s[task]) / rate)
    elif state.place[task] != NONE:
        _set_due(state, task, np.inf)


@_compiled
def _rate(tables: Tables, state: _State, kind: int) -> float:
    """The rate at which tasks of a kind run now."""
    if tables.flow[kind] != NONE:
        return float(state.fraction[tables.flow[kind]])
    units = state.slowing[tables.device[kind], 0]
    memory = state.slowing[tables.device[kind], 1]
    return float(1.0 / (1.0 + tables.bound[kind, 0] * units + tables.bound[kind, 1] * memory))


@_compiled
def _set_rates_of(tables: Tables, state: _State, group: int) -> None:
    """Give the tasks of a group their rates."""
    task = state.head[group]
    while task != NONE:
        rate = _rate(tables, state, tables.kind[task])
        if rate != state.rate[task]:
            state.tally[_EVENTS] += state.rate[task] > 0.0
            _proceed(state, task, rate)
        task = state.after[task]


@_compiled
def _set_rates(tables: Tables, state: _State) -> None:
    """Give all tasks the rates that the starts and ends of this instant leave them."""
    for number in range(state.tally[_DEVICES]):
        device = state.changed_devices[number]
        state.device_changed[device] = False
        units = _excess(state.taken[device, 0] / UNIT)
        memory = _excess(state.taken[device, 1] / UNIT)
        if units != state.slowing[device, 0] or memory != state.slowing[device, 1]:
            state.slowing[device, 0] = units
            state.slowing[device, 1] = memory
            _set_rates_of(tables, state, len(tables.weight) + device)
    state.tally[_DEVICES] = 0
    if state.tally[_FLOWS]:
        _share_links(tables, state)
    for number in range(state.tally[_FRESH]):
        task = state.fresh[number]
        kind = tables.kind[task]
        group = _group(tables, kind)
        state.since_s[task] = state.clock[_NOW]
        _proceed(state, task, _rate(tables, state, kind))
        state.after[task] = state.head[group]
        if state.head[group] != NONE:
            state.before[state.head[group]] = task
        state.head[group] = task
    state.tally[_FRESH] = 0


@_compiled
def _share_links(tables: Tables, state: _State) -> None:
    """Give the flows that the changed ones reach their fair shares of links."""
    changed = state.changed_flows[: state.tally[_FLOWS]]
    for flow in changed:
        state.flow_changed[flow] = False
    found, more_hot = _reached(
        tables, state.live, state.hot, changed, state.seen_link, state.seen_flow, state.touched, state.limit
    )
    state.tally[_FLOWS] = 0
    if state.tally[_HOT] == 0 and more_hot > 0:
        state.clock[_HOT_SINCE] = state.clock[_NOW]
    if state.tally[_HOT] > 0 and state.tally[_HOT] + more_hot == 0:
        state.clock[_CONTENDED] += state.clock[_NOW] - state.clock[_HOT_SINCE]
    state.tally[_HOT] += more_hot
    joined = state.touched[:found]
    left, load, taken, tightest = state.by_link
    _fill(tables, joined, state.live, state.hot, left, load, taken, tightest, state.fraction)
    for flow in joined:
        _set_rates_of(tables, state, flow)


@_compiled
def _run(tables: Tables, state: _State) -> None:
    """Run until nothing is left that can happen."""
    for task in range(len(state.missing)):
        if state.missing[task] == 0:
            state.ready[state.tally[_READY]] = task
            state.tally[_READY] += 1
    while True:
        while state.tally[_READY] or (state.tally[_HEAP] and state.due_s[state.heap[0]] <= state.clock[_NOW]):
            if state.tally[_READY]:
                state.tally[_READY] -= 1
                _start(tables, state, state.ready[state.tally[_READY]])
            else:
                _end(tables, state, _pop(state))
        _set_rates(tables, state)
        if state.tally[_HEAP] == 0 or state.due_s[state.heap[0]] == np.inf:
            break
        state.clock[_NOW] = state.due_s[state.heap[0]]
    if state.tally[_HOT] > 0:
        state.clock[_CONTENDED] += state.clock[_NOW] - state.clock[_HOT_SINCE]


def run(tables: Tables, start_s: Floats, end_s: Floats) -> tuple[int, float]:
    """Fill in the start and the end of every task; -1 for a task that never starts or ends.

    Returns the number of events (starts, ends, changes of a rate) and the seconds in which a link was
    contended.
    """
    state = _begun(tables, start_s, end_s)
    _run(tables, state)
    return int(state.tally[_EVENTS]), float(state.clock[_CONTENDED])
