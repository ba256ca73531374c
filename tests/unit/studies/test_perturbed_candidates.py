"""One list of perturbations for GPUs and wafers alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsim.base.errors import CatalogError
from perfsim.catalog import default_catalog
from perfsim.machines import build_topology
from perfsim.network import Topology
from perfsim.specs.perturbations import LinkSpecLeft, PerturbationSpec, StragglerSpec
from perfsim.studies.answers import CandidateResult
from perfsim.studies.loading import load_study
from perfsim.studies.runner import restricted, run_study

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


@pytest.fixture(scope="module")
def wafer() -> Topology:
    return build_topology(default_catalog().system("cs-2"), 1)


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


def test_of_several_stragglers_beyond_the_last_rank_the_slowest_counts(wafer: Topology) -> None:
    slow = [StragglerSpec(rank=rank, factor=factor) for rank, factor in ((0, 1.5), (3, 1.2), (9, 2.0))]
    kept, remarks = restricted(PerturbationSpec(stragglers=tuple(slow)), wafer)
    assert kept.stragglers == (StragglerSpec(rank=0, factor=2.0),)
    assert len(remarks) == 2


def test_what_fits_is_left_as_it_is(wafer: Topology) -> None:
    link = LinkSpecLeft(link="swarmx/0/0-memoryx", left=0.5, system="cs-2")
    spec = PerturbationSpec(stragglers=(StragglerSpec(rank=0, factor=2.0),), links=(link,), jitter=0.1)
    assert restricted(spec, wafer) == (spec, [])


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
