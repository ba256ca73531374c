"""Replaces tasks by chains of tasks, such as a collective by the steps of its algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfsim.errors import GraphError
from perfsim.graph.ragged import Ragged, offsets
from perfsim.graph.task_graph import TaskGraph
from perfsim.graph.work import Work


def expand(graph: TaskGraph, chains: Mapping[int, Sequence[Work]]) -> TaskGraph:
    """Replace every task of work w by the tasks `chains[w]`, in order on its stream.

    The first task of a chain inherits the dependencies, the last one the outputs; tensors keep their
    handles. Raises GraphError for a chain that is empty or whose last work writes other tensors.
    """
    for work, chain in chains.items():
        if not chain or len(chain[-1].writes) != len(graph.works[work].writes):
            raise GraphError(f"a chain for {graph.works[work].name} must end in work that writes the same")
    length = np.array([len(chains.get(work, (None,))) for work in range(len(graph.works))])
    first = offsets(length[graph.work])
    task = np.repeat(np.arange(len(graph)), length[graph.work])
    local = np.arange(len(task)) - first[task]
    is_last = local == length[graph.work][task] - 1
    works, begin = _works(graph, chains)
    return replace(
        graph,
        works=works,
        work=(begin[graph.work[task]] + local).astype(np.int32),
        stream=graph.stream[task],
        tag=graph.tag[task],
        block=graph.block[task],
        reads=_of_first(graph.reads, task, local, graph.reads.values),
        after=_of_first(graph.after, task, local, first[graph.after.values + 1] - 1),
        first_write=offsets(np.where(is_last, np.diff(graph.first_write)[task], 0)).astype(np.int32),
        step_ends=tuple(int(first[end]) for end in graph.step_ends),
    )


def _works(
    graph: TaskGraph, chains: Mapping[int, Sequence[Work]]
) -> tuple[tuple[Work, ...], NDArray[np.int64]]:
    """The works of the new graph, and where those of each old one begin."""
    works: list[Work] = []
    begin = []
    for number, work in enumerate(graph.works):
        begin.append(len(works))
        works += chains.get(number, (work,))
    return tuple(works), np.array(begin)


def _of_first(
    rows: Ragged, task: NDArray[np.int64], local: NDArray[np.int64], values: NDArray[np.integer]
) -> Ragged:
    """The rows of the tasks for the first task of each chain; empty rows for the others."""
    lengths = np.where(local == 0, np.diff(rows.start)[task], 0)
    return Ragged(offsets(lengths).astype(np.int32), values.astype(np.int32))
