"""Leaving families out of a fit, on step times that are powers of the constants."""

from dataclasses import replace

import numpy as np
import pytest

from perfsim.catalog import Catalog
from perfsim.evidence.cases import StepCase
from perfsim.evidence.left_out import ALL, LeavingOut, LeftOut, Tangent
from perfsim.evidence.score import Scored
from perfsim.evidence.step_fit import GpuRun
from perfsim.testing.toys import SMALLEST, published_run

HOST = "host_s_per_kernel of eager"
BLOCKING = "host_blocking_s_per_kernel of eager"
BRIDGE = "partial_node_rank_bytes_per_s"
LENGTH = "attention_half_length"
ATTENTION = "attention_fraction"
CEILING = "sustained_fraction of gpu"
NAMES = (HOST, BLOCKING, BRIDGE, LENGTH, ATTENTION, CEILING)
AT = dict(zip(NAMES, (4e-5, 1e-4, 9e9, 1500.0, 0.3, 0.8), strict=True))
TRUE = AT | {HOST: 5e-5, CEILING: 0.7}
SLOPES = {
    "host": [{HOST: 0.6, CEILING: -0.3}, {HOST: 0.4, CEILING: -0.5}, {HOST: 0.5, CEILING: -0.2}],
    "long": [{CEILING: -0.9}, {HOST: 0.1, CEILING: -0.8}],
    "flash": [{HOST: 0.1, ATTENTION: -0.5, CEILING: -0.3}, {ATTENTION: -0.4, CEILING: -0.4}],
}


def tangents() -> list[Tangent]:
    """Runs whose step times are exact at TRUE."""
    runs = []
    for family, members in SLOPES.items():
        for number, slopes in enumerate(members):
            moved = sum(slope * np.log(TRUE[name] / AT[name]) for name, slope in slopes.items())
            scored = Scored(f"{family}{number}", family, "A", None, "", float(np.exp(moved)), 1.0)
            runs.append(Tangent(scored, "gpu", AT, dict.fromkeys(NAMES, 0.0) | slopes))
    return runs


def left_out_of(runs: list[Tangent]) -> LeavingOut:
    (leaving,) = LeavingOut.by_kind([], Catalog(), runs)
    return leaving


def by_family(leaving: LeavingOut) -> dict[str, LeftOut]:
    return {row.family: row for row in leaving.rows}


def test_constants_are_found_again_without_each_family_or_kept_and_said_to_be() -> None:
    rows = by_family(left_out_of(tangents()))
    assert list(rows) == ["host", "long", "flash", ALL]
    assert rows[ALL].outside["n"] == sum(len(runs) for runs in SLOPES.values())
    assert rows["long"].constants[CEILING] == pytest.approx(0.7, rel=0.01)
    assert rows["long"].constants[HOST] == pytest.approx(5e-5, rel=0.02)
    unseen = {BLOCKING, BRIDGE, LENGTH}
    assert set(rows["flash"].kept) == {ATTENTION, *unseen}
    assert rows["flash"].constants[ATTENTION] == 0.3
    assert set(rows["host"].kept) == unseen


def run_on(device: str, ceiling: float, benchmark: float) -> Tangent:
    """A run whose step time follows the ceiling of its device a little, measured as predicted."""
    ceiling_of = f"sustained_fraction of {device}"
    scored = Scored(device, f"on {device}", "A", None, "", 1.0, 1.0)
    return Tangent(scored, device, {ceiling_of: ceiling}, {ceiling_of: -0.09}, benchmark)


def test_the_ceiling_of_a_device_without_other_runs_follows_its_benchmark_as_those_of_others() -> None:
    others = [run_on("old", 0.8, 0.8), run_on("older", 0.4, 0.5)]
    new = by_family(left_out_of([*others, run_on("new", 0.3, 0.6)]))["on new"]
    assert new.constants["sustained_fraction of new"] == pytest.approx(0.6 * np.sqrt(1.0 * 0.8), rel=1e-3)
    assert new.borrowed == "old, older"
    assert by_family(left_out_of(tangents()))["host"].borrowed == ""


def test_a_family_that_alone_determines_a_constant_is_left_out_by_model_and_devices() -> None:
    slowdown = "exchange_slowdown of some-stack"
    alone = [
        replace(
            run,
            constants={**AT, slowdown: 0.5},
            slopes={**run.slopes, slowdown: 0.3},
            setting=f"2x8 on {number}",
        )
        if run.scored.family == "long"
        else run
        for number, run in enumerate(tangents())
    ]
    rows = left_out_of(alone)
    assert [row.family for row in rows.rows] == ["host", "long, 2x8 on 3", "long, 2x8 on 4", "flash", ALL]
    assert all(slowdown in row.constants for row in rows.groups[1:3])
    scores = rows.as_dict()
    assert list(scores["families"]) == ["host", "long", "flash"]
    assert list(scores["groups"]) == ["long, 2x8 on 3", "long, 2x8 on 4"]
    assert scores["families"]["long"]["n"] == 2
    assert scores["whole"]["families"]["long"]["n"] == 2
    assert {"groups", "whole"}.isdisjoint(left_out_of(tangents()).as_dict()), "no family is left out in parts"


def test_without_its_only_family_a_constant_is_the_mean_of_those_of_other_stacks() -> None:
    """0.4 and 0.9 of two others, whose steps are as predicted, give 0.6; a constant of no other stays."""
    stacks = {"host": ("one", 0.4), "flash": ("other", 0.9), "long": ("own", 0.1)}
    runs = []
    for number, run in enumerate(tangents()):
        stack, value = stacks[run.scored.family]
        slowdown, unlike = f"exchange_slowdown of {stack}", f"pass_s of {stack}"
        known = {**AT, slowdown: value} | ({unlike: 2e-3} if stack == "own" else {})
        slopes = {**run.slopes, slowdown: 0.02} | ({unlike: 0.3, slowdown: 0.3} if stack == "own" else {})
        exact = replace(run.scored, predicted_s=run.scored.measured_s)
        runs.append(replace(run, scored=exact, constants=known, slopes=slopes, setting=str(number)))
    (whole,) = left_out_of(runs).split
    assert whole.family == "long"
    assert whole.constants["exchange_slowdown of own"] == pytest.approx(0.6, rel=1e-2)
    assert whole.constants["pass_s of own"] == 2e-3
    assert [run.left_out for run in left_out_of(runs).whole] == ["host"] * 3 + ["long"] * 2 + ["flash"] * 2


def test_constants_that_runs_do_not_tell_apart_stay_near_their_records() -> None:
    twin = "ceiling_share of some-stack"
    twins = []
    for run in tangents():
        slopes = {**run.slopes, twin: run.slopes[CEILING]}
        twins.append(replace(run, constants={**AT, twin: 0.9}, slopes=slopes))
    constants = left_out_of(twins).groups[0].constants
    assert constants[CEILING] / AT[CEILING] == pytest.approx(constants[twin] / 0.9, rel=1e-3)


def test_slopes_are_those_of_the_priced_step() -> None:
    training = {"global_batch_size": 2, "micro_batch_size": 1, "attention": "standard"}
    placed = StepCase.model_validate(published_run(model=SMALLEST, training=training)).placed(Catalog())
    tangent = Tangent.of(placed)
    slopes = {name.split(" of ")[0]: slope for name, slope in tangent.slopes.items()}
    assert slopes["host_s_per_kernel"] == pytest.approx(1.0, abs=0.05), "so small a model waits for the host"
    assert slopes["host_blocking_s_per_kernel"] == 0.0
    assert slopes["attention_fraction"] == 0.0, "standard attention"
    assert slopes["partial_node_rank_bytes_per_s"] == 0.0, "one device"
    run = GpuRun.of(placed)
    assert tangent.scored.predicted_s == run.step_s(run.recorded)
