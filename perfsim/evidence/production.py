"""Production runs and published ratios of speeds next to what is predicted for them; they score nothing.

What could explain a scaling over many wafer-scale systems below the predicted one: gradients that take longer
to add up over more systems, slower links, or one system on which all others wait (`slowest_of`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field, SerializeAsAny

from perfsim.base.sizes import MOST_CASES
from perfsim.base.spec import Spec
from perfsim.base.units import number
from perfsim.catalog import Catalog, data_root, parse_file
from perfsim.costs.price import slowest_of
from perfsim.evidence.cases import STREAMING
from perfsim.prediction.bands import unknowns_of
from perfsim.prediction.planner import best_plan, plan_of
from perfsim.prediction.question import Question
from perfsim.prediction.run import Evaluation, evaluate
from perfsim.specs.hardware import Devices, SystemSpec, WaferClusterSpec
from perfsim.specs.layout import Layout
from perfsim.specs.model import TransformerConfig
from perfsim.specs.recipe import Recipe, Sequences

Version = Annotated[int, *number(1, 1000)]


class _ProductionRun(Spec):
    """One production run on GPUs, with the layout that it used as far as that is published."""

    name: str
    model: TransformerConfig
    recipe: Recipe
    system: SerializeAsAny[SystemSpec]
    devices: Devices
    layout: str
    global_batch_size: Sequences
    tokens_per_s_per_device: Annotated[float, *number(1e-6, 1e12)]
    """As published."""
    source: str
    assumed: dict[str, str] = Field(default_factory=dict)
    """By field, the reason for a value that is not published."""


class _ProductionFile(Spec):
    """A file of production runs."""

    schema_version: Version = Field(alias="schema")
    runs: Annotated[tuple[_ProductionRun, ...], Field(min_length=1, max_length=MOST_CASES)]


def production_record(catalog: Catalog) -> list[dict[str, Any]]:
    """By production run, its published rate, the predicted rate of its healthy steps, and their ratio."""
    file = data_root() / "studies" / "production" / "runs.yaml"
    rows = []
    for run in parse_file(file, _ProductionFile, catalog).runs:
        # The run is known to fit in memory, so the memory model cannot refuse it.
        given = {name: getattr(run, name) for name in ("model", "recipe", "system", "devices", "layout")}
        question = Question(**given, strategy="3d", batch=run.global_batch_size, must_fit=False)
        published = run.tokens_per_s_per_device
        healthy = best_plan(question.check()).tokens_per_s / run.devices
        rates = {"published": published, "healthy": round(healthy, 1)}
        of_devices = {f"{name}_tokens_per_s_per_device": rate for name, rate in rates.items()}
        rows.append({"name": run.name, **of_devices, "ratio": round(published / healthy, 4)})
    return rows


_LARGEST = 1e6
"""The largest factor on a cost that is tried."""
_HALVINGS = 12
"""Halvings of its logarithm, after which it is known within 0.2 %."""
_Ratio = Annotated[float, *number(1e-6, 1e6)]


class _RatioRun(Spec):
    """One run, with its speed as a ratio to the speed of the first run of the file."""

    name: str
    model: TransformerConfig
    systems: Devices
    global_batch_size: Sequences
    ratio: _Ratio
    """Tokens a second and system over the first run's."""
    assumed: dict[str, str] = Field(default_factory=dict)
    """By field, the reason for a value on which sources differ."""


class _Efficiency(Spec):
    """Throughput of many systems over as many times the throughput of fewer."""

    name: str
    fewer: Devices
    systems: Devices
    efficiency: _Ratio
    least: bool = False
    """Whether only a lower bound is published."""
    source: str


class ScalingFile(Spec):
    """A file of published ratios, all of one machine and recipe."""

    schema_version: Version = Field(alias="schema")
    recipe: Recipe
    system: SerializeAsAny[SystemSpec]
    source: str
    runs: Annotated[tuple[_RatioRun, ...], Field(min_length=2, max_length=MOST_CASES)]
    efficiencies: Annotated[tuple[_Efficiency, ...], Field(max_length=MOST_CASES)] = ()

    @classmethod
    def published(cls, catalog: Catalog) -> ScalingFile:
        """The published ratios that come with perfsim."""
        return parse_file(data_root() / "studies" / "production" / "cerebras_gpt.yaml", cls, catalog)

    @classmethod
    @lru_cache(maxsize=1)
    def compared(cls, catalog: Catalog) -> dict[str, Any]:
        """Published and predicted ratios, over every run on one system, and what may explain the worst."""
        published = cls.published(catalog)
        claims = published.efficiencies
        run = max(published.runs, key=lambda run: run.systems)
        explained = [published.explanations(claim, run) for claim in claims if claim.least]
        return {
            "source": published.source,
            "runs": published.against(),
            "efficiencies": [published.efficiency(claim, run) for claim in claims],
            "explanations": [row for rows in explained for row in rows],
        }

    def step(
        self,
        run: _RatioRun,
        *,
        systems: int | None = None,
        system: SystemSpec | None = None,
        layout: Layout | None = None,
    ) -> Evaluation:
        """A run's predicted step: on other systems, with the batch of each, or with a given layout."""
        count = systems or run.systems
        batch = run.global_batch_size // run.systems * count
        asked: dict[str, Any] = {"model": run.model, "recipe": self.recipe, "system": system or self.system}
        question = Question(**asked, devices=count, strategy=STREAMING, batch=batch, layout=layout)
        return best_plan(question) if layout is None else evaluate(plan_of(question), question.costs)

    def against(self) -> list[dict[str, Any]]:
        """Tokens a second and system of each run over each earlier run on one system, with a band."""
        rows = []
        bases: list[tuple[_RatioRun, float, float]] = []
        for run in self.runs:
            step = self.step(run)
            rate = step.tokens_per_s / run.systems
            # What two runs of one machine do not share.
            width = math.log1p(step.accuracy.unshared_error)
            against = []
            for base, base_rate, base_width in bases:
                measured = run.ratio / base.ratio
                predicted = rate / base_rate
                both = math.hypot(width, base_width)
                band = [predicted * math.exp(-both), predicted * math.exp(both)]
                error = predicted / measured - 1.0
                ratios = {"measured": measured, "predicted": predicted, "error": error, "band": band}
                against.append({"base": base.name, **ratios})
            if run.systems == 1:
                bases.append((run, rate, width))
            if against:
                rows.append({"name": run.name, "systems": run.systems, "against": against})
        return rows

    def efficiency(self, claim: _Efficiency, run: _RatioRun) -> dict[str, Any]:
        """A published efficiency next to a run's with the same batch per system, and its band."""
        fewer, more = (self.step(run, systems=count) for count in (claim.fewer, claim.systems))
        predicted = fewer.step_time_s / more.step_time_s

        def lost(step: Evaluation) -> float:
            """Half-width in log time of what a number of systems may lose."""
            unknowns = unknowns_of(step.plan)
            return sum(unknown.log_width for unknown in unknowns if unknown.code == "devices-outside")

        allowed = predicted * math.exp(lost(fewer) - lost(more))
        claimed = claim.model_dump(exclude={"efficiency"})
        answered = {"predicted": predicted, "predicted_for": run.name, "allowed": allowed}
        return {**claimed, "measured": claim.efficiency, **answered}

    def explanations(self, claim: _Efficiency, run: _RatioRun) -> list[dict[str, Any]]:
        """What each cause alone must be for a step as slow as an efficiency says; none without a tree."""
        if not isinstance(self.system, WaferClusterSpec):
            return []
        # Each cause is to explain the loss alone.
        system = self.system.with_(loss_per_doubling=0.0, speed_spread=0.0)
        tree = system.swarmx
        fewer = self.step(run, systems=claim.fewer, system=system)
        more = self.step(run, systems=claim.systems, system=system)
        loss = 1.0 - claim.efficiency ** (1.0 / math.log2(claim.systems / claim.fewer))
        limit_s = fewer.step_time_s / claim.efficiency

        def slowed(path: str, value_at: Callable[[float], float]) -> float:
            """The value of a part of the tree with which the step takes that long, by halving a factor."""
            low = 0.0
            high = math.log(_LARGEST)
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                changed = system.with_(**{path: value_at(math.exp(middle))})
                step = self.step(run, systems=claim.systems, system=changed, layout=more.plan.layout)
                low, high = (low, middle) if step.step_time_s > limit_s else (middle, high)
            return value_at(math.exp((low + high) / 2))

        hop_s = slowed("swarmx.hop_latency", lambda factor: tree.hop_latency * factor)
        link = slowed("swarmx.bandwidth", lambda factor: tree.bandwidth / factor)
        slower = 1.0 / claim.efficiency - 1.0
        later_s = (limit_s - fewer.step_time_s, more.step_time_s - fewer.step_time_s)
        spread = slower / slowest_of(claim.systems)
        rows = (
            ("each doubling loses", loss, self.system.loss_per_doubling, "fraction"),
            ("gradients add up later", *later_s, "seconds"),
            ("a hop of the tree takes longer", hop_s, tree.hop_latency, "seconds"),
            ("links of the tree are slower", link, tree.bandwidth, "bytes_per_s"),
            ("one system is slower", slower, 0.0, "fraction"),
            ("speeds of systems differ (standard deviation)", spread, self.system.speed_spread, "fraction"),
        )
        shared = {"name": claim.name, "run": run.name, "systems": claim.systems}
        names = ("cause", "needed", "in_model", "unit")
        return [{**shared, **dict(zip(names, row, strict=True))} for row in rows]
