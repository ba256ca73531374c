"""Perturbations of a step or a run, in the YAML of a study or in the text of `--perturb`."""

from __future__ import annotations

from string import ascii_lowercase
from typing import Annotated, Any

from pydantic import ValidationError, model_validator

from perfsim.base.errors import InputError, Problem, refused_values
from perfsim.base.sizes import MOST_DEVICES
from perfsim.base.spec import Spec
from perfsim.base.text import did_you_mean
from perfsim.base.units import number

Factor = Annotated[float, *number(1, 1000)]
Share = Annotated[float, *number(0, 1)]
Rank = Annotated[int, *number(0, MOST_DEVICES)]


class StragglerSpec(Spec):
    """A rank (GPU or wafer) whose computation takes `factor` times as long, always."""

    rank: Rank
    factor: Factor


class _StepStragglersSpec(Spec):
    """Ranks that are slow for one step, each with probability `share`; drawn for every step."""

    share: Share
    factor: Factor


class _LinkSpecLeft(Spec):
    """The remaining bandwidth share of a link, named by its ends (`leaf0-spine3`); 0 is dead."""

    link: str
    left: Share
    system: str | None = None
    """The system of the link in a study of several systems; None: every candidate that has the link."""


class PerturbationSpec(Spec):
    """Perturbations of a step or a run; the same seed gives identical results."""

    seed: Annotated[int, *number(0, 2**32 - 1)] = 0
    stragglers: tuple[StragglerSpec, ...] = ()
    step_stragglers: _StepStragglersSpec | None = None
    jitter: Share = 0.0
    """Sigma of lognormal noise, mean 1, on every computation of every rank."""
    links: tuple[_LinkSpecLeft, ...] = ()
    draws: Annotated[int, *number(1, 64)] = 3
    """Number of draws where something is random; the draw with the median step time is the result."""

    @model_validator(mode="after")
    def _unique_links(self) -> PerturbationSpec:
        seen: dict[frozenset[str], set[str | None]] = {}
        for link in self.links:
            systems = seen.setdefault(frozenset(link.link.split("-")), set())
            if link.system in systems or None in systems or (systems and link.system is None):
                raise ValueError(f"link {link.link} is given twice; keep one entry")
            systems.add(link.system)
        return self

    @property
    def text(self) -> str:
        parts = [f"rank {slow.rank} computes {slow.factor:g} times as long" for slow in self.stragglers]
        if drawn := self.step_stragglers:
            ranks = f"{100 * drawn.share:g} % of the ranks of a step"
            parts.append(f"{ranks} compute {drawn.factor:g} times as long")
        if self.jitter:
            parts.append(f"jitter with sigma {self.jitter:g}")
        for link in self.links:
            name = link.link if link.system is None else f"{link.link} of {link.system}"
            parts.append(f"{name} {f'at {100 * link.left:g} %' if link.left else 'dead'}")
        return ", ".join([*parts, f"seed {self.seed}"])


_PLAIN = {"jitter": float, "seed": int, "draws": int}
_SEVERAL = ("straggler", "slow", "dead")
"""Keys that may be repeated, for different ranks or links."""
_EXAMPLES = {
    "straggler": "straggler=1.3@rank5",
    "step-straggler": "step-straggler=1.3@0.01",
    "slow": "slow=0.5@leaf0-spine3",
    "dead": "dead=leaf0-spine3",
    **dict.fromkeys(_PLAIN, "straggler=1.3@rank5,jitter=0.02,seed=1"),
}


def parse_perturbations(text: str) -> PerturbationSpec:
    """The specification of `straggler=1.3@rank5,jitter=0.02,seed=1`; InputError lists all problems."""
    given: dict[str, Any] = {"stragglers": [], "links": []}
    problems = []
    seen: set[str] = set()
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = (part.strip() for part in item.partition("="))
        if key in seen and key not in _SEVERAL:
            problems.append(Problem(f"--perturb {item!r}: {key} is given twice", help="keep one entry"))
        seen.add(key)
        try:
            _read(given, key, value)
        except ValueError as error:
            example = _EXAMPLES.get(key)
            help_text = f"write for example {example}" if example else did_you_mean(key, list(_EXAMPLES))
            problems.append(Problem(f"--perturb {item!r}: {error}", help=help_text))
    if problems:
        raise InputError(problems)
    try:
        return PerturbationSpec.model_validate(given)
    except ValidationError as error:
        lines = refused_values(error.errors())
        raise InputError([Problem(f"--perturb {text!r}: {line}") for line in lines]) from None


def _read(given: dict[str, Any], key: str, value: str) -> None:
    """Add the value of one key to the fields of the specification; ValueError says what is wrong with it."""
    amount, _, where = value.partition("@")
    if key == "straggler":
        rank = _number(where.lstrip(ascii_lowercase), int)
        given["stragglers"].append({"rank": rank, "factor": _number(amount)})
    elif key == "step-straggler":
        given["step_stragglers"] = {"factor": _number(amount), "share": _number(where)}
    elif key == "slow":
        given["links"].append({"link": where, "left": _number(amount)})
    elif key == "dead":
        given["links"].append({"link": value, "left": 0.0})
    elif key in _PLAIN:
        given[key] = _number(value, _PLAIN[key])
    else:
        raise ValueError("unknown name")


def _number(text: str, kind: type[int] | type[float] = float) -> float:
    words = "a whole number" if kind is int else "a number"
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {words}" if text else f"{words} is missing") from None
