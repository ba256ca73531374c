"""Critical-batch laws against their published and derived numbers."""

from __future__ import annotations

from typing import Any

import pytest

from perfsim.base.errors import InputError
from perfsim.convergence.critical_batch import (
    DEFAULT_BAND_FACTOR,
    DEFAULT_LAW,
    FLOOR_TOKENS,
    LAWS,
    CriticalBatch,
    LawInputs,
    critical_batch,
    deepseek_tokens,
    examples,
    minicpm_tokens,
)
from perfsim.convergence.laws import BESIROGLU, KAPLAN
from perfsim.convergence.time_to_accuracy import TimeToAccuracy
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


def test_default_is_the_data_law_with_its_band() -> None:
    answer = critical_batch(inputs=LawInputs(d_min_tokens=D_20B))
    assert DEFAULT_LAW == answer.law == "data_law"
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


def test_kaplan_batch_of_one_to_two_million_tokens_holds_for_these_losses_only() -> None:
    for loss, tokens in ((3.04, 1.05e6), (2.63, 2.1e6)):
        assert kaplan_tokens(loss) == pytest.approx(tokens, rel=0.06)


def test_a_law_says_what_the_user_gave_and_what_nobody_read() -> None:
    constant = law("constant", tokens=3e6, band_factor=1.5)
    assert constant == CriticalBatch(3e6, 1.5, "constant", "given by the user")
    # Of less than a token and without a band is possible.
    assert law("constant", tokens=0.5, band_factor=1.0).band_tokens == (0.5, 0.5)
    fit = ConvergenceCalibration(
        name="ours",
        description="6 runs",
        b_crit_tokens=1e6,
        band_factor=1.7,
        batches_tokens=(1e5, 1e6),
        notes=("local",),
    )
    assert law("fitted", fit=fit) == CriticalBatch(1e6, 1.7, "fitted", "ours: 6 runs", ("local",))
    assert law("fitted", fit=fit, band_factor=3.0).band_factor == 3.0
    assert "unverified" in law("bergsma_2025", d_min_tokens=D_20B).notes[0]


def test_a_run_of_given_length_needs_the_same_tokens_at_every_batch_and_has_no_band_of_its_own() -> None:
    given = critical_batch("given_length")
    assert given.given_length
    times = [TimeToAccuracy(batch, 2.0, 1e11, given, step_time_error=0.0) for batch in (1e5, 1e8)]
    assert [time.examples_tokens for time in times] == [1e11, 1e11]
    assert all(time.band_s == (time.time_s, time.time_s) for time in times)
    assert "given number of tokens" in times[0].regime_text


@pytest.mark.parametrize(
    ("name", "inputs", "words"),
    [
        *((name, {}, f"'{name}' needs") for name in sorted(set(LAWS) - {"given_length"})),
        ("kaplan_loss", {"loss": 2.0}, "loss_scale"),
        ("kaplan_los", {}, "did you mean `kaplan_loss`"),
        ("constant", {"tokens": 0.0, "band_factor": 2.0}, "critical"),
        ("constant", {"tokens": float("nan"), "band_factor": 2.0}, "critical"),
        ("constant", {"tokens": 1e6, "band_factor": 0.5}, "critical"),
        ("constant", {"tokens": 1e6, "band_factor": 0.0}, "critical"),
    ],
)
def test_what_no_law_can_answer_is_refused(name: str, inputs: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        law(name, **inputs)


def test_impossible_arguments_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="compute_flop"):
        deepseek_tokens(0.0)
    with pytest.raises(InputError, match="loss"):
        minicpm_tokens(-1.0)
