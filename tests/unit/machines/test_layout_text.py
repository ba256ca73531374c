"""A layout as text becomes the layout of a kind of machine, or a list of all that is wrong with it."""

from __future__ import annotations

import pytest

from perfsim.base.errors import InputError, LayoutError
from perfsim.machines import machine
from perfsim.specs.layout import ParallelLayout, StreamingLayout, text_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tp=8,pp=4,dp=4,mbs=1", ParallelLayout(tensor=8, pipeline=4, data=4)),
        ("tensor=8, pipeline=4 ,data=4", ParallelLayout(tensor=8, pipeline=4, data=4)),
        ("tp=8,pp=4", ParallelLayout(tensor=8, pipeline=4, data=4)),
        ("", ParallelLayout(data=128)),
        ("pp=4,vpp=2,dp=32", ParallelLayout(pipeline=4, data=32, virtual_pipeline=2, schedule="interleaved")),
        (
            "pp=2,vpp=2,dp=64,schedule=1f1b",
            ParallelLayout(pipeline=2, data=64, virtual_pipeline=2),
        ),
        (
            "dp=128,sp=True,zero=1,recompute=selective",
            ParallelLayout(data=128, sequence_parallel=True, zero_stage=1, recompute="selective"),
        ),
        (
            "pp=4,dp=32,layers_per_stage=10-12-12-10",
            ParallelLayout(pipeline=4, data=32, layers_per_stage=(10, 12, 12, 10)),
        ),
        (
            "pp=4,dp=32,schedule=zbv",
            ParallelLayout(pipeline=4, data=32, virtual_pipeline=2, schedule="zbv"),
        ),
        ("pp=4,dp=32,schedule=zb1p", ParallelLayout(pipeline=4, data=32, schedule="zb1p")),
    ],
)
def test_short_and_long_names_give_a_layout(text: str, expected: ParallelLayout) -> None:
    assert machine("gpu-cluster").parse_layout(text, 128) == expected


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("gpu-cluster", ParallelLayout(tensor=8, pipeline=4, data=4)),
        (
            "gpu-cluster",
            ParallelLayout(data=128, sequence_parallel=True, zero_stage=1, recompute="selective"),
        ),
        ("gpu-cluster", ParallelLayout(pipeline=4, data=32, virtual_pipeline=2, schedule="zbv")),
        ("gpu-cluster", ParallelLayout(pipeline=4, data=32, layers_per_stage=(10, 12, 12, 10))),
        ("wafer-cluster", StreamingLayout(data=4, micro_batch_size=24, recompute_layers=2, recompute="full")),
        ("wafer-cluster", StreamingLayout(data=1, spill=True)),
    ],
)
def test_the_text_of_a_layout_is_read_back_as_it(kind: str, layout: ParallelLayout | StreamingLayout) -> None:
    assert machine(kind).parse_layout(text_of(layout), 128) == layout


def test_a_missing_data_degree_is_what_the_devices_leave() -> None:
    assert machine("gpu-cluster").parse_layout("tp=8", 100).data == 12
    assert machine("gpu-cluster").parse_layout("tp=8,pp=100", 128).data == 1, (
        "the plan will refuse it with the device count"
    )


def test_everything_wrong_is_listed_with_a_mend() -> None:
    with pytest.raises(LayoutError) as caught:
        machine("gpu-cluster").parse_layout("tpp=8,pp=four,mbs=0,sp=maybe,recompute=some,dp=2,data=3", 8)
    messages = [(problem.message, problem.help.split(" known: ")[0]) for problem in caught.value.problems]
    assert messages == [
        ("layout 'tpp=8': unknown name", "did you mean `tp`?"),
        ("layout 'pp=four': 'four' is not a whole number", "write for example tp=8"),
        ("layout 'mbs=0': 0 is less than 1", "write 1 or more"),
        ("layout 'sp=maybe': 'maybe' is not a truth value", "write true or false"),
        ("layout 'recompute=some': 'some'", "allowed: none, selective, full"),
        ("layout names data twice", ""),
    ]


@pytest.mark.parametrize("text", ["tp", "tp=", "layers_per_stage=4--4", "zero=-1", "q=1"])
def test_what_cannot_be_read_is_refused_not_guessed(text: str) -> None:
    with pytest.raises(LayoutError):
        machine("gpu-cluster").parse_layout(text, 8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", StreamingLayout(data=128)),
        ("dp=64,recompute_layers=2", StreamingLayout(data=64, recompute_layers=2, recompute="full")),
        ("mbs=8,spill=true,recompute=none", StreamingLayout(data=128, micro_batch_size=8, spill=True)),
    ],
)
def test_a_streamed_layout_counts_systems(text: str, expected: StreamingLayout) -> None:
    assert machine("wafer-cluster").parse_layout(text, 128) == expected


@pytest.mark.parametrize("text", ["Et*3|t*4|,tL", "Et*3, |t*4|tL", "E(tt)*1,t|t*4,|tL"])
def test_commas_may_stand_inside_the_stages_of_a_pipeline(text: str) -> None:
    layout = machine("gpu-cluster").parse_layout(f"pp=3,pipeline_layout={text},mbs=2", 6)
    stages = ParallelLayout(pipeline=3, data=2, layers_per_stage=(3, 4, 1), micro_batch_size=2)
    assert layout == stages


def test_stages_that_are_none_are_refused_with_both_ways_to_write_them() -> None:
    with pytest.raises(LayoutError, match=r"'n' in 'nonsense' is none of E \(embedding\)") as caught:
        machine("gpu-cluster").parse_layout("pp=2,pipeline_layout=nonsense", 2)
    assert "3-4-3, or stages such as Et*3|t*4|t*3L" in caught.value.problems[0].help
    with pytest.raises(LayoutError, match="unknown name") as caught:
        machine("gpu-cluster").parse_layout("pipeline_stages=Et|tL", 2)
    assert "pipeline_layout" in caught.value.problems[0].help.partition("known: ")[2]


def test_names_of_another_machine_are_unknown() -> None:
    with pytest.raises(LayoutError, match="'tp=2': unknown name"):
        machine("wafer-cluster").parse_layout("tp=2", 8)
    with pytest.raises(LayoutError, match="'spill=true': unknown name"):
        machine("gpu-cluster").parse_layout("spill=true", 8)


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean `gpu-cluster`"):
        machine("gpu-clusters")
