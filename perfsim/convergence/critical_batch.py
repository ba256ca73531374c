"""The critical batch of a run: laws by name, each with its band, source and caveats.

Two definitions differ by a factor of five. Here, as in McCandlish and Kaplan, examples *double* at B_crit.
Zhang's batch B* costs 20 % more steps than *linear scaling* from B_opt would; on the hyperbola this is
E(B*) = 1.2 E(B_opt), so

    B_crit = 5 B* - 6 B_opt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from perfsim.convergence.hyperbola import HyperbolaFit
from perfsim.convergence.uncertain import require_positive
from perfsim.errors import InputError, UnknownNameError

DEFAULT_LAW = "data_law"
DEFAULT_BAND_FACTOR = 2.5
"""90 % band of a law that was not fitted to the run itself. It does not cover every published law: at 20
billion parameters and 20 tokens per parameter, Kaplan's law at a Chinchilla loss is 3.6 times below
`data_law`."""
GIVEN_LENGTH_TOKENS = 1e30
"""A critical batch so large that 1 + B / B_crit is 1: every batch needs the same tokens."""
FLOOR_TOKENS = 2e5
"""The converted law turns negative below about 2.5e8 training tokens."""

_ZHANG_SEQUENCE_TOKENS = 512
_ZHANG_B_OPT_TOKENS = 256 * _ZHANG_SEQUENCE_TOKENS
_ZHANG_FITTED_TOKENS = (20 * 85e6, 20 * 1.2e9)
_BERGSMA_SEQUENCE_TOKENS = 2048
_KAPLAN_LOSS_SCALE = "WebText2"
_ZHANG_SOURCE = (
    "Zhang et al. 2024, arXiv 2410.21676, B* = 93.20 (N/1e6)^0.47 sequences of 512, D = 20 N; converted"
)
_KAPLAN_SOURCE = "Kaplan et al. 2020, arXiv 2001.08361, eq. 5.3: B_crit = 2.1e8 / L^(1/0.21) tokens"
_BERGSMA_SOURCE = "Bergsma et al. 2025, arXiv 2505.13738: exponent read, coefficient recalled"


@dataclass(frozen=True, slots=True)
class CriticalBatch:
    """B_crit with its 90 % band: `tokens` divided and multiplied by `band_factor`."""

    tokens: float
    band_factor: float
    law: str
    source: str
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise InputError for an impossible batch or band."""
        if not (math.isfinite(self.tokens) and self.tokens > 0):
            raise InputError(f"the critical batch must be positive and finite, got {self.tokens:g} tokens")
        if not (math.isfinite(self.band_factor) and self.band_factor >= 1):
            raise InputError(
                f"the band factor of a critical batch must be at least 1, got {self.band_factor:g}"
            )

    @property
    def given_length(self) -> bool:
        """Whether the run has the same number of tokens at every batch."""
        return self.tokens >= GIVEN_LENGTH_TOKENS

    @property
    def shown_tokens(self) -> float:
        """The critical batch for reports; NaN if there is none."""
        return math.nan if self.given_length else self.tokens

    @property
    def shown_band_tokens(self) -> tuple[float, float]:
        """The band for reports; NaN if there is none."""
        return (math.nan, math.nan) if self.given_length else self.band_tokens

    @property
    def band_tokens(self) -> tuple[float, float]:
        """Low and high end of the 90 % band."""
        return self.tokens / self.band_factor, self.tokens * self.band_factor


@dataclass(frozen=True, slots=True)
class LawInputs:
    """Inputs of the laws; each law uses some of them and names a missing one.

    `loss` is in nats per token, `loss_scale` names its corpus. `tokens` and `source` are for law
    `constant`, `band_factor` replaces any law's band. `fit` is for law `fitted`: its batches count units
    of `tokens_per_example` tokens.
    """

    d_min_tokens: float | None = None
    loss: float | None = None
    loss_scale: str = ""
    tokens: float | None = None
    band_factor: float | None = None
    source: str = ""
    fit: HyperbolaFit | None = None
    tokens_per_example: float = 1.0


def critical_batch(law: str = DEFAULT_LAW, inputs: LawInputs | None = None) -> CriticalBatch:
    """B_crit by the law of that name in LAWS; InputError on an unknown name or a missing input."""
    if law not in LAWS:
        raise UnknownNameError("critical-batch law", law, LAWS)
    return LAWS[law](inputs or LawInputs())


def zhang_20_percent_tokens(d_min_tokens: float) -> float:
    """Zhang's own critical batch B* in tokens: 20 % more steps than linear scaling, not a doubling of E."""
    return (
        22.80 * math.pow(_need(d_min_tokens, "data_law", "d_min_tokens") / 1e6, 0.47) * _ZHANG_SEQUENCE_TOKENS
    )


def zhang_converted_tokens(d_min_tokens: float) -> float:
    """B_crit = 5 B* - 6 B_opt in tokens, B_opt = 256 sequences of 512; may be negative below 2.5e8 tokens."""
    return 5 * zhang_20_percent_tokens(d_min_tokens) - 6 * _ZHANG_B_OPT_TOKENS


def kaplan_tokens(loss: float) -> float:
    """B_crit = 2.1e8 / L^(1/0.21) tokens; the paper's text rounds the coefficient to 2e8."""
    return 2.1e8 / math.pow(_need(loss, "kaplan_loss", "loss"), 1 / 0.21)


def bergsma_tokens(d_min_tokens: float) -> float:
    """B_crit = 0.0471 D_min^0.462 sequences of 2048, in tokens. The coefficient is unverified."""
    d_min = _need(d_min_tokens, "bergsma_2025", "d_min_tokens")
    return 0.0471 * math.pow(d_min, 0.462) * _BERGSMA_SEQUENCE_TOKENS


def _need(value: float | None, law: str, name: str) -> float:
    if value is None:
        raise InputError(f"critical-batch law '{law}' needs {name}")
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"critical-batch law '{law}': {name} must be positive and finite, got {value:g}")
    return value


def _band(inputs: LawInputs, default: float) -> float:
    return default if inputs.band_factor is None else inputs.band_factor


def _data_law(inputs: LawInputs) -> CriticalBatch:
    d_min = _need(inputs.d_min_tokens, "data_law", "d_min_tokens")
    tokens = zhang_converted_tokens(d_min)
    low, high = _ZHANG_FITTED_TOKENS
    notes = []
    if tokens < FLOOR_TOKENS:
        notes.append(f"raised to the floor of {FLOOR_TOKENS:g} tokens: the law does not reach down here")
    if not low <= d_min <= high:
        notes.append(f"extrapolated: the law was fitted on {low / 1e9:g} to {high / 1e9:g} billion tokens")
    return CriticalBatch(
        max(tokens, FLOOR_TOKENS),
        _band(inputs, DEFAULT_BAND_FACTOR),
        "data_law",
        _ZHANG_SOURCE,
        tuple(notes),
    )


def _kaplan_loss(inputs: LawInputs) -> CriticalBatch:
    loss = _need(inputs.loss, "kaplan_loss", "loss")
    if not inputs.loss_scale:
        raise InputError(
            "critical-batch law 'kaplan_loss' needs loss_scale: on which corpus is the loss measured?"
        )
    note, band = f"loss {loss:g} on the scale of {inputs.loss_scale}", DEFAULT_BAND_FACTOR
    if inputs.loss_scale.casefold() != _KAPLAN_LOSS_SCALE.casefold():
        note += f", but the law was fitted on {_KAPLAN_LOSS_SCALE}: other corpora move it by 3 to 8 times"
        band = 8.0
    return CriticalBatch(kaplan_tokens(loss), _band(inputs, band), "kaplan_loss", _KAPLAN_SOURCE, (note,))


def _bergsma_2025(inputs: LawInputs) -> CriticalBatch:
    tokens = bergsma_tokens(_need(inputs.d_min_tokens, "bergsma_2025", "d_min_tokens"))
    note = "the coefficient 0.0471 was recalled, not read in the paper: unverified"
    return CriticalBatch(tokens, _band(inputs, DEFAULT_BAND_FACTOR), "bergsma_2025", _BERGSMA_SOURCE, (note,))


def _constant(inputs: LawInputs) -> CriticalBatch:
    tokens = _need(inputs.tokens, "constant", "tokens")
    band = _band(inputs, DEFAULT_BAND_FACTOR)
    return CriticalBatch(tokens, band, "constant", inputs.source or "given by the user")


def _given_length(_: LawInputs) -> CriticalBatch:
    return CriticalBatch(
        GIVEN_LENGTH_TOKENS, 1.0, "given_length", "the run has a given number of tokens at every batch"
    )


def _fitted(inputs: LawInputs) -> CriticalBatch:
    if inputs.fit is None:
        raise InputError(
            "critical-batch law 'fitted' needs fit: a table of batches and examples to the target"
        )
    scale = _need(inputs.tokens_per_example, "fitted", "tokens_per_example")
    band = _band(inputs, inputs.fit.band_factor)
    source = inputs.source or f"fit to {len(inputs.fit.batches)} measured batch sizes"
    return CriticalBatch(inputs.fit.b_crit * scale, band, "fitted", source, inputs.fit.notes)


LAWS: Mapping[str, Callable[[LawInputs], CriticalBatch]] = {
    "data_law": _data_law,
    "kaplan_loss": _kaplan_loss,
    "bergsma_2025": _bergsma_2025,
    "constant": _constant,
    "fitted": _fitted,
    "given_length": _given_length,
}
"""Name in a study's YAML to the law. A new law is one function and one line here."""


def deepseek_tokens(compute_flop: float) -> float:
    """B_opt = 0.2920 C^0.3271 tokens, C without embeddings. DeepSeek LLM, arXiv 2401.02954, eq. 1."""
    require_positive(compute_flop=compute_flop)
    return 0.2920 * math.pow(compute_flop, 0.3271)


def minicpm_tokens(loss: float) -> float:
    """B_opt = 1.21e9 / L^6.24 tokens, L on the scale of C4. MiniCPM, arXiv 2404.06395, section 3.2."""
    require_positive(loss=loss)
    return 1.21e9 / math.pow(loss, 6.24)
