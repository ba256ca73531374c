"""Fits of today: the constants that small tables and runs give, how well, and what they say of themselves."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from perfsim.base.errors import PerfsimError
from perfsim.base.units import YAML_CONTEXT
from perfsim.catalog import default_catalog
from perfsim.costs.gemm import GemmModel, narrow_constants
from perfsim.evidence import record
from perfsim.evidence.ablation import StepAccuracy
from perfsim.evidence.cases import CaseRows, StepCase, published_cases
from perfsim.evidence.collective_fit import link_calibration
from perfsim.evidence.fitting import delivered, read_table
from perfsim.evidence.gemm_fit import gpu_calibration
from perfsim.evidence.left_out import LeftOut
from perfsim.evidence.own_runs import fit_cluster, fit_convergence
from perfsim.evidence.production import ScalingFile
from perfsim.evidence.score import validate_cases, validate_file
from perfsim.evidence.step_fit import fit_steps, fit_wafer
from perfsim.network.collectives import CollectiveModel
from perfsim.network.topology import Group
from perfsim.report.table import plain
from perfsim.report.validation import validation_lines, write_validation
from perfsim.specs import calibration as constants
from perfsim.specs.calibration import Calibration, CollectiveOp
from perfsim.specs.hardware import DeviceSpec, LinkSpec, MemorySpec, NodeSpec
from perfsim.testing.toys import published_run

Recorded = Callable[..., None]
CATALOG = default_catalog()
A100 = CATALOG.load("calibration", "a100-sxm4")
NVLINK3 = CATALOG.load("calibration", "nvlink3")
PEAK = {"bf16": 200e12, "fp8": 400e12}
MEMORY = MemorySpec(capacity=40e9, bandwidth=1.5e12)
DEVICE = DeviceSpec(name="some-gpu", kind="gpu", peak=PEAK, memory=MEMORY, compute_units=80)
LINK = LinkSpec(name="some-link", bandwidth=300e9, latency=1e-6)
NARROW = constants.NarrowGemmConstants(
    efficiency=0.8, overhead=1.5, memory_fraction=0.7, burst_fraction=0.7, cast_bytes=3.0, cast_s=5e-6
)
CLOSE = 2e-3
"""Of constants that have four digits, at whose last one optimizers may differ."""


def fitted(calibration: Calibration) -> dict[str, Any]:
    """A calibration as its file has it."""
    return calibration.model_dump(mode="json", exclude_defaults=True)


def in_words(calibration: Calibration) -> list[str]:
    """The lines of its file without their figures."""
    return re.sub(r"\d[\d.e+-]*", "0", delivered(calibration, None)).splitlines()


def table(path: Path, columns: Mapping[str, Sequence[Any]]) -> Path:
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join([",".join(columns), *rows]) + "\n")
    return path


def test_what_can_have_been_measured_is_what_it_was(tmp_path: Path, recorded: Recorded) -> None:
    edges = "0 0.5e-3 1e-3 1 2 1e5 1e6 1.5e7 1e9 1.5e9 1e12 2e12 1e15 2e15"
    said = {}
    for name in ("m", "time_us", "bytes", "num_gpus", "batch", "b_simple"):
        file = table(tmp_path / "table.csv", {name: [*edges.split(), "-1", "inf", "nan", "x", '""']})
        said[name] = refused_or(rows_of, file, name)
        for header in ("a", name):
            empty = table(file, {header: []})
            said[f"{name} of {header}"] = refused_or(rows_of, empty, name)
    recorded("measurable", said)


def test_a_library_of_products_is_found_again_in_constants_that_are_what_they_were(
    tmp_path: Path, recorded: Recorded, unaccounted: Callable[[Calibration], list[str]]
) -> None:
    """Times of the A100's library on a made-up device, with 2 % noise."""
    generator = np.random.default_rng(5)
    m, n, k = (2.0 ** generator.integers(low, 14, 140) for low in (4, 8, 8))
    noise = generator.normal(1, 0.02, m.size)
    time_us = 1e6 * noise * GemmModel(A100.gemm, PEAK["bf16"], 1.5e12, 80).time_s(m, n, k)
    file = table(tmp_path / "gemm.csv", {"m": m, "n": n, "k": k, "time_us": time_us})
    nearest = {"calibration": A100, "assumed": {"calibration": "that of the nearest"}}
    found = gpu_calibration(file, DEVICE.model_copy(update=nearest), evaluations=1200)
    assert unaccounted(found) == []
    assert found.gemm.memory_fraction == pytest.approx(A100.gemm.memory_fraction, rel=0.1)
    recorded("fit_products", {**fitted(found), "file": in_words(found)}, CLOSE)


def test_factors_on_products_of_another_device_are_as_they_were(tmp_path: Path, recorded: Recorded) -> None:
    """Times of a device with the A100's tiles, a little more efficient, and of one in 8 bits."""
    m, n, k = 2.0 ** np.random.default_rng(2).integers(7, 14, (3, 150))
    tiles = tuple(
        tile.model_copy(update={"efficiency": 1.06 * tile.efficiency, "overhead_k": 1.2 * tile.overhead_k})
        for tile in A100.gemm.tiles
    )
    shared = {"memory_fraction": 0.8, "burst_fraction": 0.8, "launch_s": 3e-6}
    gemm = A100.gemm.model_copy(update={"tiles": tiles, **shared})
    model = GemmModel(gemm, PEAK["bf16"], 1.5e12, 80)
    in_8_bits = {"peak_flop_per_s": PEAK["fp8"], "element_bytes": 1}
    narrow = replace(model, constants=narrow_constants(gemm, NARROW), **in_8_bits)
    cast_s = NARROW.cast_s + NARROW.cast_bytes * m * k / 1.5e12
    times = np.concatenate([model.time_s(m, n, k), narrow.time_s(m, n, k) + cast_s])
    columns = {"m": np.tile(m, 2), "n": np.tile(n, 2), "k": np.tile(k, 2), "time_us": 1e6 * times}
    file = table(tmp_path / "gemm.csv", {"precision": np.repeat(["bf16", "fp8"], m.size), **columns})
    borrowed = gpu_calibration(file, DEVICE, A100)
    ratios = [
        (mine.efficiency / other.efficiency, mine.overhead_k / other.overhead_k)
        for mine, other in zip(borrowed.gemm.tiles[1:], A100.gemm.tiles[1:], strict=True)
    ]
    assert borrowed.gemm.tiles[0].efficiency == 1.0, "the most that there is"
    assert ratios == [pytest.approx((1.06, 1.2), rel=0.1)] * len(ratios)
    own = DEVICE.model_copy(update={"calibration": borrowed})
    again = gpu_calibration(file, own, borrowed, source="here")
    assert again.gemm == borrowed.gemm, "a device's own products in 16 bits stay"
    recorded("fit_factors", {"borrowed": fitted(borrowed), "own": fitted(again)}, CLOSE)


def collectives(path: Path, *measured: tuple[CollectiveOp, int, float]) -> Path:
    """Times of the fitted NVLink by operation and ranks, with 5 % noise, times a factor and a wave of it."""
    link = LINK.model_copy(update={"calibration": NVLINK3})
    model = CollectiveModel.of_node(NodeSpec(devices=8, scale_up=link, nics=8, nic=link))
    noise = np.random.default_rng(7)
    rows = []
    for op, size, factor in measured:
        for octave in range(9, 30):
            seconds = model.seconds(op, 2.0**octave, Group.inside_node(size)).total_s
            seconds *= noise.normal(1.0, 0.05)
            wave = 1.0 if factor == 1.0 else factor + 0.33 * math.sin(octave)
            rows.append((op.replace("all_to_all", "alltoall"), size, 2.0**octave, 1e6 * seconds * wave))
    columns = zip(("collective", "num_gpus", "bytes", "time_us"), zip(*rows, strict=True), strict=True)
    return table(path, dict(columns))


def test_lines_of_collectives_are_found_again_as_they_were(
    tmp_path: Path, recorded: Recorded, unaccounted: Callable[[Calibration], list[str]]
) -> None:
    """Also of two tables that disagree in places."""
    ops: tuple[CollectiveOp, ...] = ("all_reduce", "all_to_all")
    first = collectives(tmp_path / "first.csv", *((op, size, 1.0) for op in ops for size in (2, 8)))
    alone = link_calibration([first], LINK, source="here")
    assert unaccounted(alone) == []
    assert alone.fit["collectives.all_reduce"].median_ape < 0.05
    tables = [
        collectives(tmp_path / "a.csv", ("all_gather", 2, 1.0), ("all_gather", 8, 1.0)),
        collectives(tmp_path / "b.csv", ("all_gather", 8, 0.9)),
    ]
    slower = {"calibration": NVLINK3, "bandwidth": 200e9}
    both = link_calibration(tables, LINK.model_copy(update=slower))
    said = {"alone": fitted(alone), "two tables": fitted(both), "file": in_words(alone)}
    recorded("fit_collectives", said, CLOSE)


PUBLISHED = {
    "gpu.yaml": (
        "korthikanti22_t5_22b_full",
        "llmfoundry_1b_a100_40gb_16_s2048_bf16",
        "llmfoundry_350m_a100_40gb_16_s2048_bf16",
        "llmfoundry_7b_h100_80gb_8_s2048_bf16",
        "vtrain_single_1352_h1024_l24_tp2dp2pp2_mb1_gbs4",
        "vtrain_single_3_h2048_l24_tp1dp2pp2_mb4_gbs16",
        "zb_1.5b_1f1b_i_m24",
    ),
    "modern.yaml": (
        "mbridge_qwen3_30b_a3b_b300_8_mxfp8_s4096_b512_m8_t1p1c1v1e8",
        "mlperf_v5.1_llama31_8b_b200_16_2xXE9680Lx8B200-SXM-180GB",
        "simumax_b200_llama3_405b_l4_tp1_pp2_dp4_mbc4",
        "titan_8b_8_compile_fp8",
        "titan_8b_8_eager",
    ),
    "weight_streaming.yaml": (
        "bertlarge128_1xcs2_r2.0",
        "gpt2small_1xcs2_r2.1",
        "gpt2small_1xcs2_r2.3b",
        "usc_bert_large_1xcs2_b512",
        "usc_gpt3_256m_1xcs2_b128",
    ),
}
"""Small runs: of devices, stacks, layouts, with experts, of several releases."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of these runs as they are published."""
    path = tmp_path_factory.mktemp("runs") / "gpu.yaml"
    rows = []
    for file in published_cases():
        chosen = PUBLISHED.get(file.name, ())
        _, *others = file.read_text(encoding="utf-8").split("\n- id: ")
        rows += [row.rstrip() for row in others if row.split('"')[1] in chosen]
    path.write_text("\n- id: ".join(["schema: 1\ncases:", *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def published(runs: Path) -> Sequence[StepCase]:
    return CaseRows.read(runs, StepCase, CATALOG).cases


def bounded(row: LeftOut) -> LeftOut:
    """A fit whose efficiencies are at most 1: without long steps, where they stop depends on the machine."""
    capped = {name: min(1.0, value) for name, value in row.constants.items() if name.endswith("_efficiency")}
    return replace(row, constants={**row.constants, **capped})


def test_published_runs_are_scored_and_explained_as_they_were(
    published: Sequence[StepCase], recorded: Recorded, shown: Recorded, tmp_path: Path
) -> None:
    """Each with its band, without each mechanism, and left out of the fit; what terminal and page say."""
    result = {"file": "gpu.yaml", **validate_cases(CaseRows(published), CATALOG)}
    accuracy = StepAccuracy.of(published, result, CATALOG, leaves_out=True)
    told = ("family", "calibration", "ceiling", "constants", "kept", "borrowed", "outside")
    said = {
        "result": result,
        "removed": {row.mechanism: [row.instead, row.summary, row.left_out] for row in accuracy.removed},
        "left out": accuracy.outside,
        "constants": [
            [getattr(bounded(row), name) for name in told] for part in accuracy.leaving for row in part.rows
        ],
        "record": record.record_of([result], {"gpu.yaml": accuracy.leaving[0]}),
    }
    recorded("published_runs", plain(said), 1e-6)
    page, text = write_validation([accuracy], [], tmp_path)
    lines = validation_lines(result | {"left_out": accuracy.outside}, 3)
    recorded("told_published_runs", {"terminal": lines, "text": text.read_text().splitlines(), **shown(page)})


ONLY: tuple[dict[str, Any], ...] = (
    {"only": ["sustained_fraction", "attention_fraction", "ceiling_share"], "most_devices": 8},
    {"only": ["host_s_per_kernel", "pass_s", "host_blocking_s_per_kernel"], "source": "here"},
    {"device": "a100-sxm4-80gb", "only": ["host_s_per_kernel"]},
    {"device": "h100-sxm5-80gb", "device_only": True},
    {"only": ["grouped_rate", "expert_pass_s"]},
)


def test_constants_of_whole_steps_are_what_they_were(runs: Path, recorded: Recorded) -> None:
    said: dict[str, Any] = {}
    for asked_for in ONLY:
        fits = refused_or(steps_fitted, runs, **asked_for)
        said[str(asked_for)] = [
            {name: value for name, value in one.items() if name in ("name", "fit", *one["fit"])}
            if isinstance(one, dict)
            else one
            for one in fits
        ]
    recorded("fit_steps", said, CLOSE)


def test_constants_of_wafers_are_what_they_were(runs: Path, recorded: Recorded) -> None:
    recorded("fit_wafer", fitted(fit_wafer(runs, "wse-2")), CLOSE)


def test_the_scale_of_a_cluster_is_what_it_was(tmp_path: Path, recorded: Recorded) -> None:
    path = tmp_path / "steps.yaml"
    said: dict[str, Any] = {}
    for count, times in ((3, 1.0), (2, 1.0), (1, 1.0), (3, 40.0), (2, 0.01)):
        cases = []
        for number, step_s in enumerate((0.21, 0.38, 0.9)[:count]):
            row = published_run(id=f"run{number}", training={"global_batch_size": 8 << number})
            cases.append({**row, "measured": {"step_time_s": times * step_s}})
        path.write_text(yaml.safe_dump({"schema": 1, "cluster": "ours", "cases": cases}), encoding="utf-8")
        said[f"{count} steps x {times:g}"] = refused_or(lambda: fitted(fit_cluster([path])))
    recorded("fit_cluster", said)


def rows_of(file: Path, column: str) -> Any:
    return list(map(dict, read_table(file, (column,))))


def steps_fitted(runs: Path, **asked_for: Any) -> Any:
    return [fitted(one) for one in fit_steps([runs], **asked_for)]


def batch_fitted(path: Path, tokens: float) -> Any:
    return fitted(fit_convergence([path], tokens))


def scored(path: Path) -> Any:
    return plain(validate_file(path, CATALOG))


def refused_or(answer: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """The answer, or the words of its refusal without the folder."""
    try:
        return answer(*given, **named)
    except PerfsimError as error:
        return ["refused", re.sub(r"\S+/", "", str(error))]


CRITICAL: dict[str, tuple[str, list[tuple[float, ...]]]] = {
    "examples": (
        "batch,examples",
        [(32 << n, 1e6 * (1 + (32 << n) / 900) * (1 + 0.04 * (-1) ** n)) for n in range(7)],
    ),
    "steps": ("batch,steps", [(8 << n, (1e5 * (1 + (8 << n) / 80)) / (8 << n)) for n in range(6)]),
    "several": ("batch,examples", [(64, 9e5), (64, 1.1e6), (256, 1.2e6), (1024, 2.4e6), (4096, 6e6)]),
    "noise": ("tokens,b_simple", [(0, 1e5), (1e9, 2e5), (3e9, 1e6)]),
    "one noise": ("tokens,b_simple", [(0, 1e5)]),
    "noise out of order": ("tokens,b_simple", [(5, 1), (4, 1)]),
    "a batch that is off": (
        "batch,examples",
        [(32, 1e6), (64, 1.1e6), (128, 1.3e6), (256, 1e-300), (512, 2.6e6)],
    ),
    "no noise": ("tokens,b_simple", [(0, 1e5), (1, 0)]),
    "flat": ("batch,steps", [(8, 100), (16, 50), (32, 25)]),
    "loss": ("batch,loss", [(8, 1)]),
}


def test_critical_batches_are_what_they_were(tmp_path: Path, recorded: Recorded) -> None:
    said: dict[str, Any] = {}
    for name, (header, rows) in CRITICAL.items():
        path = tmp_path / "runs.csv"
        path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
        for tokens in (1.0, 2048.0, -1.0):
            said[f"{name} x {tokens:g}"] = refused_or(batch_fitted, path, tokens)
    benchmark = {"id": "one", "family": "mine", "unit": "samples", "notes": "warm"}
    benchmark["points"] = [[32 << n, 1e6 + 900 * (32 << n), 5e3, 3] for n in range(6)]
    for cases in ([benchmark], [benchmark, {**benchmark, "id": "two"}], []):
        path = tmp_path / "runs.yaml"
        path.write_text(json.dumps({"schema": 1, "cases": cases}), encoding="utf-8")
        said[f"{len(cases)} benchmarks"] = refused_or(batch_fitted, path, 1.0)
    said["two files"] = refused_or(lambda: fitted(fit_convergence([path, tmp_path / "runs.csv"], 1.0)))
    said["warm"] = refused_or(lambda: fitted(fit_convergence([tmp_path / "runs.csv"], 1.0, "warm-start")))
    recorded("fit_critical_batches", said, 1e-6)


def test_benchmarks_are_scored_as_they_were(tmp_path: Path, recorded: Recorded, shown: Recorded) -> None:
    benchmarks = [
        {
            "id": f"{name} {count}",
            "family": name,
            "notes": notes,
            "points": [[32 << n, 1e6 + 900 * (32 << n)] for n in range(count)],
        }
        for name, notes in (("plain", ""), ("tuned", "fine-tuning"))
        for count in (3, 4, 7)
    ]
    benchmarks[2]["points"] += [[64, 1.4e6], [4096, 2e6]]
    points = [[batch, 1000.0 * (1 + batch / 64)] for batch in (8, 16, 32, 63, 64)]
    benchmarks.append({"id": "crowded", "family": "plain", "points": points})
    for notes in ("", "fine-tuning", "warm: from a checkpoint"):
        points = [[batch, 100.0] for batch in (8.0, 8.4, 8.8, 9.2)]
        benchmarks.append({"id": f"tight {notes}", "family": "tight", "notes": notes, "points": points})
    flat = {"id": "flat", "family": "flat", "points": [[32 << n, 1e6 / (32 << n)] for n in range(5)]}
    said = {}
    malformed = [{"points": points} for points in (3, [[8, "many", None, 1]], [[8, 0, None, 1]], [[8]], None)]
    files = {"all": [*benchmarks, flat, *malformed], "both": [flat, published_run()], "none": []}
    for name, cases in files.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(json.dumps({"schema": 1, "cases": cases}), encoding="utf-8")
        said[name] = refused_or(scored, path)
    recorded("benchmarks", said, 1e-6)
    known = dict(validate_file(tmp_path / "all.yaml", CATALOG))
    page, text = write_validation([], [known], tmp_path)
    told = {"all": validation_lines(known, 2), "text": text.read_text().splitlines(), **shown(page)}
    recorded("told_benchmarks", told)


def test_ratios_of_many_wafers_are_explained_as_they_were(recorded: Recorded) -> None:
    recorded("scaling", plain(ScalingFile.compared(CATALOG)), 1e-6)


def test_records_written_anew_without_results_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    written: dict[Path, str] = {}
    monkeypatch.setattr(record, "write_file", written.__setitem__)
    record.write_records([], {})
    assert len(written) == 3
    for path, text in written.items():
        assert path.read_text(encoding="utf-8") == text, path.name


RUNS = yaml.safe_load(Path(__file__).with_name("runs.yaml").read_text(encoding="utf-8"))


LEFT_OUT = re.compile(r"calibration|device\.|framework\.|assumed|source|description|date|fabric|host\.")
"""Of a system: what no run changes."""


def flat(value: Any, at: str = "") -> dict[str, Any]:
    """Every value of a document by its dotted path."""
    if isinstance(value, dict):
        return {path: one for key, inner in value.items() for path, one in flat(inner, f"{at}.{key}").items()}
    return {at: value}


def asked(changes: Mapping[str, Any]) -> dict[str, Any]:
    """What a run asks and says of itself, or why it cannot."""
    row = RUNS["base"] | {
        key: {**RUNS["base"].get(key, {}), **part} if isinstance(part, dict) else part
        for key, part in changes.items()
    }
    try:
        case = StepCase.model_validate(published_run(**row), context=YAML_CONTEXT)
        question = case.question(CATALOG)
    except PerfsimError as error:
        return {"refused": str(error).splitlines()[0]}
    except ValidationError as error:
        return {"refused": [one["msg"] for one in error.errors()]}
    own = ("scored", "on_wafers", "setting", "inferred", "ignored", "trained", "stack")
    described = {"recipe": question.recipe, "model": question.model, "system": question.system}
    said = {name: one.model_dump(mode="json", exclude_defaults=True) for name, one in described.items()}
    said |= {"device": question.system.device.name, "framework": question.recipe.runtime.framework}
    said["framework"] = said["framework"] and said["framework"].name
    layout = {"layout": str(question.layout), "batch": question.batch, "devices": question.devices}
    answer = flat(plain({**said, **layout, **{name: getattr(case, name) for name in own}}))
    return {path: one for path, one in answer.items() if not LEFT_OUT.search(path)}


@pytest.mark.parametrize("kind", RUNS["changes"])
def test_what_a_published_run_asks_is_what_it_was(kind: str, recorded: Recorded) -> None:
    base = asked({})
    said = {}
    for changes in RUNS["changes"][kind]:
        answer = asked(changes)
        said[str(changes)] = {path: one for path, one in answer.items() if base.get(path, "") != one} | {
            path: "-" for path in base if path not in answer and "refused" not in answer
        }
    recorded(f"asked_{kind}", {"base": base, **said})
