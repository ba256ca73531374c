"""Laws of the critical batch and of the loss against their published numbers, and fits of the hyperbola."""

import math
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from perfsim.base.errors import InputError, PlanError
from perfsim.convergence.critical_batch import (
    DEFAULT_BAND_FACTOR,
    FLOOR_TOKENS,
    LAWS,
    CriticalBatch,
    HyperbolaFit,
    LawInputs,
    NotIdentifiableError,
    critical_batch,
    deepseek_tokens,
    examples,
    minicpm_tokens,
    relative_error,
    steps,
)
from perfsim.convergence.laws import BESIROGLU, CEREBRAS_GPT, KAPLAN, LOSS_LAWS, SEED_ERROR, LossLaw
from perfsim.convergence.time_to_accuracy import RampPart, TimeToAccuracy
from perfsim.specs.calibration import ConvergenceCalibration

D_20B = 4e11


def law(name: str, **inputs: Any) -> CriticalBatch:
    return critical_batch(name, LawInputs(**inputs))


def kaplan_tokens(loss: float) -> float:
    return law("kaplan_loss", loss=loss, loss_scale="WebText2").tokens


def zhang_star(d_min_tokens: float) -> float:
    """Zhang's own critical batch B*, from B_crit = 5 B* - 6 B_opt with B_opt = 256 sequences of 512."""
    return (law("data_law", d_min_tokens=d_min_tokens).tokens + 6 * 256 * 512) / 5


# At 20 tokens a parameter: params, loss, Kaplan's own loss; in 1e6 tokens Kaplan at each, Zhang's 20 %, Zhang
# converted, Bergsma; training FLOP; in 1e6 tokens the batches that DeepSeek and MiniCPM suggest.
CHINCHILLA_ROWS = [
    (1.3e9, 2.466, 2.385, 2.85, 3.35, 1.39, 6.15, 6.25, 2.03e20, 1.28, 4.33),
    (6.7e9, 2.179, 2.093, 5.15, 6.24, 3.00, 14.2, 13.3, 5.39e21, 3.75, 9.38),
    (13e9, 2.103, 1.986, 6.10, 8.01, 4.09, 19.7, 18.1, 2.03e22, 5.78, 11.7),
    (20e9, 2.062, 1.919, 6.69, 9.41, 5.01, 24.3, 22.1, 4.8e22, 7.66, 13.2),
    (175e9, 1.930, 1.620, 9.17, 21.1, 13.9, 68.7, 60.2, 3.67e24, 31.7, 20.0),
]


@pytest.mark.parametrize("row", CHINCHILLA_ROWS)
def test_laws_at_chinchilla_tokens_agree_with_the_comparison_table(row: tuple[float, ...]) -> None:
    params, loss, kaplan_scale_loss, *printed, compute_flop, deepseek, minicpm = row
    tokens = 20 * params
    assert BESIROGLU.loss(params, tokens) == pytest.approx(loss, abs=6e-4)
    assert KAPLAN.loss(params, tokens) == pytest.approx(kaplan_scale_loss, abs=6e-4)
    computed = [
        kaplan_tokens(BESIROGLU.loss(params, tokens)),
        kaplan_tokens(KAPLAN.loss(params, tokens)),
        zhang_star(tokens),
        law("data_law", d_min_tokens=tokens).tokens,
        law("bergsma_2025", d_min_tokens=tokens).tokens,
        deepseek_tokens(compute_flop),
        minicpm_tokens(loss),
    ]
    assert computed == pytest.approx([1e6 * value for value in (*printed, deepseek, minicpm)], rel=5e-3)


def test_zhang_law_in_tokens_agrees_with_its_law_in_parameters() -> None:
    assert zhang_star(3072e6) / 512 == pytest.approx(993, rel=5e-3)
    assert zhang_star(20 * 151e6) / 512 == pytest.approx(93.20 * 151**0.47, rel=5e-3)
    # The law of the same paper at fixed data, 302 million parameters: 1,021 sequences.
    assert zhang_star(3072e6) / 512 == pytest.approx(621.341 * 302**0.087, rel=0.03)


def test_zhang_batch_costs_20_percent_over_its_base_batch_on_the_converted_hyperbola() -> None:
    b_crit = law("data_law", d_min_tokens=D_20B).tokens
    at_star = examples(22.80 * (D_20B / 1e6) ** 0.47 * 512, 1.0, b_crit)
    at_base = examples(256 * 512.0, 1.0, b_crit)
    assert at_star / at_base == pytest.approx(1.2, rel=1e-12)


def test_the_data_law_with_its_band() -> None:
    answer = critical_batch("data_law", LawInputs(d_min_tokens=D_20B))
    assert answer.tokens == pytest.approx(2.428e7, rel=5e-3)
    assert answer.band_tokens == pytest.approx((2.428e7 / 2.5, 2.428e7 * 2.5), rel=5e-3)
    assert kaplan_tokens(BESIROGLU.loss(20e9, D_20B)) < answer.band_tokens[0], "no band holds every law"


FAR = "extrapolated: the law was fitted on 1.7 to 24 billion tokens"


@pytest.mark.parametrize(("parameters", "note"), [(84e6, FAR), (85e6, ""), (1.2e9, ""), (1.21e9, FAR)])
def test_the_data_law_says_where_it_is_extrapolated(parameters: float, note: str) -> None:
    """Models of 85 M to 1.2 B parameters, each trained on 20 tokens per parameter."""
    notes = law("data_law", d_min_tokens=20 * parameters).notes
    assert len(notes) == bool(note)
    assert note in "".join(notes)


def test_data_law_is_floored_where_its_formula_turns_negative() -> None:
    answer = law("data_law", d_min_tokens=1e8)
    assert answer.tokens == FLOOR_TOKENS
    assert "floor" in answer.notes[0]


def test_kaplan_law_names_the_loss_scale_and_widens_for_a_foreign_one() -> None:
    usual, foreign = (law("kaplan_loss", loss=2.1, loss_scale=scale) for scale in ("WebText2", "the Pile"))
    assert usual.tokens == foreign.tokens
    assert (usual.band_factor, foreign.band_factor) == (DEFAULT_BAND_FACTOR, 8.0)
    assert "the Pile" in foreign.notes[0]
    assert "WebText2" in foreign.notes[0]


def test_a_law_says_what_the_user_gave_and_what_nobody_read() -> None:
    constant = law("constant", tokens=3e6, band_factor=1.5)
    assert constant == CriticalBatch(3e6, 1.5, "constant", "given by the user")
    # Of less than a token and without a band is possible.
    assert law("constant", tokens=0.5, band_factor=1.0).band_tokens == (0.5, 0.5)
    runs = {"description": "6 runs", "batches_tokens": (1e5, 1e6), "notes": ("local",)}
    fit = ConvergenceCalibration(name="ours", b_crit_tokens=1e6, band_factor=1.7, **runs)
    assert law("fitted", fit=fit) == CriticalBatch(1e6, 1.7, "fitted", "ours: 6 runs", ("local",))
    assert law("fitted", fit=fit, band_factor=3.0).band_factor == 3.0
    assert "unverified" in law("bergsma_2025", d_min_tokens=D_20B).notes[0]


def test_a_run_of_given_length_needs_the_same_tokens_at_every_batch_and_has_no_band_of_its_own() -> None:
    given = critical_batch("given_length", LawInputs())
    assert given.given_length
    times = [TimeToAccuracy(batch, 2.0, 1e11, given, step_time_error=0.0) for batch in (1e5, 1e8)]
    assert [time.examples_tokens for time in times] == [1e11, 1e11]
    assert all(time.band_s == (time.time_s, time.time_s) for time in times)
    assert "given number of tokens" in times[0].regime_text


def test_over_a_run_the_critical_batch_is_that_of_its_parts_which_add_up() -> None:
    batch, params, d_min = 1e6, 1.3e9, 2.6e10
    whole = law("kaplan_over_run", params=params, d_min_tokens=d_min).tokens
    losses = [KAPLAN.loss(params, (part + 0.5) / 500 * d_min) for part in range(500)]
    parts = tuple(RampPart(1 / 500, critical_batch=kaplan_tokens(loss) / 1e6) for loss in losses)
    run = TimeToAccuracy(batch, 1.0, d_min, CriticalBatch(1e6, 1.0, "constant", "test"), 0.0, ramp=parts)
    assert run.steps == pytest.approx(steps(batch, d_min, whole), rel=1e-3)
    assert kaplan_tokens(losses[0]) < whole < kaplan_tokens(losses[-1])
    (note,) = law("kaplan_over_run", params=2e10, d_min_tokens=4e11).notes
    assert note.startswith("extrapolated")


@pytest.mark.parametrize(
    ("name", "inputs", "words"),
    [
        ("constant", {}, "'constant' needs critical_batch_tokens"),
        *((name, {}, f"'{name}' needs") for name in sorted(set(LAWS) - {"given_length", "constant"})),
        ("kaplan_loss", {"loss": 2.0}, "loss_scale"),
    ],
)
def test_what_no_law_can_answer_is_refused(name: str, inputs: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        law(name, **inputs)


def test_a_model_too_small_for_the_loss_is_refused_with_the_least_it_reaches() -> None:
    assert BESIROGLU.loss(20e9, 4e11) == pytest.approx(2.0621, rel=1e-4)
    with pytest.raises(PlanError, match=r"too small for a loss of 1\.9: .* approaches 1\.9432") as refusal:
        BESIROGLU.tokens_to_loss(1.9, 20e9)
    assert refusal.value.exit_code == 3
    for law, loss in ((BESIROGLU, BESIROGLU.smallest_loss(1e9)), (KAPLAN, 1.0)):
        with pytest.raises(PlanError, match="too small"):
            law.tokens_to_loss(loss, 1e9)


def test_the_pile_law_of_the_five_smaller_models_predicts_the_two_larger_ones() -> None:
    law = LossLaw.of_compute(CEREBRAS_GPT[:5])
    assert law.params == (111e6, 2.7e9)
    misses = [law.loss(params, tokens) - loss for params, tokens, loss in CEREBRAS_GPT[:5]]
    assert law.error == pytest.approx(max(SEED_ERROR, 1.645 * math.sqrt(fmean(miss**2 for miss in misses))))
    for params, tokens, loss in CEREBRAS_GPT[5:]:
        assert abs(law.loss(params, tokens) - loss) < 0.03


def test_13b_reaches_the_published_loss_on_the_pile_at_the_published_tokens() -> None:
    target = LOSS_LAWS["cerebras_gpt"].target(1.575, 12.85e9, "Pile")
    assert target.tokens / (1 + target.d_min_error) < 2.57e11 < target.tokens * (1 + target.d_min_error)
    assert target.tokens == pytest.approx(2.57e11, rel=0.12)
    assert target.slope == pytest.approx(12.7, abs=0.1)
    assert target.text == "0.01 nat of loss is 13 % of the tokens, and the law is known within 0.038 nat"


@pytest.mark.parametrize(
    ("name", "loss", "params", "words"),
    [
        ("besiroglu", 1.95, 20e9, r"tokens, while its runs have 5e\+09 to 5e\+11"),
        ("besiroglu", 2.2, 100e9, "parameters, while its runs have"),
        ("cerebras_gpt", 2.0, 13e9, "tokens a parameter, while its runs have 20"),
        ("cerebras_gpt", 1.43, 40e9, "parameters, while its runs have"),
        ("kaplan", 2.5, 13e9, "parameters, while its runs have 768"),
    ],
)
def test_a_law_is_refused_outside_its_runs_by_name(name: str, loss: float, params: float, words: str) -> None:
    with pytest.raises(InputError, match=f"loss law '{name}' is used outside its runs .*{words}") as refusal:
        LOSS_LAWS[name].target(loss, params)
    assert "other laws: " in str(refusal.value)


def test_a_law_is_refused_for_another_corpus() -> None:
    other = r"'besiroglu' is of MassiveText, not of the Pile.*cerebras_gpt \(the Pile\)"
    with pytest.raises(InputError, match=other):
        BESIROGLU.target(2.1, 13e9, "the Pile")
    assert BESIROGLU.target(2.2, 13e9, "massivetext") == BESIROGLU.target(2.2, 13e9)


BATCHES = [100.0, 400.0, 1600.0, 6400.0]


def on_hyperbola(batches: list[float], e_min: float = 1e6, b_crit: float = 2000.0) -> list[float]:
    return [e_min * (1 + batch / b_crit) for batch in batches]


def test_a_fit_sees_each_batch_once_whatever_the_order_and_is_less_sure_of_scattered_points() -> None:
    measured = on_hyperbola(BATCHES)
    fit = HyperbolaFit.of(BATCHES, measured)
    assert HyperbolaFit.of(BATCHES[::-1], measured[::-1]) == fit
    repeated = HyperbolaFit.of([100.0, 100.0, *BATCHES], [0.9 * measured[0], 1.1 * measured[0], *measured])
    assert repeated.b_crit == pytest.approx(2000.0, rel=1e-4)
    low, high = fit.b_crit_interval
    assert fit.b_crit / fit.band_factor < low < fit.b_crit < high < fit.b_crit * fit.band_factor
    scattered = [value * factor for value, factor in zip(measured, (1.15, 0.85, 1.15, 0.9), strict=True)]
    assert HyperbolaFit.of(BATCHES, scattered).band_factor > fit.band_factor


def test_interval_of_one_standard_error_covers_the_truth_as_often_as_students_t_says() -> None:
    # Six batch sizes leave four degrees of freedom: |t| < 1 in 63 % of draws.
    batches = [250.0 * 2**i for i in range(6)]
    noise = np.random.default_rng(7).normal(0, 0.1, size=(400, 6))
    intervals = [
        HyperbolaFit.of(batches, on_hyperbola(batches) * np.exp(row)).b_crit_interval for row in noise
    ]
    assert np.mean([low < 2000 < high for low, high in intervals]) == pytest.approx(0.63, abs=0.05)


FLAT = [1.0, 1.0, 1.0, 1.0]
OCTAVES = [100.0 * 2**i for i in range(8)]
SEEDS = [1.22e9, 1.20e9, 1.23e9, 1.19e9, 1.22e9, 1.24e9, 13790871552.0]
"""Of gpt3 4.1.0 at batch 3072, one with a digit too many; the others stand near their printed mean."""


@pytest.mark.parametrize(
    ("batches", "measured", "error", "words"),
    [
        # MLPerf v0.6 Transformer on 16 to 1,024 chips: six runs at two batch sizes.
        ([512] * 3 + [2048] * 3, [2.2, 2.4, 2.3, 5.3, 5.2, 5.1], NotIdentifiableError, "2 batch sizes"),
        ([15360, 16384, 18432], [721920, 767317, 857088], NotIdentifiableError, r"span 1\.20x"),
        (BATCHES, FLAT, NotIdentifiableError, "does not grow with the batch"),
        (BATCHES, BATCHES, NotIdentifiableError, "grows in proportion"),
        (
            OCTAVES,
            [e * (10 if at == 3 else 1) for at, e in enumerate(on_hyperbola(OCTAVES))],
            InputError,
            r"batch 800: .* 10 times off",
        ),
        (
            [1536, 2048, *([3072] * 7)],
            [1.2e9, 1.18e9, *SEEDS],
            InputError,
            r"batch 3072: 1\.37909e\+10 is 11\.3 times off the median",
        ),
        ([1536, 2048] + [3072] * 6, [1.2e9, 1.18e9, *SEEDS[:5], 1.2e8], InputError, r": 1\.2e\+08 is 10\.08"),
    ],
)
def test_points_that_determine_no_fit_are_refused_with_the_reason(
    batches: list[float], measured: list[float], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        HyperbolaFit.of(batches, measured)


def test_kinds_of_runs_are_told_apart() -> None:
    """Fine-tuning is refused, a warm start marked as local."""
    measured = on_hyperbola(BATCHES)
    assert "pre-training" in HyperbolaFit.of(BATCHES, measured, run_kind="warm-start").notes[0]
    with pytest.raises(NotIdentifiableError, match="fine-tuning"):
        HyperbolaFit.of(BATCHES, measured, run_kind="fine-tuning")


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_digit_too_many_or_too_few_never_becomes_a_fit(position: int, factor: float) -> None:
    measured = on_hyperbola(BATCHES)
    measured[position] *= factor
    with pytest.raises((InputError, NotIdentifiableError)):
        HyperbolaFit.of(BATCHES, measured)


def test_error_of_a_prediction_grows_with_the_distance_and_ends_in_refusal() -> None:
    errors = [relative_error(batch, BATCHES) for batch in (1600.0, 12800.0, 25600.0)]
    assert errors == pytest.approx([0.0987, 0.18, 0.31], rel=1e-4)
    assert relative_error(50.0, BATCHES) == 0.18
    with pytest.raises(NotIdentifiableError, match=r"5\.0 times the largest"):
        relative_error(32000.0, BATCHES)


def test_an_expected_critical_batch_bounds_what_flat_runs_leave_open() -> None:
    fit = HyperbolaFit.of([8, 16, 32, 64], FLAT, prior=True)
    low, high = fit.b_crit_interval
    assert 64 < low < fit.b_crit < high < math.inf
    assert fit.e_min_interval[0] < fit.e_min < fit.e_min_interval[1]


def test_runs_that_say_enough_overrule_the_expectation() -> None:
    batches = [8.0 * 2**number for number in range(9)]
    fit = HyperbolaFit.of(batches, [1000 * (1 + batch / 64) for batch in batches], prior=True)
    assert fit.b_crit == pytest.approx(64, rel=0.03)
    assert fit.rms_log < 0.01
