"""The answer to a study in tables and sentences, and how it stands on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfsim.report import text
from perfsim.report.table import Cell, Table
from perfsim.report.terminal import caveat_lines, paragraph, paragraphs, table_lines
from perfsim.studies.answers import (
    Answer,
    Assumption,
    Decision,
    Production,
    StudyResult,
    recorded,
)
from perfsim.studies.decision import first_and_rival, verb

SAME = 0.02
"""Differences below this share are not worth a word."""
MOST_CANDIDATES = 24
"""Rows on a terminal; of more candidates the fastest are shown, and the report has all."""
MOST_INFEASIBLE = 6
"""Candidates without a plan that the terminal names with their reason; the report names all."""

# The candidates in figures.


def candidates_table(named: Sequence[text.Named], decision: Decision | None = None) -> Table:
    """A row for each candidate, every column in one unit; the best time, rate and MFU marked."""
    shown = [candidate for _, candidate in named]
    unit = text.time_unit(candidate.time_to_accuracy_s for candidate in shown)
    walls_s = {own.label: own.wall_s.typical for own in decision.outcomes} if decision else {}
    first_s = min((own.time_to_accuracy_s for own in shown), default=math.inf)
    rate = max((own.tokens_per_s for own in shown), default=math.inf)
    mfu = max((own.mfu for own in shown), default=math.inf)
    compared = len(shown) > 1

    def time(own: Answer) -> Cell:
        time_s = own.time_to_accuracy_s
        band = own.time_to_accuracy_band_s if math.isfinite(time_s) else None
        return Cell(time_s, band, mark=compared and time_s == first_s < math.inf)

    return Table.each(
        named,
        {
            "machine": (None, lambda c: Cell(c.name, mark=c.own.time_to_accuracy_s == first_s < math.inf)),
            "layout": (None, lambda c: text.layout_short(c.own.layout)),
            "batch": (text.COUNT, lambda c: c.own.global_batch_size),
            "step": (
                text.time_unit([max((own.step_time_s for own in shown), default=1.0)]),
                lambda c: c.own.step_time_s,
            ),
            "MFU": (text.PERCENT, lambda c: Cell(c.own.mfu, mark=compared and c.own.mfu == mfu)),
            "memory": (
                text.memory_unit(*(own.memory_capacity_bytes for own in shown)),
                lambda c: c.own.peak_memory_bytes,
            ),
            "steps": (text.Unit("thousand", 1e3), lambda c: c.own.steps),
            "time": (unit, lambda c: time(c.own)),
            "wall": (unit, lambda c: walls_s.get(c.own.label)),
            "time in production": (unit, lambda c: Cell(c.own.production_time_s, c.own.production_band_s)),
            "tokens/s": (
                text.COUNT,
                lambda c: Cell(c.own.tokens_per_s, mark=compared and c.own.tokens_per_s == rate),
            ),
            "tokens/s per device": (text.COUNT, lambda c: c.own.tokens_per_s / max(c.own.num_devices, 1)),
            "HFU": (text.PERCENT, lambda c: c.own.hfu),
            "bubble": (text.PERCENT, lambda c: c.own.bubble_fraction),
            "exposed communication": (text.PERCENT, lambda c: c.own.exposed_communication_fraction),
            "share of the memory": (
                text.PERCENT,
                lambda c: c.own.peak_memory_bytes / c.own.memory_capacity_bytes,
            ),
            "strategy": (None, lambda c: c.own.strategy),
            "settings": (None, lambda c: text.layout_long(c.own.layout)),
        },
        "MFU counts the FLOPs of the model, HFU also those of recomputation. Memory is per device. A star "
        "marks the best.",
    )


ON_A_PAGE = (
    "machine", "time", "time in production", "steps", "batch", "step", "tokens/s", "tokens/s per device",
    "MFU", "HFU", "bubble", "exposed communication", "memory", "share of the memory", "strategy", "settings",
)  # fmt: skip
"""What a page shows of each candidate; its decision has the times on the wall."""
ON_A_TERMINAL = ("machine", "layout", "batch", "step", "MFU", "memory", "steps", "time", "wall")


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


def leaders(result: StudyResult) -> list[text.Named]:
    """The first at the target and its rival under their names; fewer where there are not two."""
    names = {id(own): name for name, own in text.named(result.candidates)}
    pair = first_and_rival(result.candidates) or ()
    return [text.Named(names[id(own)], own) for own in pair if own is not None]


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


def wall_sentence(candidates: Sequence[Answer]) -> str:
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
    kept = [own for own in result.candidates if own in fastest][:MOST_CANDIDATES]
    named = [text.Named(own.label, own) for own in kept]
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
