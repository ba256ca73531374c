"""A layout as text becomes the layout of a kind of machine, or a list of all that is wrong with it."""

from dataclasses import replace

import pytest

from perfsim.base.errors import InputError, LayoutError
from perfsim.machines import machine
from perfsim.specs.layout import ParallelLayout, StreamingLayout, text_of

GPUS = "gpu-cluster"
WAFERS = "wafer-cluster"
FOUR_STAGES = ParallelLayout(pipeline=4, data=32)
THREE_STAGES = ParallelLayout(pipeline=3, data=2, layers_per_stage=(3, 4, 1))
STAGES = ("Et*3|t*4|,tL", "Et*3, |t*4|tL", "E(tt)*1,t|t*4,|tL")


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (GPUS, "tp=8,pp=4,dp=4,mbs=1", ParallelLayout(tensor=8, pipeline=4, data=4)),
        (GPUS, "tensor=8, pipeline=4 ,data=4", ParallelLayout(tensor=8, pipeline=4, data=4)),
        (GPUS, "tp=8,pp=4", ParallelLayout(tensor=8, pipeline=4, data=4)),
        (GPUS, "tp=12", ParallelLayout(tensor=12, data=10)),
        (GPUS, "tp=8,pp=100", ParallelLayout(tensor=8, pipeline=100, data=1)),
        (GPUS, "", ParallelLayout(data=128)),
        (GPUS, "pp=4,vpp=2,dp=32", replace(FOUR_STAGES, virtual_pipeline=2, schedule="interleaved")),
        (GPUS, "pp=4,schedule=interleaved", replace(FOUR_STAGES, virtual_pipeline=2, schedule="interleaved")),
        (GPUS, "pp=2,vpp=2,dp=64,schedule=1f1b", ParallelLayout(pipeline=2, data=64, virtual_pipeline=2)),
        (
            GPUS,
            "dp=128,sp=True,zero=1,recompute=selective",
            ParallelLayout(data=128, sequence_parallel=True, zero_stage=1, recompute="selective"),
        ),
        (
            GPUS,
            "pp=4,dp=32,layers_per_stage=10-12x2-10",
            replace(FOUR_STAGES, layers_per_stage=(10, 12, 12, 10)),
        ),
        (GPUS, "pp=4,dp=32,schedule=zbv", replace(FOUR_STAGES, virtual_pipeline=2, schedule="zbv")),
        (GPUS, "pp=4,dp=32,schedule=zb1p", replace(FOUR_STAGES, schedule="zb1p")),
        *((GPUS, f"pp=3,dp=2,pipeline_layout={stages}", THREE_STAGES) for stages in STAGES),
        (WAFERS, "", StreamingLayout(data=128)),
        (WAFERS, "dp=64,recompute_layers=2", StreamingLayout(data=64, recompute_layers=2, recompute="full")),
        (WAFERS, "recompute=full", StreamingLayout(data=128, recompute_layers=1, recompute="full")),
        (
            WAFERS,
            "mbs=8,spill=true,recompute=none",
            StreamingLayout(data=128, micro_batch_size=8, spill=True),
        ),
    ],
)
def test_short_and_long_names_give_a_layout_whose_text_is_read_back_as_it(
    kind: str, text: str, expected: ParallelLayout | StreamingLayout
) -> None:
    """A degree that is missing is what the devices leave; the plan refuses what does not fill them."""
    assert machine(kind).parse_layout(text, 128) == expected
    if "schedule=1f1b" not in text:  # whose chunks the plan refuses
        assert machine(kind).parse_layout(text_of(expected), 128) == expected


def test_everything_wrong_is_listed_with_a_mend() -> None:
    with pytest.raises(LayoutError) as caught:
        machine(GPUS).parse_layout("tpp=8,pp=four,mbs=0,sp=maybe,recompute=some,dp=2,data=3", 8)
    messages = [(problem.message, problem.help.split(" known: ")[0]) for problem in caught.value.problems]
    assert messages == [
        ("layout 'tpp=8': unknown name", "did you mean `tp`?"),
        ("layout 'pp=four': 'four' is not a whole number", "write for example tp=8"),
        ("layout 'mbs=0': 0 is less than 1", "write 1 or more"),
        ("layout 'sp=maybe': 'maybe' is not a truth value", "write true or false"),
        (
            "layout 'recompute=some': 'some'",
            "allowed: none, norms, latents, latents+norms, selective, mlp, latents+mlp, full",
        ),
        ("layout names data twice", "keep dp=2 or data=3"),
    ]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        *((GPUS, text, "layout '") for text in ("tp", "tp=", "layers_per_stage=4x-4", "zero=-1", "q=1")),
        (GPUS, "pp=2,layers_per_stage=4x5000", "'4x5000' repeats more than 4096 stages"),
        (GPUS, "pp=2,pipeline_layout=nonsense", r"'n' in 'nonsense' is none of E \(embedding\)"),
        (GPUS, "pp=2,pipeline_layout=nonsense", r"3-4x2-3, or stages such as Et\*3\|\(t"),
        (GPUS, "pipeline_stages=Et|tL", r"unknown name(.|\n)*known: .*pipeline_layout"),
        (GPUS, "spill=true", "'spill=true': unknown name"),
        (GPUS, "tp8 pp2", "write tp=8, with commas"),
        (GPUS, ",", "layout ',' sets nothing"),
        (WAFERS, "tp=2", "'tp=2': unknown name"),
        ("gpu-clusters", "", "did you mean `gpu-cluster`"),
    ],
)
def test_what_cannot_be_read_is_refused_not_guessed(kind: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        machine(kind).parse_layout(text, 8)
