"""Layouts in columns: row i of every array is one layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from perfsim.strategies.schedules import schedule_called
from perfsim.strategies.three_d.division import Division, RankColumns, divided, stacked
from perfsim.workload import Job, ParallelLayout, Recompute

Ints = NDArray[np.int64]
MODES: tuple[Recompute, ...] = get_args(Recompute)


@dataclass(frozen=True)
class Columns:
    """Layouts of one job; `divisions` has the distinct divisions of its layers."""

    tensor: Ints
    data: Ints
    micro_batch: Ints
    zero: Ints
    sequence_parallel: Ints
    recompute: Ints
    """Index into `MODES`."""
    recompute_every: Ints
    division: Ints
    """Index into `divisions`, which holds schedule, pipeline and virtual pipeline."""
    divisions: tuple[Division, ...]

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def pipeline(self) -> Ints:
        """Pipeline ranks."""
        return self._of_division("pipeline")

    @property
    def virtual(self) -> Ints:
        """Chunks per rank."""
        return self._of_division("virtual")

    @property
    def last_rank(self) -> Ints:
        """The rank with LM head and loss."""
        return self._of_division("last_rank")

    @property
    def v_shaped(self) -> NDArray[np.bool_]:
        """Whether virtual stages are placed in a V."""
        return self._of_division("v_shaped").astype(bool)

    @property
    def splits_backward(self) -> NDArray[np.bool_]:
        """Whether weight gradients are a pass of their own."""
        return self._of_division("splits_backward").astype(bool)

    @property
    def tight(self) -> NDArray[np.bool_]:
        """Whether transfers between neighbours are exposed in the steady state."""
        return self._of_division("tight").astype(bool)

    def _of_division(self, name: str) -> Ints:
        return np.array([getattr(division, name) for division in self.divisions])[self.division]

    def by_schedule(self) -> dict[str, NDArray[np.bool_]]:
        """The rows of every schedule."""
        schedules = np.array([division.schedule for division in self.divisions])
        return {str(name): (schedules == name)[self.division] for name in np.unique(schedules)}

    def microbatches(self, job: Job) -> Ints:
        """Micro-batches of one replica."""
        return job.global_batch_size // (self.data * self.micro_batch)

    def rows(self, chosen: Ints | NDArray[np.bool_]) -> Columns:
        """The layouts at these indices."""
        columns = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        return Columns(**columns, divisions=self.divisions)

    def ranks(self) -> RankColumns:
        """Representative ranks of every layout, shape (rows, ranks)."""
        return stacked([division.representatives() for division in self.divisions]).of(self.division)

    def layout(self, row: int) -> ParallelLayout:
        """One row as a layout."""
        division = self.divisions[int(self.division[row])]
        return ParallelLayout(
            tensor=int(self.tensor[row]),
            pipeline=division.pipeline,
            data=int(self.data[row]),
            virtual_pipeline=division.virtual,
            sequence_parallel=bool(self.sequence_parallel[row]),
            zero_stage=int(self.zero[row]),
            schedule=division.schedule,
            micro_batch_size=int(self.micro_batch[row]),
            recompute=MODES[int(self.recompute[row])],
            recompute_every=int(self.recompute_every[row]),
            layers_per_stage=None if division.even else division.layers,
        )


_COLUMNS = tuple(field.name for field in fields(Columns) if field.name != "divisions")


def distinct_rows(keys: Sequence[Ints]) -> tuple[Ints, Ints]:
    """The first row of every distinct combination of columns from 0 on, and the combination of every row."""
    code = np.zeros(len(keys[0]), dtype=np.int64)
    for column in keys:
        code = code * (int(column.max(initial=0)) + 1) + column
    _, first, of_row = np.unique(code, return_index=True, return_inverse=True)
    return first, of_row


def from_table(table: Ints, divisions: tuple[Division, ...]) -> Columns:
    """Columns from an array of shape (rows, fields), in the order of the fields."""
    return Columns(**dict(zip(_COLUMNS, table.T, strict=True)), divisions=divisions)


def division_of(job: Job, layout: ParallelLayout) -> Division:
    """How a layout divides the layers of a job."""
    given = layout.layers_per_stage
    if given is None:
        return divided(layout.schedule, layout.pipeline, layout.virtual_pipeline, job.model.num_layers)
    return Division(layout.schedule, layout.pipeline, layout.virtual_pipeline, given)


def columns_of(job: Job, layout: ParallelLayout) -> Columns:
    """One layout as a single row. Raises LayoutError for an unknown schedule."""
    schedule_called(layout.schedule)
    values = (
        layout.tensor,
        layout.data,
        layout.micro_batch_size,
        layout.zero_stage,
        layout.sequence_parallel,
        MODES.index(layout.recompute),
        layout.recompute_every,
        0,
    )
    return from_table(np.array([values], dtype=np.int64), (division_of(job, layout),))
