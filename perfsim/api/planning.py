"""`perfsim.plan`: the layouts of a machine that may be the fastest, and what runs them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from perfsim.api.questions import Reported, Rows, asks, values_of
from perfsim.base.errors import InputError, within_floats
from perfsim.catalog import Catalog
from perfsim.prediction.question import Objective, question_of
from perfsim.report.text import layout_short
from perfsim.studies.executors import executor_for
from perfsim.studies.shortlist import SHOWN, Planned, plan_layouts


@asks("plan")
@within_floats
def plan(
    *,
    objective: Objective = "step-time",
    shown: int = SHOWN,
    scheduler: str | None = None,
    catalog: Catalog | None = None,
    **given: Any,
) -> PlanAnswer:
    """The layouts that are within the model's error of the fastest, and what would separate them.

    The question is given as to `predict`. The objective "time-to-accuracy" takes the best batch to the
    recipe's target where none is given; "cost" counts device-hours. `shown` is the number of layouts to
    list. With `scheduler`, the address of a Dask scheduler, one of its workers computes.

    Raises InputError for what cannot be asked and PlanError where no layout fits, both with all reasons.
    """
    if objective not in get_args(Objective):
        raise InputError(f"objective: {objective!r} is none of {', '.join(get_args(Objective))}")
    count: Any = shown
    if not (isinstance(count, int) and count >= 1):
        raise InputError(f"shown: {shown!r} is not a whole number of layouts, 1 or more")
    question = question_of(given, catalog, "plan")
    answer = partial(plan_layouts, objective=objective, shown=shown)
    (planned,) = executor_for(1, scheduler).results(answer, [question])
    return PlanAnswer(**values_of(planned))


_OF_ENTRY = ("ratio", "ratio_error", "peak_memory_bytes", "memory_left_bytes", "device_hours")


@dataclass(frozen=True, repr=False)
class PlanAnswer(Planned, Reported):
    """The layouts of one machine that may be the fastest, with the reasons why others are not."""

    _kind = "plan"

    def rows(self) -> Rows:
        """One row a layout: step time with its band, ratio to the first, memory; SI units."""
        return Rows(
            {
                "layout": layout_short(entry.layout),
                "step_time_s": entry.step_time_s,
                "low_s": entry.step_time_band_s[0],
                "high_s": entry.step_time_band_s[1],
                **{name: getattr(entry, name) for name in _OF_ENTRY},
            }
            for entry in self.shortlist
        )

    def __repr__(self) -> str:
        return f"<plan {self.question.label}: {', '.join(row['layout'] for row in self.rows())}>"
