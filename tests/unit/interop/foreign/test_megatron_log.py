"""A log of Megatron-LM: its iterations as measured steps, and a cluster's scale from it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perfsim.base.errors import InputError
from perfsim.base.sizes import MOST_LAYERS
from perfsim.base.units import YAML_CONTEXT
from perfsim.catalog import default_catalog
from perfsim.evidence.own_runs import MeasuredFile, fit_cluster
from perfsim.interop.formats import Imported, import_file
from perfsim.interop.tool import Step
from perfsim.specs.layout import text_of
from perfsim.specs.model import TransformerConfig

Import = Callable[..., Imported]
SIZES = {"num_layers": 4, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 51200}
LENGTHS = {"seq_length": 1024, "max_position_embeddings": 1024}
BATCH = {"global_batch_size": 16, "micro_batch_size": 1, "tensor_model_parallel_size": 1, "world_size": 8}
ARGUMENTS = {"bf16": True, "use_flash_attn": True, **SIZES, **LENGTHS, **BATCH}


def line(number: int, milliseconds: float, batch: int = 16) -> str:
    return (
        f"[2024-05-01 10:00:{number:02d}] iteration {number:8d}/ 500 | "
        f"consumed samples: {number * batch:12d} | "
        f"elapsed time per iteration (ms): {milliseconds:.1f} | throughput per GPU (TFLOP/s/GPU): 100.0 | "
        f"learning rate: 1.0E-04 | global batch size: {batch:5d} | lm loss: 1.0E+01 | loss scale: 1.0 |\n"
    )


def log(*lines: str, **changes: object) -> str:
    dump = "".join(
        f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in (ARGUMENTS | changes).items()
    )
    head = "------------------------ arguments ------------------------\n"
    return f"{head}{dump}-------------------- end of arguments ---------------------\n{''.join(lines)}"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "ours.log"
    path.write_text(log(line(1, 900), *(line(n, 50 + n % 3) for n in range(2, 12))), encoding="utf-8")
    return path


def test_a_step_is_the_median_of_its_batch_size_but_the_first_line(imported: Import) -> None:
    lines = line(10, 5000.0) + line(20, 101.0) + line(30, 103.0) + line(40, 102.0)
    assert imported(log(lines)).steps == (Step(16, pytest.approx(0.102), 3),)
    both = [line(n, 100.0) for n in range(5)] + [line(n, 200.0, 32) for n in range(5, 10)]
    expected = (Step(16, pytest.approx(0.1), 4), Step(32, pytest.approx(0.2), 4))
    assert imported(log(*both)).steps == expected
    seconds = " iteration 10/ 500 | elapsed time per iteration (s): 2.50 | learning rate: 1e-4 |\n"
    assert imported(log(seconds)).steps == (Step(0, 2.5, 1),)


def test_a_log_has_its_model_and_the_steps_of_two_intervals(imported: Import) -> None:
    text = log(*(line(n, 100.0 + 10 * (n > 4)) for n in range(9)))
    result = imported(text, "ours.log")
    assert (result.kind, result.devices) == ("model", 8)
    assert [(step.global_batch_size, step.iterations) for step in result.steps] == [(16, 8)]
    measured = imported(text, "ours.log", system="dgx-a100-80gb")
    assert (measured.kind, measured.document["cluster"]) == ("measured", "ours")
    cases = measured.document["cases"]
    assert [case["system"]["num_devices"] for case in cases] == [8, 8]
    times_s = [case["measured"]["step_time_s"] for case in cases]
    assert times_s == [pytest.approx(0.1), pytest.approx(0.11)]


EXPERTS = {
    "context_parallel_size": 2,
    "cp_comm_type": "a2a",
    "expert_model_parallel_size": 4,
    "expert_tensor_parallel_size": 1,
    "kv_channels": 96,
    "moe_expert_capacity_factor": 1.5,
    "moe_ffn_hidden_size": 512,
    "moe_layer_freq": "([0]*1+[1]*3)",
    "moe_router_topk": 2,
    "moe_shared_expert_intermediate_size": 256,
    "moe_token_dispatcher_type": "allgather",
    "num_experts": 8,
    "window_size": "(128,0)",
    "world_size": 16,
}
LATENT = EXPERTS | {"kv_channels": None, "multi_latent_attention": True, "q_lora_rank": 64, "qk_head_dim": 32}


@pytest.mark.parametrize("changes", [EXPERTS, LATENT], ids=["experts", "latent attention"])
def test_measured_steps_keep_model_and_layout(imported: Import, changes: dict[str, object]) -> None:
    text = log(*(line(n, 100.0) for n in range(9)), **changes)
    model = imported(text, "ours.log")
    document = imported(text, "ours.log", system="dgx-h100").document
    case = MeasuredFile.model_validate(document, context=YAML_CONTEXT).cases[0]
    question = case.question(default_catalog())
    described = {"name", "description", "sources", "assumed"}
    of_run = TransformerConfig.model_validate(model.document).model_dump(exclude=described)
    # A pattern beyond the last layer leaves all layers with the window.
    assert question.model.model_dump(exclude=described) == of_run | {"sliding_window_pattern": MOST_LAYERS}
    assert text_of(question.layout) == model.layout
    assert question.recipe.expert_dispatcher == "all_gather"
    assert question.recipe.expert_capacity == 1.5


def test_a_log_or_its_steps_as_yaml_become_the_scale_of_a_cluster(run: Path, tmp_path: Path) -> None:
    calibration = fit_cluster([run], "dgx-a100-80gb")
    first = calibration.cases[0]
    assert calibration.scale == pytest.approx(first.measured_s / first.predicted_s, rel=0.02)
    assert calibration.device == "a100-sxm4-80gb"
    record = calibration.fit["scale"]
    assert record.command == "perfsim calibrate steps ours.log --system dgx-a100-80gb"
    assert "intervals of one run" in record.note
    path = tmp_path / "measured.yaml"
    path.write_text(import_file(run, system="dgx-a100-80gb").text(), encoding="utf-8")
    assert fit_cluster([path]).scale == calibration.scale


def test_steps_of_two_batch_sizes_are_not_intervals_of_one_run(tmp_path: Path) -> None:
    path = tmp_path / "two.log"
    lines = [line(n, 50.0) for n in range(5)] + [line(n, 100.0, 32) for n in range(5, 10)]
    path.write_text(log(*lines), encoding="utf-8")
    calibration = fit_cluster([path], "dgx-a100-80gb")
    assert [case.measured_s for case in calibration.cases] == [0.05, 0.1]
    assert "intervals of one run" not in calibration.fit["scale"].note


@pytest.mark.parametrize(
    ("text", "system", "message"),
    [
        (log(line(1, 100)), "", "a log does not say on what it ran\n.*--system NAME"),
        (log(), "dgx-a100-80gb", "no measured step"),
        (line(1, 100), "dgx-a100-80gb", "without the arguments of the run"),
        (
            log(" > padded vocab (size: 0) with 0 dummy tokens\n", line(1, 100), vocab_size=None),
            "dgx-a100-80gb",
            "run.log:1: vocab_size: .*greater than or equal to 1",
        ),
        (log(line(1, 100), world_size=None), "dgx-a100-80gb", "the number of ranks is unknown"),
        (
            log(line(1, 100), group_query_attention=True, num_query_groups=5),
            "dgx-a100-80gb",
            "cannot be expressed: 5 key and value heads",
        ),
        (log(line(1, 100), line(2, 100)), "dgx-a100", "unknown device or system 'dgx-a100'"),
        (
            log(line(1, 1e6), line(2, 1e6)),
            "dgx-a100-80gb",
            r"run.log:15: the steps take .* times as long as predicted",
        ),
    ],
)
def test_a_log_that_gives_no_scale_is_refused(tmp_path: Path, text: str, system: str, message: str) -> None:
    path = tmp_path / "run.log"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        fit_cluster([path], system)
