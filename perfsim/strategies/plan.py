"""The strategy protocol, and the plans that strategies make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol

import numpy as np
from typing_extensions import TypeVar

from perfsim.base.arrays import Floats, Ints
from perfsim.base.errors import LayoutError, MemoryCapacityError, PerfsimError, PlanError
from perfsim.base.limits import present_limits
from perfsim.costs.memory import MemoryUse
from perfsim.costs.price import Costs
from perfsim.network import Topology
from perfsim.specs.hardware import SystemSpec
from perfsim.specs.layout import Layout, text_of
from perfsim.specs.recipe import Job
from perfsim.work import GraphBuilder, TaskGraph

MEMORY = "memory"
"""The reason of layouts that need more memory than a device has."""


def _numbered(answer: Callable[[Any], Any], kept: Ints, chosen: Any) -> Any:
    """What is answered of the layouts that have these numbers among those that are kept."""
    return answer(kept[chosen])


@dataclass(frozen=True)
class Screening:
    """All layouts of a strategy for one job: estimates where they fit, and why others are refused."""

    estimate_s: Floats
    """Step time in closed form of every layout that fits."""
    memory_share: Floats
    """Share of its memory that the fullest device uses, of every layout that fits."""
    layout: Callable[[int], Layout]
    """The layout of an index into `estimate_s`."""
    screened: int
    """Number of layouts, with those that do not fit."""
    closest: Layout | None = None
    """Of the layouts that do not fit the one that needs least memory."""
    indivisible: int = 0
    """Combinations of degrees without any layout, because model, batch or nodes do not divide over them."""
    closer: Callable[[Ints], Floats] | None = None
    """Estimates of the layouts of some indices that take longer and err less; None: there are none."""
    alike: Callable[[], tuple[Ints, Ints]] | None = None
    """Indices of layouts that stand for all that fit, by degrees, schedule, ZeRO, recompute and offload, and
    the one that stands for each; None: each stands for itself."""

    def only(self, kept: Ints) -> Screening:
        """The same of some layouts, which then have the indices 0, 1, ..."""
        closer = self.closer
        return replace(
            self,
            estimate_s=self.estimate_s[kept],
            memory_share=self.memory_share[kept],
            layout=partial(_numbered, self.layout, kept),
            screened=self.screened - self.feasible + len(kept),
            closer=None if closer is None else partial(_numbered, closer, kept),
            alike=None,
        )

    def __post_init__(self) -> None:
        """Refuse what is no time and no share: it would be ranked first, or never."""
        for name, values in (("step time", self.estimate_s), ("share of memory", self.memory_share)):
            wrong = ~(np.isfinite(values) & (values >= 0.0))
            if wrong.any():
                layout = self.layout(int(wrong.argmax()))
                raise PerfsimError(
                    f"a strategy estimates a {name} of {values[wrong][0]:g} for {text_of(layout)}: "
                    "a defect of the strategy, or of the numbers that describe the machine"
                )

    @property
    def feasible(self) -> int:
        return len(self.estimate_s)

    @property
    def refused(self) -> Mapping[str, int]:
        """Number of layouts by reason for which they are refused."""
        too_large = self.screened - self.feasible
        return {MEMORY: too_large} if too_large else {}


LayoutT_co = TypeVar("LayoutT_co", bound=Layout, covariant=True, default=Layout)
TopologyT_co = TypeVar("TopologyT_co", bound=Topology, covariant=True, default=Topology)
OwnLayout = TypeVar("OwnLayout", bound=Layout, default=Any)
OwnTopology = TypeVar("OwnTopology", bound=Topology, default=Any)


@dataclass(frozen=True)
class Plan(Generic[LayoutT_co, TopologyT_co]):
    """A layout that was checked against the job and the system, ready to be written as a graph.

    Functions of a strategy use its own types of layout and topology; all other code uses plain `Plan`.
    """

    chosen: Strategy
    """The strategy that made it."""
    job: Job
    topology: TopologyT_co
    layout: LayoutT_co
    num_microbatches: int
    """Micro-batches of a step."""
    memory: tuple[MemoryUse, ...]
    """One entry per pipeline stage, or one for a wafer and one for MemoryX."""
    notes: tuple[str, ...] = ()
    recomputed_share: float = 1.0
    """Share of the layers that the recompute mode applies to."""
    least_steps: int = 1
    """Fewest optimizer steps in its graph; strategies may write more to reach the steady state."""

    @property
    def strategy(self) -> str:
        return self.chosen.name

    @property
    def system(self) -> SystemSpec:
        return self.topology.system

    def graph(self) -> TaskGraph:
        builder = GraphBuilder()
        self.chosen.emit(self, builder)
        present_limits().in_time(lambda: "the graph of a step was being written")
        return builder.build()

    @property
    def peak_memory_bytes(self) -> float:
        """Peak memory of the fullest device."""
        return max(use.total_bytes for use in self.memory if use.on_device)

    @property
    def memory_share(self) -> float:
        """Largest share of a device's memory that is used."""
        return max(use.total_bytes / use.capacity_bytes for use in self.memory if use.on_device)


class Strategy(Protocol[OwnLayout, OwnTopology]):
    """One way to train on many devices: these functions, and one line in the registry.

    A class that inherits gets the default of `screen`; one that does not must define every member.
    """

    @property
    def name(self) -> str:
        """The name for `--strategy`."""

    @property
    def system_kind(self) -> str:
        """The kind of system that it runs on, such as `gpu-cluster`."""

    @property
    def summary(self) -> str:
        """One line for `perfsim show strategies`."""

    def layouts(self, job: Job, topology: OwnTopology) -> Iterable[OwnLayout]:
        """Every legal layout, for the planner to screen."""

    def screen(self, job: Job, topology: OwnTopology, costs: Costs) -> Screening:
        """Memory and estimated step time of all layouts, one by one; PlanError for an illegal one."""
        plans: list[Layout] = []
        shares = []
        estimates = []
        closest: tuple[float, Layout | None] = (np.inf, None)
        too_large = 0
        for layout in self.layouts(job, topology):
            try:
                plan = self.plan(job, topology, layout)
            except LayoutError as error:
                raise PlanError([problem.message for problem in error.problems]) from None
            except MemoryCapacityError as error:
                too_large += 1
                closest = min(closest, (error.ratio, layout), key=lambda entry: entry[0])
                continue
            if plan.layout not in plans:
                plans.append(plan.layout)
                shares.append(plan.memory_share)
                estimates.append(self.estimate_s(plan, costs))
        screened = len(plans) + too_large
        return Screening(np.array(estimates), np.array(shares), plans.__getitem__, screened, closest[1])

    def plan(
        self, job: Job, topology: OwnTopology, layout: OwnLayout, *, check_memory: bool = True
    ) -> Plan[OwnLayout, OwnTopology]:
        """Check one layout. Raises LayoutError or MemoryCapacityError with all reasons."""

    def emit(self, plan: Plan[OwnLayout, OwnTopology], builder: GraphBuilder) -> None:
        """Write the optimizer steps needed to reach the steady state, and at least `plan.least_steps`."""

    def estimate_s(self, plan: Plan[OwnLayout, OwnTopology], costs: Costs) -> float:
        """The closest estimate of the step time without a graph, on the same classes of work."""
