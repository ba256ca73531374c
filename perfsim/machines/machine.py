"""What a kind of machine answers for itself."""

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
from perfsim.topology import LinkHealth, Topology
from perfsim.workload import Layout, TrainingRecipe


class Setting(NamedTuple):
    """A setting of a layout, by its name in YAML."""

    name: str
    value: str
    usual: str = ""
    """What most users set instead, as a layout's text; empty where the value is usual."""


class SystemLinks(NamedTuple):
    """Links of a system that collectives run over."""

    inside_node: tuple[LinkSpec, ...] = ()
    between_nodes: tuple[LinkSpec, ...] = ()


class Machine(ABC):
    """One kind of system: all that differs between kinds stands behind it.

    A kind overrides what is not as it stands here; it is given systems, topologies and layouts of its own
    types.
    """

    kind: ClassVar[str]
    """The `kind` of its systems in YAML."""
    layout_type: ClassVar[type]
    """The layouts of its strategies, a dataclass with a default for every field."""
    system_type: ClassVar[type[SystemSpec]]
    """Its systems as they are read."""
    explanation: ClassVar[Explanation] = Explanation()
    """Why steps take as long as they do."""
    default_strategy: ClassVar[str]
    """The strategy of a question that names none."""

    # ---------------------------------------------------------------------------------- hardware
    @abstractmethod
    def topology(self, system: Any, num_devices: int) -> Topology:
        """The network of the first `num_devices` devices; InputError for numbers that cannot be."""

    @abstractmethod
    def costs(self, topology: Any, recipe: TrainingRecipe) -> Costs:
        """What prices work."""

    def network(self, _topology: Any, _health: LinkHealth, /) -> Network:
        """The topology in some state of health, as communication meets it."""
        return Network()

    def devices_per_node(self, _system: Any, /) -> int | None:
        """Devices that need no network to reach one another; None where there are no nodes."""
        return None

    def links(self, _system: Any, /) -> SystemLinks:
        """The links that collectives run over."""
        return SystemLinks()

    def calibrations(self, _system: Any, _recipe: TrainingRecipe, /) -> list[Calibration]:
        """Fitted constants beside the device's own that prices rest on."""
        return []

    def at_peak(self, _system: Any, _recipe: TrainingRecipe, /) -> bool:
        """Whether a system is taken without any inefficiency, as none ever is."""
        return False

    # ------------------------------------------------------------------------------ published runs
    def published_system(
        self, system: Any, _devices_per_node: int | None, _inter_node: float | None, /
    ) -> SystemSpec:
        """A system of the catalogue as a published run describes it.

        `inter_node` is what all NICs of a node carry one way, in bytes/s.
        """
        described: SystemSpec = system
        return described

    def published_layout(self, _settings: Mapping[str, Any], /) -> Layout | None:
        """The layout of a published run from its settings; None where the planner's is as good a guess."""
        return None

    # ----------------------------------------------------------------------------------- layouts
    def usual_settings(self, _layout: Any, _recipe: TrainingRecipe, /) -> list[Setting]:
        """The settings that matter for a layout, and what is usual."""
        return []

    def parse_layout(self, text: str, devices: int) -> Layout:
        """`tp=8,pp=4,dp=4,mbs=1` as a layout, long names too; LayoutError lists all that is wrong.

        What the text leaves out follows from the rest and the number of devices.
        """
        return self._completed(parsed_settings(text, self.layout_type), devices)

    def _completed(self, given: dict[str, Any], devices: int) -> Layout:
        """A layout of which some fields are given."""
        layout: Layout = self.layout_type(**({"data": devices} | given))
        return layout

    def in_chunks(self, _layout: Any, /) -> Layout:
        """A layout that streams layers in chunks; InputError where nothing streams."""
        raise InputError(f"detail chunk: no weights are streamed on a {self.kind}")
