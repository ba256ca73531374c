"""What is asked of one machine: a model, a recipe and a system, and what of their layout is given."""

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
"""Sequences a device and step where the question gives no batch."""
DEFAULT_RECIPE = "gpt3_pretraining"


@dataclass(frozen=True, kw_only=True)
class Question:
    """One model trained on one machine; what is not given is chosen.

    A question is checked when its parts are first asked for: `check` asks for all of them.
    """

    model: TransformerConfig
    recipe: TrainingRecipe
    system: SystemSpec
    devices: int
    strategy: str | Strategy
    batch: int | None = None
    """Sequences a step over all devices; None: the recipe's, else `DEFAULT_BATCH_PER_DEVICE` a device."""
    layout: Layout | str | None = None
    """A layout, or its text (`tp=8,pp=4`); None: the planner chooses."""
    must_fit: bool = True
    """Whether a given layout that needs too much memory is refused."""
    cluster: ClusterCalibration | None = None
    """Measurements of the user's own cluster; their scale multiplies step times."""
    wall_clock: WallClockSpec | None = None
    """What a whole run waits for besides its steps."""
    detail: Detail = "layer"
    """How finely a wafer cluster streams: a layer as a whole, or in chunks."""
    expand: str = ""
    """Collectives to write as steps, as `expansion.parse_expansion` reads it."""
    perturbations: PerturbationSpec | None = None
    """What disturbs the step."""
    prices: Costs | None = field(default=None, repr=False, compare=False)
    """What prices work in place of the machine's own cost model."""

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
        """What prices the work of a step."""
        return costs_for(self.topology, self.recipe) if self.prices is None else self.prices

    @property
    def job(self) -> Job:
        """Model, recipe and batch together."""
        batch = self.batch or self.recipe.batch_over(self.devices) or DEFAULT_BATCH_PER_DEVICE * self.devices
        return Job(self.model, self.recipe, batch)

    @property
    def scale(self) -> float:
        """What the user's measurements multiply step times by; 1 without any."""
        return 1.0 if self.cluster is None else self.cluster.scale

    @property
    def given_layout(self) -> Layout | None:
        """The layout that is asked for; LayoutError lists what is wrong with its text."""
        if isinstance(self.layout, str):
            return machine_of(self.system).parse_layout(self.layout, self.devices)
        return self.layout

    @property
    def named_settings(self) -> list[str] | None:
        """The settings that a layout's text names; None where the layout is no text."""
        return [name for _, name, _ in settings(self.layout)] if isinstance(self.layout, str) else None

    def at(self, batch: int) -> Question:
        """The same question at another global batch, on the same topology and prices."""
        other = replace(self, batch=batch)
        other.__dict__.update(chosen=self.chosen, topology=self.topology, costs=self.costs)
        return other

    def check(self) -> Question:
        """Refuse what can be refused without planning. Raises InputError.

        These are a strategy of another kind of system, a number of devices that the system cannot have,
        measurements of another device, and a device without the constants that prices need.
        """
        check_device(self.cluster, self.system)
        _ = self.chosen, self.topology, self.costs
        return self
