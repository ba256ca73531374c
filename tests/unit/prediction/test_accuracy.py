"""Which published runs speak for a plan, and how surely its step time is known."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import perfsim as ps
from perfsim.engine.trace import Trace
from perfsim.evidence.left_out import LeavingOut, LeftOut
from perfsim.evidence.record import record_of
from perfsim.evidence.score import Scored
from perfsim.machines.gpu_cluster import OTHER_SOFTWARE
from perfsim.prediction import bands
from perfsim.prediction.bands import Accuracy, BandWidths, Hidden, Reached, Traits, alone
from perfsim.prediction.run import Evaluation
from perfsim.work import GraphBuilder, Kind, Work

A100 = {"peak_flop_per_s": 312e12, "memory_bytes_per_s": 2e12, "precision": "16-bit"}
SPLIT = {"sharded": False, "tensor": True, "pipeline": True, "shards": 1, "micro_batch_size": 2}
HERE = Traits("a100", **A100, **SPLIT, parameters=20e9, num_devices=128)
LARGE = replace(HERE, parameters=100e9, num_devices=512, micro_batch_size=8)
SMALL = replace(HERE, parameters=1e9, num_devices=64, micro_batch_size=1)
LIKE = Traits.together([replace(SMALL, memory_bytes_per_s=1.5e12, tensor=False), LARGE])
BAND = {"base": 0.2, "slope": 0.1, "unshared": 0.5, "classes": {"experts": 1.5, "new, 16 bits, experts": 1.2}}


def family(name: str, n: int, p90: float, **changes: Any) -> dict[str, Any]:
    figures = {"family": name, "n": n, "median_ape": p90 / 2, "p90_ape": p90, "baseline_median_ape": 0.2}
    figures["held_out_p90_ape"] = 2 * p90
    return {**figures, **LIKE, **changes}


@pytest.mark.parametrize(
    ("changes", "points", "words"),
    [
        ({"constants": "h100"}, 3.0, "instead of h100"),
        ({"constants": "h100", "peak_flop_per_s": 990e12}, 3.0, "instead of h100"),
        ({"peak_flop_per_s": 624e12}, 3.0, "a100 was measured on a chip whose peak differs 2.0 times"),
        ({"memory_bytes_per_s": 20e12}, 3.0, "memory bandwidth outside its range by a factor of 10.0"),
        ({"precision": "fp8"}, 3.0, "precision fp8 only in this plan"),
        ({"shards": 100}, 2.0, "replicas that share parameters outside its range"),
        ({"micro_batch_size": 80}, 1.0, "micro-batch outside its range by a factor of 10.0"),
        ({"sharded": True}, 2.0, "sharded parameters only in this plan"),
        ({"experts": True}, 3.0, "experts only in this plan"),
        ({"pipeline": False}, 1.0, "pipeline parallelism only in the family"),
        ({"parameters": 1e12}, 1.0, "model outside its range by a factor of 10.0"),
        ({"parameters": 1e8}, 1.0, "model outside its range by a factor of 10.0"),
        ({"num_devices": 51200}, 2.0, "number of devices outside its range by a factor of 100.0"),
    ],
)
def test_each_difference_has_points_and_words(changes: dict[str, Any], points: float, words: str) -> None:
    assert HERE.unlikeness(LIKE) == (0.0, ())
    unlikeness, said = replace(HERE, **changes).unlikeness(LIKE)
    assert unlikeness == pytest.approx(points)
    assert len(said) == 1
    assert words in said[0]


def test_the_only_family_on_a_device_says_less_than_one_of_several() -> None:
    families = {"first": LIKE, "second": LIKE, "newer": {**LIKE, "constants": ["h100"]}}
    assert [alone(name, families) for name in families] == [False, False, True]
    assert not alone("first", {"first": LIKE}), "one family alone shows no difference"
    assert HERE.unlikeness({**LIKE, "alone": True}) == (2.0, ("the only family of runs on a100",))


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The families on record, with the bands that all of them give, and those without `pipelines`."""
    families: list[dict[str, Any]] = []
    whole = {"system_kind": "gpu-cluster", "strategy": "3d", "family": "all", "n": 50, "band": BAND}
    left_out = [{"group": "pipelines", "band": {**BAND, "base": 0.3}}]
    entry = {**whole, "families": families, "left_out": left_out}
    monkeypatch.setattr(bands, "recorded_errors", lambda: (entry,))
    return families


PIPELINES = [family("fsdp", 20, 0.2, sharded=[True]), family("pipelines", 10, 0.05)]
EXPERTS = [family("dense", 30, 0.05), family("sparse", 20, 0.1, experts=[True])]
OTHERS = [family("pipelines", 10, 0.05), family("others", 10, 0.05, pipeline=[False])]


@pytest.mark.parametrize(
    ("families", "changes", "without", "speaks", "log_width"),
    [
        (PIPELINES, {}, "", "pipelines", 0.2),
        (PIPELINES, {"sharded": True, "pipeline": False}, "", "fsdp", math.hypot(0.2, 0.1)),
        ([family("few", 8, 0.2), family("many", 30, 0.05)], {}, "", "many", 0.2),
        ([family("small errors", 30, 0.01)], {}, "", "small errors", 0.2),
        ([family("only", 30, 0.05)], {"precision": "fp8"}, "", "only", math.hypot(0.2, 0.3)),
        (EXPERTS, {"experts": True}, "", "sparse", 1.5 * 0.2),
        (EXPERTS, {"experts": True, "generation": "new"}, "", "sparse", 1.2 * 0.2),
        (EXPERTS, {}, "", "dense", 0.2),
        (OTHERS, {}, "pipelines", "others", math.hypot(0.3, 0.1)),
    ],
)
def test_the_family_most_alike_speaks_and_unlikeness_widens_the_band(
    record: list[dict[str, Any]],
    families: list[dict[str, Any]],
    changes: dict[str, Any],
    without: str,
    speaks: str,
    log_width: float,
) -> None:
    record += families
    nearest = Accuracy.nearest("gpu-cluster", replace(HERE, **changes), without=without)
    assert nearest.family == speaks
    assert nearest.step_time_error == pytest.approx(math.expm1(log_width))
    assert nearest.unshared_error == pytest.approx(math.expm1(0.5 * log_width))


@pytest.mark.usefixtures("record")
def test_a_kind_of_system_without_runs_is_known_to_a_factor_of_two() -> None:
    bands = Accuracy.nearest("abacus", HERE)
    assert (bands.n, bands.p90_ape, bands.held_out_p90_ape) == (0, 1.0, 1.0)
    assert "abacus" in bands.likeness
    assert bands.step_time_error == bands.unshared_error == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["gpu-cluster", "wafer-cluster"])
def test_no_recorded_band_is_narrower_than_the_percentile_of_runs_left_out(kind: str) -> None:
    entries = [entry for entry in bands.recorded_errors() if entry["system_kind"] == kind]
    assert entries
    for whole in entries:
        widths = BandWidths(**whole["band"])
        with_experts = any(True in family["experts"] for family in whole["families"])
        assert ("experts" in widths.classes) == with_experts
        widest = replace(widths, base=widths.base * widths.classes.get("experts", 1.0))
        assert widest.error(0.0) >= max(whole["held_out_p90_ape"], whole["p90_ape"])
        least = 0.9 * min(whole["held_out_p90_ape"], 0.1)
        without = [BandWidths(**row["band"]) for row in whole["left_out"]]
        assert all(math.expm1(band.base * band.classes.get("experts", 1.0)) > least for band in without)
        dense = [family for family in whole["families"] if family["experts"] == [False]]
        runs, tails = ([family[name] for family in dense] for name in ("n", "held_out_p90_ape"))
        of_families = float(np.average(tails, weights=runs))
        assert all(band.error(0.0) > 0.9 * min(of_families, 0.1) for band in (widths, *without))
        # Each family, its parts by model and number of devices, or a wafer's model was left out once.
        assert all(row["constants"] for row in whole["left_out"])
        groups = [row["group"] for row in whole["left_out"]]
        if kind == "gpu-cluster":
            families = {family["family"] for family in whole["families"]}
            assert {group.partition(",")[0] for group in groups} == families
            continue
        assert {"24x1024 at 128", "28x4096 at 2048", "40x5120 at 2048"} <= {*groups}
        assert 0.15 < widths.error(0.0) < 0.3


def scored(file: str, p90_ape: float, families: dict[str, dict[str, float]]) -> dict[str, Any]:
    """The result of a file as `validate_file` gives it, whose families are like `HERE`."""
    return {
        "file": file,
        "summary_predicted": {"n": 5, "median_ape": 0.1, "p90_ape": p90_ape},
        "summary_asked": {"median_ape": 0.16},
        "baseline": {"median_ape": 0.3},
        "families": families,
        "families_baseline": {name: {"median_ape": 0.3} for name in families},
        "families_traits": dict.fromkeys(families, LIKE),
    }


def test_the_record_has_each_family_that_was_scored() -> None:
    figures = {"n": 2, "median_ape": 0.1, "p90_ape": 0.123456, "mape": 0.1, "bias": 0.0}
    families = {"a": {**figures, "hidden_communication": 0.123456}, "unscored": {**figures, "n": 0}}
    (entry,) = record_of([scored("gpu.yaml", 0.123456, families), {"file": "else.yaml"}])
    assert (entry["system_kind"], entry["p90_ape"]) == ("gpu-cluster", 0.1235)
    assert entry["asked_median_ape"] == 0.16
    (row,) = entry["families"]
    assert (row["family"], row["parameters"]) == ("a", [1e9, 100e9])
    assert row["hidden_communication"] == 0.1235


def test_figures_of_runs_left_out_are_recorded_where_they_are_measured() -> None:
    (known,) = (entry for entry in bands.recorded_errors() if entry["system_kind"] == "wafer-cluster")
    result = scored("weight_streaming.yaml", 0.2, {})
    (without,) = record_of([result])
    assert {"held_out_p90_ape", "band", "left_out"}.isdisjoint(without)
    logs = [Scored("log", "logs", "A", None, "", 1.0, 1.75, traits=HERE, left_out="r0.2")] * 8
    groups = (LeftOut("r0.2", "wafer", (), {"efficiency": 0.5}),)
    outside = LeavingOut("release", groups, (*logs, replace(logs[0], predicted_s=1.74, left_out="r0.3")))
    (measured,) = record_of([result], {"weight_streaming.yaml": outside})
    assert measured["held_out_p90_ape"] == 0.75
    assert measured["band"]["base"] > known["band"]["base"]
    (row,) = measured["left_out"]
    assert (row["group"], row["constants"]) == ("r0.2", {"efficiency": 0.5})
    assert row["band"]["base"] > measured["band"]["base"]


COMPUTE = Work("m", Kind.COMP, "gemm", "forward")
GATHER = Work("g", Kind.COMM_COLL, "all_gather", "data")


BOTH = [("gpu0/compute", COMPUTE, 0, 10), ("gpu0/nccl", GATHER, 0, 5)]
ONCE = [
    ("gpu0/compute", COMPUTE, 0, 6),
    ("gpu0/nccl", GATHER, 4, 8),
    ("gpu0/send-next", GATHER, 5, 7),
    ("gpu0/compute", GATHER, 8, 10),
    ("gpu0/nccl", GATHER, 9, 10),
]
"""From 4 to 6, once; a collective hides nothing."""
PEERS = [("gpu0/compute", COMPUTE, 0, 10), ("gpu1/compute", COMPUTE, 0, 4), ("gpu0+gpu1/nccl", GATHER, 2, 10)]
STREAMED = [("cs0/compute", COMPUTE, 0, 10), ("memoryx/out", GATHER, 0, 9)]
"""A store that streams to a device takes nothing from its compute."""


@pytest.mark.parametrize(
    ("tasks", "width", "share"),
    [(ONCE, 1, 0.2), (PEERS, 1, (8 + 2) / 2 / 10), (BOTH, 1, 0.5), (BOTH, 64, 0.5), (STREAMED, 1, 0.0)],
)
def test_communication_next_to_compute_of_its_own_device_is_hidden_in_the_mean_over_ranks(
    tasks: list[tuple[str, Work, float, float]], width: int, share: float
) -> None:
    """Rows are stream, work, start and end; a device counts as often as the ranks that it stands for."""
    builder = GraphBuilder()
    builder.fold(width)
    for stream, work, _, _ in tasks:
        builder.task(work, stream)
    spans = np.array([task[2:] for task in tasks])
    assert Trace(builder.build(), spans[:, 0], spans[:, 1]).hidden_share == pytest.approx(share)


def run(layout: str = "dp=8,mbs=1", system: str = "dgx-a100-80gb") -> Evaluation:
    return ps.predict(model="gpt3_xl", system=system, devices=8, batch=16, layout=layout).run


def test_what_hides_beyond_published_runs_costs_the_multiprocessors_that_a_collective_takes() -> None:
    hidden = Hidden(share=0.52, published=0.12, slowdown=0.42)
    assert hidden.cost == pytest.approx(0.4 * 0.42)
    (unknown,) = hidden.unknown()
    assert unknown.log_width == pytest.approx(math.log1p(0.4 * 0.42))
    assert unknown.words == "52 % of the step hides communication, at most 12 % in any run"
    assert Hidden(0.12, 0.12, 0.42).unknown() == []


def test_a_band_widens_with_communication_beyond_that_of_published_runs_and_not_below() -> None:
    plan = run().plan
    most = Hidden.of(plan, 0.0).published
    inside, beyond, far = (Accuracy.of(plan, share) for share in (most, most + 0.1, most + 0.4))
    assert inside == Accuracy.of(plan)
    assert inside.step_time_error < beyond.step_time_error < far.step_time_error
    assert inside.unshared_error < beyond.unshared_error < far.unshared_error
    assert "hides communication" in far.likeness
    assert "hides communication" not in inside.likeness
    assert (far.family, far.unlikeness) == (inside.family, inside.unlikeness)
    # A sharded run gathers all the time, and a plain one does not.
    plain = run("tp=2,dp=4,mbs=1,zero=1")
    sharded = run("tp=2,dp=4,zero=3,mbs=1")
    assert plain.trace.hidden_share < 0.12 < 0.2 < sharded.trace.hidden_share
    assert sharded.accuracy.step_time_error > Accuracy.of(sharded.plan).step_time_error


def test_the_largest_share_is_that_of_scored_runs_on_such_a_device_without_the_family_left_out() -> None:
    """Of a device without runs it is that of all."""
    entries = [entry for entry in bands.recorded_errors() if entry["system_kind"] == "gpu-cluster"]
    rows = [(row["hidden_communication"], row) for entry in entries for row in entry["families"]]
    of_device = [(share, row["family"]) for share, row in rows if "a100-sxm4" in row["constants"]]
    most, second, *_ = sorted(of_device, reverse=True)
    plan = run().plan
    assert Hidden.of(plan, 0.0).published == most[0]
    assert Hidden.of(plan, 0.0, without=most[1]).published == second[0]
    assert Hidden.of(run(system="mi355x-288gb").plan, 0.0).published == max(share for share, _ in rows)


def test_published_figures_of_the_record_are_those_of_the_papers() -> None:
    """Korthikanti et al., Table 5: 530B with selective recompute reaches 56.0 % MFU on 280 GPUs."""
    (row,) = (row for row in Reached.recorded() if row.id == "korthikanti22_t5_530b_selective")
    assert row.mfu == pytest.approx(0.560, abs=0.002)
    assert (row.num_devices, row.tensor, row.data, row.sharded) == (280, 8, 1, False)
    assert row.parameters == pytest.approx(5.3e11, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "mfu", "words"),
    [
        ([("standard", 8, 0.5)], 0.49, ""),
        ([("standard", 8, 0.5)], 0.52, ""),
        ([("standard", 8, 0.5)], 0.53, "with standard attention on a quarter of its devices or more"),
        ([("standard", 8, 0.5), ("flash", 8, 0.6)], 0.53, "with standard attention on a quarter"),
        ([("standard", 1, 0.7), ("standard", 2, 0.5)], 0.6, "with standard attention on a quarter"),
        ([("standard", 1, 0.5)], 0.6, "with standard attention"),
        ([("flash", 1, 0.5)], 0.6, "with any attention"),
        ([], 0.9, ""),
    ],
)
def test_a_plan_is_compared_with_the_runs_that_are_most_like_it(
    monkeypatch: pytest.MonkeyPatch, rows: list[tuple[str, int, float]], mfu: float, words: str
) -> None:
    """Runs on another device or in another precision do not count."""
    plan = run().plan
    assert {row.device for row in Reached.like(plan)} == {"a100-sxm4-80gb", "a100-sxm4-40gb"}
    device = plan.system.device.name
    runs = [Reached("run", device, *row, precision="fp16") for row in rows]
    runs.append(Reached("elsewhere", "x", "standard", 99, 0.99, precision="fp16"))
    runs.append(Reached("narrow", device, "standard", 99, 0.99, precision="fp8"))
    monkeypatch.setattr(Reached, "recorded", lambda: tuple(runs))
    above = Reached.best_below(plan, mfu)
    assert (above is not None) == bool(words)
    assert above is None or above[1].startswith(words)


def test_a_range_allows_for_other_software_where_nobody_names_the_runtime() -> None:
    asked = {"model": "llama31_8b", "system": "dgx-h100", "devices": 64, "layout": "tp=2,zero=1,mbs=1"}
    by_rule = ps.predict(**asked)
    named = ps.predict(**asked, runtime="megatron_core")
    assert by_rule.step_time_s == named.step_time_s
    widths = [math.log1p(run.run.accuracy.step_time_error) for run in (by_rule, named)]
    assert widths[0] == pytest.approx(math.hypot(widths[1], OTHER_SOFTWARE))
    # Two layouts of one machine have the same software.
    assert by_rule.run.accuracy.unshared_error == named.run.accuracy.unshared_error
    codes = [{caveat.code for caveat in run.caveats} for run in (by_rule, named)]
    assert codes[0] - codes[1] == {"runtime-unnamed"}
    changed = ps.predict(**asked, **{"runtime.grad_bucket": "25 MB"})
    assert "runtime-unnamed" in {caveat.code for caveat in changed.caveats}


def test_steps_of_the_users_own_show_the_software_that_nobody_named() -> None:
    plan = ps.predict(model="llama31_8b", system="dgx-h100", devices=64, layout="tp=2,zero=1,mbs=1").run.plan
    named = replace(plan, job=replace(plan.job, recipe=plan.job.recipe.with_(**{"runtime.by_rule": False})))
    own = [0.01, -0.01, 0.0]
    assert Accuracy.of(plan, measured=own) == Accuracy.of(named, measured=own)
    assert Accuracy.of(plan).step_time_error > Accuracy.of(named).step_time_error
