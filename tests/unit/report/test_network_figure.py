"""The figure of the use of the network, read back from what Plotly would draw."""

from __future__ import annotations

from dataclasses import replace

from perfsim.prediction.why import LinkUse
from perfsim.report.figures.machine import network_table, network_use, overload_note
from perfsim.report.study_page import study_page
from perfsim.studies.answers import StudyResult


def test_every_candidate_and_kind_of_link_has_its_mean_and_its_peak(result: StudyResult) -> None:
    bars, peaks = network_use(network_table(result)).data
    uses = [use for candidate in result.candidates for use in candidate.utilisation.values()]
    assert sorted(bars.x) == sorted(100 * use.mean for use in uses)
    assert sorted(peaks.x) == sorted(100 * use.peak for use in uses)
    names, kinds = bars.y
    assert list(kinds[:2]) == ["NVLink port", "NIC"], "from the device outwards"
    assert list(kinds[2:4]) == ["ports of a system", "MemoryX to SwarmX"]
    assert len(set(names)) == len(result.candidates)


def test_a_study_whose_network_is_unknown_has_no_such_section(sparse: StudyResult) -> None:
    _, sections, _ = study_page(sparse)
    (section,) = (section for section in sections if section.slug == "network")
    assert "128 A100-80GB (16 DGX), NVLink port: mean 21.0 %, peak 78.0 %" in section.alt
    bare = sparse.candidates[1]
    _, sections, _ = study_page(replace(sparse, candidates=(bare,)))
    assert "network" not in [section.slug for section in sections]


def test_a_peak_above_the_capacity_is_explained_and_only_there(result: StudyResult) -> None:
    assert overload_note(network_table(result)) == ""
    busy = replace(result.candidates[1], utilisation={"dram": LinkUse(0.1, 1.083)})
    _, sections, _ = study_page(replace(result, candidates=(result.candidates[0], busy)))
    note = next(section.note for section in sections if section.slug == "network")
    assert note.startswith("A peak of 108 % is more than a link carries: ")
    assert note.endswith("up to 8 % longer.")
