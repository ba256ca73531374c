"""The interface of a kind of machine."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from perfsim.base.arrays import Bools, Floats, Ints
from perfsim.base.errors import InputError
from perfsim.base.spec import DatedSpec
from perfsim.base.text import covering
from perfsim.catalog import default_catalog
from perfsim.costs.price import Costs
from perfsim.costs.wafer import StreamingRoof
from perfsim.network import Topology
from perfsim.specs.calibration import Calibration, GpuCalibration
from perfsim.specs.hardware import DeviceSpec, LinkSpec, SystemSpec
from perfsim.specs.layout import Layout, Recompute, parsed_settings
from perfsim.specs.prices import PRICE_OF
from perfsim.specs.recipe import Job, Recipe
from perfsim.specs.runtime import Runtime
from perfsim.strategies import Plan
from perfsim.work import Kind, RankGroup, TaskGraph, Work

HEAVY = 0.15
"""Share of the step above which recomputation, or movement inside a device, is mentioned."""
LOOK = "see in the timeline what the devices wait for"
LARGER_BATCH = "a larger batch"
"""How remedies of all machines name it."""


@dataclass(frozen=True)
class Lane:
    """A part of the machine that moves data next to compute (a link and its servers, flash), in one step."""

    name: str
    saved: float
    """Share of the step saved if it were twice as fast."""


# Traffic of communication on a network, counted for all ranks that a folded rank stands for.
#
# A folded graph writes one peer and one replica; the others do the same at the same time, on the same
# uplinks. So a class of work is one flow over all links that any of its copies crosses, counted as often as
# copies cross it. All copies run at the rate of the most contended link, since peers wait for one another
# before the step ends.


@dataclass(frozen=True)
class Traffic:
    """How often a communication crosses each link, and its rate on an idle network."""

    links: Ints
    times: Ints
    bytes_per_s: float
    late_s: float = 0.0
    """Latency of its links that prices do not count."""


class Network:
    """A topology as communication uses it; by default no links are shared and all ranks lie alike."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.capacities = topology.capacities

    def of_graph(self, _graph: TaskGraph, /) -> Network:
        """The network for one graph, where its loads depend on how many devices the graph writes."""
        return self

    def load(self, _work: Work, _peers: Ints, /) -> Traffic | None:
        """Traffic on all links, None for none; `peers` has the class of each peer of a written device."""
        return None

    def traffic(self, work: Work, peers: Ints, /) -> Traffic | None:
        """Traffic on links that may slow it, None for none; InputError where dead links leave no route."""
        load = self.load(work, peers)
        return None if load is None else self._slowed(work, load)

    def _slowed(self, _work: Work, load: Traffic, /) -> Traffic | None:
        """What of a load may be slowed, by default all."""
        return load

    def by_work(self, works: Sequence[Work], peers: Ints, /, *, limiting: bool) -> dict[int, Traffic]:
        """Load by the number of a class of work, or (`limiting`) traffic; like works have the same."""
        counted = self.traffic if limiting else self.load
        known: dict[Hashable, Traffic | None] = {}
        by_work: dict[int, Traffic] = {}
        for number, work in enumerate(works):
            if work.kind is Kind.COMP:
                continue
            key = self._alike(work)
            if key not in known:
                known[key] = counted(work, peers)
            if (traffic := known[key]) is not None:
                by_work[number] = traffic
        return by_work

    def sent_bytes(self, work: Work, /) -> float:
        """Bytes of a class of communication on a link that it crosses once."""
        return work.comm_bytes

    def _alike(self, work: Work, /) -> Hashable:
        """What the traffic of a class of communication depends on."""
        return work.group, work.kind is Kind.COMM_COLL, work.op

    def places(self) -> Mapping[int, Hashable]:
        """The position of each rank, where positions make a difference."""
        return {}

    def peer_places(self, _works: Sequence[Work], _width: int, _shares_links: bool, /) -> Ints | None:
        """The positions of the groups of `width` peers, one row a peer; None where all are alike.

        Unless something `shares_links`, positions that cost the same are alike.
        """
        return None

    def worst_group(self, work: Work, _width: int, /) -> RankGroup | None:
        """Of the groups in which `width` peers do this work, the one that it takes longest for."""
        return work.group


class Setting(NamedTuple):
    """A setting of a layout, by its name in YAML."""

    name: str
    value: str
    usual: str = ""
    """What most users set instead, as layout text; empty where the value is usual."""


class Rate(NamedTuple):
    """A rate of a machine that may not be as described.

    assumed: clocks under a power limit and memory differ by a tenth between devices of one kind, a shared
    network by more than links of one machine; figures of flash are the least certain.
    """

    words: str
    path: str
    """Its dotted path in the system."""
    deviation: float
    """Its standard deviation in log."""


class Part(NamedTuple):
    """Something that a machine is made of or runs, and since when it exists."""

    name: str
    date: str
    """A month or a day; empty where it is not known."""
    recalled: bool
    """Whether the date is from memory, without a source."""

    @classmethod
    def of(cls, spec: DatedSpec, kind: str) -> Part:
        """A description, called by its kind and its name."""
        return cls(f"{kind} {spec.name}", spec.date or "", spec.date_is_recalled)


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
    """One kind of system: all that differs between kinds, for systems and layouts of its own types."""

    kind: ClassVar[str]
    """The `kind` of its systems in YAML."""
    layout_type: ClassVar[type]
    """The layout type of its strategies, a dataclass with a default for every field."""
    system_type: ClassVar[type[SystemSpec]]
    fragments_memory: ClassVar[bool] = False
    """Whether devices allocate memory as they run, so that some of it is lost to fragmentation."""
    default_strategy: ClassVar[str]
    """The strategy where a question names none."""
    unit: ClassVar[str] = "devices"
    """What its number of devices counts."""
    lanes: ClassVar[Mapping[str, str]] = {}
    """The lane of each operation that moves data next to compute; empty where lanes are not distinguished."""
    inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """For each cause of a step time, the fields of the system that it rests on (`inputs_of` a plan)."""
    rates: ClassVar[tuple[Rate, ...]] = (
        Rate("arithmetic of the devices", "device.peak.{precision}", 0.1),
        Rate("device memory", "device.memory.bandwidth", 0.1),
    )
    """Rates that may explain a measured step, on machines of every kind."""
    unread: ClassVar[tuple[str, ...]] = ()
    """Paths of a question on which nothing of an answer depends."""
    unread_without_host: ClassVar[tuple[str, ...]] = ()
    """More of these on systems without a host."""
    recompute_modes: ClassVar[tuple[Recompute, ...]] = ()
    """Modes of recomputation that any of its layouts may have."""
    more: ClassVar[str] = "more devices"
    """What shortens a step that is bound by compute."""

    @abstractmethod
    def topology(self, system: Any, num_devices: int) -> Topology:
        """The network of the first `num_devices` devices; InputError for an impossible number."""

    @abstractmethod
    def costs(self, topology: Any, recipe: Recipe) -> Costs:
        """The cost model under a recipe."""

    def network(self, topology: Any, /) -> Network:
        """The network as communication uses it."""
        return Network(topology)

    def devices_per_node(self, _system: Any, /) -> int | None:
        """Devices that share a node; None where there are no nodes."""
        return None

    def links(self, _system: Any, /) -> tuple[LinkSpec, ...]:
        """The links that collectives run over: those inside a node, and those between nodes."""
        return ()

    def calibrations(self, _system: Any, _recipe: Recipe, /) -> list[Calibration]:
        """Calibrations, besides the device's own, that prices use."""
        return []

    def has_host(self, system: SystemSpec) -> bool:
        """Whether a host launches the kernels, so that the constants of a framework are in the prices."""
        return isinstance(system.device.calibration, GpuCalibration)

    def reads(self, system: SystemSpec, path: str) -> bool:
        """Whether an answer on a system depends on the value at a path of a question."""
        if path.startswith(PRICE_OF):
            return path.split(".")[2] == system.name
        unread = self.unread + (() if self.has_host(system) else self.unread_without_host)
        return not covering(path, unread)

    def releases(self, _system: Any, _recipe: Recipe, /) -> tuple[str, str] | None:
        """The software release of a system, and the measured one of its speed; None where none matters."""
        return None

    def parts(self, system: Any, /) -> Iterator[Part]:
        """What its devices and links are, with the dates since when they exist."""
        yield Part.of(system.device, "device")
        yield from (Part.of(link, "link") for link in self.links(system))

    def software(self, _system: Any, runtime: Runtime, /) -> Part:
        """What runs its steps, with the date since when it exists."""
        return Part.of(runtime, "runtime")

    def generations(self, _system: Any, runtime: Runtime, /) -> Sequence[Runtime]:
        """The runtimes that replaced one another, of which `runtime` is one, the oldest first."""
        if not runtime.line:
            return [runtime]
        alike = (other for other in default_catalog().every("runtime") if other.line == runtime.line)
        return sorted(alike, key=lambda one: one.date or "")

    def unknowns(self, _system: Any, _job: Job, _num_devices: int, /) -> Iterable[Unknown]:
        """What no published run shows of a system, such as its software or its size, or of a job on it."""
        return ()

    def overlap_slowdown(self, _system: Any, /) -> float:
        """The most by which communication slows the compute next to it, as a fraction of its time."""
        return 0.0

    def busy_s(self, topology: Topology, graph: TaskGraph, duration_s: Floats, lane: str) -> float:
        """Seconds a step that a lane is busy."""
        seconds = np.where(self.on_lane(graph, lane), duration_s, 0.0)
        streams_s: Floats = np.bincount(graph.stream, seconds, len(graph.streams)).astype(float)
        return self._together_s(topology, lane, streams_s) / len(graph.step_ends)

    def on_lane(self, graph: TaskGraph, lane: str) -> Bools:
        return np.array([self.lanes.get(work.op) == lane for work in graph.works])[graph.work]

    def _together_s(self, _topology: Any, _lane: str, streams_s: Floats, /) -> float:
        """Busy seconds of a lane from those of its streams, which run in parallel by default."""
        return float(streams_s.max(initial=0.0))

    def roof(
        self, _plan: Any, _graph: TaskGraph, _costs: Costs, _duration_s: Floats, /
    ) -> StreamingRoof | None:
        """Tokens needed to hide streamed weights; None where nothing streams."""
        return None

    def cause(self, _lane: Lane, wait: str, /) -> str:
        """The cause to name for a limiting lane; `wait` is the longest wait."""
        return wait

    def inputs_of(self, cause: str, _plan: Plan, /) -> tuple[str, ...]:
        """The fields of the system on which a cause of a plan's step time rests."""
        return self.inputs.get(cause, ())

    def wait_remedy(self, _cause: str, _plan: Any, _lane: Lane | None, _roof: StreamingRoof | None, /) -> str:
        """What shortens a step that is bound by a wait."""
        return LOOK

    def compute_remedy(self, plan: Any, _fixed: float, recompute: float, /) -> str:
        """What shortens a step bound by compute; `_fixed` and `recompute` are shares of the step."""
        if recompute > HEAVY:
            return (
                f"memory for more activations (recomputation takes {100 * recompute:.0f} % of the step), "
                f"or {self.more}"
            )
        return self._more_compute(plan)

    def _more_compute(self, _plan: Plan, /) -> str:
        return self.more

    def published_system(self, system: Any, _described: Mapping[str, Any], /) -> SystemSpec:
        """A system of the catalogue, changed as the fields of a published run's system describe it."""
        return cast(SystemSpec, system)

    def published_layout(self, _settings: Mapping[str, Any], /) -> Layout | None:
        """The layout of a published run from its settings; None leaves it to the planner."""
        return None

    def usual_settings(self, _layout: Any, _recipe: Recipe, /) -> list[Setting]:
        """The settings that matter for a layout, and their usual values."""
        return []

    def parse_layout(self, text: str, devices: int) -> Layout:
        """The layout of a text such as `tp=8,pp=4,dp=4,mbs=1`; LayoutError lists all problems.

        Long names work too. Omitted settings follow from the rest and the number of devices.
        """
        return self._completed(parsed_settings(text, self.layout_type), devices)

    def _completed(self, given: dict[str, Any], devices: int) -> Layout:
        return cast(Layout, self.layout_type(**({"data": devices} | given)))

    def in_chunks(self, _layout: Any, /) -> Layout:
        """The layout with layers streamed in chunks; InputError where nothing streams."""
        raise InputError(f"detail chunk: no weights are streamed on a {self.kind}")


# Calibrations measured on another device or link than the one that names them.


def measured_on(calibration: Calibration, option: str) -> list[str]:
    """Names of the devices or links (`option`) in the commands of a calibration's fits."""
    commands = " ".join(record.command for record in calibration.fit.values())
    return re.findall(rf"--{option} (\S+)", commands)


def is_borrowed(spec: DeviceSpec | LinkSpec) -> bool:
    """Whether a device's or link's constants were measured on another one.

    Its description says so (`assumed: {calibration: ...}`), or the command of a fit names another one and
    its name is not a variant of the calibration's name, as a100-sxm4-40gb is of a100-sxm4. A calibration of a
    chip that another one has measured counts as its device's where whole steps gave it a ceiling.
    """
    calibration = spec.calibration
    if calibration is None:
        return False
    measured = measured_on(calibration, "device" if isinstance(spec, DeviceSpec) else "link")
    of_chip = isinstance(calibration, GpuCalibration) and calibration.chip
    measured_here = not measured or spec.name in measured or spec.name.startswith(calibration.name)
    measured_here |= bool(of_chip) and "sustained_fraction" in calibration.fit
    return "calibration" in spec.assumed or not measured_here
