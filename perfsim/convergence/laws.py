"""Loss from parameters and tokens by named laws, and the tokens that reach a target loss.

Losses are nats per token of the corpus and tokenizer of their law, which answers inside its runs and up to
`REACH` times beyond. Its slope d ln D / d L, large near its floor, times its error is the tokens' error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import linear_regression
from typing import Annotated

import numpy as np

from perfsim.base.errors import InputError, PlanError
from perfsim.base.spec import Spec
from perfsim.base.units import number

REACH = 1.5
"""assumed: how far beyond its runs, in parameters and tokens, a law may be used."""
SEED_ERROR = 0.02
"""Scatter of the loss by the seed alone, in nats [Kaplan et al., arXiv 2001.08361]."""
SIZES = np.geomspace(1e7, 1e13, 4801)
"""Parameters among which the size of least compute is looked for."""
RAY = 20.0
"""Tokens a parameter of Cerebras-GPT and of compute-optimal training."""
Ends = tuple[Annotated[float, *number(1, 1e18)], Annotated[float, *number(1, 1e18)]]
"""The least and the largest of some values."""
Exponent = Annotated[float, *number(1e-3, 10)]


class LossLaw(Spec):
    """L(N, D) = (irreducible + a / N^alpha + b / (N^gamma D^beta))^power in nats per token, with its runs."""

    name: str = "own"
    source: str = "the user's own runs"
    corpus: str
    params: Ends
    """Smallest and largest model of its runs."""
    tokens: Ends
    """Fewest and most training tokens of its runs."""
    error: Annotated[float, *number(1e-6, 10)] = SEED_ERROR
    """Half-width of the 90 % band of a loss inside its runs, in nats."""
    counts_embeddings: bool = True
    """Whether N includes the embedding."""
    irreducible: Annotated[float, *number(0, 1e3)]
    a: Annotated[float, *number(0, 1e12)]
    alpha: Exponent
    b: Annotated[float, *number(1e-6, 1e18)]
    beta: Exponent
    gamma: Annotated[float, *number(0, 10)] = 0.0
    """0 as Hoffmann et al. (arXiv 2203.15556) have it, and a power of 1."""
    power: Exponent = 1.0
    ratio: Annotated[float, *number(1e-6, 1e9)] | None = None
    """Tokens a parameter of all its runs, which do not tell what each of the two does; others are outside."""

    @classmethod
    def of_compute(cls, runs: Sequence[tuple[float, float, float]]) -> LossLaw:
        """L = (c / C)^beta with C = 6 N D, by least squares through runs of (parameters, tokens, loss)."""
        c_flop, gamma = power_law([(6.0 * params * tokens, loss) for params, tokens, loss in runs])
        law = cls(
            name="cerebras_gpt",
            source="fitted to the losses of Cerebras-GPT's model cards, arXiv 2304.03208",
            corpus="the Pile",
            params=(min(run[0] for run in runs), max(run[0] for run in runs)),
            tokens=(min(run[1] for run in runs), max(run[1] for run in runs)),
            irreducible=0.0,
            a=0.0,
            alpha=1.0,
            b=math.pow(c_flop / 6.0, gamma),
            beta=gamma,
            gamma=gamma,
            ratio=RAY,
        )
        # The error is the seed's, or 1.645 times the runs' root mean square residual in nats.
        squares = [(law.loss(params, tokens) - loss) ** 2 for params, tokens, loss in runs]
        error = max(SEED_ERROR, 1.645 * math.sqrt(sum(squares) / len(squares)))
        return law.model_copy(update={"error": error})

    def _rest(self, params: float) -> float:
        """What no number of tokens removes."""
        return self.irreducible + self.a / math.pow(params, self.alpha)

    def _gain(self, params: float) -> float:
        """What tokens divide."""
        return self.b / math.pow(params, self.gamma)

    def loss(self, params: float, tokens: float) -> float:
        """Nats per token after `tokens` tokens with `params` parameters."""
        divided = self._gain(params) / math.pow(tokens, self.beta)
        return math.pow(self._rest(params) + divided, self.power)

    def smallest_loss(self, params: float) -> float:
        """The loss that a model of this size approaches with unlimited data."""
        return math.pow(self._rest(params), self.power)

    def tokens_to_loss(self, loss: float, params: float) -> float:
        """The inverse: D_min, examples at small batch. Raises PlanError for a loss that is not reached."""
        floor = self.smallest_loss(params)
        if loss <= floor:
            raise PlanError(
                f"a model of {params:.3g} parameters is too small for a loss of {loss:g}: with unlimited "
                f"tokens it approaches {floor:.4f} nats per token (law '{self.name}'); raise the target loss "
                f"or the model size, or name the loss law of its corpus (this one is of {self.corpus})"
            )
        divided = math.pow(loss, 1 / self.power) - self._rest(params)
        return math.pow(self._gain(params) / divided, 1 / self.beta)

    def least_flop(self, loss: float) -> tuple[float, float]:
        """The least 6 N D that reaches a loss, and the N of it; PlanError where no size does."""
        best = (math.inf, math.nan)
        for size in SIZES.tolist():
            with suppress(PlanError):
                best = min(best, (6.0 * size * self.tokens_to_loss(loss, size), size))
        if math.isinf(best[0]):
            raise PlanError(f"law {self.name} reaches a loss of {loss:g} with no model")
        return best

    def target(self, loss: float, params: float, corpus: str = "") -> LossTarget:
        """The tokens to a loss on a corpus (the law's own where none is named).

        Raises PlanError for too small a model, InputError for another corpus or a point outside the runs.
        """
        others = ", ".join(f"{name} ({law.corpus})" for name, law in LOSS_LAWS.items() if name != self.name)
        if corpus and _plain(corpus) != _plain(self.corpus):
            raise InputError(
                f"loss law '{self.name}' is of {self.corpus}, not of {corpus}: a loss belongs to its corpus "
                f"and tokenizer; other laws: {others}, or the coefficients of your own"
            )
        tokens = self.tokens_to_loss(loss, params)
        if outside := self.outside(params, tokens):
            raise InputError(
                f"loss law '{self.name}' is used outside its runs for a loss of {loss:g}: {outside}; "
                f"other laws: {others}, or give tokens in place of target_loss"
            )
        return LossTarget(self, loss, params, tokens)

    @property
    def data(self) -> str:
        """Its runs in words."""
        (smallest, largest), (fewest, most) = (
            (f"{low / 1e9:.3g}", f"{high / 1e9:.3g}") for low, high in (self.params, self.tokens)
        )
        return (
            f"{self.corpus}, models of {smallest} to {largest} billion parameters on {fewest} to {most} "
            "billion tokens"
        )

    def outside(self, params: float, tokens: float) -> str:
        """Why a point is outside its runs; empty inside."""
        if self.ratio is not None and not self.ratio / REACH <= tokens / params <= self.ratio * REACH:
            return f"{tokens / params:.3g} tokens a parameter, while its runs have {self.ratio:g}"
        spans = (("parameters", params, self.params), ("tokens", tokens, self.tokens))
        for name, value, (low, high) in spans:
            if not low / REACH <= value <= high * REACH:
                return f"{value:.3g} {name}, while its runs have {low:.3g} to {high:.3g}"
        return ""


CEREBRAS_GPT = (
    (111e6, 2.22e9, 2.566),
    (256e6, 5.12e9, 2.299),
    (590e6, 1.18e10, 2.184),
    (1.3e9, 2.63e10, 1.996),
    (2.7e9, 5.3e10, 1.834),
    (6.7e9, 1.33e11, 1.704),
    (13e9, 2.57e11, 1.575),
)
"""Parameters, tokens and loss on the Pile's test set [model cards of Cerebras-GPT, arXiv 2304.03208]."""


def power_law(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Constants c and gamma of L = (c / C)^gamma by least squares in the logarithms of (C, L)."""
    flop, losses = (map(math.log, values) for values in zip(*points, strict=True))
    slope, intercept = linear_regression(list(flop), list(losses))
    return math.exp(-intercept / slope), -slope


BESIROGLU = LossLaw(
    name="besiroglu",
    source="Besiroglu et al. 2024, arXiv 2404.10102: a new fit to 240 runs of Hoffmann et al.",
    corpus="MassiveText",
    params=(7e7, 1.6e10),
    tokens=(5e9, 5e11),
    irreducible=1.8172,
    a=482.01,
    alpha=0.3478,
    b=2085.43,
    beta=0.3658,
)
HOFFMANN = BESIROGLU.with_(
    name="hoffmann",
    source="Hoffmann et al. 2022, arXiv 2203.15556, with the exponents as in its source text",
    irreducible=1.6934,
    a=406.4,
    alpha=0.3392,
    b=410.7,
    beta=0.2849,
)
KAPLAN = LossLaw(  # ((8.8e13 / N)^(0.076 / 0.095) + 5.4e13 / D)^0.095
    name="kaplan",
    source="Kaplan et al. 2020, arXiv 2001.08361 eq. 1.5",
    corpus="WebText2",
    params=(768.0, 1.5e9),
    tokens=(2.2e7, 2.3e10),
    counts_embeddings=False,
    irreducible=0.0,
    a=math.pow(8.8e13, 0.076 / 0.095),
    alpha=0.076 / 0.095,
    b=5.4e13,
    beta=1.0,
    power=0.095,
)
LOSS_LAWS: Mapping[str, LossLaw] = {
    law.name: law for law in (BESIROGLU, HOFFMANN, KAPLAN, LossLaw.of_compute(CEREBRAS_GPT))
}
"""Name in a study's YAML to the law. A new law is one value and one entry here."""
DEFAULT_LOSS_LAW = BESIROGLU.name


@dataclass(frozen=True)
class LossTarget:
    """The tokens at which a model reaches a loss by a law."""

    law: LossLaw
    loss: float
    params: float
    tokens: float

    @property
    def slope(self) -> float:
        """-d ln D / d L here: the relative change of the tokens for each nat of loss."""
        step = 1e-4
        above, below = (self.law.loss(self.params, self.tokens * math.exp(by)) for by in (-step, step))
        return 2 * step / (above - below)

    @property
    def d_min_error(self) -> float:
        """Half-width e of the 90 % band of the tokens D, [D / (1 + e), D (1 + e)]."""
        return math.expm1(self.slope * self.law.error)

    @property
    def text(self) -> str:
        """Slope and uncertainty in words."""
        return (
            f"0.01 nat of loss is {self.slope:.0f} % of the tokens, and the law is known within "
            f"{self.law.error:.2g} nat"
        )


def _plain(corpus: str) -> str:
    return corpus.casefold().removeprefix("the ").strip()
