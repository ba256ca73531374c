"""A third kind of machine, whole in this file: devices on a ring of links that trains data-parallel.

Registered, it is planned, simulated, predicted and read from YAML by the same functions as the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

import perfsim as ps
from perfsim.base.errors import CatalogError, InputError, LayoutError, MemoryCapacityError, Problem
from perfsim.catalog import default_catalog
from perfsim.costs.memory import MemoryUse, state_bytes
from perfsim.costs.price import Costs
from perfsim.machines import MACHINES, Machine, machine, machine_of, register
from perfsim.network import Cable, Topology
from perfsim.specs.hardware import SYSTEM_CLASSES, LinkSpec, SystemSpec, _plugin_classes, system_classes
from perfsim.specs.layout import Recompute, text_of
from perfsim.specs.recipe import Job, Recipe
from perfsim.strategies import STRATEGIES, Plan, Strategy
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study
from perfsim.work import GraphBuilder, Kind, RankGroup, TensorClass, Work
from perfsim.work.counts import layer_activation_bytes, parameters
from perfsim.work.kernels import LayerSlice
from perfsim.work.layer import attention_kernels, mlp_kernels


class RingSpec(SystemSpec):
    """Devices on a ring."""

    kind: Literal["ring-cluster"]
    link: LinkSpec


class Ring(Topology):
    """Each device has a link to the next."""

    system: RingSpec
    devices_per_node = 1

    def device(self, rank: int) -> str:
        self._check_rank(rank)
        return f"dev{rank}"

    def _cables(self) -> Iterator[Cable]:
        link = self.system.link
        for rank in range(self.num_devices if self.num_devices > 2 else self.num_devices - 1):
            neighbour = (rank + 1) % self.num_devices
            seconds = (link.latency, link.latency)
            yield Cable(self.device(rank), self.device(neighbour), "scale_up", link.bandwidth, seconds)


class RingCosts(Costs):
    """Half of the peak, and a ring of links."""

    def __init__(self, ring: Ring, recipe: Recipe) -> None:
        self.ring = ring
        self.flop_per_s = ring.system.device.peak[recipe.precision] / 2

    def duration_s(self, work: Work) -> float:
        if not work.kind.is_communication:
            return work.flop / self.flop_per_s
        count = self.ring.num_devices
        link = self.ring.system.link
        return 2 * (count - 1) * (link.latency + work.comm_bytes / count / link.bandwidth)


@dataclass(frozen=True)
class RingLayout:
    """Replicas."""

    data: int = 1
    micro_batch_size: int = 1
    recompute: Recompute = "none"
    tensor: int = 1
    pipeline: int = 1
    zero_stage: int = 0

    @property
    def num_devices(self) -> int:
        return self.data

    def as_dict(self, num_microbatches: int) -> dict[str, Any]:
        sizes = {"data": self.data, "micro_batch_size": self.micro_batch_size}
        return {**sizes, "num_microbatches": num_microbatches}


RingPlan = Plan[RingLayout, Ring]


class RingData(Strategy[RingLayout, Ring]):
    """Every device holds the model; gradients are summed around the ring."""

    name = "ring-data"
    system_kind = "ring-cluster"
    summary = "data parallelism around a ring"

    def layouts(self, job: Job, topology: Ring) -> Iterator[RingLayout]:
        per_device, rest = divmod(job.global_batch_size, topology.num_devices)
        if not rest:
            yield from (
                RingLayout(topology.num_devices, size) for size in (1, 2, 4) if per_device % size == 0
            )

    def plan(self, job: Job, topology: Ring, layout: RingLayout, *, check_memory: bool = True) -> RingPlan:
        microbatches, rest = divmod(job.global_batch_size, layout.data * layout.micro_batch_size)
        if rest or layout.data != topology.num_devices:
            raise LayoutError([Problem(f"{text_of(layout)} does not divide the batch over the ring")])
        states = state_bytes(job.recipe).sharded(self._parameters(job), 0, 1)
        kept = layer_activation_bytes(self._part(job, layout), "none") * job.model.num_layers
        use = MemoryUse("device", {**states, "activations": kept}, topology.system.device.memory.capacity)
        if check_memory and not use.fits:
            raise MemoryCapacityError(use.total_bytes / use.capacity_bytes, "needs more memory; try mbs=1")
        return RingPlan(self, job, topology, layout, microbatches, (use,))

    def _parameters(self, job: Job) -> float:
        return float(parameters(job.model).total)

    def _part(self, job: Job, layout: RingLayout) -> LayerSlice:
        return LayerSlice(job.model, job.seq_length, layout.micro_batch_size)

    def _works(self, plan: RingPlan) -> tuple[Work, Work, Work]:
        part = self._part(plan.job, plan.layout)
        forward = (*attention_kernels(part, "forward"), *mlp_kernels(part, "forward"))
        backward = (*mlp_kernels(part, "backward"), *attention_kernels(part, "backward"))
        hidden = (TensorClass("hidden", part.activation_bytes),)
        n_bytes = 4.0 * self._parameters(plan.job)
        return (
            Work("layer.forward", Kind.COMP, "layer.forward", "forward", forward, writes=hidden),
            Work("layer.backward", Kind.COMP, "layer.backward", "backward", backward, writes=hidden),
            Work(
                "data.all_reduce",
                Kind.COMM_COLL,
                "all_reduce",
                "data_communication",
                comm_bytes=n_bytes,
                group=RankGroup(0, 1, plan.layout.data),
                writes=(TensorClass("gradients", n_bytes),),
            ),
        )

    def emit(self, plan: RingPlan, builder: GraphBuilder) -> None:
        builder.fold(plan.layout.data)
        forward, backward, reduce = self._works(plan)
        last: list[int] = []
        for number in range(plan.num_microbatches):
            for work in (forward, backward):
                for layer in range(plan.job.model.num_layers):
                    last = [builder.task(work, "dev0/compute", last, tag=number, block=layer).tensor]
        summed = builder.task(reduce, "dev0/network", last).tensor
        update = Work("optimizer", Kind.COMP, "optimizer", "optimizer", writes=(TensorClass("weights", 0.0),))
        builder.task(update, "dev0/compute", [summed])
        builder.end_step()

    def estimate_s(self, plan: RingPlan, costs: Costs) -> float:
        forward, backward, reduce = self._works(plan)
        passes = plan.num_microbatches * plan.job.model.num_layers
        return passes * (costs.duration_s(forward) + costs.duration_s(backward)) + costs.duration_s(reduce)


class RingCluster(Machine):
    """Devices on a ring."""

    kind = "ring-cluster"
    system_type = RingSpec
    layout_type = RingLayout
    default_strategy = "ring-data"

    def topology(self, system: RingSpec, num_devices: int) -> Ring:
        return Ring(system, num_devices)

    def costs(self, topology: Ring, recipe: Recipe) -> RingCosts:
        return RingCosts(topology, recipe)


SYSTEM = """\
name: ring
kind: {kind}
device: a100-sxm4-80gb
link: {{name: hop, bandwidth: 50 GB/s, latency: 1 us, assumed: {{bandwidth: a test, latency: a test}}}}
"""
STUDY = """\
name: rings
title: A ring next to GPUs
question: Which is first?
model: gpt3_xl
recipe: gpt3_20b_chinchilla
candidates:
  - {strategy: 3d, system: dgx-a100-80gb, devices: [8]}
  - {strategy: ring-data, system: ring.yaml, devices: [4, 8]}
batch_sizes: [64]
sampling: {tasks: 1, seed: 1}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a ring's file, and the kind registered for one test."""
    register(RingCluster())
    monkeypatch.setitem(STRATEGIES, "ring-data", RingData())
    (tmp_path / "ring.yaml").write_text(SYSTEM.format(kind="ring-cluster"), encoding="utf-8")
    yield tmp_path
    del MACHINES["ring-cluster"], SYSTEM_CLASSES["ring-cluster"]


def predict(folder: Path, devices: int = 4, **given: Any) -> ps.Prediction:
    return ps.predict(model="gpt3_xl", system=folder / "ring.yaml", devices=devices, batch=64, **given)


def test_it_is_read_from_yaml_planned_simulated_and_explained(folder: Path) -> None:
    system = default_catalog().system(str(folder / "ring.yaml"))
    assert isinstance(system, RingSpec)
    assert isinstance(machine_of(system), RingCluster)
    prediction = predict(folder)
    assert prediction.layout["data"] == 4
    assert prediction.step_time_s == pytest.approx(sum(prediction.breakdown_s.values()))
    assert prediction.breakdown_s["data_communication"] > 0
    assert 0.3 < prediction.mfu < 0.5
    assert "compute" in prediction.why.parts_s


def test_its_layouts_are_written_as_text_and_what_is_of_another_kind_is_refused(folder: Path) -> None:
    prediction = predict(folder, layout="mbs=2")
    assert prediction.layout == {"data": 4, "micro_batch_size": 2, "num_microbatches": 8}
    with pytest.raises(LayoutError, match="'vpp=2': unknown name"):
        predict(folder, layout="vpp=2")
    with pytest.raises(InputError, match="strategy 3d runs on a gpu-cluster; ring is a ring-cluster"):
        predict(folder, strategy="3d")
    path = folder / "wrong.yaml"
    path.write_text(SYSTEM.format(kind="ring-clusters"), encoding="utf-8")
    with pytest.raises(CatalogError, match="did you mean `ring-cluster`"):
        default_catalog().system(str(path))


def test_a_study_compares_it_with_the_others(folder: Path) -> None:
    (folder / "rings.yaml").write_text(STUDY, encoding="utf-8")
    result = run_study(load_study(str(folder / "rings.yaml")))
    labels = [candidate.label for candidate in result.candidates if candidate.strategy == "ring-data"]
    assert labels == ["4 devices of ring, ring-data", "8 devices of ring, ring-data"]
    (unknown,) = (entry for entry in result.accuracy if entry.strategy == "ring-data")
    assert (unknown.n, unknown.p90_ape) == (0, 1.0)


def test_a_plug_in_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = SimpleNamespace(name="ring-cluster", load=lambda: RingCluster)
    for module in ("machines", "specs.hardware"):
        monkeypatch.setattr(f"perfsim.{module}.plug_ins", lambda room: [point] * (room == "machines"))
    _plugin_classes.cache_clear()
    assert isinstance(machine("ring-cluster"), RingCluster)
    assert system_classes()["ring-cluster"] is RingSpec
    _plugin_classes.cache_clear()


def test_a_kind_whose_layouts_lack_a_member_is_refused_by_name() -> None:
    class Bare:
        """No layout."""

    class Incomplete(RingCluster):
        kind = "incomplete"
        layout_type = Bare

    with pytest.raises(InputError, match="kind of system 'incomplete': Bare has no tensor, pipeline"):
        register(Incomplete())
    assert "incomplete" not in MACHINES
    Incomplete.kind = "gpu-cluster"
    with pytest.raises(InputError, match=r"Incomplete and .* has 'gpu-cluster' built in"):
        register(Incomplete())
