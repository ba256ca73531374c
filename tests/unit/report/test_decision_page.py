"""The decision on the page, on the terminal and in JSON."""

from dataclasses import asdict, astuple, replace
from types import ModuleType

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfsim.api.answers import StudyAnswer
from perfsim.api.questions import values_of
from perfsim.convergence.uncertain import Spread
from perfsim.report.study import study_document, study_lines, study_page
from perfsim.studies.answers import StudyResult
from perfsim.studies.decision import chance, duration, times
from perfsim.studies.verdict import grounds


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(slower=st.lists(st.floats(0.2, 5.0), min_size=3, max_size=3))
def test_all_forms_have_one_decision(result: StudyResult, factory: ModuleType, slower: list[float]) -> None:
    """Whatever the speed of each machine, and thus whoever is first."""
    rows = [
        replace(own, time=replace(own.time, step_time_s=own.step_time_s * factor, step_time_error=0.2))
        for own, factor in zip(result.candidates[1:], slower, strict=True)
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
    typical, low, high = map(times, astuple(rival.ratio))
    assert f"{typical} times ({low} to {high}) as" in said
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


def test_what_a_short_run_takes_has_three_digits_in_sentence_and_table(
    result: StudyResult, factory: ModuleType
) -> None:
    taken = Spread(0.66, 0.33, 1.32)
    names = ("energy_kwh", "carbon_kg", "money", "device_hours")
    outcomes = tuple(replace(own, **dict.fromkeys(names, taken)) for own in result.decision.outcomes)
    decision = replace(result.decision, outcomes=outcomes)
    told = {"decision": decision, "grounds": grounds(result.candidates, decision, None)}
    table = factory.sections(replace(result, **told))["decision"].table.shown()
    shown = {row[0]: row[1].split(" (")[0] for row in table}
    amounts = {name: shown[name] for name in ("energy", "carbon", "money", "device-hours")}
    assert list(amounts.values()) == ["0.660 kWh", "0.660 kg CO2e", "0.660 USD", "0.660"]
    for said in ("0.660 USD (0.330 to 1.32)", "0.660 kWh (0.330 to 1.32)", "0.660 kg CO2e (0.330 to 1.32)"):
        assert said in told["grounds"]["costs"]
    assert (times(1.236), times(78.391)) == ("1.24", "78.4")
