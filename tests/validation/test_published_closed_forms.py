"""Published equations and figures against perfsim: parameters, FLOPs, bubbles, activations, streaming.

Papers by arXiv number: 2104.04473 Efficient large-scale language model training on GPU clusters using
Megatron-LM; 2205.05198 Reducing activation recomputation in large transformer models.
"""

from types import ModuleType
from typing import Any, Literal, NamedTuple

import pytest

from perfsim.catalog import Catalog
from perfsim.costs.memory import state_bytes
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.model import TransformerConfig
from perfsim.specs.recipe import Job, Recipe
from perfsim.strategies.three_d.memory import stage_memory
from perfsim.work import counts
from perfsim.work.kernels import LayerSlice

GIB = 2.0**30


@pytest.mark.parametrize("name", ["gpt3_xl", "gpt3_20b", "gpt3_175b"])
def test_parameters_are_equation_2_of_2104_04473(name: str) -> None:
    model = Catalog().model(name)
    layers = model.num_layers
    h = model.hidden_size
    vocab = model.vocab_size
    s = model.max_position_embeddings
    equation = 12 * layers * h**2 * (1 + 13 / (12 * h) + (vocab + s) / (12 * layers * h))
    # The equation leaves the last layer norm out.
    assert counts.parameters(model).total == pytest.approx(equation + 2 * h, rel=1e-12)


class Megatron(NamedTuple):
    """A model of 2205.05198: its shape and layout (table 3) and the GiB of figure 1."""

    name: str
    layers: int
    hidden: int
    heads: int
    tensor: int
    pipeline: int
    virtual: int
    micro_batch: int
    batch: int
    states_gib: float
    none_gib: float
    selective_gib: float
    step_time_s: float
    mfu: float
    hfu: float
    """Step time and utilisations of table 5."""

    @property
    def model(self) -> TransformerConfig:
        return TransformerConfig(
            name=self.name,
            num_layers=self.layers,
            hidden_size=self.hidden,
            num_attention_heads=self.heads,
            ffn_hidden_size=4 * self.hidden,
            vocab_size=51200,
            max_position_embeddings=2048,
        )

    def job(self, **recipe: Any) -> Job:
        return Job(self.model, Recipe(name="r", seq_length=2048, **recipe), self.batch)


MEGATRON = [
    Megatron("22B", 48, 6144, 64, 8, 1, 1, 4, 4, 45.56, 59.25, 9.56, 1.10, 0.415, 0.437),
    Megatron("175B", 96, 12288, 96, 8, 8, 3, 1, 64, 45.56, 66.84, 12.35, 13.75, 0.514, 0.528),
    Megatron("530B", 105, 20480, 128, 8, 35, 3, 1, 280, 31.64, 114.02, 23.08, 37.83, 0.560, 0.570),
    Megatron("1T", 128, 25600, 160, 8, 64, 1, 1, 512, 32.96, 131.25, 26.56, 71.49, 0.563, 0.570),
]
megatron = pytest.mark.parametrize("published", MEGATRON, ids=lambda published: published.name)


@megatron
def test_flop_are_the_published_equations_and_give_the_utilisations_of_table_5(published: Megatron) -> None:
    """Appendix A of 2205.05198, and with full recompute equation 3 of 2104.04473."""
    layers = published.layers
    h = published.hidden
    s = 2048
    matrices = 72 * published.batch * layers * s * h**2
    head = 51200 / (12 * layers * h)
    job = published.job()
    model = counts.model_flop_per_step(job)
    assert model == pytest.approx(matrices * (1 + s / (6 * h) + head), rel=1e-12)
    assert counts.hardware_flop_per_step(job, "none") == model
    selective = counts.hardware_flop_per_step(job, "selective")
    assert selective == pytest.approx(matrices * (1 + s / (3 * h) + head), rel=1e-12)
    full = counts.hardware_flop_per_step(job, "full")
    assert full == pytest.approx(matrices * (4 / 3 * (1 + s / (6 * h)) + head), rel=1e-12)
    # Executed is one forward of the attention core, 4 b s^2 h a layer; what HFU counts is three times that.
    core = 4.0 * published.batch * s**2 * h * layers
    assert counts.recompute_flop_per_step(job, "selective") == core
    peak = published.step_time_s * published.tensor * published.pipeline * 312e12
    assert model / peak == pytest.approx(published.mfu, abs=0.0025)
    assert selective / peak == pytest.approx(published.hfu, abs=0.0015)


@megatron
@pytest.mark.parametrize("mode", ["none", "selective"])
def test_states_and_activations_of_the_first_stage_are_those_of_figure_1_of_2205_05198(
    toys: ModuleType, published: Megatron, mode: Literal["none", "selective"]
) -> None:
    states = state_bytes(Recipe(name="r", seq_length=2048, precision="bf16"))
    of_weight = states.parameters + states.gradients + states.optimizer
    weights = published.layers * counts.parameters(published.model).of(matrices=True)
    on_device = of_weight * weights / (published.tensor * published.pipeline)
    assert on_device / GIB == pytest.approx(published.states_gib, abs=0.01)
    layout = ParallelLayout(
        tensor=published.tensor,
        pipeline=published.pipeline,
        virtual_pipeline=published.virtual,
        schedule="interleaved" if published.virtual > 1 else "1f1b",
        micro_batch_size=published.micro_batch,
        sequence_parallel=mode == "selective",
        recompute=mode,
    )
    first = stage_memory(published.job(), layout, toys.topology(layout.num_devices))[0]
    expected = published.none_gib if mode == "none" else published.selective_gib
    assert first.parts_bytes["activations"] / GIB == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_activations_of_a_layer_are_table_2_of_2205_05198(t: int, sequence_parallel: bool, mode: str) -> None:
    published = MEGATRON[1]
    s = 2048
    b = 3
    h = published.hidden
    a = published.heads
    part = LayerSlice(published.model, s, b, tensor=t, sequence_parallel=sequence_parallel)
    scores = 5 * a * s / h if mode == "none" else 0.0
    formula = (34 + scores) / t if sequence_parallel else 10 + (24 + scores) / t
    if mode == "full":  # Table 2 has 2 sbh; with sequence parallelism the layer's input is split
        formula = 2 / t if sequence_parallel else 2
    assert counts.layer_activation_bytes(part, mode) == pytest.approx(s * b * h * formula)
