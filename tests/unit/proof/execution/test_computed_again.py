"""Modules of a layer that a backward computes again, in every architecture, against serial training."""

from collections.abc import Callable
from typing import Any

import pytest

from perfsim.proof.faults import try_all
from perfsim.proof.prove import Subject
from perfsim.specs.layout import RECOMPUTED, ParallelLayout, Recompute
from perfsim.strategies.three_d.layers import Attention, Made

EXPERTS = {"num_experts": 4, "top_k": 2, "ffn_hidden_size": 6, "shared_ffn_hidden_size": 4}


def test_every_architecture_computes_what_serial_training_does_whatever_it_computes_again(
    toy_subject: Callable[..., Subject], architecture: dict[str, Any]
) -> None:
    peers = {"tensor": 1 if architecture.get("mtp_num_layers") else 2}
    shared = {"sequence_parallel": peers["tensor"] > 1}
    for mode in RECOMPUTED:
        if "latents" not in mode or architecture.get("latent_attention"):
            layout = ParallelLayout(**peers, **shared, data=2, recompute=mode)
            assert toy_subject(layout, **architecture).faults() == [], mode


@pytest.mark.parametrize("mode", ["norms", "full"])
def test_a_schedule_that_forgets_what_it_has_to_compute_again_is_wrong(
    toy_subject: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch, mode: Recompute
) -> None:
    layout = ParallelLayout(recompute=mode)
    assert toy_subject(layout).faults() == []
    right = Attention.forward

    def forgetful(half: Attention, at: Any, which: Any, reads: Any) -> Made:
        saved = reads[0]
        return Made(saved, saved) if which == "recompute" else right(half, at, which, reads)

    monkeypatch.setattr(Attention, "forward", forgetful)
    assert toy_subject(layout).faults()


def test_faults_in_recomputed_activations_of_experts_are_caught(toy_subject: Callable[..., Subject]) -> None:
    layout = ParallelLayout(tensor=2, sequence_parallel=True, data=2, expert=2, recompute="norms")
    assert not any(fault.missed for fault in try_all(toy_subject(layout, experts=EXPERTS), every=41))
