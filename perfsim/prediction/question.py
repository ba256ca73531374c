"""A question: a model, a recipe and a machine, and as much of the layout as is given."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from perfsim.calibration import ClusterCalibration
from perfsim.costs.price import Costs
from perfsim.hardware import SystemSpec
from perfsim.machines import build_topology, costs_for, machine_of, strategy_for
from perfsim.machines.layout_text import settings
from perfsim.prediction.cluster import check_device
from perfsim.prediction.perturbation_spec import PerturbationSpec
from perfsim.strategies import Strategy
from perfsim.topology import Topology
from perfsim.wall_clock import WallClockSpec
from perfsim.workload import Job, Layout, TrainingRecipe, TransformerConfig

Detail = Literal["layer", "chunk"]
DEFAULT_BATCH_PER_DEVICE = 8
"""Sequences per device and step where neither question nor recipe gives a batch."""
DEFAULT_RECIPE = "gpt3_pretraining"


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
    def label(self) -> str:
        """`128 x dgx-a100-80gb`."""
        return f"{self.devices} x {self.system.name}"

    @cached_property
    def chosen(self) -> Strategy:
        """The strategy; InputError where it is unknown or runs on another kind of system."""
        if isinstance(self.strategy, str):
            return strategy_for(self.strategy, self.system)
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
        return 1.0 if self.cluster is None else self.cluster.scale

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

        It refuses a strategy of another kind of system, a number of devices that the system cannot have,
        a cluster calibration of another device, and a device without the constants that prices need.
        """
        check_device(self.cluster, self.system)
        _ = self.chosen, self.topology, self.costs
        return self
