"""Uneven pipeline stages: Megatron-Core's notation, and layers divided with embedding and LM head counted."""

from typing import Any

import pytest

from perfsim.base.errors import LayoutError
from perfsim.costs.price import price
from perfsim.engine import critical_path
from perfsim.machines import machine
from perfsim.specs.layout import ParallelLayout, layers_of_stages
from perfsim.strategies import strategy
from perfsim.strategies.three_d.division import divided
from perfsim.strategies.three_d.space import head_layers
from perfsim.testing import toys


def test_megatron_cores_example_of_deepseek_v3_has_the_table_of_its_guide() -> None:
    """Its user guide's PP16 VPP2, without the MTP layer."""
    layers = layers_of_stages("Et*3|(tt|)*29,|L")
    by_rank = [(layers[rank], layers[16 + rank]) for rank in range(16)]
    assert by_rank == [(3, 2), *[(2, 2)] * 13, (2, 0), (2, 0)]
    assert sum(layers) == 61


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        ("E||t|L", (0, 0, 1, 0)),
        ("E,t*2|t,t|(t*3|)*2t,L", (2, 2, 3, 3, 1)),
        ("(t|)*3t", (1, 1, 1, 1)),
        ("EtttL", (3,)),
    ],
)
def test_patterns_are_read_as_megatron_core_reads_them(pattern: str, layers: tuple[int, ...]) -> None:
    assert layers_of_stages(pattern) == layers


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("Et|m|L", "'m' in"),
        ("t|Et|L", "the embedding E begins the first stage"),
        ("Et|Lt|t", "the loss L ends the last"),
        ("Et*9999|L", "repeats more than"),
    ],
)
def test_patterns_that_no_graph_follows_are_refused_in_words(pattern: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        layers_of_stages(pattern)


def test_a_layout_takes_the_notation_and_the_chunks_follow_from_it() -> None:
    gpus = machine("gpu-cluster")
    given = gpus.parse_layout("pp=2,pipeline_layout=Et|t*3|t*3|tL", 8)
    assert given == ParallelLayout(
        pipeline=2, data=4, virtual_pipeline=2, schedule="interleaved", layers_per_stage=(1, 3, 3, 1)
    )
    with pytest.raises(LayoutError, match="the loss L ends the last"):
        gpus.parse_layout("pp=2,pipeline_layout=EtL|t", 8)


def test_the_head_counts_as_the_layers_that_take_as_long() -> None:
    assert divided("1f1b", 4, 1, 32, 3).layers == (9, 9, 9, 5)
    assert divided("interleaved", 2, 2, 8, 2).layers == (2, 3, 3, 0)
    wide: dict[str, Any] = {"vocab_size": 12 * 2048 * 3}
    assert head_layers(toys.job(8, **wide)) == round(3 / (1 + 1024 / (6 * 2048)))
    # Layers are twice as fast in 8 bits, their attention and the head are not.
    narrow = toys.job(8, {"precision": "fp8"}, num_layers=10, **wide)
    assert head_layers(narrow) == round(3 / (1 / 2 + 1024 / (6 * 2048))) == 5
    listed = {layout.layers_per_stage for layout in strategy("3d").layouts(narrow, toys.topology(3))}
    assert {(4, 5, 1), (5, 5, 0)} <= listed


def test_a_last_stage_with_fewer_layers_for_its_head_is_faster_and_the_planner_has_it() -> None:
    """The pace is that of the slowest stage: 4 layers and a head of 4 against 6 layers."""
    job = toys.job(32, num_layers=8, vocab_size=12 * 2048 * 4)
    layers = {"attention.forward": 1.0, "mlp.forward": 1.0, "attention.backward": 2.0, "mlp.backward": 2.0}
    costs = toys.TableCosts(layers | {"head.forward": 8.0, "head.backward": 16.0})
    simulated_s = []
    for stages in (None, (6, 2)):
        plan = toys.plan("3d", job, ParallelLayout(pipeline=2, layers_per_stage=stages))
        graph = plan.graph()
        simulated_s.append(critical_path(graph, price(graph, costs)).step_time_s)
        assert strategy("3d").estimate_s(plan, costs) == pytest.approx(simulated_s[-1], rel=0.01)
    assert head_layers(job) == 4
    assert simulated_s[1] == pytest.approx(simulated_s[0] * 6 / 8, rel=0.02)
    listed = strategy("3d").layouts(job, toys.topology(2))
    assert (6, 2) in {layout.layers_per_stage for layout in listed}
