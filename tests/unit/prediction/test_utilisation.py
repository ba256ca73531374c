"""How much of its machine a step uses: links against counts by hand, and FLOPs."""

from types import ModuleType

import numpy as np
import pytest

import perfsim as ps
from perfsim.engine import critical_path
from perfsim.machines.placement import place
from perfsim.network import FatTree
from perfsim.prediction.run import Evaluation
from perfsim.prediction.why import LinkUse
from perfsim.testing.toys import at_once
from perfsim.work import GraphBuilder, RankGroup, TaskGraph

SECONDS = 4.0


@pytest.fixture
def tree(toys: ModuleType) -> FatTree:
    """Four nodes of 8 GPUs, each with a NIC of 25 GB/s and a port of 300 GB/s."""
    return toys.topology(32)


def used(graph: TaskGraph, tree: FatTree) -> dict[str, LinkUse]:
    return LinkUse.by_kind(critical_path(graph, np.full(len(graph), SECONDS)), place(graph, tree))


def test_a_send_uses_one_nic_out_and_one_in(toys: ModuleType, tree: FatTree) -> None:
    """50 GB in 4 s on two of 64 links of 25 GB/s."""
    send = toys.transfer("s", RankGroup(0, 8, 2), comm_bytes=50e9)
    use = used(at_once((send, "gpu0/send")), tree)
    assert use["nic"].mean == pytest.approx(2 * 50e9 / (64 * 25e9 * SECONDS))
    assert use["nic"].peak == pytest.approx(0.5)
    assert use["host"] == use["nic"]
    assert "scale_up" not in use


def test_rings_across_nodes_use_nics_and_ports_between_their_ranks(toys: ModuleType, tree: FatTree) -> None:
    """Two ranks on each of four nodes: two rings share 2 x 7/8 of the message."""
    ring = toys.collective("reduce", RankGroup(0, 4, 8))
    use = used(at_once((ring, "gpu0/nccl")), tree)
    sent = 2 * 7 / 8 * ring.comm_bytes / 2
    assert use["nic"].peak == pytest.approx(sent / SECONDS / 25e9)
    assert use["nic"].mean == pytest.approx(use["nic"].peak * 16 / 64)
    assert use["scale_up"].peak == pytest.approx(sent / SECONDS / 300e9)


def test_the_mean_is_over_the_step_and_the_peak_at_one_instant(toys: ModuleType, tree: FatTree) -> None:
    builder = GraphBuilder()
    send = toys.transfer("s", RankGroup(0, 8, 2), comm_bytes=20e9)
    for work, stream in ((send, "send"), (send, "other"), *[(toys.compute("c"), "compute")] * 2):
        builder.task(work, f"gpu0/{stream}")
    use = used(builder.build(), tree)
    assert use["nic"].peak == pytest.approx(2 * 20e9 / SECONDS / 25e9)
    assert use["nic"].mean == pytest.approx(4 * 20e9 / (64 * 25e9 * 2 * SECONDS))


def test_a_folded_step_uses_what_all_its_ranks_use() -> None:
    """The gradients of a data-parallel step: every rank sends 2 x 15/16 of them. A slow link is busier."""
    question = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 16, "layout": "dp=16,mbs=1"}
    step, slow = (
        ps.predict(**question, batch=16, perturb=text) for text in ("", "slow=0.25@node0/nic0-leaf0")
    )
    graph = step.run.trace.graph
    sums = [graph.works[work] for work in graph.work.tolist() if graph.works[work].op == "all_reduce"]
    reduced = sum(work.comm_bytes * 2 * 15 / 16 for work in sums if work.comm_bytes > 100)
    use = step.utilisation
    assert reduced > 1e9
    assert use["nic"].mean == pytest.approx(reduced / 8 / 25e9 / step.step_time_s, rel=0.3)
    assert 0.0 < use["scale_up"].mean < use["nic"].mean < use["nic"].peak <= 1.0
    assert slow.utilisation["nic"].peak >= use["nic"].peak
    assert slow.step_time_s > step.step_time_s


GPUS = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 2, "strategy": "3d", "batch": 8}
WAFERS = {"model": "gpt3_xl", "system": "cs-2", "devices": 2, "strategy": "weight-streaming", "batch": 64}


def sparse(system: str, sparsity: float, harvest: float = 0.9) -> Evaluation:
    changes = {"recipe.weight_sparsity": sparsity, "system.streaming.sparse_harvest": harvest}
    asked = {"model": "gpt3_20b", "recipe": "gpt3_pretraining", "system": system, "devices": 1, "batch": 48}
    return ps.predict(**asked, **changes).run


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.75, 0.95])
@pytest.mark.parametrize("system", ["cs-2", "cs-2-peak"])
def test_no_sparsity_makes_a_wafer_exceed_its_peak(system: str, sparsity: float) -> None:
    run = sparse(system, sparsity)
    assert 0 < run.mfu <= run.hfu <= 1
    assert sparsity or run.mfu * 4 / 3 == pytest.approx(run.hfu, rel=0.02), "a dense one recomputes"


def test_zeros_that_nothing_skips_are_executed_and_not_needed() -> None:
    dense = sparse("cs-2", 0.0)
    wasted = sparse("cs-2", 0.75, harvest=0.0)
    assert wasted.hardware_flop == pytest.approx(dense.hardware_flop)
    assert 0.25 < wasted.model_flop / dense.model_flop < 0.4, "attention and the head stay dense"


def test_zeros_of_weights_are_needed_as_little_on_gpus_as_on_wafers() -> None:
    needed = []
    for question in (GPUS, WAFERS):
        dense, zeros = (
            ps.predict(**question, **{"recipe.weight_sparsity": share}).run for share in (0.0, 0.75)
        )
        needed.append(zeros.model_flop / dense.model_flop)
    assert needed[0] == pytest.approx(needed[1], rel=1e-6)
    assert 0.25 < needed[0] < 0.5


def test_an_exchange_that_a_product_hides_fills_its_link_and_no_more() -> None:
    asked = {"model": "llama3_8b", "system": "dgx-h100", "devices": 8, "batch": 64}
    hidden = ps.predict(**asked, layout="tp=2,sp=true,zero=1,mbs=2")
    assert hidden.utilisation["scale_up"].peak == 1.0
