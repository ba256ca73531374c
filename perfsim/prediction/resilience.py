"""Resilience to one slow device: step time against the severity of a straggler."""

from __future__ import annotations

from dataclasses import replace

from perfsim.engine.perturb import with_stragglers
from perfsim.placement.stragglers import place_stragglers
from perfsim.prediction.evaluation import Evaluation
from perfsim.prediction.perturbation_spec import ResilienceSpec
from perfsim.prediction.result import Resilience, ResiliencePoint


def resilience(evaluation: Evaluation, label: str, spec: ResilienceSpec) -> Resilience:
    """Step times of an unperturbed evaluation's plan with one straggler, for each severity.

    The graph is unfolded once, into the classes of ranks that the straggler separates.
    """
    plan = evaluation.plan
    rank = min(spec.rank, plan.topology.num_devices - 1)
    severities = sorted({1.0, *spec.severities})
    placed, slow, _ = place_stragglers(evaluation.graph, plan, {rank: severities[-1]}, step_only=True)
    step = replace(evaluation.step, placed=placed)
    points = []
    for severity in severities:
        slow_s = with_stragglers(placed.graph, step.duration_s, placed.rank, dict.fromkeys(slow, severity))
        points.append(ResiliencePoint(severity, step.run(slow_s).step_time_s))
    return Resilience(label, rank, tuple(points))
