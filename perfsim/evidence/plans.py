"""Maps a function over many items on all cores."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from perfsim.base.errors import InputError, PerfsimError, Problem
from perfsim.catalog import Catalog, data_root
from perfsim.costs.price import Costs
from perfsim.engine.limits import present_limits
from perfsim.evidence.cases import (
    BY_OPERATOR,
    KEEPS_QKV,
    CaseTraining,
    StepCase,
    case_job,
    case_layout,
    case_system,
    recomputes_little,
)
from perfsim.machines import machine_of
from perfsim.machines.placement import Placed, place
from perfsim.prediction.planner import plan_of
from perfsim.prediction.question import Question
from perfsim.prediction.run import Evaluation, Step, evaluate, graph_of
from perfsim.specs.calibration import Calibration, GpuCalibration
from perfsim.specs.hardware import GpuClusterSpec, SystemSpec
from perfsim.strategies import Plan

# Checks before a published run is predicted: no contradiction, and no field without a model that matters.

_LAYOUT = ("shard_group",)
"""Fields of a case's layout that matter as soon as the layout of its machine has them."""


def not_modelled(case: StepCase, system: SystemSpec) -> list[str]:
    """What would change the work of a run and has no model yet: `context_parallel 2`."""
    named = [*_of_layout(case, system), *_of_training(case.training)]
    return [f"{name} {_text(value)}" for name, value in named]


def ignored(case: StepCase) -> list[str]:
    """Settings of the software stack that a prediction leaves out."""
    detail = case.training.recompute_detail
    known = detail is None or KEEPS_QKV in detail or BY_OPERATOR in detail
    little = ["recompute_modules"] if recomputes_little(case.training) else []
    return [*(() if known else ("recompute_detail",)), *little]


def _of_layout(case: StepCase, system: SystemSpec) -> Iterator[tuple[str, Any]]:
    known = getattr(machine_of(system).layout_type, "__dataclass_fields__", {})
    without_meaning = {"shard_group": case.parallel.data}
    for name in _LAYOUT:
        value = getattr(case.parallel, name)
        if name not in known and value not in (None, 1, without_meaning.get(name)):
            yield name, value


def _of_training(training: CaseTraining) -> Iterator[tuple[str, Any]]:
    modules = training.recompute_modules
    core_alone = training.recompute == "selective" and modules == ("core_attn",)
    if modules and not core_alone and not recomputes_little(training):
        yield "recompute_modules", modules


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


_DEGREES = ("tensor", "pipeline", "context_parallel", "expert_parallel")


def refuse_contradictions(case: StepCase, system: SystemSpec) -> None:
    """Raise InputError with all contradictions of a case, and with all that has no model yet.

    `system` is that of `case_system`.
    """
    missing = not_modelled(case, system)
    messages = [
        f"not modelled yet: {'; '.join(missing)}" if missing else "",
        _of_degrees(case, system),
        _of_network(case, system),
        _of_head(case),
        _of_precision(case, system),
    ]
    if any(messages):
        raise InputError([Problem(f"case {case.id}: {text}") for text in messages if text])


def _of_network(case: StepCase, system: SystemSpec) -> str:
    """Several nodes without a network, unless the case names a system, which has one."""
    node = machine_of(system).devices_per_node(system)
    if node is None or case.system.inter_node is not None:
        return ""
    is_system = case.system.is_file or case.system.device == system.name != system.device.name
    if is_system or case.system.num_devices <= node:
        return ""
    return (
        f"{case.system.num_devices} devices in nodes of {node} without inter_node, which "
        "means one node; write what all NICs of a node carry one way, e.g. inter_node: 1.6 Tb/s"
    )


def _of_degrees(case: StepCase, system: SystemSpec) -> str:
    """Degrees of a layout on a machine whose layouts only divide the batch."""
    if "tensor" in getattr(machine_of(system).layout_type, "__dataclass_fields__", {}):
        return ""
    given = {name: getattr(case.parallel, name) for name in _DEGREES}
    wrong = [f"{name} {degree}" for name, degree in given.items() if degree > 1]
    return f"{system.name} divides the batch and nothing else, not {', '.join(wrong)}" if wrong else ""


def _of_head(case: StepCase) -> str:
    positions = case.training.lm_head_positions
    length = case.model.seq_length
    if positions is None or positions <= length:
        return ""
    return (
        f"lm_head_positions {positions} is more than seq_length {length}; leave it out where the output "
        "layer reads every position"
    )


def _of_precision(case: StepCase, system: SystemSpec) -> str:
    device = system.device
    precision = case.training.precision
    if device.computes(precision):
        return ""
    return f"{device.name} computes no {precision}; it has {', '.join(device.peak)}"


# Questions and plans of published runs, with the layout of the case or of the planner.


def case_question(case: StepCase, catalog: Catalog, calibration: Calibration | None = None) -> Question:
    """The question of a published run; a fit passes its own `calibration`.

    The run is known to fit in memory, so the memory model cannot refuse it. Raises InputError for a case
    that contradicts itself or names something that the catalogue lacks.
    """
    system = case_system(case, catalog)
    refuse_contradictions(case, system)
    if calibration is not None:
        device = system.device.model_copy(update={"calibration": calibration})
        system = system.model_copy(update={"device": device})
    job = case_job(case, catalog)
    return Question(
        model=job.model,
        recipe=job.recipe,
        system=system,
        devices=case.system.num_devices,
        strategy=case.strategy,
        batch=job.global_batch_size,
        layout=case_layout(case, system),
        must_fit=False,
    )


def case_plan(case: StepCase, catalog: Catalog) -> Plan:
    """The plan of a case. Raises PerfsimError if it cannot be planned."""
    return plan_of(case_question(case, catalog))


def predict_s(case: StepCase, catalog: Catalog, calibration: Calibration | None = None) -> float:
    """Step time of a published run from its description alone."""
    return evaluate_case(case, catalog, calibration).step_time_s


def evaluate_case(case: StepCase, catalog: Catalog, calibration: Calibration | None = None) -> Evaluation:
    """A published run simulated from its description alone."""
    question = case_question(case, catalog, calibration)
    return evaluate(plan_of(question), question.costs)


def public_cases() -> list[Path]:
    """The case files that come with perfsim."""
    folder = data_root() / "studies" / "validation"
    return sorted(folder.glob("*.yaml"))


# Published runs with placed graphs, which fits price many times.


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
        if not self.plan.job.runtime.overlap_grad_reduce:
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


Item = TypeVar("Item")
Result = TypeVar("Result")

FEWEST = 20
"""Least number of items for which several processes are started."""


def mapped(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`function` of each item, in order; function, items and results must be picklable."""
    if len(items) < FEWEST or (os.cpu_count() or 1) == 1:
        return list(_counted(map(function, items), len(items)))
    with ProcessPoolExecutor(initializer=_ignore_interrupts) as pool:
        return list(_counted(pool.map(function, items), len(items)))


def _counted(results: Iterator[Result], total: int) -> Iterator[Result]:
    """The results, each reported as it comes."""
    tell = present_limits().tell_items
    for done, result in enumerate(results, start=1):
        if tell is not None:
            tell(done, total)
        yield result


def _ignore_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal; only the parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
