"""Tables of names, nouns of machines, shapes of models: what descriptions may say, and contradictions."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from perfsim.catalog import default_catalog
from perfsim.specs.layout import AXES, ParallelLayout, StreamingLayout
from perfsim.specs.model import PLAIN, LayerKind, layer_kinds
from perfsim.specs.optimizers import OPTIMIZERS
from perfsim.specs.perturbations import StragglerSpec
from perfsim.specs.precisions import PRECISIONS
from perfsim.specs.recipe import Recipe
from perfsim.specs.wall_clock import NumberRange
from perfsim.studies.spec import StudySpec


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_has_states_and_an_update_on_every_machine(toys: ModuleType, name: str) -> None:
    job = toys.job(8, {"optimizer": name})
    for plan in (
        toys.plan("data", job, ParallelLayout()),
        toys.plan("weight-streaming", job, StreamingLayout(), toys.wafer_cluster()),
    ):
        ops = {task.work.op for task in plan.graph().tasks()}
        assert ops & {"optimizer", "memoryx_update"}


def test_precisions_name_precisions() -> None:
    for name, row in PRECISIONS.items():
        assert row.peak_of is None or row.peak_of in PRECISIONS
        assert row.is_narrow == bool(row.stand_ins), name
        assert all(PRECISIONS[other].is_narrow for other in row.stand_ins)


DIVIDES = {
    "tensor": {"parameters", "optimizer", "activations"},
    "pipeline": {"parameters", "optimizer"},
    "data": set(),
    "context": {"activations"},
    "expert": {"parameters", "optimizer"},
    "expert_tensor": {"parameters", "optimizer"},
}


@pytest.mark.parametrize("name", [name for name, axis in AXES.items() if axis.degree])
def test_twice_a_degree_halves_the_memory_that_it_divides(toys: ModuleType, name: str) -> None:
    experts = {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 8192}
    changes = {"experts": experts} if name.startswith("expert") else {}
    recipe = {"attention": "flash", "routing": "balanced"}
    job = toys.job(32, recipe, **changes)
    ranks = {"data": 4, "sequence_parallel": True, "micro_batch_size": 1}
    parts = []
    for degree in (2, 4):
        layout = ParallelLayout(**{**ranks, "tensor": 2, name: degree})
        memory = max(toys.plan("3d", job, layout).memory, key=lambda use: use.on_device)
        parts.append(memory.parts_bytes)
    few, many = parts
    parts_of_all = ("parameters", "optimizer", "activations")
    assert {part for part in parts_of_all if many[part] < 0.8 * few[part]} == DIVIDES[name]


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (Recipe, {"name": "r", "seq_length": 1, "optimizer": "unheard-of"}, "unheard-of"),
        (
            Recipe,
            {"name": "r", "seq_length": 8, "lm_head_positions": 9},
            "lm_head_positions 9 is more than seq_length 8",
        ),
        (Recipe, {"name": "r", "seq_length": 2048, "tokens": 400}, "less than a sequence of 2048"),
        (StragglerSpec, {"rank": 0, "factor": 1001}, "less than or equal to 1000"),
        (StragglerSpec, {"rank": 0, "factor": 0.9}, "greater than or equal to 1"),
        (StudySpec, {"prices": {"currency": "x" * 13}}, "at most 12 characters"),
    ],
)
def test_impossible_fields_are_refused(kind: type[BaseModel], fields: dict[str, object], said: str) -> None:
    assert NumberRange(low=0, typical=0, high=1).low == 0  # what may be absent
    with pytest.raises(ValidationError, match=said):
        kind.model_validate(fields)


def test_every_system_of_the_catalogue_has_a_noun() -> None:
    catalog = default_catalog()
    assert all(catalog.system(name).noun for name in catalog.names("system"))


def test_a_system_that_extends_another_does_not_inherit_what_its_devices_are_called(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nextends: dgx-h100\nnode: {devices: 4, nics: 4}\nassumed: {node: a test}\n")
    mine = default_catalog().system(str(path))
    assert mine.machine(128) == "128 devices of mine"
    assert mine.machine(1) == "1 device of mine"
    assert mine.with_(noun={"device": "H100", "node": "box"}).machine(8) == "8 H100 (2 box)"


def test_a_changed_system_under_another_name_is_not_called_as_the_original() -> None:
    system = default_catalog().system("cs-2")
    assert system.with_(io_ports=24).noun is None
    assert system.with_(name="cs-2", io_ports=24).machine(2) == "2 CS-2"


EXPERTS: dict[str, Any] = {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 256}


WINDOWS = [LayerKind(window=128), PLAIN]
SPARSE = LayerKind(experts=True)


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({}, [PLAIN] * 8),
        (
            {"experts": EXPERTS | {"first_dense_layers": 3, "interval": 2}},
            [*[PLAIN] * 3, *[SPARSE, PLAIN] * 2, SPARSE],
        ),
        ({"sliding_window": 128, "sliding_window_pattern": 2}, WINDOWS * 4),
        ({"sliding_window": 128}, WINDOWS[:1] * 8),
        ({"experts": EXPERTS, "mtp_num_layers": 1}, [*[SPARSE] * 8, replace(SPARSE, mtp=True)]),
    ],
)
def test_layers_with_experts_windows_and_multi_token_prediction_stand_where_the_model_says(
    toys: ModuleType, fields: dict[str, Any], kinds: list[LayerKind]
) -> None:
    assert list(layer_kinds(toys.model(**fields))) == kinds


def test_models_that_differ_in_a_new_field_alone_are_not_taken_for_each_other(toys: ModuleType) -> None:
    changes = ({}, {"experts": EXPERTS}, {"experts": EXPERTS | {"top_k": 4}}, {"mtp_num_layers": 1})
    models = [toys.model(**change) for change in changes]
    assert len({*models}) == len({hash(model) for model in models}) == 4


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"experts": EXPERTS | {"top_k": 9}}, "top_k 9 is more than the 8 experts"),
        ({"experts": EXPERTS | {"groups": 3}}, "num_experts 8 is not a multiple of groups 3"),
        ({"experts": EXPERTS | {"groups": 8}}, "top_groups 1 of 8 groups hold 1 experts; a token needs 2"),
        ({"experts": EXPERTS | {"first_dense_layers": 8}}, "none of 8 layers has any"),
        ({"experts": EXPERTS, "norms_per_layer": 1}, "the MLP runs next to the attention"),
        ({"sliding_window_pattern": 2}, "sliding_window_pattern needs sliding_window"),
        ({"sliding_window": 64, "causal": False}, "need causal attention"),
        (
            {
                "head_dim": 64,
                "latent_attention": {
                    "kv_lora_rank": 64,
                    "qk_nope_head_dim": 32,
                    "qk_rope_head_dim": 16,
                    "v_head_dim": 32,
                },
            },
            "remove head_dim",
        ),
    ],
)
def test_contradictions_are_refused_in_words(toys: ModuleType, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        toys.model(**fields)
