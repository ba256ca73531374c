"""Published runs with their graphs written, to be priced again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfsim.catalog import Catalog
from perfsim.errors import PerfsimError
from perfsim.graph import GraphBuilder, TaskGraph
from perfsim.placement.place import written_out
from perfsim.published.cases import StepCase
from perfsim.published.plans import case_plan
from perfsim.strategies import Plan, strategy


@dataclass(frozen=True)
class WrittenCase:
    """A case, its plan, and the graph of its step."""

    case: StepCase
    plan: Plan
    graph: TaskGraph

    @property
    def calibration(self) -> str:
        """Name of the fitted constants of its device; empty where it has none."""
        known = self.plan.system.device.calibration
        return "" if known is None else known.name


def write_case(case: StepCase, catalog: Catalog) -> WrittenCase:
    """Plan a case and write its graph, unlike ranks apart. Raises PerfsimError where it cannot be planned."""
    plan = case_plan(case, catalog)
    builder = GraphBuilder()
    strategy(plan.strategy).emit(plan, builder)
    graph = written_out(builder.build(), plan.topology, contention=False).graph
    return WrittenCase(case, plan, graph)


def write_cases(cases: Sequence[StepCase], calibration: str, catalog: Catalog) -> list[WrittenCase]:
    """The scored cases that can be planned and whose device has the constants called `calibration`."""
    written = []
    for case in cases:
        if not case.scored:
            continue
        try:
            plan = case_plan(case, catalog)
        except PerfsimError:
            continue
        known = plan.system.device.calibration
        if known is not None and known.name == calibration:
            written.append(write_case(case, catalog))
    return written
