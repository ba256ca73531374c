"""Published runs with placed graphs, which fits price many times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfsim.calibration import GpuCalibration
from perfsim.catalog import Catalog
from perfsim.costs.price import Costs
from perfsim.errors import PerfsimError
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
