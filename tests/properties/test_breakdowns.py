"""Where the time of devices went, against the plain definition: what a device does in each second."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.engine.trace import EXPOSED, Trace
from perfsim.testing import toys
from perfsim.work import GraphBuilder

LANES = ("gpu0/compute", "gpu1/compute", "gpu0/nccl", "gpu1/send", "gpu0+gpu1/nccl", "memoryx/out", "net9/x")
BACKGROUND = ("input", "tensor_communication", "update", "data_communication", "unknown")
Row = tuple[str, str, int, int]
"""Stream, category, start and end."""


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Row], int]:
    """The tasks of a run in whole seconds, serial on each stream, and the number in the first step."""
    now = dict.fromkeys(LANES, 0)
    rows = []
    for stream in ["gpu0/compute", "gpu1/compute", *draw(st.lists(st.sampled_from(LANES), max_size=30))]:
        start = now[stream] + draw(st.integers(0, 3))
        now[stream] = start + draw(st.integers(0, 4))
        categories = ("forward", "backward", "update") if stream.endswith("/compute") else BACKGROUND
        rows.append((stream, draw(st.sampled_from(categories)), start, now[stream]))
    return rows, draw(st.integers(0, len(rows) - 1))


def traced(rows: list[Row], first_step: int) -> Trace:
    builder = GraphBuilder()
    for number, (stream, category, _, _) in enumerate(rows):
        if number == first_step and number:
            builder.end_step()
        builder.task(toys.compute(f"{category}{number}", category), stream)
    times = np.array([row[2:] for row in rows], dtype=np.float64)
    return Trace(builder.build(), times[:, 0], times[:, 1])


def seconds_of(device: str, rows: list[Row], first_step: int) -> tuple[dict[str, float], dict[str, float]]:
    """Second by second: the breakdown of a device's step, and the part before and after all computation."""

    def is_mine(stream: str) -> bool:
        owners = stream.split("/", maxsplit=1)[0].split("+")
        return device in owners or not owners[0].startswith("gpu")

    def end_of(computing: str) -> int:
        return max(end for stream, _, _, end in rows if stream == f"{computing}/compute")

    ends = [max(end for *_, end in part) for part in (rows[:first_step], rows) if part]
    length = ends[-1] - ends[-2] if len(ends) > 1 else ends[-1]
    earlier = max(map(end_of, ("gpu0", "gpu1"))) - end_of(device) if len(ends) > 1 else 0
    window = range(ends[-1] - length - earlier, ends[-1] - earlier)
    mine = [row for row in rows if is_mine(row[0])]
    whole = dict.fromkeys([category for _, category, _, _ in mine] + ["bubble"], 0.0)
    activity = []
    for second in window:
        busy = [(row[0].endswith("/compute"), row[1]) for row in mine if row[2] <= second < row[3]]
        computing = [category for computes, category in busy if computes]
        waiting = sorted(
            (category for _, category in busy),
            key=lambda category: (EXPOSED.index(category) if category in EXPOSED else len(EXPOSED), category),
        )
        activity.append((bool(computing), (computing + waiting + ["bubble"])[0]))
        whole[activity[-1][1]] += 1.0
    computes = [number for number, (computing, _) in enumerate(activity) if computing] or [len(activity)]
    outside = [category for _, category in activity[: computes[0]] + activity[computes[-1] + 1 :]]
    background = [category for stream, category, _, _ in mine if not stream.endswith("/compute")]
    return whole, {category: float(outside.count(category)) for category in [*background, "bubble"]}


@given(runs())
@settings(max_examples=150)
def test_each_second_of_a_device_goes_to_what_it_does(run: tuple[list[Row], int]) -> None:
    rows, first_step = run
    measured = traced(rows, first_step)
    plain = {device: seconds_of(device, rows, first_step) for device in ("gpu0", "gpu1")}
    assert measured.device_breakdowns() == {device: whole for device, (whole, _) in plain.items()}
    boundaries = [boundary for _, boundary in plain.values()]
    for category, mean_s in measured.mean_boundary().items():
        assert mean_s == sum(boundary.get(category, 0.0) for boundary in boundaries) / 2


@given(runs(), st.floats(1e-6, 1e3))
@settings(max_examples=50)
def test_a_scaled_run_is_spent_in_the_same_parts(run: tuple[list[Row], int], factor: float) -> None:
    measured = traced(*run)
    scaled_s = measured.scaled(factor).device_breakdowns()
    for device, seconds in measured.device_breakdowns().items():
        expected_s = {category: factor * second for category, second in seconds.items()}
        assert scaled_s[device] == pytest.approx(expected_s, rel=1e-9, abs=1e-9 * factor)
