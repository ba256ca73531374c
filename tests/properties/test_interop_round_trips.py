"""What is emitted for a tool is read back as the plan that it was, but for the gaps that the text names."""

from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perfsim.base.errors import LayoutError, PerfsimError
from perfsim.catalog import default_catalog
from perfsim.interop import WRITTEN, emit, tool_named
from perfsim.interop.formats import import_file, read
from perfsim.interop.source import Source
from perfsim.interop.tool import Reading
from perfsim.machines import costs_for
from perfsim.prediction.planner import Search, plan_of
from perfsim.prediction.question import question_of
from perfsim.specs.layout import ParallelLayout, text_of
from perfsim.strategies import Plan

BATCH = 192
DENSE = ["gpt3_xl", "llama_7b"]
KNOWN = {
    "megatron": (
        [*DENSE, "qwen3_30b_a3b"],
        ["adam", "adamw", "sgd", "muon"],
        ["bf16", "fp16", "fp32", "fp8"],
    ),
    "deepspeed": ([*DENSE, "qwen3_30b_a3b"], ["adam", "adamw", "sgd"], ["bf16", "fp16", "fp32"]),
    "torchtitan": ([*DENSE, "qwen3_30b_a3b"], ["adam", "adamw"], ["bf16", "fp32"]),
}
"""Models, optimizers and precisions of each tool; others are refused."""
RUNTIMES = {"megatron": "megatron_core", "deepspeed": "megatron_2021", "torchtitan": "torchtitan"}
"""The runtimes of today's tools."""
RECORDED = yaml.safe_load((Path(__file__).parents[1] / "unit/interop/arguments.yaml").read_text("utf-8"))
"""The settings of tools with their types, as the tools declare them."""
TYPES: dict[str, type] = {"int": int, "float": float, "text": object, "list": list}
SCHEDULES = {"megatron": ["1f1b", "interleaved"], "torchtitan": ["1f1b", "interleaved", "gpipe"]}


@st.composite
def layouts(draw: st.DrawFn, name: str, experts: bool) -> ParallelLayout:
    """Layouts whose every setting says something: no sharding over one rank, no order of one stage."""
    pipeline = draw(st.sampled_from([1, 2, 4]))
    context = draw(st.sampled_from([1, 1, 2]))
    data = draw(st.sampled_from([2, 4, 8]))
    titan = name == "torchtitan"
    zero = draw(st.sampled_from([0, 1, 2, 3] if not titan else [0, 2, 3] if pipeline == 1 else [0, 2]))
    schedule = draw(st.sampled_from(SCHEDULES.get(name, ["1f1b"]))) if pipeline > 1 else "1f1b"
    offloads = {}
    if draw(st.booleans()) and not experts:
        offloads |= {"offload_optimizer": "cpu"} if name == "megatron" or zero == 3 else {}
        offloads |= {"offload_param": "cpu"} if zero == 3 and name != "megatron" else {}
    tensor = draw(st.sampled_from([1, 2, 4]))
    expert = draw(st.sampled_from([1, 2])) if experts and not (titan and zero < 2) else 1
    recompute = draw(st.sampled_from(["none", "selective", "mlp", "full"]))
    uneven = draw(st.booleans()) and (
        (pipeline == 4 and schedule == "1f1b") or (pipeline == 2 and schedule == "interleaved")
    )
    return ParallelLayout(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        virtual_pipeline=4 // pipeline if uneven else 3 if schedule == "interleaved" else 1,
        sequence_parallel=tensor > 1 and (experts or titan or draw(st.booleans())),
        zero_stage=zero,
        schedule=schedule,
        micro_batch_size=draw(st.sampled_from([1, 2, 3])),
        recompute=recompute,
        layers_per_stage=(5, 7, 7, 5) if uneven else None,
        recompute_every=draw(st.sampled_from([1, 2])) if recompute == "full" and not titan else 1,
        context=context,
        context_exchange=draw(st.sampled_from(["ring", "all_to_all"][: 2 - titan]))
        if context > 1
        else "ring",
        shard_group=draw(st.sampled_from([None, 2]))
        if zero and data > 2 and context == expert == 1
        else None,
        expert=expert,
        expert_tensor=tensor if titan and experts and expert == 1 else 1,
        **offloads,
    )


@st.composite
def plans(draw: st.DrawFn, name: str) -> Plan:
    """Legal plans on GPUs, and recipes that differ in what tools say of them."""
    catalog = default_catalog()
    models, optimizers, precisions = KNOWN[name]
    model = draw(st.sampled_from(models))
    layout = draw(layouts(name, experts=catalog.model(model).experts is not None))
    bucket = draw(st.sampled_from([None, "25 MB"]))
    runtime = catalog.load("runtime", draw(st.sampled_from(["megatron_2021", RUNTIMES[name]]))).with_(
        attention=draw(st.sampled_from(["flash", "standard"])),
        overlap_grad_reduce=draw(st.booleans()),
        overlap_param_gather=name == "megatron" and draw(st.booleans()),
        overlap_tensor=draw(st.booleans()),
        cuda_graph=draw(st.sampled_from([None, True])),
        **({} if bucket is None else {"grad_bucket": bucket}),
    )
    recipe = catalog.recipe("gpt3_pretraining").with_(
        optimizer=draw(st.sampled_from(optimizers)),
        precision=draw(st.sampled_from(precisions)),
        dropout=draw(st.booleans()),
        reduce_precision=draw(st.sampled_from([None, "bf16"])),
        runtime=runtime,
    )
    return planned(text_of(layout), model=model, recipe=recipe, system="dgx-h100", devices=layout.num_devices)


@st.composite
def searched(draw: st.DrawFn, name: Any) -> Plan:
    """Any plan that fits of a question that asks for what the tool runs."""
    paths = {
        "recipe.optimizer": ["adamw", "sgd", "muon"],
        "recipe.precision": ["fp16", "fp8"],
        "recipe.seq_length": [1024, 32768],
        "recipe.recompute": ["full", "selective"],
        "recipe.moment_precision": ["bf16"],
        "runtime": ["megatron_2021", "megatron_core_deepep", "internevo-2023", "torchtitan"],
        "runtime.host_blocking": [True],
        "runtime.overlap_param_gather": [True],
    }
    chosen = {path: draw(st.sampled_from([None, *values])) for path, values in paths.items()}
    given = {
        "model": draw(st.sampled_from([*KNOWN[name][0], "gpt_oss_20b", "llama32_1b", "gemma2_2b"])),
        "system": draw(st.sampled_from(["dgx-h100", "dgx-a100-80gb", "gb200-nvl72"])),
        "devices": draw(st.sampled_from([1, 2, 8, 24, 32])),
        "batch": draw(st.sampled_from([8, 250, BATCH])),
        "memory_limit": 1.0,
        "runs_on": name,
        **{path: value for path, value in chosen.items() if value is not None},
    }
    try:
        search = Search(question_of(given), advised=False)
    except PerfsimError:
        assume(False)
        raise
    return search.plan(draw(st.integers(0, search.screening.feasible - 1)))


def planned(layout: str, **given: Any) -> Plan:
    ran_by = {} if given.get("system") == "cs-2" else {"runs_on": "any"}
    question = question_of({"batch": BATCH, "layout": layout, **ran_by, **given})
    try:
        return plan_of(replace(question, must_fit=False))
    except PerfsimError:
        assume(False)
        raise


def read_back(name: str, plan: Plan) -> tuple[Reading, set[str]]:
    """What is read from the emitted text, and the fields of which the text says that it lacks them."""
    try:
        text = emit(name, plan)
    except LayoutError:
        assume(False)
        raise
    suffix = {"megatron": "sh", "deepspeed": "json", "torchtitan": "py", "modelzoo": "yaml"}[name]
    if name in RECORDED:
        with_recorded_types(name, plan)
    tool, reading = read(Source(Path(f"plan.{suffix}"), text, model=plan.job.model.name))
    assert (tool, reading.settings.unused()) == (name, ())
    return reading, {field for field, _ in tool_named(name).gaps(plan)}


def with_recorded_types(name: str, plan: Plan) -> None:
    """Every setting that is written is one of the tool's, with a value of its type and what it demands."""
    recorded = RECORDED[name]["arguments"]
    rows = [row for row in tool_named(name).rows if row.write is not None]
    told = {row.keys.split()[0]: value for row in rows if (value := row.write(plan)) is not None}
    for key, value in told.items():
        kind, _ = recorded[key]
        several = value if isinstance(value, tuple) else (value,)
        listed = isinstance(kind, list)
        allowed = {*several} <= {*kind} if listed else isinstance(value, TYPES.get(kind, bool))
        assert allowed, (key, value)
        assert told.keys() >= {*RECORDED[name].get("demands", {}).get(key, ())}, key


def same_recipe(reading: Reading, plan: Plan, lacking: set[str]) -> None:
    recipe = plan.job.recipe
    assert reading.recipe["global_batch_size"] == BATCH
    for field in ("seq_length", "precision", "dropout", "reduce_precision"):
        if reading.recipe.get(field) is not None and f"recipe.{field}" not in lacking:
            assert reading.recipe[field] == getattr(recipe, field), field
    if "attention" in reading.recipe and "runtime.attention" not in lacking:
        assert reading.recipe["attention"] == recipe.runtime.attention
    if reading.recipe.get("grad_bucket"):
        assert reading.recipe["grad_bucket"] == "25000000 B"


@pytest.mark.parametrize("name", KNOWN)
@given(st.data())
def test_a_plan_is_read_back_but_for_its_gaps(name: str, data: st.DataObject) -> None:
    plan = data.draw(plans(name))
    reading, lacking = read_back(name, plan)
    assert isinstance(reading.layout, ParallelLayout)
    if "layout.context" in lacking:
        lacking |= {"layout.context_exchange"}
    for field in ParallelLayout.__dataclass_fields__:
        if f"layout.{field}" not in lacking:
            assert getattr(reading.layout, field) == getattr(plan.layout, field), field
    if not any(field in lacking for field in ("layout.pipeline", "layout.context", "layout.tensor")):
        assert reading.devices == plan.layout.num_devices
    same_recipe(reading, plan, lacking | ({"recipe.seq_length"} if name == "deepspeed" else set()))
    optimizer = reading.recipe["optimizer"]
    assert optimizer == plan.job.recipe.optimizer or (name, optimizer) == ("megatron", "adam")
    if name == "megatron":
        described_by = {"name", "description", "sources", "assumed", "released"}
        described = type(plan.job.model).model_validate({"name": "read", **reading.model.fields})
        assert described.model_dump(exclude=described_by) == plan.job.model.model_dump(exclude=described_by)


@pytest.mark.parametrize("name", KNOWN)
@settings(max_examples=30)
@given(st.data())
def test_what_is_read_back_takes_the_same_step_but_for_its_gaps(
    name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The runtime that is read is the one that runs the file, unless the text names another as a gap.

    What is planned for the tool is written, whatever is asked.
    """
    plan = data.draw(searched(name) | plans(name))
    text = emit(name, plan) if plan.job.runtime.tool == name else ""
    _, lacking = read_back(name, plan)
    folder = tmp_path_factory.mktemp(name)
    (folder / "plan").write_text(text or emit(name, plan), "utf-8")
    again = import_file(folder / "plan", part="recipe", model=plan.job.model.name)
    (folder / "read.yaml").write_text(again.text(), "utf-8")
    recipe = default_catalog().recipe(str(folder / "read.yaml"))
    unsaid = {field.removesuffix(".name") for field in lacking if field.startswith(("recipe.", "runtime."))}
    recipe = recipe.with_(**{f.removeprefix("recipe."): attrgetter(f)(plan.job) for f in unsaid})
    layout = text_of(plan.layout) if any(f.startswith("layout.") for f in lacking) else again.layout
    given = {"system": plan.system.name, "devices": plan.layout.num_devices}
    given |= {"batch": recipe.global_batch_size}
    other = planned(layout, model=plan.job.model.name, recipe=recipe, **given)
    assert step_s(other) == pytest.approx(step_s(plan), rel=1e-9)


def step_s(plan: Plan) -> float:
    return plan.chosen.estimate_s(plan, costs_for(plan.topology, plan.job.recipe))


@given(
    st.sampled_from(["gpt3_xl", "llama_7b", "gptj_6b", "llama32_3b"]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([8, 12, 48]),
    st.sampled_from(["bf16", "fp16"]),
)
def test_a_plan_for_wafers_is_read_back(model: str, systems: int, micro: int, precision: str) -> None:
    recipe = default_catalog().recipe("gpt3_pretraining").with_(precision=precision, dropout=False)
    plan = planned(f"mbs={micro}", model=model, recipe=recipe, system="cs-2", devices=systems)
    reading, lacking = read_back("modelzoo", plan)
    assert reading.devices == systems
    assert not getattr(reading.model, "lacking", True)
    groups = getattr(reading.model, "fields", {}).get("num_query_groups")
    assert groups == plan.job.model.num_query_groups
    assert (reading.layout.data, reading.layout.micro_batch_size) == (systems, micro)
    same_recipe(reading, plan, lacking)


def test_every_tool_that_is_written_has_a_round_trip() -> None:
    assert {*KNOWN, "modelzoo"} == set(WRITTEN)
