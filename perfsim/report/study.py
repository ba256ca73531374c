"""The answer to a study in tables and sentences, and how it stands on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from perfsim.prediction.disturbed import Resilience
from perfsim.report import text
from perfsim.report.table import Cell, Table
from perfsim.report.terminal import caveat_lines, paragraph, paragraphs, table_lines
from perfsim.specs.prices import NOT_GIVEN
from perfsim.studies.answers import (
    Assumption,
    CandidateResult,
    Decision,
    Production,
    Spread,
    StudyResult,
    recorded,
)
from perfsim.studies.decision import chance, first_and_rival, verb

SAME = 0.02
"""Differences below this share are not worth a word."""
HIDDEN = 0.98
"""A step that is less than this share of the device's slowdown longer hides a part of the delay."""
MOST_CANDIDATES = 24
"""Rows on a terminal; of more candidates the fastest are shown, and the report has all."""
MOST_INFEASIBLE = 6
"""Candidates without a plan that the terminal names with their reason; the report names all."""

Named = Sequence[tuple[str, CandidateResult]]
"""Candidates under the names that they are shown by."""


# The candidates in figures.


def candidates_table(named: Named, decision: Decision | None = None) -> Table:
    """A row for each candidate, every column in one unit; the best time, rate and MFU marked."""
    shown = [candidate for _, candidate in named]
    unit = text.time_unit(candidate.time_to_accuracy_s for candidate in shown)
    walls_s = {own.label: own.wall_s.typical for own in decision.outcomes} if decision else {}
    first_s = min((own.time_to_accuracy_s for own in shown), default=math.inf)
    rate = max((own.tokens_per_s for own in shown), default=math.inf)
    mfu = max((own.mfu for own in shown), default=math.inf)
    compared = len(shown) > 1
    columns = {
        "machine": None,
        "layout": None,
        "batch": text.COUNT,
        "step": text.time_unit([max((own.step_time_s for own in shown), default=1.0)]),
        "MFU": text.PERCENT,
        "memory": text.memory_unit(*(own.memory_capacity_bytes for own in shown)),
        "steps": text.Unit("thousand", 1e3),
        "time": unit,
        "wall": unit,
        "time in production": unit,
        "tokens/s": text.COUNT,
        "tokens/s per device": text.COUNT,
        "HFU": text.PERCENT,
        "bubble": text.PERCENT,
        "exposed communication": text.PERCENT,
        "share of the memory": text.PERCENT,
        "strategy": None,
        "settings": None,
    }
    rows = []
    for name, own in named:
        is_first = own.time_to_accuracy_s == first_s < math.inf
        band = own.time_to_accuracy_band_s if math.isfinite(own.time_to_accuracy_s) else None
        rows.append(
            (
                Cell(name, mark=is_first),
                text.layout_short(own.layout),
                own.global_batch_size,
                own.step_time_s,
                Cell(own.mfu, mark=compared and own.mfu == mfu),
                own.peak_memory_bytes,
                own.steps,
                Cell(own.time_to_accuracy_s, band, mark=compared and is_first),
                walls_s.get(own.label),
                Cell(own.production_time_s, own.production_band_s),
                Cell(own.tokens_per_s, mark=compared and own.tokens_per_s == rate),
                own.tokens_per_s / max(own.num_devices, 1),
                own.hfu,
                own.bubble_fraction,
                own.exposed_communication_fraction,
                own.peak_memory_bytes / own.memory_capacity_bytes,
                own.strategy,
                text.layout_long(own.layout),
            )
        )
    caption = (
        "MFU counts the FLOPs of the model, HFU also those of recomputation. Memory is per device. A star "
        "marks the best."
    )
    return Table.of(columns, rows, caption)


ON_A_PAGE = (
    "machine", "time", "time in production", "steps", "batch", "step", "tokens/s", "tokens/s per device",
    "MFU", "HFU", "bubble", "exposed communication", "memory", "share of the memory", "strategy", "settings",
)  # fmt: skip
"""What a page shows of each candidate; its decision has the times on the wall."""
ON_A_TERMINAL = ("machine", "layout", "batch", "step", "MFU", "memory", "steps", "time", "wall")


def why_table(named: Named) -> Table:
    """For each candidate: what limits its step, waits, tokens that would hide weights, nearest remedy."""
    rows: list[Sequence[Any]] = []
    for name, candidate in named:
        why = candidate.why
        shares = {part: seconds / candidate.step_time_s for part, seconds in why.parts_s.items()}
        compute = shares.pop("compute", 0.0)
        waits = sorted(((share, part) for part, share in shares.items()), reverse=True)
        roof = why.streaming_roof
        rows.append(
            (
                name,
                why.cause,
                compute,
                ", ".join(f"{part} {text.percent(share)}" for share, part in waits) or None,
                roof and roof.tokens,
                roof and Cell(roof.hidden_from_tokens, note=f"({text.integer(roof.formula_tokens)})"),
                why.remedy,
            )
        )
    return Table.of(
        {
            "candidate": None,
            "limited by": None,
            "compute": text.SHARE,
            "waits": None,
            "tokens": text.COUNT,
            "tokens to hide weights": text.COUNT,
            "nearest remedy": None,
        },
        rows,
        "Shares of the step; only waits that nothing hides count. Tokens are per micro-batch and system; in "
        "parentheses e P b / (2 B), what arithmetic alone would need to hide the weights.",
    )


def remarks_table(named: Named) -> Table:
    """Remarks on each plan, one in a row, the plan's name before its first."""
    return Table.of(
        ("plan", "remark"),
        (
            (name if number == 0 else "", remark)
            for name, candidate in named
            for number, remark in enumerate(candidate.notes)
        ),
    )


def laws_table(result: StudyResult) -> Table:
    """One row a law: its critical batch, each candidate's best batch and time, the first one marked."""
    unit = text.time_unit(row.time_s for answer in result.laws for row in answer.rows)
    names = {name: unit for name, _ in text.named(result.candidates)}
    return Table.of(
        {"law": None, "critical batch, tokens": text.LARGE, **names, "source": None},
        (
            [
                answer.law,
                Cell(answer.critical_batch_tokens, answer.band_tokens),
                *(
                    Cell(
                        row.time_s,
                        note=f"at batch {text.integer(row.global_batch_size)}",
                        mark=row.label == answer.first,
                    )
                    for row in answer.rows
                ),
                answer.source,
            ]
            for answer in result.laws
        ),
    )


def whole_run_table(result: StudyResult) -> Table:
    """The parts of the wall clock of each candidate whose study names one, the whole run last."""
    named = [(name, own) for name, own in text.named(result.candidates) if own.whole_run]
    parts = list(dict.fromkeys(part.name for _, own in named for part in own.whole_run))
    parts.sort(key=lambda part: part == "whole run")
    cells = {
        (name, part.name): Cell(
            part.typical_s,
            (part.low_s, part.high_s) if part.low_s < part.high_s else None,
            f"\u00b7 {part.how}" if part.how else "",
        )
        for name, own in named
        for part in own.whole_run
    }
    return Table.of(
        {"": None, **{name: text.TIME for name, _ in named}},
        ([part, *(cells.get((name, part)) for name, _ in named)] for part in parts),
    )


def resilience_table(result: StudyResult) -> Table:
    """Step time of every candidate at every severity of one slow device."""
    severities = sorted({point.severity for curve in result.resilience for point in curve.points})
    rows = []
    for curve in result.resilience:
        cells = {
            point.severity: Cell(point.step_time_s, note=f"({slow:.3f})")
            for point, slow in zip(curve.points, _slowdowns(curve), strict=True)
        }
        rows.append([curve.label, *(cells.get(severity) for severity in severities)])
    return Table.of(
        {"candidate": None, **{f"{severity:g} {text.TIMES}": text.TIME for severity in severities}},
        rows,
        "Step time, in parentheses relative to the step without a straggler.",
    )


def resilience_sentence(result: StudyResult) -> str:
    """What the slowest device that was tried does to each candidate, and who hides a part of it."""
    alike: dict[str, list[str]] = {}
    for curve in result.resilience:
        slow = _slowdowns(curve)[-1]
        severity = curve.points[-1].severity
        hidden = slow - 1 < HIDDEN * (severity - 1)
        remark = " (waits that are there anyway hide the rest)" if hidden else ""
        words = f"takes {slow:.2f} times as long with one device {severity:g} times as slow{remark}"
        alike.setdefault(words, []).append(curve.label)
    said = "; ".join(f"a step of {' or '.join(names)} {words}" for words, names in alike.items())
    return f"{text.capital(said)}." if said else ""


def _slowdowns(curve: Resilience) -> list[float]:
    """Step time at every severity over the step without a straggler."""
    return [point.step_time_s / curve.points[0].step_time_s for point in curve.points]


# What an answer rests on.


def assumptions_tables(assumptions: Sequence[Assumption]) -> list[tuple[str, Table]]:
    """For each topic its inputs with their sources; inputs of one source and kind share a row."""
    topics: dict[str, dict[tuple[str, str], list[str]]] = {}
    for item in assumptions:
        rows = topics.setdefault(item.topic, {})
        rows.setdefault((item.source, item.kind), []).append(f"{item.name}: {item.value}")
    return [
        (
            f"{topic} ({sum(map(len, rows.values()))})",
            Table.of(
                ("input", "kind", "source"),
                (("; ".join(inputs), kind, source) for (source, kind), inputs in rows.items()),
            ),
        )
        for topic, rows in topics.items()
    ]


def sampling_table(result: StudyResult) -> Table:
    """How many tasks were executed, what they represent, and their errors."""
    error = text.Unit(digits="{:.1e}".format)
    return Table.of(
        {
            "candidate": None,
            "products": text.COUNT,
            "share of FLOPs": text.SHARE,
            "largest error": error,
            "bound": error,
            "where": None,
            "result": None,
            "partitions": None,
        },
        (
            (
                name,
                Cell(own.tasks_sampled, note=f"of {text.integer(own.tasks_total)}"),
                own.flop_share,
                own.worst_relative_error,
                own.bound,
                own.worst or None,
                "passed" if own.passed else f"FAILED: {'; '.join(own.failed)}",
                ", ".join(f"{text.human(part)} {count}" for part, count in own.by_partition.items()) or None,
            )
            for name, own in result.sampling.items()
        ),
        "Kinds of product executed, of all products compared with the model in shape, division, sum and "
        "FLOPs, and the share of the step's matrix FLOPs in these kinds. Rows and columns of the full-size "
        "result are computed on the slices of all parts. Errors are relative to the product of absolute "
        "values; the bound holds for any order of summation. Integers must be exact.",
    )


def accuracy_table(result: StudyResult) -> Table:
    """Errors of predictions of published runs like these, next to the baseline's median."""
    errors = ("median error", "90th percentile", "90th percentile, left out", "baseline's median")
    return Table.of(
        {"most similar family": None, "strategy": None, "runs": text.COUNT}
        | dict.fromkeys(errors, text.SHARE),
        (
            (
                *(own.family, own.strategy, own.n),
                *(own.median_ape, own.p90_ape, own.held_out_p90_ape, own.baseline_median_ape),
            )
            for own in result.accuracy
        ),
        "Absolute errors of the predicted step time on published runs. A few global constants were fitted to "
        "these runs too; 'left out' is for constants fitted without them. A band comes from the errors of "
        "all runs that were left out, and widens where a plan is unlike them.",
    )


# When, how much, how sure, and what would change the answer.


def outcomes_table(decision: Decision, names: Sequence[str]) -> Table:
    """One row a candidate, one column a quantity; the most probable first is marked."""
    outcomes = decision.outcomes
    unit = text.time_unit([min(own.wall_s.typical for own in outcomes)])
    likely = text.Unit(digits=chance)
    columns = {
        "": None,
        "steps": unit,
        "on the wall": unit,
        "which holds": None,
        "first with a probability of": likely,
        "device-hours": text.LARGE,
        "energy": text.Unit("MWh", 1e3),
        "carbon": text.Unit("t CO2e", 1e3),
        "money": text.Unit(suits=lambda values: _with_unit(values, decision.currency)),
    }
    if all(own.cheapest is not None for own in outcomes):
        columns["cheapest with a probability of"] = likely
    most = max(own.first for own in outcomes)
    rows = (
        [
            name,
            _spread(own.steps_s),
            _spread(own.wall_s),
            own.basis,
            Cell(own.first, mark=own.first == most),
            *map(_spread, (own.device_hours, own.energy_kwh, own.carbon_kg, own.money)),
            own.cheapest,
        ][: len(columns)]
        for name, own in zip(names, outcomes, strict=True)
    )
    gaps = dict.fromkeys(gap for own in outcomes for gap in own.not_given)
    return Table.of(columns, rows, f"Not given: {', '.join(gaps)}." if gaps else "")


def break_even_table(decision: Decision, names: Sequence[str]) -> Table:
    """Equal-cost prices of the first machine against others and back, narrow enough for a phone."""
    short = dict(zip((own.label for own in decision.outcomes), names, strict=True))
    return Table.of(
        {"a device-hour of": None, "may cost as much as": None, "or": text.Unit(decision.currency)},
        (
            (
                short[row.label],
                replace(_spread(row.device_hours_ratio), note=f"of {short[row.rival]}", unit=text.NUMBER),
                _spread(row.price),
            )
            for row in decision.break_even
        ),
    )


def _with_unit(values: Iterable[float], unit: str) -> text.Unit:
    """Large counts of a unit: `1.23 million USD`."""
    large = text.large_unit(values)
    return replace(large, name=" ".join(filter(None, [large.name, unit])))


def _spread(spread: Spread | None) -> Cell:
    return Cell(NOT_GIVEN) if spread is None else Cell(spread.typical, (spread.low, spread.high))


# The same in sentences.


def leaders(result: StudyResult) -> Named:
    """The first at the target and its rival under their names; fewer where there are not two."""
    names = {id(own): name for name, own in text.named(result.candidates)}
    pair = first_and_rival(result.candidates) or ()
    return [(names[id(own)], own) for own in pair if own is not None]


def headline(result: StudyResult) -> str:
    """Who is first and when, and how many times as long the next machine takes; empty where none arrives."""
    if not (named := leaders(result)):
        return ""
    (name, first), *others = named
    unit = text.time_unit(candidate.time_to_accuracy_s for candidate in result.candidates)
    time = unit.text(first.time_to_accuracy_s, first.time_to_accuracy_band_s)
    if not others:
        return f"{name} {verb(first.num_devices, 'reach', 'reaches')} the target in {time}."
    ((rival_name, rival),) = others
    least, most = result.ratio_bands.get(rival.label, (math.nan, math.nan))
    ratio = rival.time_to_accuracy_s / first.time_to_accuracy_s
    open_order = ", so the order is not certain" if least <= 1 else ""
    return (
        f"{name} {verb(first.num_devices, 'finish', 'finishes')} first, in {time}. "
        f"{rival_name} {verb(rival.num_devices, 'take', 'takes')} {ratio:.2f} times as long "
        f"({least:.2f} to {most:.2f}){open_order}."
    )


def wall_sentence(candidates: Sequence[CandidateResult]) -> str:
    """What days on the wall hold besides healthy steps; empty if nothing."""
    words = []
    if any(candidate.whole_run for candidate in candidates):
        words.append("the whole run where a wall clock is named")
    rates = list(dict.fromkeys(own.production for own in candidates if own.production and not own.whole_run))
    if rates:
        rate = production_rate(rates[0]) if len(rates) == 1 else "the rates in production that are named"
        words.append(f"at {rate}")
    return f"on the wall: {'; '.join(words)}" if words else ""


def production_rate(production: Production) -> str:
    """`0.81 (0.76 to 0.88) of the rate of healthy steps, as in published production runs`."""
    of_runs = ", as in published production runs" if production == recorded() else ""
    return f"{production.text} of the rate of healthy steps{of_runs}"


def perturbed_line(result: StudyResult) -> str:
    """What perturbs the steps and how much longer they are; empty where nothing does."""
    ratios = [
        candidate.step_time_s / candidate.perturbed.unperturbed_step_time_s
        for candidate in result.candidates
        if candidate.perturbed
    ]
    if not result.perturbed or not ratios:
        return ""
    spread = " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios))))
    return f"perturbed steps, {spread} times as long: {result.perturbed}"


# The answer on a terminal.


def study_lines(result: StudyResult) -> list[str]:
    """A row for each candidate, what to know of it, the worst caveats, and the comparison last."""
    heading = (
        f"{result.title}: {result.model}, {text.large(result.num_parameters)} parameters, "
        f"{text.large(result.target_tokens)} tokens at small batch"
    )
    left_out = len(result.candidates) - MOST_CANDIDATES
    more = [f"... {left_out} slower candidates in the report"] if left_out > 0 else []
    decided = result.decision.sentence if result.decision is not None else ""
    return [
        *paragraph(heading),
        "",
        *table_lines(_shown(result)),
        *more,
        *paragraphs(_notes(result)),
        *caveat_lines(result.caveats, result.verdict + decided),
        "",
        *paragraph(decided),
        *paragraph(result.verdict),
    ]


def _shown(result: StudyResult) -> Table:
    """The fastest candidates in their order, with a mark at the first only."""
    fastest = sorted(result.candidates, key=lambda own: own.time_to_accuracy_s)[:MOST_CANDIDATES]
    named = [(own.label, own) for own in result.candidates if own in fastest][:MOST_CANDIDATES]
    names = ON_A_TERMINAL if result.decision else ON_A_TERMINAL[:-1]
    table = candidates_table(named, result.decision).only(*names)
    rows = [[row[0], *(replace(cell, mark=False) for cell in row[1:])] for row in table.rows]
    return replace(table, rows=rows, caption="")


def _notes(result: StudyResult) -> Iterator[str]:
    """What to know of the candidates in the table."""
    yield "* first at the target; all figures are at each candidate's own best batch"
    frameworks: dict[str, dict[str, None]] = {}
    for own in result.candidates:
        if own.training:
            names = frameworks.setdefault(own.training.settings, {})
            if own.training.framework:
                names[f"{own.training.framework} on {own.system}"] = None
    for settings, names in frameworks.items():
        yield f"trained by {settings}" + (f"; framework {', '.join(names)}" if names else "")
    yield wall_sentence(result.candidates)
    yield perturbed_line(result)
    if samples := list(result.sampling.values()):
        nearest = max(sample.worst_relative_error / sample.bound for sample in samples)
        count = sum(sample.tasks_sampled for sample in samples)
        outcome = "right" if all(sample.passed for sample in samples) else "WRONG, see the report"
        compared = sum(sample.tasks_total for sample in samples)
        yield (
            f"verified: shapes, divisions, sums and FLOPs of {text.integer(compared)} matrix products; "
            f"{count} kinds executed on samples of their real shapes, {outcome}; "
            f"error {nearest:.1g} of its bound"
        )
    for item in result.infeasible[:MOST_INFEASIBLE]:
        yield f"not possible: {item.label}: {item.reason}"
    if (more := len(result.infeasible) - MOST_INFEASIBLE) > 0:
        yield f"... {more} more that are not possible, with their reasons in the report"
