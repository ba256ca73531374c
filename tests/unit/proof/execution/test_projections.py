"""What a recompute keeps of products, in execution and in the graph's memory."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from perfsim.proof import operations
from perfsim.proof.operations import _every_second
from perfsim.proof.parameters import Place, Share
from perfsim.proof.prove import Subject
from perfsim.work.kernels import LayerSlice
from perfsim.work.layer import kept_shares

KINDS = ["plain", "grouped queries, gated", "latents", "latents of keys and values only"]


@pytest.mark.parametrize("architecture", KINDS, indirect=True)
@pytest.mark.parametrize("tensor", [1, 2])
def test_every_second_product_is_kept_of_those_that_the_memory_counts(
    toys: ModuleType, architecture: dict[str, Any], tensor: int
) -> None:
    config = toys.model(**architecture)
    shapes = Share(config, 4, Place(tensor)).layouts[0].shapes
    widths = {name: shape[-1] for name, shape in shapes.items() if len(shape) > 1 and name != "fc2"}
    kept = _every_second({name: np.ones(width) for name, width in widths.items()})
    shares = kept_shares(LayerSlice(config, 4, 1, tensor, selective="every_second_product"), "selective")
    together = [["query", "key", "value"], ["gate", "fc1"]] if "key" in widths else [["gate", "fc1"]]
    names = {name: parts[-1] for parts in together for name in parts}
    for product, share in shares.items():
        parts = [name for name in widths if names.get(name, name) == {"qkv": "value"}.get(product, product)]
        counted = sum(widths[name] for name in parts if name in kept)
        assert not parts or share == pytest.approx(counted / sum(widths[name] for name in parts))


@pytest.mark.parametrize(
    ("model", "layout", "attention"),
    [
        ("llama2_70b", "tp=2,sp=true", "standard"),
        ("llama2_70b", "dp=2,zero=3", "flash"),
        ("deepseek_v3", "tp=2,sp=true", "flash"),
        ("deepseek_v3", "pp=2,schedule=zb1p", "standard"),
    ],
)
def test_a_selective_recompute_by_operator_computes_what_serial_training_does(
    subject_of: Callable[..., Subject], model: str, layout: str, attention: str
) -> None:
    layout = f"{layout},recompute=selective"
    assert subject_of(model, layout, framework="torchtitan", attention=attention).faults() == []


def test_wrong_results_that_a_recompute_keeps_are_found(
    monkeypatch: pytest.MonkeyPatch, subject_of: Callable[..., Subject]
) -> None:
    def wrong(results: dict[str, Any]) -> dict[str, Any]:
        return {name: values + 1.0 for name, values in results.items()}

    monkeypatch.setattr(operations, "_every_second", wrong)
    wrong_one = subject_of(
        "llama2_70b", "dp=1,recompute=selective", framework="torchtitan", attention="flash"
    )
    assert wrong_one.faults()
