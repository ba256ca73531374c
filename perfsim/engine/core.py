"""The compiled core: the rules of `engine.simpy_engine` over columns, to the bit the same, and far faster.

It is compiled by numba when it is first used, and kept compiled on disk.
"""

from __future__ import annotations

import heapq

import numpy as np

from perfsim.base.arrays import Bools, Floats, Ints
from perfsim.base.compiled import compiled
from perfsim.engine import rules
from perfsim.engine.tables import NONE, TOLERANCE, UNIT, Tables, excess, speed_beside

_excess = compiled(excess)
_speed = compiled(speed_beside)
_reached = compiled(rules.reached)
_fill = compiled(rules.fill)
longest_path = compiled(rules.longest_path)


@compiled
def _with(number: int, members: Ints, is_member: Bools, count: int) -> int:
    """How many of `members` there are, of `count`, after one that may be among them has joined."""
    if not is_member[number]:
        is_member[number] = True
        members[count] = number
        count += 1
    return count


@compiled
def _proceed(
    task: int,
    speed: float,
    now_s: float,
    left_s: Floats,
    since_s: Floats,
    rate: Floats,
    due_s: Floats,
    ends: list[tuple[float, int]],
) -> bool:
    """Let a task run at this rate from now on; whether a rate that it had has changed."""
    if speed == rate[task]:
        return False
    had_rate: bool = rate[task] > 0.0
    left_s[task] -= (now_s - since_s[task]) * rate[task]
    since_s[task] = now_s
    rate[task] = speed
    due_s[task] = np.inf
    if speed > 0.0:
        due_s[task] = now_s + max(0.0, left_s[task]) / speed
        heapq.heappush(ends, (due_s[task], task))
    return had_rate


@compiled
def run(tables: Tables, start_s: Floats, end_s: Floats) -> tuple[int, float]:
    """Fill in the start and the end of every task; -1 for a task that never starts or ends.

    Returns the number of events and the seconds in which a link was contended.
    """
    count = len(tables.duration_s)
    num_flows = len(tables.bytes_per_s)
    num_links = len(tables.capacity)
    # Tasks whose rates are set together form a group: one for each flow, then one for each device.
    groups = num_flows + tables.num_devices
    missing = tables.missing.copy()
    start_s[:] = -1.0
    end_s[:] = -1.0
    # An entry of the heap of ends counts only while it is the end that its task now has.
    ends = [(np.inf, NONE)]
    ends.pop()
    due_s = np.full(count, np.inf)
    ready = np.empty(count, dtype=np.int64)
    # Tasks at a rate that others may change: flows, and computations next to communication.
    left_s = np.zeros(count)
    is_sending = np.zeros(count, dtype=np.bool_)
    rate = np.zeros(count)
    since_s = np.zeros(count)
    head = np.full(groups, NONE)
    after = np.full(count, NONE)
    before = np.full(count, NONE)
    fresh = np.empty(count, dtype=np.int64)
    num_fresh = 0
    # Links.
    live = np.zeros(num_flows, dtype=np.int64)
    fraction = np.ones(num_flows)
    changed_flow = np.empty(num_flows, dtype=np.int64)
    is_changed = np.zeros(num_flows, dtype=np.bool_)
    num_changed = 0
    hot = np.zeros(num_links, dtype=np.bool_)
    limit = tables.capacity * (1.0 + TOLERANCE)
    seen_link = np.zeros(num_links, dtype=np.bool_)
    seen_flow = np.zeros(num_flows, dtype=np.bool_)
    touched = np.empty(num_flows, dtype=np.int64)
    scratch = np.zeros((4, num_links))
    num_hot = 0
    hot_since_s = 0.0
    contended_s = 0.0
    # Devices.
    taken = np.zeros((tables.num_devices, 2), dtype=np.int64)
    slowing = np.zeros((tables.num_devices, 2))
    changed_device = np.empty(tables.num_devices, dtype=np.int64)
    device_is_changed = np.zeros(tables.num_devices, dtype=np.bool_)
    num_devices = 0

    now_s = 0.0
    events = 0
    num_ready = 0
    for task in range(count - 1, -1, -1):
        if missing[task] == 0:
            ready[num_ready] = task
            num_ready += 1
    while True:
        # -------------------------------------------------- all starts and ends of the instant
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
                    taken[device] += tables.taken[kind]
                    num_devices = _with(device, changed_device, device_is_changed, num_devices)
                # Its bytes use links once its latency has passed; until then only the heap knows the task.
                if tables.latency_s[task] > 0.0:
                    due_s[task] = now_s + tables.latency_s[task]
                    heapq.heappush(ends, (due_s[task], task))
                    continue
            flow = tables.flow[kind]
            # Its first rate is not known yet, so such a task is in no group before the end of the instant.
            if flow != NONE or tables.device[kind] != NONE:
                left_s[task] = tables.duration_s[task] - tables.latency_s[task]
                fresh[num_fresh] = task
                num_fresh += 1
                if flow != NONE:
                    live[flow] += 1
                    num_changed = _with(flow, changed_flow, is_changed, num_changed)
            else:
                due_s[task] = now_s + tables.duration_s[task]
                heapq.heappush(ends, (due_s[task], task))
        if ends and ends[0][0] <= now_s:
            at_s, task = heapq.heappop(ends)
            # An entry of the heap is stale if its task has ended or has got another rate since then.
            if due_s[task] != at_s:
                continue
            if tables.latency_s[task] > 0.0 and not is_sending[task]:
                is_sending[task] = True
                due_s[task] = np.inf
                ready[num_ready] = task
                num_ready += 1
                continue
            end_s[task] = now_s
            due_s[task] = np.inf
            events += 1
            kind = tables.kind[task]
            for at in range(tables.occupied.start[kind], tables.occupied.start[kind + 1]):
                device = tables.occupied.values[at]
                taken[device] -= tables.taken[kind]
                num_devices = _with(device, changed_device, device_is_changed, num_devices)
            flow = tables.flow[kind]
            # Groups are linked lists, so that a task leaves in the same time however many there are.
            if flow != NONE or tables.device[kind] != NONE:
                if before[task] != NONE:
                    after[before[task]] = after[task]
                else:
                    head[flow if flow != NONE else num_flows + tables.device[kind]] = after[task]
                if after[task] != NONE:
                    before[after[task]] = before[task]
                if flow != NONE:
                    live[flow] -= 1
                    num_changed = _with(flow, changed_flow, is_changed, num_changed)
            for at in range(tables.waiting.start[task], tables.waiting.start[task + 1]):
                follower = tables.waiting.values[at]
                missing[follower] -= 1
                if missing[follower] == 0:
                    ready[num_ready] = follower
                    num_ready += 1
            continue
        # -------------------------------------------------- the end of the instant: rates
        for device in changed_device[:num_devices]:
            device_is_changed[device] = False
            # Shares are whole numbers, so that a device that is left alone is exactly as fast as before.
            units = _excess(taken[device, 0] / UNIT)
            memory = _excess(taken[device, 1] / UNIT)
            if units == slowing[device, 0] and memory == slowing[device, 1]:
                continue
            slowing[device, 0] = units
            slowing[device, 1] = memory
            task = head[num_flows + device]
            while task != NONE:
                bound = tables.bound[tables.kind[task]]
                speed = _speed(bound[0], bound[1], units, memory)
                events += _proceed(task, speed, now_s, left_s, since_s, rate, due_s, ends)
                task = after[task]
        num_devices = 0
        if num_changed:
            changed = changed_flow[:num_changed]
            is_changed[changed] = False
            found, more_hot = _reached(tables, live, hot, changed, seen_link, seen_flow, touched, limit)
            num_changed = 0
            if num_hot == 0 and more_hot > 0:
                hot_since_s = now_s
            if num_hot > 0 and num_hot + more_hot == 0:
                contended_s += now_s - hot_since_s
            num_hot += more_hot
            # Flows on links that are not contended keep their own speed; `_fill` gives it to them again.
            joined = touched[:found]
            _fill(tables, joined, live, hot, scratch, fraction)
            for flow in joined:
                task = head[flow]
                while task != NONE:
                    events += _proceed(task, fraction[flow], now_s, left_s, since_s, rate, due_s, ends)
                    task = after[task]
        # What has begun at this instant gets its first rate, and joins its group.
        for task in fresh[:num_fresh]:
            kind = tables.kind[task]
            flow = tables.flow[kind]
            device = tables.device[kind]
            if flow != NONE:
                group = flow
                speed = fraction[flow]
            else:
                group = num_flows + device
                bound = tables.bound[kind]
                speed = _speed(bound[0], bound[1], slowing[device, 0], slowing[device, 1])
            after[task] = head[group]
            before[task] = NONE
            if head[group] != NONE:
                before[head[group]] = task
            head[group] = task
            since_s[task] = now_s
            if speed == 1.0 and tables.latency_s[task] > 0.0:
                # One sum for what nothing slows: it ends as it does without links, to the bit.
                rate[task] = speed
                due_s[task] = max(now_s, start_s[task] + tables.duration_s[task])
                heapq.heappush(ends, (due_s[task], task))
            else:
                _proceed(task, speed, now_s, left_s, since_s, rate, due_s, ends)
        num_fresh = 0
        # -------------------------------------------------- the next instant
        # Stale entries at the top would end the run at a time at which nothing happens.
        while ends and due_s[ends[0][1]] != ends[0][0]:
            heapq.heappop(ends)
        if not ends:
            break
        now_s = ends[0][0]
    if num_hot > 0:
        contended_s += now_s - hot_since_s
    return events, contended_s
