"""One list of perturbations for GPUs and wafers alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsim.base.errors import CatalogError
from perfsim.studies.answers import CandidateResult
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study

STUDY = """\
title: A small model
question: Which is first?
model: gpt3_xl
recipe: gpt3_20b_chinchilla
candidates:
  - {strategy: 3d, system: dgx-a100-80gb, devices: [16]}
  - {strategy: weight-streaming, system: cs-2, devices: [1]}
batch_sizes: [96]
sampling: {mode: "off"}
"""
PERTURBED = """\
perturbations:
  stragglers: [{rank: 3, factor: 2.0}]
  links:
    - {system: dgx-a100-80gb, link: node0/nic0-leaf0, left: 0.25}
    - {link: memoryx-swarmx/0/0, left: 0.5}
"""


def answered(folder: Path, text: str) -> list[CandidateResult]:
    path = folder / "mixed.yaml"
    path.write_text(text, encoding="utf-8")
    return list(run_study(load_study(str(path))).result.candidates)


def test_gpus_and_a_wafer_answer_one_study_with_a_slow_rank_and_slow_links(tmp_path: Path) -> None:
    calm = answered(tmp_path, STUDY)
    disturbed = answered(tmp_path, STUDY + PERTURBED)
    gpus, wafer = disturbed
    assert gpus.step_time_s > calm[0].step_time_s
    assert wafer.step_time_s > 1.5 * calm[1].step_time_s
    assert gpus.perturbed is not None
    assert gpus.perturbed.text.startswith("rank 3 computes 2 times as long, node0/nic0-leaf0")
    assert "perturbed: rank 3 does not exist; rank 0 is slow instead" in wafer.notes
    assert "perturbed: this system has no link memoryx-swarmx/0/0" in gpus.notes
    assert not any("nic0" in note for note in wafer.notes), "named as another system's"


def test_of_several_stragglers_beyond_the_last_rank_the_slowest_counts(tmp_path: Path) -> None:
    slow = ["{rank: 0, factor: 1.5}", "{rank: 3, factor: 1.2}", "{rank: 9, factor: 2.0}"]
    several = answered(tmp_path, f"{STUDY}perturbations: {{stragglers: [{', '.join(slow)}]}}\n")[1]
    one = answered(tmp_path, f"{STUDY}perturbations: {{stragglers: [{{rank: 0, factor: 2.0}}]}}\n")[1]
    assert several.step_time_s == one.step_time_s
    assert len([note for note in several.notes if "does not exist" in note]) == 2


def test_a_link_that_no_candidate_has_is_an_error_at_its_line(tmp_path: Path) -> None:
    text = STUDY + PERTURBED.replace("nic0-leaf0", "nicc0-leaf0").replace(
        "{link: m", "{system: cs-3, link: m"
    )
    with pytest.raises(CatalogError) as caught:
        answered(tmp_path, text)
    link, system = caught.value.problems
    assert (link.line, system.line) == (13, 14)
    assert link.message == "no candidate on dgx-a100-80gb has a link 'node0/nicc0-leaf0'"
    assert link.help.startswith("did you mean `node0/nic0-leaf0")
    assert (system.message, system.help[:19]) == ("no candidate is a system 'cs-3'", "did you mean `cs-2`")


def test_a_candidate_without_a_route_is_named_and_the_other_is_answered(tmp_path: Path) -> None:
    dead = "perturbations: {links: [{link: memoryx-swarmx/0/0, left: 0.0}]}\n"
    path = tmp_path / "cut.yaml"
    path.write_text(STUDY + dead, encoding="utf-8")
    result = run_study(load_study(str(path))).result
    assert [candidate.system for candidate in result.candidates] == ["dgx-a100-80gb"]
    (cut,) = result.infeasible
    assert cut.reason.startswith("perturbations of 1 CS-2, weight-streaming: ")
