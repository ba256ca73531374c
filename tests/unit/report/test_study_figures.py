"""The figures of a study, read back from what Plotly would draw."""

import re
from dataclasses import replace
from types import ModuleType

import pytest

from perfsim.prediction.why import LinkUse
from perfsim.report.page import Section
from perfsim.report.study_figures import batch, loss, memory, network, step, timelines
from perfsim.report.text import duration
from perfsim.studies.answers import Answer, StudyResult


def test_the_shares_of_a_step_add_up_to_all_of_it_and_no_two_look_alike(result: StudyResult) -> None:
    traces = step(result).figure.data
    for index in range(len(result.candidates)):
        assert sum(trace.x[index] for trace in traces) == pytest.approx(100, abs=0.01)
    assert len({(trace.marker.color, trace.marker.pattern.shape) for trace in traces}) == len(traces)


def test_wafers_that_hold_the_same_share_a_row_of_memory(result: StudyResult) -> None:
    alike = [replace(result.candidates[1].memory[0], place=f"wafer {number}") for number in range(4)]
    known = replace(result, candidates=(replace(result.candidates[1], memory=tuple(alike)),))
    assert memory(known).table.texts("place") == ["wafer 0 to 3"]


def test_the_loss_falls_over_the_days_on_the_wall_to_that_of_the_target(result: StudyResult) -> None:
    assert list(loss(replace(result, losses=()))) == [], "no law reaches the target"
    (section,) = loss(replace(result, losses=((0.25, 2.5), (0.5, 2.25), (1.0, 2.125))))
    ends = [row for row in section.table.rows if row[1].value == 1.0]
    assert [row[2].number for row in ends] == [own.wall_s.typical for own in result.decision.outcomes]
    curve = section.figure.data[1]
    assert list(curve.y) == [2.5, 2.25, 2.125]
    assert curve.x[0] == pytest.approx(curve.x[-1] / 4)


def test_every_link_has_its_mean_and_peak_and_one_above_the_capacity_a_note(result: StudyResult) -> None:
    section = network(result)
    first, *_, last = result.candidates
    uses = [use for candidate in result.candidates for use in candidate.utilisation.values()]
    assert sorted(section.table.values("mean")) == pytest.approx(sorted(use.mean for use in uses))
    assert sorted(section.table.values("peak")) == pytest.approx(sorted(use.peak for use in uses))
    assert section.table.texts("kind of link")[:3] == ["NVLink port", "GPU to NIC", "NIC"], "from the device"
    assert network(replace(result, candidates=(first,))).note == ""
    busy = replace(last, utilisation={"dram": LinkUse(0.1, 1.083)})
    over = network(replace(result, candidates=(first, busy)))
    assert over.note.startswith("A peak of 108 % is more than a link carries: ")


def test_names_cannot_become_markup_of_a_figure(factory: ModuleType) -> None:
    hostile = factory.hostile_result()
    sections = (batch(hostile), step(hostile), memory(hostile), drawn(hostile.candidates[0]))
    written = "".join(section.figure.to_json() for section in sections)
    assert not re.search(r"\\u003c(script|img)", written)


def drawn(candidate: Answer, most_bars: int = 9000) -> Section:
    """The timeline of one candidate."""
    _, section = timelines([candidate], most_bars=most_bars)
    return section


def test_a_tooltip_says_how_long_a_bar_takes_its_layers_flops_bytes_and_tasks(result: StudyResult) -> None:
    candidate = result.candidates[0]
    said = {words for trace in drawn(candidate).figure.data for words in trace.customdata}
    for bar in candidate.timeline:
        when = f"<br>from {duration(bar.start_s)}, takes {duration(bar.end_s - bar.start_s)}"
        assert any(words.startswith(f"<b>{bar.name}") and words.endswith(when) for words in said)
    bar = replace(candidate.timeline[0], flop=3.4e12, n_bytes=1.25e9, layers=(3, 7), tasks=5)
    (trace,) = drawn(replace(candidate, timeline=(bar,))).figure.data
    assert "<br>layers 3 to 7, 3.4 TFLOP, 1.25 GB, 5 tasks<br>" in trace.customdata[0]


def test_many_short_bars_have_an_outline_in_their_colour(result: StudyResult) -> None:
    bars = [
        replace(result.candidates[1].timeline[0], start_s=float(at), end_s=at + 1e-5) for at in range(200)
    ]
    (trace,) = drawn(replace(result.candidates[1], timeline=tuple(bars), step_time_s=200.0)).figure.data
    assert trace.marker.line.width > 0
    assert all(length > 0 for length in trace.x)


def test_timelines_together_keep_to_the_budget_without_losing_the_end(result: StudyResult) -> None:
    small, long, *_ = result.candidates
    _, joined, drawn_whole = timelines([long, small], most_bars=400)
    counts = [sum(len(trace.x) for trace in section.figure.data) for section in (joined, drawn_whole)]
    assert sum(counts) <= 400
    bars = [bar for trace in joined.figure.data for bar in zip(trace.base, trace.x, strict=True)]
    assert max(map(sum, bars)) == pytest.approx(max(bar.end_s for bar in long.timeline), rel=0.02)
    assert re.match(rf"\d+ tasks are drawn as {counts[0]} bars", joined.note)
