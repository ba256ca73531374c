"""A question: a model, a recipe and a machine, and as much of the layout as is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import NoneType
from typing import Any, Literal, get_args

from perfsim.calibration import ClusterCalibration
from perfsim.costs.price import Costs
from perfsim.errors import InputError, Problem
from perfsim.hardware import SystemSpec
from perfsim.machines import build_topology, costs_for, machine_of, strategy_for
from perfsim.machines.layout_text import settings
from perfsim.prediction.cluster import check_device, scale_of
from perfsim.prediction.perturbation_spec import PerturbationSpec
from perfsim.sizes import MOST_DEVICES, MOST_SEQUENCES
from perfsim.strategies import Strategy
from perfsim.strategies.plan import check_runs_on
from perfsim.topology import Topology
from perfsim.wall_clock import WallClockSpec
from perfsim.workload import Job, Layout, TrainingRecipe, TransformerConfig

Detail = Literal["layer", "chunk"]
DEFAULT_BATCH_PER_DEVICE = 8
"""Sequences per device and step where neither question nor recipe gives a batch."""
MEMORY_LIMIT = 0.94
"""assumed: fragmentation of the allocator takes about 6 % of a device's memory."""


def allowed_share(system: SystemSpec, memory_limit: float) -> float:
    """Share of a device's memory that a planned layout may use: the limit where memory fragments."""
    return memory_limit if machine_of(system).fragments_memory else 1.0


@dataclass(frozen=True, kw_only=True)
class Question:
    """One model trained on one machine; settings that are not given are chosen.

    Parts of a question are checked at first use; `check` checks all of them.
    """

    model: TransformerConfig
    recipe: TrainingRecipe
    system: SystemSpec
    devices: int
    strategy: str | Strategy
    batch: int | None = None
    """Sequences per step over all devices; None: the recipe's, else `DEFAULT_BATCH_PER_DEVICE` per device."""
    layout: Layout | str | None = None
    """A layout, or its text (`tp=8,pp=4`); None: the planner chooses."""
    must_fit: bool = True
    """Whether a given layout that needs too much memory is refused."""
    memory_limit: float = MEMORY_LIMIT
    """Share of a GPU's memory that planned layouts may use, unless nothing else fits."""
    cluster: ClusterCalibration | None = None
    """Calibration of the user's own cluster; its scale multiplies step times."""
    wall_clock: WallClockSpec | None = None
    """Interruptions of a whole run besides its steps."""
    detail: Detail = "layer"
    """How finely a wafer cluster streams: a layer as a whole, or in chunks."""
    expand: str = ""
    """Collectives to expand into steps, in the syntax of `expansion.parse_expansion`."""
    perturbations: PerturbationSpec | None = None
    """Perturbations of the step."""
    prices: Costs | None = field(default=None, repr=False, compare=False)
    """A cost model that replaces the machine's own."""

    @property
    def allowed_share(self) -> float:
        """`memory_limit` where devices fragment their memory; all of it where it is laid out in advance."""
        return allowed_share(self.system, self.memory_limit)

    @property
    def label(self) -> str:
        """`128 A100-80GB (16 DGX)`."""
        return self.system.machine(self.devices)

    @cached_property
    def chosen(self) -> Strategy:
        """The strategy; InputError where it is unknown or runs on another kind of system."""
        if isinstance(self.strategy, str):
            return strategy_for(self.strategy, self.system)
        check_runs_on(self.strategy, self.system)
        return self.strategy

    @cached_property
    def topology(self) -> Topology:
        """The network of the devices; InputError for a number that the system cannot have."""
        return build_topology(self.system, self.devices)

    @cached_property
    def costs(self) -> Costs:
        """The cost model of the step."""
        return costs_for(self.topology, self.recipe) if self.prices is None else self.prices

    @property
    def job(self) -> Job:
        """Model, recipe and batch together."""
        batch = self.batch or self.recipe.batch_over(self.devices) or DEFAULT_BATCH_PER_DEVICE * self.devices
        return Job(self.model, self.recipe, batch)

    @property
    def scale(self) -> float:
        """The factor of the user's cluster calibration; 1 without one."""
        return scale_of(self.cluster)

    @property
    def given_layout(self) -> Layout | None:
        """The given layout; LayoutError lists the problems of its text."""
        if isinstance(self.layout, str):
            return machine_of(self.system).parse_layout(self.layout, self.devices)
        return self.layout

    @property
    def named_settings(self) -> list[str] | None:
        """The settings that the text of a layout names; None where the layout is not text."""
        return [name for _, name, _ in settings(self.layout)] if isinstance(self.layout, str) else None

    def at(self, batch: int) -> Question:
        """The same question at another global batch, on the same topology and prices."""
        question = replace(self, batch=batch)
        question.__dict__.update(chosen=self.chosen, topology=self.topology, costs=self.costs)
        return question

    def check(self) -> Question:
        """Make all checks that need no planning. Raises InputError.

        It refuses values of a wrong type or outside their range, a strategy of another kind of system, a
        number of devices that the system cannot have, a cluster calibration of another device, and a device
        without the constants that prices need.
        """
        if problems := list(self._wrong_values()):
            raise InputError(problems)
        check_device(self.cluster, self.system)
        _ = self.chosen, self.topology, self.costs
        return self

    def _wrong_values(self) -> Iterator[Problem]:
        """Values of a wrong type, or outside their range."""
        types: tuple[tuple[str, Any, type | tuple[type, ...]], ...] = (
            ("model", self.model, TransformerConfig),
            ("recipe", self.recipe, TrainingRecipe),
            ("system", self.system, SystemSpec),
            ("cluster", self.cluster, (ClusterCalibration, NoneType)),
            ("perturbations", self.perturbations, (PerturbationSpec, NoneType)),
            ("expand", self.expand, str),
        )
        for name, value, wanted in types:
            if not isinstance(value, wanted):
                names = wanted if isinstance(wanted, tuple) else (wanted,)
                words = " or ".join(kind.__name__.replace("NoneType", "None") for kind in names)
                yield Problem(f"{name}: {type(value).__name__} is not {words}")
        for name, value, most in (
            ("devices", self.devices, MOST_DEVICES),
            ("batch", self.batch, MOST_SEQUENCES),
        ):
            whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
            if not whole and (name == "devices" or value is not None):
                yield Problem(f"{name}: {value!r} is not a whole number from 1 to {most:,}")
        if not 0 < self.memory_limit <= 1:
            yield Problem(f"memory_limit: {self.memory_limit!r} is not a share of memory above 0, at most 1")
        if not isinstance(self.strategy, str) and not hasattr(self.strategy, "plan"):
            yield Problem(f"strategy: {type(self.strategy).__name__} is neither a name nor a strategy")
        if self.detail not in get_args(Detail):
            yield Problem(f"detail: {self.detail!r} is none of {', '.join(get_args(Detail))}")
        if isinstance(self.system, SystemSpec):
            own = machine_of(self.system).layout_type
            if not isinstance(self.layout, (str, NoneType, own)):
                yield Problem(
                    f"layout: {type(self.layout).__name__} is no layout of a {self.system.kind}",
                    help=f"give a {own.__name__}, or text such as dp={self.devices},mbs=1",
                )
