"""The compiled core: the rules of `engine.simpy_engine` over columns, to the bit the same, and far faster.

It is compiled by numba when it is first used, and kept compiled on disk.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfsim.base.arrays import Bools, Floats, Ids, Ints
from perfsim.base.compiled import Compiled
from perfsim.engine import rules
from perfsim.engine.rules import fill, reached
from perfsim.engine.tables import NONE, UNIT, Tables, excess, slowed_speed

longest_path = Compiled(rules.longest_path)


class _State(NamedTuple):
    """What changes while a graph is followed, allocated before, since the loops allocate nothing."""

    missing: Ids
    """How many tasks every task still waits for."""
    ready: Ids
    """A stack of tasks that may start or, after their latency, send."""
    ends: Ids
    """A heap of the tasks that have an end, by this end and then by number."""
    place: Ids
    """Of every task in the heap; -1: it is not there."""
    due_s: Floats
    """The end of every task in the heap."""
    # Tasks at a rate that others may change: flows, and computations next to communication.
    left_s: Floats
    is_sending: Bools
    rate: Floats
    since_s: Floats
    after: Ids
    before: Ids
    """The next and the previous task of each one's group."""
    fresh: Ids
    """Tasks that begin at this instant and have no rate yet."""
    head: Ids
    """The first task of each group: of each flow, then of each device; their rates are set together."""
    changed_flow: Ints
    is_changed: Bools
    # Devices.
    taken: Ints
    slowing: Floats
    changed_device: Ints
    device_is_changed: Bools

    @classmethod
    def of(cls, tables: Tables) -> _State:
        """The state before the first task."""
        tasks = len(tables.duration_s)
        flows = len(tables.bytes_per_s)
        devices = tables.num_devices

        def ids(count: int, value: int = 0) -> Ids:
            return np.full(count, value, dtype=np.int32)

        def no(count: int) -> Bools:
            return np.zeros(count, dtype=np.bool_)

        return cls(
            missing=tables.missing.copy(),
            ready=ids(tasks),
            ends=ids(tasks),
            place=ids(tasks, NONE),
            due_s=np.full(tasks, np.inf),
            left_s=np.zeros(tasks),
            is_sending=no(tasks),
            rate=np.zeros(tasks),
            since_s=np.zeros(tasks),
            after=ids(tasks, NONE),
            before=ids(tasks, NONE),
            fresh=ids(tasks),
            head=ids(flows + devices, NONE),
            changed_flow=np.zeros(flows, dtype=np.int64),
            is_changed=no(flows),
            taken=np.zeros((devices, 2), dtype=np.int64),
            slowing=np.zeros((devices, 2)),
            changed_device=np.zeros(devices, dtype=np.int64),
            device_is_changed=no(devices),
        )


def run(tables: Tables, start_s: Floats, end_s: Floats) -> tuple[int, float]:
    """Fill in start and end of every task, -1: never; returns events and seconds with a contended link."""
    start_s[:] = -1.0
    end_s[:] = -1.0
    seen = np.zeros(2)
    _follow(tables, _State.of(tables), rules.Shares.of(tables), start_s, end_s, seen)
    events, contended_s = seen.tolist()
    return int(events), contended_s


def _with(number: int, members: Ints, is_member: Bools, count: int) -> int:
    """How many of `members` there are, of `count`, after one that may be among them has joined."""
    if not is_member[number]:
        is_member[number] = True
        members[count] = number
        count += 1
    return count


def _is_before(task: int, other: int, due_s: Floats) -> bool:
    """Whether a task ends before another one; of equal ends, the one with the lower number does."""
    return due_s[task] < due_s[other] or (due_s[task] == due_s[other] and task < other)


def _settle(state: _State, task: int, at: int, count: int) -> None:
    """Put a task into the heap of `count`, in which `at` is free."""
    ends = state.ends
    while at > 0 and _is_before(task, ends[(at - 1) // 2], state.due_s):
        above = (at - 1) // 2
        ends[at] = ends[above]
        state.place[ends[at]] = at
        at = above
    while 2 * at + 1 < count:
        below = 2 * at + 1
        if below + 1 < count and _is_before(ends[below + 1], ends[below], state.due_s):
            below += 1
        if _is_before(task, ends[below], state.due_s):
            break
        ends[at] = ends[below]
        state.place[ends[at]] = at
        at = below
    ends[at] = task
    state.place[task] = at


def _end_at(state: _State, task: int, at_s: float, count: int) -> int:
    """Let a task end then, whether or not it had an end, or (infinity) have none; how many have one."""
    state.due_s[task] = at_s
    at = state.place[task]
    if at_s < np.inf:
        if at == NONE:
            at = count
            count += 1
        _settle(state, task, at, count)
    elif at != NONE:
        state.place[task] = NONE
        count -= 1
        if at < count:
            _settle(state, state.ends[count], at, count)
    return count


def _proceed(state: _State, task: int, speed: float, now_s: float) -> float:
    """Let a task run at this rate from now on; its new end."""
    state.left_s[task] -= (now_s - state.since_s[task]) * state.rate[task]
    state.since_s[task] = now_s
    state.rate[task] = speed
    return now_s + max(0.0, state.left_s[task]) / speed if speed > 0.0 else np.inf


@Compiled
def _follow(
    tables: Tables, state: _State, shares: rules.Shares, start_s: Floats, end_s: Floats, seen: Floats
) -> None:
    """Fill in the start and the end of every task that has both, and what `run` returns."""
    num_flows = len(tables.bytes_per_s)
    ready = state.ready
    due_s = state.due_s
    num_ends = num_fresh = num_changed = num_devices = num_ready = 0
    num_hot = 0
    hot_since_s = 0.0
    contended_s = 0.0
    now_s = 0.0
    events = 0
    for task in range(len(start_s) - 1, -1, -1):
        if state.missing[task] == 0:
            ready[num_ready] = task
            num_ready += 1
    while True:
        # All starts and ends of the instant.
        while num_ready:
            num_ready -= 1
            task = ready[num_ready]
            kind = tables.kind[task]
            if start_s[task] < 0.0:
                # A task that takes part of a device changes the rates there, but only at the end of the
                # instant: others that begin or end now may change them as well.
                start_s[task] = now_s
                events += 1
                for at in range(tables.occupied.start[kind], tables.occupied.start[kind + 1]):
                    device = tables.occupied.values[at]
                    state.taken[device, 0] += tables.taken[kind, 0]
                    state.taken[device, 1] += tables.taken[kind, 1]
                    num_devices = _with(device, state.changed_device, state.device_is_changed, num_devices)
                # Its bytes use links once its latency has passed; until then only the heap knows the task.
                if tables.latency_s[task] > 0.0:
                    num_ends = _end_at(state, task, now_s + tables.latency_s[task], num_ends)
                    continue
            flow = tables.flow[kind]
            # Its first rate is not known yet, so such a task is in no group before the end of the instant.
            if flow != NONE or tables.device[kind] != NONE:
                state.left_s[task] = tables.duration_s[task] - tables.latency_s[task]
                state.fresh[num_fresh] = task
                num_fresh += 1
                if flow != NONE:
                    shares.live[flow] += 1
                    num_changed = _with(flow, state.changed_flow, state.is_changed, num_changed)
            else:
                num_ends = _end_at(state, task, now_s + tables.duration_s[task], num_ends)
        if num_ends and due_s[state.ends[0]] <= now_s:
            task = state.ends[0]
            num_ends = _end_at(state, task, np.inf, num_ends)
            if tables.latency_s[task] > 0.0 and not state.is_sending[task]:
                state.is_sending[task] = True
                ready[num_ready] = task
                num_ready += 1
                continue
            end_s[task] = now_s
            events += 1
            kind = tables.kind[task]
            for at in range(tables.occupied.start[kind], tables.occupied.start[kind + 1]):
                device = tables.occupied.values[at]
                state.taken[device, 0] -= tables.taken[kind, 0]
                state.taken[device, 1] -= tables.taken[kind, 1]
                num_devices = _with(device, state.changed_device, state.device_is_changed, num_devices)
            flow = tables.flow[kind]
            # Groups are linked lists, so that a task leaves in the same time however many there are.
            if flow != NONE or tables.device[kind] != NONE:
                previous = state.before[task]
                following = state.after[task]
                if previous != NONE:
                    state.after[previous] = following
                else:
                    group = flow if flow != NONE else num_flows + tables.device[kind]
                    state.head[group] = following
                if following != NONE:
                    state.before[following] = previous
                if flow != NONE:
                    shares.live[flow] -= 1
                    num_changed = _with(flow, state.changed_flow, state.is_changed, num_changed)
            for at in range(tables.waiting.start[task], tables.waiting.start[task + 1]):
                follower = tables.waiting.values[at]
                state.missing[follower] -= 1
                if state.missing[follower] == 0:
                    ready[num_ready] = follower
                    num_ready += 1
            continue
        # The end of the instant: rates.
        for device in state.changed_device[:num_devices]:
            state.device_is_changed[device] = False
            # Shares are whole numbers, so that a device that is left alone is exactly as fast as before.
            units = excess(state.taken[device, 0] / UNIT)
            memory = excess(state.taken[device, 1] / UNIT)
            if units == state.slowing[device, 0] and memory == state.slowing[device, 1]:
                continue
            state.slowing[device, 0] = units
            state.slowing[device, 1] = memory
            task = state.head[num_flows + device]
            while task != NONE:
                bound = tables.bound[tables.kind[task]]
                speed = slowed_speed(bound[0], bound[1], units, memory)
                if speed != state.rate[task]:
                    events += state.rate[task] > 0.0
                    num_ends = _end_at(state, task, _proceed(state, task, speed, now_s), num_ends)
                task = state.after[task]
        num_devices = 0
        if num_changed:
            changed = state.changed_flow[:num_changed]
            for flow in changed:
                state.is_changed[flow] = False
            found, more_hot = reached(tables, shares, changed)
            num_changed = 0
            if num_hot == 0 and more_hot > 0:
                hot_since_s = now_s
            if num_hot > 0 and num_hot + more_hot == 0:
                contended_s += now_s - hot_since_s
            num_hot += more_hot
            # Flows on links that are not contended keep their own speed; `fill` gives it to them again.
            joined = shares.touched[:found]
            fill(tables, shares, joined)
            for flow in joined:
                speed = shares.fraction[flow]
                task = state.head[flow]
                while task != NONE:
                    if speed != state.rate[task]:
                        events += state.rate[task] > 0.0
                        num_ends = _end_at(state, task, _proceed(state, task, speed, now_s), num_ends)
                    task = state.after[task]
        # What has begun at this instant gets its first rate, and joins its group.
        for task in state.fresh[:num_fresh]:
            kind = tables.kind[task]
            flow = tables.flow[kind]
            device = tables.device[kind]
            if flow != NONE:
                group = flow
                speed = shares.fraction[flow]
            else:
                group = num_flows + device
                bound = tables.bound[kind]
                slowing = state.slowing[device]
                speed = slowed_speed(bound[0], bound[1], slowing[0], slowing[1])
            following = state.head[group]
            state.after[task] = following
            state.before[task] = NONE
            if following != NONE:
                state.before[following] = task
            state.head[group] = task
            state.since_s[task] = now_s
            if speed == 1.0 and tables.latency_s[task] > 0.0:
                # One sum for what nothing slows: it ends as it does without links, to the bit.
                state.rate[task] = speed
                at_s = max(now_s, start_s[task] + tables.duration_s[task])
            else:
                at_s = _proceed(state, task, speed, now_s)
            num_ends = _end_at(state, task, at_s, num_ends)
        num_fresh = 0
        # The next instant.
        if not num_ends:
            break
        now_s = due_s[state.ends[0]]
    if num_hot > 0:
        contended_s += now_s - hot_since_s
    seen[0] = events
    seen[1] = contended_s
