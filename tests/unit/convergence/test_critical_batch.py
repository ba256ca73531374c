"""Critical-batch laws against their published and derived numbers."""

from __future__ import annotations

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
FIT = ConvergenceCalibration(
    name="ours",
    description="6 runs",
    b_crit_tokens=1e6,
    band_factor=1.7,
    batches_tokens=(1e5, 1e6),
    notes=("local",),
)


# At 20 tokens a parameter: params, loss, Kaplan's own loss; in 1e6 tokens Kaplan at each, Zhang's 20 %, Zhang
# converted, Bergsma.
CHINCHILLA_ROWS = [
    (1.3e9, 2.466, 2.385, 2.85, 3.35, 1.39, 6.15, 6.25),
    (6.7e9, 2.179, 2.093, 5.15, 6.24, 3.00, 14.2, 13.3),
    (13e9, 2.103, 1.986, 6.10, 8.01, 4.09, 19.7, 18.1),
    (20e9, 2.062, 1.919, 6.69, 9.41, 5.01, 24.3, 22.1),
    (175e9, 1.930, 1.620, 9.17, 21.1, 13.9, 68.7, 60.2),
]


def kaplan_tokens(loss: float) -> float:
    return critical_batch("kaplan_loss", LawInputs(loss=loss, loss_scale="WebText2")).tokens


def zhang_tokens(d_min_tokens: float) -> float:
    return critical_batch("data_law", LawInputs(d_min_tokens=d_min_tokens)).tokens


def zhang_star(d_min_tokens: float) -> float:
    """Zhang's own critical batch B*, from B_crit = 5 B* - 6 B_opt with B_opt = 256 sequences of 512."""
    return (zhang_tokens(d_min_tokens) + 6 * 256 * 512) / 5


def bergsma_tokens(d_min_tokens: float) -> float:
    return critical_batch("bergsma_2025", LawInputs(d_min_tokens=d_min_tokens)).tokens


@pytest.mark.parametrize("row", CHINCHILLA_ROWS)
def test_laws_at_chinchilla_tokens_agree_with_the_comparison_table(row: tuple[float, ...]) -> None:
    params, loss, kaplan_scale_loss, kaplan, kaplan_own, zhang_20, zhang, bergsma = row
    tokens = 20 * params
    assert BESIROGLU.loss(params, tokens) == pytest.approx(loss, abs=6e-4)
    assert KAPLAN.loss(params, tokens) == pytest.approx(kaplan_scale_loss, abs=6e-4)
    computed = [
        kaplan_tokens(BESIROGLU.loss(params, tokens)),
        kaplan_tokens(KAPLAN.loss(params, tokens)),
        zhang_star(tokens),
        zhang_tokens(tokens),
        bergsma_tokens(tokens),
    ]
    printed = [1e6 * value for value in (kaplan, kaplan_own, zhang_20, zhang, bergsma)]
    assert computed == pytest.approx(printed, rel=5e-3)


def test_zhang_law_in_tokens_agrees_with_its_law_in_parameters() -> None:
    assert zhang_star(3072e6) / 512 == pytest.approx(993, rel=5e-3)
    assert zhang_star(20 * 151e6) / 512 == pytest.approx(93.20 * 151**0.47, rel=5e-3)
    # The law of the same paper at fixed data, 302 million parameters: 1,021 sequences.
    assert zhang_star(3072e6) / 512 == pytest.approx(621.341 * 302**0.087, rel=0.03)


def test_zhang_batch_costs_20_percent_over_its_base_batch_on_the_converted_hyperbola() -> None:
    b_crit = zhang_tokens(D_20B)
    at_star = examples(22.80 * (D_20B / 1e6) ** 0.47 * 512, 1.0, b_crit)
    at_base = examples(256 * 512.0, 1.0, b_crit)
    assert at_star / at_base == pytest.approx(1.2, rel=1e-12)


def test_default_is_the_data_law_with_its_band() -> None:
    answer = critical_batch(inputs=LawInputs(d_min_tokens=D_20B))
    assert DEFAULT_LAW == answer.law == "data_law"
    assert answer.tokens == pytest.approx(2.428e7, rel=5e-3)
    assert answer.band_tokens == pytest.approx((2.428e7 / 2.5, 2.428e7 * 2.5), rel=5e-3)
    assert kaplan_tokens(BESIROGLU.loss(20e9, D_20B)) < answer.band_tokens[0], "no band holds every law"


@pytest.mark.parametrize(
    ("parameters", "note"),
    [
        (84e6, "extrapolated: the law was fitted on 1.7 to 24 billion tokens"),
        (85e6, ""),
        (1.2e9, ""),
        (1.21e9, "extrapolated: the law was fitted on 1.7 to 24 billion tokens"),
    ],
)
def test_the_data_law_says_where_it_is_extrapolated(parameters: float, note: str) -> None:
    """Models of 85 M to 1.2 B parameters, each trained on 20 tokens per parameter."""
    notes = critical_batch("data_law", LawInputs(d_min_tokens=20 * parameters)).notes
    assert len(notes) == bool(note)
    assert note in "".join(notes)


def test_data_law_is_floored_where_its_formula_turns_negative() -> None:
    answer = critical_batch("data_law", LawInputs(d_min_tokens=1e8))
    assert answer.tokens == FLOOR_TOKENS
    assert "floor" in answer.notes[0]


def test_kaplan_law_names_the_loss_scale_and_widens_for_a_foreign_one() -> None:
    own = critical_batch("kaplan_loss", LawInputs(loss=2.1, loss_scale="WebText2"))
    foreign = critical_batch("kaplan_loss", LawInputs(loss=2.1, loss_scale="the Pile"))
    assert own.tokens == foreign.tokens
    assert (own.band_factor, foreign.band_factor) == (DEFAULT_BAND_FACTOR, 8.0)
    assert "the Pile" in foreign.notes[0]
    assert "WebText2" in foreign.notes[0]


def test_a_law_says_what_the_user_gave_and_what_nobody_read() -> None:
    constant = critical_batch("constant", LawInputs(tokens=3e6, band_factor=1.5))
    assert constant == CriticalBatch(3e6, 1.5, "constant", "given by the user")
    fitted = critical_batch("fitted", LawInputs(fit=FIT))
    assert fitted == CriticalBatch(1e6, 1.7, "fitted", "ours: 6 runs", ("local",))
    assert "unverified" in critical_batch("bergsma_2025", LawInputs(d_min_tokens=D_20B)).notes[0]
    assert critical_batch("fitted", LawInputs(fit=FIT, band_factor=3.0)).band_factor == 3.0


def test_a_run_of_given_length_needs_the_same_tokens_at_every_batch_and_has_no_band_of_its_own() -> None:
    given = critical_batch("given_length")
    assert given.given_length
    times = [TimeToAccuracy(batch, 2.0, 1e11, given, step_time_error=0.0) for batch in (1e5, 1e8)]
    assert [time.examples_tokens for time in times] == [1e11, 1e11]
    assert all(time.band_s == (time.time_s, time.time_s) for time in times)
    assert "given number of tokens" in times[0].regime_text


@pytest.mark.parametrize("law", sorted(set(LAWS) - {"given_length"}))
def test_every_law_says_what_it_misses(law: str) -> None:
    with pytest.raises(InputError, match=f"'{law}' needs"):
        critical_batch(law)


@pytest.mark.parametrize(
    ("law", "inputs", "words"),
    [
        ("kaplan_loss", LawInputs(loss=2.0), "loss_scale"),
        ("kaplan_los", LawInputs(), "did you mean `kaplan_loss`"),
        *(
            ("constant", LawInputs(tokens=tokens, band_factor=band), "critical")
            for tokens, band in ((0.0, 2.0), (float("nan"), 2.0), (1e6, 0.5), (1e6, 0.0))
        ),
    ],
)
def test_what_no_law_can_answer_is_refused(law: str, inputs: LawInputs, words: str) -> None:
    with pytest.raises(InputError, match=words):
        critical_batch(law, inputs)


def test_a_critical_batch_of_less_than_a_token_and_without_a_band_is_possible() -> None:
    smallest = critical_batch("constant", LawInputs(tokens=0.5, band_factor=1.0))
    assert smallest.band_tokens == (0.5, 0.5)


@pytest.mark.parametrize(
    ("compute_flop", "loss", "deepseek", "minicpm"),
    [
        (2.03e20, 2.466, 1.28e6, 4.33e6),
        (5.39e21, 2.179, 3.75e6, 9.38e6),
        (2.03e22, 2.103, 5.78e6, 11.7e6),
        (4.8e22, 2.062, 7.66e6, 13.2e6),
        (3.67e24, 1.930, 31.7e6, 20.0e6),
    ],
)
def test_suggested_batches_of_the_comparison_table(
    compute_flop: float, loss: float, deepseek: float, minicpm: float
) -> None:
    assert deepseek_tokens(compute_flop) == pytest.approx(deepseek, rel=5e-3)
    assert minicpm_tokens(loss) == pytest.approx(minicpm, rel=5e-3)


def test_impossible_arguments_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="compute_flop"):
        deepseek_tokens(0.0)
    with pytest.raises(InputError, match="loss"):
        minicpm_tokens(-1.0)
