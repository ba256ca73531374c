"""Proofs of today: the cases of a catalogue, the serial training of small models, and faults of graphs."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from perfsim.catalog import default_catalog
from perfsim.proof.faults import mutations
from perfsim.proof.prove import Request, Subject, catalogue_cases, plans_of, prove_plan
from perfsim.proof.provers import training_of
from perfsim.specs.layout import text_of

Recorded = Callable[..., None]
TRAINED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "plain": ("gpt3_20b", "tp=2,pp=2,dp=2,zero=1", {}),
    "alibi": ("gpt3_20b", "dp=2", {"model.position_embedding": "alibi", "model.bias": False}),
    "untied": ("gpt3_20b", "pp=3", {"model.tied_embeddings": False, "model.head_bias": True}),
    "grouped": ("llama2_70b", "tp=2,dp=2,sp=true,zero=2", {}),
    "parallel": ("gptj_6b", "tp=2,pp=2", {}),
    "both_ways": ("bert_large", "dp=3,zero=1", {}),
    "windows": ("gemma2_2b", "tp=2,dp=2,zero=3", {}),
    "normed": ("qwen3_4b", "cp=2,dp=2", {}),
    "experts": ("mixtral_8x7b", "dp=4,ep=2,zero=1", {}),
    "biased": ("gpt_oss_20b", "tp=2,dp=2,ep=2,sp=true", {}),
    "modules": ("deepseek_v3", "pp=2,dp=2,ep=2,zero=1", {}),
    "latent": ("deepseek_v3", "tp=2,dp=2,sp=true,ep=4", {"model.mtp_num_layers": 0}),
    "offloaded": ("llama2_70b", "dp=2,zero=3,offload_optimizer=cpu,offload_param=cpu,recompute=full", {}),
    "turning": ("gpt3_20b", "pp=2,dp=2,schedule=zbv,zero=2,recompute=selective", {}),
    "streamed": ("gpt3_20b", "dp=2,mbs=2,recompute=full,recompute_layers=2,spill=true", {}),
    "spilled": ("llama2_70b", "dp=2,mbs=1,spill=true", {}),
    "stayed": ("mixtral_8x7b", "dp=2,mbs=1", {}),
}
"""Models, layouts and changes; each exercises another kind of layer."""
FOUND = 4
"""Of all faults that are put into a graph, those of which is written what a proof says."""


@pytest.mark.parametrize("name", TRAINED)
def test_small_models_train_to_the_same_losses(name: str, recorded: Recorded) -> None:
    model, layout, changes = TRAINED[name]
    strategy = "weight-streaming" if "mbs" in layout else "3d"
    (plan,) = plans_of(Request(model, strategy, layout, changes=changes))
    training = training_of(plan, seed=0)
    said: dict[str, Any] = {
        "model": plan.job.model.model_dump(mode="json", exclude_defaults=True),
        "layout": [text_of(plan.layout), training.seq_length, training.head_positions, training.batch],
        "steps": [
            [
                *(record.loss, record.squared_norm, record.clipping),
                *(float(np.abs(values).sum()) for values in record.hidden),
                *(float(np.abs(part).sum()) for parts in record.weights.values() for part in parts.values()),
            ]
            for record in training.records
        ],
    }
    proof = asdict(prove_plan(plan, orders=1, seed=3))
    assert proof.pop("max_relative_error") < 1e-10
    subject = Subject.of(plan)
    wrong = list(mutations(subject))
    faults = [(fault.kind, fault.description) for fault in wrong]
    few = wrong[:: len(wrong) // FOUND]
    said["found"] = {fault.description: list(map(str, fault.subject.faults()[:2])) for fault in few}
    said["proof"] = {key: list(value) if isinstance(value, tuple) else value for key, value in proof.items()}
    said["faults"] = dict(Counter(kind for kind, _ in faults))
    said["described"] = sum(index * sum(map(ord, text)) for index, (_, text) in enumerate(faults, 1))
    recorded(f"proof_{name}", said)


def test_the_catalogue_of_proofs_has_these_cases(recorded: Recorded) -> None:
    catalog = default_catalog()
    said = {}
    for name in ("gpt3_20b", "mixtral_8x7b"):
        cases = catalogue_cases(experts=name == "mixtral_8x7b")
        plans = [case.plan(catalog.model(name), catalog) for case in cases]
        said[name] = [
            [plan.strategy, text_of(plan.layout), plan.num_microbatches, *map(str, case[2:])]
            for case, plan in zip(cases, plans, strict=True)
        ]
    recorded("proof_cases", said)
