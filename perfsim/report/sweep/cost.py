"""The section of a sweep that sets time against money, or against device-days where no price is given."""

from __future__ import annotations

import numpy as np

from perfsim.convergence.bill import bill
from perfsim.convergence.uncertain import typical
from perfsim.report import text
from perfsim.report.figures.cost import CostPoint, cost_alt, cost_curve, cost_table, worth_taking
from perfsim.report.sections import Section
from perfsim.studies.price_spec import rates_of
from perfsim.studies.runner import question_of
from perfsim.sweeps.analysis import Analysis
from perfsim.sweeps.points import PointResult
from perfsim.units import DAY_S


def time_and_cost(analysis: Analysis) -> list[Section]:
    """The section; nothing where targets differ or every series has one number of devices.

    Money compares all machines, device-days those of one machine.
    """
    series = analysis.series
    if len(analysis.targets) > 1:
        return []
    points = [(member, point) for member in series for point in member.points]
    if all(len(member.points) == 1 for member in series):
        return []
    money = [_money(point) for _, point in points]
    priced = None not in money
    currency = points[0][1].point.study.currency
    cost = f"cost ({currency})" if priced else "device-days"
    unit, scale = text.time_unit(point.target_time.time_s for _, point in points)
    costs = [
        amount if priced and amount is not None else _time_s(point) * point.num_devices / DAY_S
        for amount, (_, point) in zip(money, points, strict=True)
    ]
    pairs = [(_time_s(point) / scale, amount) for (_, point), amount in zip(points, costs, strict=True)]
    groups = ["" if priced else point.system for _, point in points]
    best = [
        worth_taking([pair for pair, other in zip(pairs, groups, strict=True) if other == group] + [own])[-1]
        for own, group in zip(pairs, groups, strict=True)
    ]
    drawn = [
        CostPoint(member.label, member.at(point), *pair, own)
        for (member, point), pair, own in zip(points, pairs, best, strict=True)
    ]
    lead = (
        "Shows what a shorter time costs: full marks are points than which none is both faster and cheaper."
        if priced
        else "Shows what a shorter time takes: full marks are points than which none of the same machine is "
        "faster with fewer device-days. Devices of unlike machines do not compare; with a price for each "
        "candidate the axis is money."
    )
    names = {"unit": unit, "cost": cost}
    return [
        Section(
            "Time against cost" if priced else "Time against device-days",
            lead,
            figure=cost_curve(drawn, **names),
            table=cost_table(drawn, **names),
            alt=cost_alt(drawn, **names),
            slug="cost",
        )
    ]


def _time_s(point: PointResult) -> float:
    return point.target_time.time_s


def _money(point: PointResult) -> float | None:
    """What the steps of a point cost at typical prices; None without a price."""
    candidate, study = point.point.candidate, point.point.study
    if candidate.price is None:
        return None
    unit = question_of(study, candidate, point.num_devices).topology.devices_per_node
    units = -(-point.num_devices // unit)
    rates = rates_of(candidate.system, point.num_devices, units, candidate.price, study.energy)
    money = bill(np.asarray(_time_s(point)), rates, typical).money
    return None if money is None else float(money)
