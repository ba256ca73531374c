"""ZeRO 3: layers are gathered ahead of their compute, as far as two of them fit."""

from __future__ import annotations

import pytest

from perfsim.costs.price import price
from perfsim.engine import critical_path
from perfsim.specs.layout import ParallelLayout
from perfsim.testing import toys
from perfsim.work import Task

LIMIT = 2


def timeline(gather_s: float, layers: int) -> list[tuple[int, float, float, float]]:
    """Each gather of a layer in one step: the layer, start and end of the gather, end of the compute."""
    names = ("attention.forward", "mlp.forward", "attention.backward", "mlp.backward")
    costs = toys.TableCosts(dict.fromkeys(names, 1.0) | {"data.all_gather": gather_s})
    job = toys.job(4, num_layers=layers)
    written = toys.graph_of(toys.plan("zero3", job, ParallelLayout(data=4, zero_stage=3)))
    trace = critical_path(written, price(written, costs))

    def ends(name: str) -> dict[int, float]:
        return {t.block: float(trace.end_s[t.id]) for t in written.tasks() if t.work.name == name}

    def gathers() -> list[Task]:
        return [t for t in written.tasks() if t.work.name == "data.all_gather" and t.block >= 0]

    forward = ends("mlp.forward")
    backward = ends("attention.backward")
    return [
        (
            task.block,
            float(trace.start_s[task.id]),
            float(trace.end_s[task.id]),
            (forward if number < layers else backward)[task.block],
        )
        for number, task in enumerate(gathers())
    ]


@pytest.mark.parametrize("gather_s", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("layers", [1, 2, 3, 8])
def test_a_gather_of_layers_in_order_and_in_reverse_starts_when_one_of_two_before_it_is_done(
    layers: int, gather_s: float
) -> None:
    """FSDP's `limit_all_gathers` [2304.11277]: the host issues a gather when the last but one's is freed."""
    rows = timeline(gather_s, layers)
    assert [row[0] for row in rows] == [*range(layers), *reversed(range(layers))]
    for number, (_, start_s, _, _) in enumerate(rows[1:], start=1):
        on_stream = rows[number - 1][2]
        freed = rows[number - LIMIT][3] if number >= LIMIT else 0.0
        assert start_s == max(on_stream, freed), f"gather {number}"
