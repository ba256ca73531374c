"""Published runs with placed graphs, which fits price many times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from perfsim.calibration import GpuCalibration
from perfsim.catalog import Catalog
from perfsim.costs.price import Costs
from perfsim.errors import PerfsimError
from perfsim.hardware import GpuClusterSpec
from perfsim.machines import machine_of
from perfsim.placement.place import Placed, place
from perfsim.prediction.evaluation import graph_of
from perfsim.prediction.run import Step
from perfsim.published.cases import StepCase
from perfsim.published.plans import case_plan
from perfsim.strategies import Plan


@dataclass(frozen=True)
class PlacedCase:
    """A case, its plan, and its graph placed without contention."""

    case: StepCase
    plan: Plan
    placed: Placed

    def step(self, costs: Costs) -> Step:
        """The step of the case at the prices of `costs`."""
        return Step(self.placed, costs)

    @cached_property
    def slowed(self) -> float:
        """Step time with compute slowed by communication beside it, over that of the longest path.

        It hardly depends on the constants that are fitted, so it is found once, with the recorded ones. Only
        where gradients or parameters travel on a stream of their own does anything run beside compute. In a
        domain of several nodes contention for NVLink ports is part of it.
        """
        if not self.plan.job.recipe.overlap_grad_reduce:
            return 1.0
        step = self.step(machine_of(self.plan.system).costs(self.plan.topology, self.plan.job.recipe))
        whole = step
        if self._shares_ports:
            whole = Step(place(graph_of(self.plan), self.plan.topology), step.costs)
        return whole.run().step_time_s / step.run(contention=False).step_time_s

    @property
    def _shares_ports(self) -> bool:
        """Whether several nodes are one NVLink domain, in whose ports communications of all kinds meet."""
        system = self.plan.system
        return isinstance(system, GpuClusterSpec) and system.node.server is not None

    @property
    def calibration(self) -> str:
        """Name of its device's calibration; empty if it has none."""
        calibration = self.plan.system.device.calibration
        return "" if calibration is None else calibration.name


def place_case(case: StepCase, catalog: Catalog) -> PlacedCase:
    """Plan a case and place its graph. Raises PerfsimError if it cannot be planned."""
    plan = case_plan(case, catalog)
    return PlacedCase(case, plan, place(graph_of(plan), plan.topology, contention=False))


def place_cases(cases: Sequence[StepCase], calibration: str | None, catalog: Catalog) -> list[PlacedCase]:
    """The scored cases that can be planned and whose device has that calibration; None: any of a GPU."""
    placed = []
    for case in cases:
        if not case.scored:
            continue
        try:
            plan = case_plan(case, catalog)
        except PerfsimError:
            continue
        constants = plan.system.device.calibration
        if isinstance(constants, GpuCalibration) and calibration in (None, constants.name):
            placed.append(place_case(case, catalog))
    return placed
