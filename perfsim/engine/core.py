"""The compiled core: the rules of `engine.simpy_engine` over columns, to the bit the same, and far faster.

It is compiled by numba when it is first used, and kept compiled on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

from perfsim.base.arrays import Floats, Ints
from perfsim.engine import rules
from perfsim.engine.tables import NONE, TOLERANCE, UNIT, Tables, excess

F = TypeVar("F", bound=Callable[..., Any])


def _compiled(function: F) -> F:
    """The same function in machine code, kept on disk."""
    return cast(F, njit(cache=True)(function))


_excess = _compiled(excess)
_reached = _compiled(rules.reached)
_fill = _compiled(rules.fill)
longest_path = _compiled(rules.longest_path)


@_compiled
def _with_end(times: Floats, tasks: Ints, size: int, time: float, task: int) -> tuple[Floats, Ints]:
    """The heap of `size` ends with one more; its columns grow where they have no room."""
    if size == len(times):
        times = np.concatenate((times, np.empty(size)))
        tasks = np.concatenate((tasks, np.empty(size, dtype=np.int64)))
    # The new end moves up from the last leaf while the end above it is later.
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if times[above] <= time:
            break
        times[at] = times[above]
        tasks[at] = tasks[above]
        at = above
    times[at] = time
    tasks[at] = task
    return times, tasks


@_compiled
def _pop(times: Floats, tasks: Ints, size: int) -> None:
    """Remove the earliest end; `size` counts what is left after it.

    The last leaf takes the place at the top and moves down along the earlier of the two ends below.
    """
    time = times[size]
    task = tasks[size]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and times[below + 1] < times[below]:
            below += 1
        if times[below] >= time:
            break
        times[at] = times[below]
        tasks[at] = tasks[below]
        at = below
    times[at] = time
    tasks[at] = task


@_compiled
def run(tables: Tables, start_s: Floats, end_s: Floats) -> tuple[int, float]:
    """Fill in the start and the end of every task; -1 for a task that never starts or ends.

    Returns the number of events and the seconds in which a link was contended.
    """
    count = len(tables.duration_s)
    num_flows = len(tables.weight)
    num_links = len(tables.capacity)
    # Tasks whose rates are set together form a group: one for each flow, then one for each device.
    groups = num_flows + tables.num_devices
    missing = tables.missing.copy()
    start_s[:] = -1.0
    end_s[:] = -1.0
    # The heap of ends; an entry counts only while it is the end that its task now has.
    times = np.empty(64)
    tasks = np.empty(64, dtype=np.int64)
    size = 0
    due_s = np.full(count, np.inf)
    stack = np.empty(count, dtype=np.int64)
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
    for task in range(count - 1, -1, -1):
        if missing[task] == 0:
            stack[size] = task
            size += 1
    num_ready = size
    size = 0
    num_ended = 0
    while True:
        # -------------------------------------------------- all starts and ends of the instant
        while num_ready:
            num_ready -= 1
            task = stack[num_ready]
            kind = tables.kind[task]
            if start_s[task] < 0.0:
                # A task that takes part of a device changes the rates there, but only at the end of the
                # instant: others that begin or end now may change them as well.
                start_s[task] = now_s
                events += 1
                for at in range(tables.occupied.start[kind], tables.occupied.start[kind + 1]):
                    device = tables.occupied.values[at]
                    taken[device, 0] += tables.taken[kind, 0]
                    taken[device, 1] += tables.taken[kind, 1]
                    if not device_is_changed[device]:
                        device_is_changed[device] = True
                        changed_device[num_devices] = device
                        num_devices += 1
                # Its bytes use links once its latency has passed; until then only the heap knows the task.
                if tables.latency_s[task] > 0.0:
                    due_s[task] = now_s + tables.latency_s[task]
                    times, tasks = _with_end(times, tasks, size, due_s[task], task)
                    size += 1
                    continue
            flow = tables.flow[kind]
            device = tables.device[kind]
            # Its first rate is not known yet, so such a task is in no group before the end of the instant.
            if flow != NONE or device != NONE:
                left_s[task] = tables.duration_s[task] - tables.latency_s[task]
                fresh[num_fresh] = task
                num_fresh += 1
                if flow != NONE:
                    live[flow] += 1
                    if not is_changed[flow]:
                        is_changed[flow] = True
                        changed_flow[num_changed] = flow
                        num_changed += 1
            else:
                due_s[task] = now_s + tables.duration_s[task]
                times, tasks = _with_end(times, tasks, size, due_s[task], task)
                size += 1
        if size and times[0] <= now_s:
            size -= 1
            task = tasks[0]
            at_s = times[0]
            _pop(times, tasks, size)
            # An entry of the heap is stale if its task has got another rate since it was entered.
            if end_s[task] >= 0.0 or due_s[task] != at_s:
                continue
            if tables.latency_s[task] > 0.0 and not is_sending[task]:
                is_sending[task] = True
                due_s[task] = np.inf
                stack[num_ready] = task
                num_ready += 1
                continue
            end_s[task] = now_s
            num_ended += 1
            events += 1
            kind = tables.kind[task]
            for at in range(tables.occupied.start[kind], tables.occupied.start[kind + 1]):
                device = tables.occupied.values[at]
                taken[device, 0] -= tables.taken[kind, 0]
                taken[device, 1] -= tables.taken[kind, 1]
                if not device_is_changed[device]:
                    device_is_changed[device] = True
                    changed_device[num_devices] = device
                    num_devices += 1
            flow = tables.flow[kind]
            group = flow if flow != NONE else num_flows + tables.device[kind]
            # Groups are linked lists, so that a task leaves in the same time however many there are.
            if flow != NONE or tables.device[kind] != NONE:
                if before[task] != NONE:
                    after[before[task]] = after[task]
                else:
                    head[group] = after[task]
                if after[task] != NONE:
                    before[after[task]] = before[task]
                if flow != NONE:
                    live[flow] -= 1
                    if not is_changed[flow]:
                        is_changed[flow] = True
                        changed_flow[num_changed] = flow
                        num_changed += 1
            for at in range(tables.waiting.start[task], tables.waiting.start[task + 1]):
                follower = tables.waiting.values[at]
                missing[follower] -= 1
                if missing[follower] == 0:
                    stack[num_ready] = follower
                    num_ready += 1
            continue
        # -------------------------------------------------- the end of the instant: rates
        for number in range(num_devices):
            device = changed_device[number]
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
                kind = tables.kind[task]
                # The same operations in the same order as `_Devices._rate`, or the last bit would differ.
                speed = 1.0 / (1.0 + tables.bound[kind, 0] * units + tables.bound[kind, 1] * memory)
                if speed != rate[task]:
                    events += 1
                    left_s[task] -= (now_s - since_s[task]) * rate[task]
                    since_s[task] = now_s
                    rate[task] = speed
                    due_s[task] = now_s + max(0.0, left_s[task]) / speed
                    times, tasks = _with_end(times, tasks, size, due_s[task], task)
                    size += 1
                task = after[task]
        num_devices = 0
        if num_changed:
            for number in range(num_changed):
                is_changed[changed_flow[number]] = False
            found, more_hot = _reached(
                tables, live, hot, changed_flow[:num_changed], seen_link, seen_flow, touched, limit
            )
            num_changed = 0
            if num_hot == 0 and more_hot > 0:
                hot_since_s = now_s
            if num_hot > 0 and num_hot + more_hot == 0:
                contended_s += now_s - hot_since_s
            num_hot += more_hot
            # Flows on links that are not contended keep their own speed; `_fill` gives it to them again.
            joined = touched[:found]
            _fill(tables, joined, live, hot, scratch[0], scratch[1], scratch[2], scratch[3], fraction)
            for flow in joined:
                task = head[flow]
                while task != NONE:
                    if fraction[flow] != rate[task]:
                        events += rate[task] > 0.0
                        left_s[task] -= (now_s - since_s[task]) * rate[task]
                        since_s[task] = now_s
                        rate[task] = fraction[flow]
                        due_s[task] = np.inf
                        if rate[task] > 0.0:
                            due_s[task] = now_s + max(0.0, left_s[task]) / rate[task]
                            times, tasks = _with_end(times, tasks, size, due_s[task], task)
                            size += 1
                    task = after[task]
        # What has begun at this instant gets its first rate, and joins its group.
        for number in range(num_fresh):
            task = fresh[number]
            kind = tables.kind[task]
            flow = tables.flow[kind]
            if flow != NONE:
                group = flow
                rate[task] = fraction[flow]
            else:
                device = tables.device[kind]
                group = num_flows + device
                units = slowing[device, 0]
                memory = slowing[device, 1]
                rate[task] = 1.0 / (1.0 + tables.bound[kind, 0] * units + tables.bound[kind, 1] * memory)
            since_s[task] = now_s
            after[task] = head[group]
            before[task] = NONE
            if head[group] != NONE:
                before[head[group]] = task
            head[group] = task
            if rate[task] > 0.0:
                due_s[task] = now_s + max(0.0, left_s[task]) / rate[task]
                if rate[task] == 1.0 and tables.latency_s[task] > 0.0:
                    # One sum for what nothing slows: it ends as it does without links, to the bit.
                    due_s[task] = max(now_s, start_s[task] + tables.duration_s[task])
                times, tasks = _with_end(times, tasks, size, due_s[task], task)
                size += 1
        num_fresh = 0
        # -------------------------------------------------- the next instant
        # Stale entries at the top would end the run at a time at which nothing happens.
        while size and (end_s[tasks[0]] >= 0.0 or due_s[tasks[0]] != times[0]):
            size -= 1
            _pop(times, tasks, size)
        if size == 0:
            break
        now_s = times[0]
    if num_hot > 0:
        contended_s += now_s - hot_since_s
    return events, contended_s
