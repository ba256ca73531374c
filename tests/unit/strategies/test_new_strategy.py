"""A strategy as a newcomer writes it, whole in this file: data parallelism at ZeRO 0, without recompute."""

from collections.abc import Iterator

import pytest

from perfsim.base.errors import LayoutError, MemoryCapacityError, Problem
from perfsim.costs.memory import MemoryUse, stage_parameters, state_bytes
from perfsim.costs.price import Costs
from perfsim.network import FatTree
from perfsim.proof import prove
from perfsim.specs.layout import ParallelLayout, text_of
from perfsim.specs.recipe import Job
from perfsim.strategies import STRATEGIES
from perfsim.strategies.plan import Plan, Strategy
from perfsim.strategies.three_d.layers import slice_of
from perfsim.testing import check_strategy
from perfsim.work import GraphBuilder, Kind, RankGroup, TensorClass, Work
from perfsim.work.counts import layer_activation_bytes
from perfsim.work.graph import EMBEDDING, HEAD
from perfsim.work.kernels import elementwise
from perfsim.work.layer import attention_kernels, embedding_kernels, head_kernels, mlp_kernels

PlainPlan = Plan[ParallelLayout, FatTree]


class PlainData(Strategy[ParallelLayout, FatTree]):
    """Every device holds the whole model; gradients are summed once a step."""

    name = "plain-data"
    system_kind = "gpu-cluster"
    summary = "data parallelism at ZeRO 0 without recompute"

    def layouts(self, job: Job, topology: FatTree) -> Iterator[ParallelLayout]:
        per_device, rest = divmod(job.global_batch_size, topology.num_devices)
        if not rest and job.model.experts is None:
            for size in (1, 2, 4, 8):
                if per_device % size == 0:
                    yield ParallelLayout(data=topology.num_devices, micro_batch_size=size, recompute="none")

    def plan(
        self, job: Job, topology: FatTree, layout: ParallelLayout, *, check_memory: bool = True
    ) -> PlainPlan:
        microbatches, rest = divmod(job.global_batch_size, layout.data * layout.micro_batch_size)
        if rest or layout.data != topology.num_devices:
            raise LayoutError([Problem(f"{text_of(layout)} does not divide the batch over the devices")])
        part = slice_of(job, layout)
        count = stage_parameters(part, job.model.num_layers, first=True, last=True)
        states = state_bytes(job.recipe).sharded(count, 0, 1)
        kept = job.model.num_layers * layer_activation_bytes(part, "none")
        capacity = topology.system.device.memory.capacity
        use = MemoryUse("device", {**states, "activations": kept}, capacity)
        if check_memory and not use.fits:
            raise MemoryCapacityError(use.total_bytes / capacity, f"needs {use.total_bytes:.3g} B; try mbs=1")
        return Plan(self, job, topology, layout, microbatches, (use,))

    def _works(self, plan: PlainPlan) -> tuple[dict[str, Work], Work, Work]:
        part = slice_of(plan.job, plan.layout)
        positions = plan.job.recipe.lm_head_positions or plan.job.seq_length
        hidden = (TensorClass("hidden", part.activation_bytes),)
        kernels = {
            "embedding.forward": embedding_kernels(part, "forward"),
            "layer.forward": (*attention_kernels(part, "forward"), *mlp_kernels(part, "forward")),
            "head.forward": head_kernels(part, positions, "forward"),
            "head.backward": head_kernels(part, positions, "backward"),
            "layer.backward": (*mlp_kernels(part, "backward"), *attention_kernels(part, "backward")),
            "embedding.backward": embedding_kernels(part, "backward"),
        }
        passes = {
            name: Work(name, Kind.COMP, name, name.rpartition(".")[2], made, writes=hidden)
            for name, made in kernels.items()
        }
        count = stage_parameters(part, plan.job.model.num_layers, first=True, last=True)
        n_bytes = state_bytes(plan.job.recipe).reduced * count
        reduce = Work(
            "data.all_reduce",
            Kind.COMM_COLL,
            "all_reduce",
            "data_communication",
            comm_bytes=n_bytes,
            group=RankGroup(0, 1, plan.layout.data),
            writes=(TensorClass("gradients", n_bytes),),
        )
        moved = (elementwise("adam", 4 * n_bytes),)
        weights = (TensorClass("w", 0.0),)
        return passes, reduce, Work("optimizer", Kind.COMP, "optimizer", "optimizer", moved, writes=weights)

    def emit(self, plan: PlainPlan, builder: GraphBuilder) -> None:
        builder.fold(plan.layout.data)
        passes, reduce, update = self._works(plan)
        last: list[int] = []
        for _ in range(plan.least_steps):
            for number in range(plan.num_microbatches):
                for name, block in _sequence(plan.job.model.num_layers):
                    task = builder.task(passes[name], "gpu0/compute", last, tag=number, block=block)
                    last = [task.tensor]
            if plan.layout.data > 1:
                last = [builder.task(reduce, "gpu0/nccl-data", last).tensor]
            last = [builder.task(update, "gpu0/compute", last).tensor]
            builder.end_step()

    def estimate_s(self, plan: PlainPlan, costs: Costs) -> float:
        passes, reduce, update = self._works(plan)
        once = sum(costs.duration_s(passes[name]) for name, _ in _sequence(plan.job.model.num_layers))
        summed = costs.duration_s(reduce) if plan.layout.data > 1 else 0.0
        return plan.num_microbatches * once + summed + costs.duration_s(update)


def _sequence(num_layers: int) -> Iterator[tuple[str, int]]:
    yield "embedding.forward", EMBEDDING
    yield from (("layer.forward", layer) for layer in range(num_layers))
    yield "head.forward", HEAD
    yield "head.backward", HEAD
    yield from (("layer.backward", layer) for layer in reversed(range(num_layers)))
    yield "embedding.backward", EMBEDDING


def test_it_keeps_every_promise() -> None:
    check_strategy(PlainData())


def test_its_graph_computes_what_serial_training_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "plain-data", PlainData())
    (plan,) = prove.plans_of(prove.Request("llama2_7b", strategy="plain-data", layout="dp=2,mbs=2"))
    proof = prove.prove_plan(plan, orders=2, seed=0)
    assert (proof.faults, proof.passed) == ((), True)
