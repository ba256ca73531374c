"""What a kind of machine answers for itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from perfsim.costs.price import Costs
from perfsim.errors import InputError
from perfsim.hardware import SystemSpec
from perfsim.machines.explanation import Explanation
from perfsim.machines.layout_text import parsed_settings
from perfsim.machines.network import Network
from perfsim.topology import LinkHealth, Topology
from perfsim.workload import Layout, TrainingRecipe


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

    # ----------------------------------------------------------------------------------- layouts
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
