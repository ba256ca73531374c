"""Likely causes of an error, by explicit rules on the parts of the predicted step and on the run.

Unusual facts come first (weak evidence, a head size off the fast path, tensor parallelism between nodes,
...). Then come mechanisms large enough to explain the error alone, by size: a mechanism with the share s of
the predicted step must be wrong by the factor 1 - e / ((1 + e) s), where e is the error; it is named if
that is between 0 and 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from perfsim.published.cases import StepCase

MOST_CAUSES = 2
HEAD_MULTIPLE = 8
"""Attention's matrix products read 16-byte rows only if the head size is a multiple of this."""
FEWEST_ROWS = 16_000
"""A smaller vocabulary is unlikely to have been used."""
FAMILY_BIAS = 0.05
"""Mean error above which a whole family counts as biased."""
LEAST_SHARE = 0.02
"""Least share of the step for an unusual fact to matter."""
MUCH_IDLE = 0.2

MECHANISMS = (
    "tensor-parallel collectives",
    "data-parallel and FSDP traffic",
    "host-launch floor",
    "memory-bound kernels",
    "attention core",
    "embedding, head and loss",
    "optimizer",
    "stage-to-stage transfers",
    "bubble",
    "weight_stream",
    "gradient_stream",
    "movement over the mesh",
)
"""Disjoint removals of the ablation and categories of the breakdown."""
COMPUTING = ("forward", "backward", "recompute")


@dataclass(frozen=True)
class Facts:
    """A case, its error, and the parts of its predicted step."""

    case: StepCase
    error: float
    """Predicted over measured, minus 1."""
    shares: Mapping[str, float]
    """Fraction of the predicted step by mechanism."""
    family_bias: float = 0.0
    """Mean error of the other scored runs of its family; 0 if there are none."""
    tensor_across_nodes: bool = False

    def share(self, mechanism: str) -> float:
        """Fraction of the predicted step of a mechanism."""
        return self.shares.get(mechanism, 0.0)

    def factor(self, mechanism: str) -> float:
        """Factor on the mechanism's time that would make the prediction exact."""
        share = self.share(mechanism)
        return 1.0 - self.error / (1.0 + self.error) / share if share > 0 else float("inf")

    def explains(self, mechanism: str) -> bool:
        """Whether the mechanism alone can explain the error."""
        return self.share(mechanism) > LEAST_SHARE and 0.0 <= self.factor(mechanism) <= 2.0


class Cause(NamedTuple):
    """A cause in words, and its mechanism, if it has one."""

    text: str
    mechanism: str = ""


Rule = Callable[[Facts], Cause | None]


def likely_cause(facts: Facts) -> str:
    """At most two causes, the most likely first."""
    causes = [cause for rule in UNUSUAL if (cause := rule(facts)) is not None][:MOST_CAUSES]
    blamed = {cause.mechanism for cause in causes}
    heavy = sorted(set(MECHANISMS) - blamed, key=lambda name: (-facts.share(name), name))
    causes += [_by_weight(facts, mechanism) for mechanism in heavy if facts.explains(mechanism)]
    texts = [cause.text for cause in causes[:MOST_CAUSES]]
    return "; ".join(texts) or "no single mechanism besides the matrix products is large enough"


def _by_weight(facts: Facts, mechanism: str) -> Cause:
    factor = facts.factor(mechanism)
    return Cause(f"{_share(facts, mechanism)}, right at {factor:.2f} times)", mechanism)


def _share(facts: Facts, mechanism: str, name: str = "") -> str:
    """A mechanism and its share, with the parenthesis left open."""
    words = name or mechanism.replace("_", " ").replace("bubble", "pipeline bubble")
    return f"{words} ({100 * facts.share(mechanism):.0f} % of the step"


def _weak_evidence(facts: Facts) -> Cause | None:
    if facts.case.scored:
        return None
    notes = [part.strip() for part in facts.case.notes.split(";")]
    reasons = [part.removeprefix("weak:").strip() for part in notes if part.startswith("weak:")]
    assumed = [re.split(r"[:(]", part)[0].strip() for part in facts.case.assumed]
    why = reasons[0] if reasons else f"not printed: {', '.join(assumed)}" if assumed else ""
    return Cause(f"weak evidence ({why})" if why else "weak evidence")


def _head_size(facts: Facts) -> Cause | None:
    model, mechanism = facts.case.model, "attention core"
    size = model.hidden_size // model.num_attention_heads
    if size % HEAD_MULTIPLE == 0 or facts.share(mechanism) < LEAST_SHARE:
        return None
    how = "slower still than" if facts.error < 0 else "faster than"
    return Cause(
        f"head size {size} is no multiple of {HEAD_MULTIPLE}: attention {how} without matrix cores", mechanism
    )


def _tensor_across_nodes(facts: Facts) -> Cause | None:
    mechanism = "tensor-parallel collectives"
    if not facts.tensor_across_nodes or facts.share(mechanism) < LEAST_SHARE:
        return None
    return Cause(f"{_share(facts, mechanism, 'tensor parallelism between nodes')})", mechanism)


def _assumed_vocabulary(facts: Facts) -> Cause | None:
    mechanism = "embedding, head and loss"
    rows = facts.factor(mechanism) * facts.case.model.vocab_size
    if "vocab" not in facts.case.assumed or not FEWEST_ROWS <= rows < facts.case.model.vocab_size:
        return None
    return Cause(
        f"{_share(facts, mechanism)} at a vocabulary that is assumed; right with about {rows:,.0f} rows "
        f"in place of {facts.case.model.vocab_size:,})",
        mechanism,
    )


def _shared_by_family(facts: Facts) -> Cause | None:
    bias = facts.family_bias
    if abs(bias) < FAMILY_BIAS or bias * facts.error <= 0:
        return None
    return Cause(f"shared by its family ({100 * bias:+.1f} % on average in its other runs)")


def _host_blocking(facts: Facts) -> Cause | None:
    mechanism = "host-launch floor"
    if not facts.case.training.host_blocking or not facts.explains(mechanism):
        return None
    return Cause(f"{_share(facts, mechanism, 'a host that waits for every kernel')})", mechanism)


def _uneven_stages(facts: Facts) -> Cause | None:
    inferred = any(text.startswith("layers_per_stage") for text in facts.case.assumed)
    return Cause("which stages are short is inferred", "bubble") if inferred else None


def _last_stage(facts: Facts) -> Cause | None:
    mechanism = "embedding, head and loss"
    if facts.case.parallel.pipeline == 1 or not facts.explains(mechanism):
        return None
    return Cause(f"{_share(facts, mechanism, 'embedding, or head and loss on the last stage')})", mechanism)


def _idle(facts: Facts) -> Cause | None:
    if facts.share("bubble") < MUCH_IDLE:
        return None
    return Cause(f"{_share(facts, 'bubble')})", "bubble")


def _release(facts: Facts) -> Cause | None:
    release = facts.case.system.software_release
    share = sum(facts.share(category) for category in COMPUTING)
    if release is None or share <= 0:
        return None
    return Cause(
        f"computing ({100 * share:.0f} % of the step) at one efficiency for all of release {release}"
    )


UNUSUAL: tuple[Rule, ...] = (
    _weak_evidence,
    _head_size,
    _tensor_across_nodes,
    _assumed_vocabulary,
    _shared_by_family,
    _host_blocking,
    _uneven_stages,
    _last_stage,
    _idle,
    _release,
)
