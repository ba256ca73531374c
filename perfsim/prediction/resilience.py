"""How a step suffers from one slow device: step time against how slow it is, for each candidate."""

from __future__ import annotations

from perfsim.costs.price import price
from perfsim.engine import simulate
from perfsim.engine.perturb import with_stragglers
from perfsim.placement.stragglers import straggling
from perfsim.prediction.evaluation import Evaluation
from perfsim.prediction.perturbation_spec import ResilienceSpec
from perfsim.prediction.result import Resilience, ResiliencePoint


def resilience(evaluation: Evaluation, label: str, spec: ResilienceSpec) -> Resilience:
    """Step times of an unperturbed evaluation's plan with one straggler of every severity asked for.

    The graph is unfolded once: only for the classes of ranks that the straggler parts.
    """
    plan = evaluation.plan
    rank = min(spec.rank, plan.topology.num_devices - 1)
    severities = sorted({1.0, *spec.severities})
    (graph, ranks, links, _), slow, _ = straggling(
        evaluation.graph, plan, {rank: severities[-1]}, step_only=True
    )
    duration_s = price(graph, evaluation.costs)
    scale = evaluation.cluster.scale if evaluation.cluster is not None else 1.0
    points = []
    for severity in severities:
        slow_s = with_stragglers(graph, duration_s, ranks, dict.fromkeys(slow, severity))
        step_s = simulate(graph, slow_s, *links).step_time_s * scale
        points.append(ResiliencePoint(severity, step_s))
    return Resilience(label, rank, tuple(points))
