"""The interface of a kind of machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from perfsim.calibration import Calibration
from perfsim.costs.price import Costs
from perfsim.errors import InputError
from perfsim.hardware import LinkSpec, SystemSpec
from perfsim.machines.explanation import Explanation
from perfsim.machines.layout_text import parsed_settings
from perfsim.machines.network import Network
from perfsim.topology import Topology
from perfsim.workload import Job, Layout, TrainingRecipe


class Setting(NamedTuple):
    """A setting of a layout, by its name in YAML."""

    name: str
    value: str
    usual: str = ""
    """What most users set instead, as layout text; empty where the value is usual."""


class SystemLinks(NamedTuple):
    """Links of a system that collectives run over."""

    inside_node: tuple[LinkSpec, ...] = ()
    between_nodes: tuple[LinkSpec, ...] = ()


class Unknown(NamedTuple):
    """Something about a plan that no published run shows, and how much it may change its step time."""

    code: str
    """The caveat (docs/caveats.md) that states it."""
    log_width: float
    """Half-width of its 90 % band in log time."""
    words: str
    shared: bool = False
    """Whether all runs of one machine have it alike, so that it cancels in the ratio of two."""


class Machine(ABC):
    """One kind of system: everything that differs between kinds is behind this interface.

    A kind overrides the defaults that do not fit it. It is only given systems, topologies and layouts of its
    own types.
    """

    kind: ClassVar[str]
    """The `kind` of its systems in YAML."""
    layout_type: ClassVar[type]
    """The layout type of its strategies, a dataclass with a default for every field."""
    system_type: ClassVar[type[SystemSpec]]
    """The specification type of its systems."""
    explanation: ClassVar[Explanation] = Explanation()
    """Causes and remedies of step times."""
    fragments_memory: ClassVar[bool] = False
    """Whether devices allocate memory as they run, so that some of it is lost to fragmentation."""
    default_strategy: ClassVar[str]
    """The strategy where a question names none."""

    # ---------------------------------------------------------------------------------- hardware
    @abstractmethod
    def topology(self, system: Any, num_devices: int) -> Topology:
        """The network of the first `num_devices` devices; InputError for an impossible number."""

    @abstractmethod
    def costs(self, topology: Any, recipe: TrainingRecipe) -> Costs:
        """The cost model under a recipe."""

    def network(self, _topology: Any, /) -> Network:
        """The network as communication uses it."""
        return Network()

    def devices_per_node(self, _system: Any, /) -> int | None:
        """Devices that share a node; None where there are no nodes."""
        return None

    def links(self, _system: Any, /) -> SystemLinks:
        """The links that collectives run over."""
        return SystemLinks()

    def calibrations(self, _system: Any, _recipe: TrainingRecipe, /) -> list[Calibration]:
        """Calibrations, besides the device's own, that prices use."""
        return []

    def releases(self, _system: Any, _recipe: TrainingRecipe, /) -> tuple[str, str] | None:
        """The software release of a system, and the measured one whose speed is used.

        None where speeds do not depend on a release.
        """
        return None

    def at_peak(self, _system: Any, _recipe: TrainingRecipe, /) -> bool:
        """Whether the system is assumed to run at peak, an upper bound that was never observed."""
        return False

    def unknowns(self, _system: Any, _recipe: TrainingRecipe, _num_devices: int, /) -> list[Unknown]:
        """What no published run shows of a system of this kind, such as its software or its size."""
        return []

    def job_unknowns(self, _job: Job, /) -> list[Unknown]:
        """What no published run on a system of this kind shows of a job, such as its kind of layer."""
        return []

    def overlap_slowdown(self, _system: Any, /) -> float:
        """The most by which communication slows the compute beside it, as a fraction of its time."""
        return 0.0

    # ------------------------------------------------------------------------------ published runs
    def published_system(
        self,
        system: Any,
        _devices_per_node: int | None,
        _inter_node: float | None,
        _domain: int | None,
        /,
    ) -> SystemSpec:
        """A system of the catalogue, changed as a published run describes it.

        `inter_node` is the bandwidth of all NICs of a node, one direction, in bytes/s. `domain` is the number
        of devices that one network joins, where they are more than those of a node.
        """
        described: SystemSpec = system
        return described

    def published_layout(self, _settings: Mapping[str, Any], /) -> Layout | None:
        """The layout of a published run from its settings; None leaves it to the planner."""
        return None

    # ----------------------------------------------------------------------------------- layouts
    def usual_settings(self, _layout: Any, _recipe: TrainingRecipe, /) -> list[Setting]:
        """The settings that matter for a layout, and their usual values."""
        return []

    def parse_layout(self, text: str, devices: int) -> Layout:
        """The layout of a text such as `tp=8,pp=4,dp=4,mbs=1`; LayoutError lists all problems.

        Long names work too. Omitted settings follow from the rest and the number of devices.
        """
        return self._completed(parsed_settings(text, self.layout_type), devices)

    def _completed(self, given: dict[str, Any], devices: int) -> Layout:
        """A layout from the fields that are given."""
        layout: Layout = self.layout_type(**({"data": devices} | given))
        return layout

    def in_chunks(self, _layout: Any, /) -> Layout:
        """The layout with layers streamed in chunks; InputError where nothing streams."""
        raise InputError(f"detail chunk: no weights are streamed on a {self.kind}")
