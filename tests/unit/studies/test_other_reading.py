"""The last line of a verdict: who is first where every candidate runs another kind of layout."""

from dataclasses import replace
from types import ModuleType

import pytest

from perfsim.prediction.risk import Ranked
from perfsim.prediction.run import Perturbed
from perfsim.studies.decision import duration
from perfsim.studies.verdict import grounds


@pytest.mark.parametrize(
    ("faster", "slowed", "said"), [(10.0, 1, True), (1.0, 1, False), (0.1, 1, False), (1.0, 10, False)]
)
def test_another_layout_is_told_if_it_turns_the_order_whatever_perturbs_the_step(
    factory: ModuleType, faster: float, slowed: int, said: bool
) -> None:
    result = factory.study_result()
    *others, last = result.candidates
    planned_s = last.step_time_s / slowed
    ranks = tuple(
        Ranked(rank, "", step_s, (step_s, step_s), (), is_proven=True)
        for rank, step_s in (("proven", planned_s), ("fastest", planned_s / faster))
    )
    perturbed = Perturbed("", planned_s, (), 0) if slowed > 1 else None
    lines = grounds((*others, replace(last, ranks=ranks, perturbed=perturbed)), result.decision, None)
    assert ("other reading" in lines) == said
    if said:
        (own,) = (row for row in result.decision.outcomes if row.label == last.label)
        when = duration(own.wall_s.typical / faster)
        assert f"With the fastest of all layouts first after {when}: 16 CS-2." in lines["other reading"]
