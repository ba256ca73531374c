"""The decision on the page, on the terminal and in JSON."""

from dataclasses import asdict, replace
from types import ModuleType

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfsim.api.answers import StudyAnswer
from perfsim.api.questions import values_of
from perfsim.report.study import study_document, study_lines, study_page
from perfsim.studies.answers import StudyResult
from perfsim.studies.decision import chance, duration


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(slower=st.lists(st.floats(0.2, 5.0), min_size=3, max_size=3))
def test_all_forms_have_one_decision(result: StudyResult, factory: ModuleType, slower: list[float]) -> None:
    """Whatever the speed of each machine, and thus whoever is first."""
    rows = [
        replace(own, time=replace(own.time, step_time_s=own.step_time_s * times, step_time_error=0.2))
        for own, times in zip(result.candidates[1:], slower, strict=True)
    ]
    known = factory.of_candidates(result, result.candidates[0], *rows)
    decision = known.decision
    first = decision.of(decision.first)
    rival = decision.of(decision.rival)
    when = duration(first.wall_s.typical, first.wall_s.band)
    middle, band = when.split(" on the wall ")
    narrow = f" {middle.split()[0]} {band.replace(' to ', '-')}"
    said = known.verdict
    assert len(said.split()) <= 35
    assert f"probability of {chance(first.first)}: {when}" in said
    assert f"{rival.ratio.typical:.2f} times ({rival.ratio.low:.2f} to {rival.ratio.high:.2f}) as" in said
    lines = study_lines(known)
    assert said in " ".join(lines)
    assert next(line for line in lines if line.startswith("*")).endswith(narrow)
    page = study_page(known)
    assert page.headline == said
    assert page.scale.texts("Time on the wall to the target")[0] == f"{middle} {band}"
    table = factory.sections(known)["decision"].table.shown()
    (likely,) = [row[1:] for row in table if row[0] == "first with a probability of"]
    assert likely == [chance(own.first) for own in decision.outcomes]
    (wall,) = [row[1:] for row in factory.sections(known)["verdict"].table.shown() if row[0] == "on the wall"]
    assert f"{middle} {band}" in wall
    document = study_document(known)
    assert (document["verdict"], document["decision"]["first"]) == (said, decision.first)
    assert document["decision"]["ratio"] == asdict(rival.ratio)
    answer = StudyAnswer(**values_of(known))
    assert repr(answer) == f"<study gpt3_20b: {said}>"
    assert answer.best.label == decision.first
    assert answer.ratio(rival.label) == rival.ratio
