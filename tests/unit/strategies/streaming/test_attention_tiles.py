"""Batch tiling on attention: attention tile by tile, experts on the tokens of all tiles."""

import pytest

import perfsim as ps

TILES = "system.streaming.attention_tiles"
EXPERTS = {"model": "qwen3_30b_a3b", "recipe": "gpt3_pretraining", "system": "cs-3", "devices": 1}
LAYERS = 48
ATTENTION_ROWS = (32 + 2 * 4) * 128 + 2048
"""Outputs of query, key and value, and of the projection."""


def on_a_wafer(batch: int, tiles: int, **asked: object) -> ps.Prediction:
    return ps.predict(**{**EXPERTS, "batch": batch, TILES: tiles, **asked})


def test_tiles_stream_the_rows_of_attention_once_each_and_leave_all_other_work_as_it_is() -> None:
    layout = "mbs=24,recompute=full,recompute_layers=1,spill=true"
    whole, tiled = (on_a_wafer(24, tiles, layout=layout) for tiles in (1, 5))
    calibration = whole.run.plan.system.device.calibration
    more_s = tiled.why.parts_s["rows of weights"] - whole.why.parts_s["rows of weights"]
    assert more_s == pytest.approx(4 * 4 * LAYERS * ATTENTION_ROWS * calibration.row_s, rel=1e-6)
    for part in ("compute", "attention"):
        assert tiled.why.parts_s[part] == pytest.approx(whole.why.parts_s[part], rel=1e-9)
    held = [run.memory[0].parts_bytes["working set"] for run in (whole, tiled)]
    assert held[1] == pytest.approx(5 / 24 * held[0]), "24 sequences in 5 tiles are 5 in the largest"


def test_tiles_make_micro_batches_larger_and_a_model_of_few_active_experts_several_times_as_fast() -> None:
    """The vendor says 7 times for 64 tiles at one expert a token; what fits on activation servers ends it."""
    whole, tiled = (on_a_wafer(1024, tiles, **{"model.experts.top_k": 1}) for tiles in (1, 8))
    assert tiled.run.plan.layout.micro_batch_size == 8 * whole.run.plan.layout.micro_batch_size
    assert 3.5 < whole.step_time_s / tiled.step_time_s < 7.0
    (said,) = (caveat.text for caveat in tiled.caveats if caveat.code == "experts-outside")
    assert "attention is computed in 8 tiles of a micro-batch" in said
    (said,) = (caveat.text for caveat in whole.caveats if caveat.code == "experts-outside")
    assert "attention is not tiled" in said
    assert "attention in tiles (streaming.attention_tiles)" in whole.why.remedy
    assert "a larger micro-batch" in tiled.why.remedy


def test_a_tile_has_at_least_a_sequence_and_an_expert_its_tokens() -> None:
    """With 8 of 128 experts a token, more than 16 tiles hold no less of a layer."""
    held = [on_a_wafer(512, tiles).memory[0] for tiles in (16, 64)]
    sizes = [on_a_wafer(512, tiles).run.plan.layout.micro_batch_size for tiles in (16, 64)]
    assert sizes[0] == sizes[1]
    assert held[0].parts_bytes["working set"] == pytest.approx(held[1].parts_bytes["working set"])
    assert all(use.fits for use in held)
    few, one = (on_a_wafer(size, 4096).memory[0].parts_bytes["working set"] for size in (8, 1))
    assert few == one > 0


def test_a_dense_model_has_no_tiles() -> None:
    steps = [on_a_wafer(64, tiles, model="gpt3_6p7b").step_time_s for tiles in (1, 16)]
    assert steps[0] == steps[1]
