"""The basis of an answer, as tables: assumptions, sampled arithmetic, errors against published runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from perfsim.convergence.bill import NOT_GIVEN
from perfsim.costs.wafer import StreamingRoof
from perfsim.prediction.caveats import confidence
from perfsim.prediction.disturbed import Resilience
from perfsim.prediction.verification import SamplingSummary
from perfsim.report import text
from perfsim.report.caveats import caveats_section, head_remarks
from perfsim.report.figures import machine as memory_figure
from perfsim.report.figures import machine as network_figure
from perfsim.report.figures import machine as roofline_figure
from perfsim.report.figures import step as bridge_figure
from perfsim.report.figures import step as step_figure
from perfsim.report.figures import step as timeline_figure
from perfsim.report.figures import time as batch_figure
from perfsim.report.figures import time as figure
from perfsim.report.figures.machine import topology
from perfsim.report.page import Badge, Card, Drawing, Head, Link, Row, Scale, Section, drawn, scale_of
from perfsim.report.table import Table
from perfsim.studies.answers import (
    BreakEven,
    CandidateResult,
    Decision,
    Outcome,
    Production,
    Spread,
    StudyResult,
    recorded,
)
from perfsim.studies.decision import amount, chance, first_and_rival, time_unit, verb
from perfsim.work.graph import computes

# The verdict in figures: candidates against each other, and how many times as long each takes.


@dataclass(frozen=True, slots=True)
class Ratio:
    """One candidate's time to the target, and its ratio to the fastest candidate's."""

    name: str
    time_s: float
    band_s: tuple[float, float]
    ratio: float
    band: tuple[float, float]
    is_first: bool


def ratios_to_first(result: StudyResult) -> list[Ratio]:
    """All candidates, fastest first; a ratio without a band in the result is its own band."""
    pairs = list(zip(text.labels(result.candidates), result.candidates, strict=True))
    ranked = sorted(pairs, key=lambda pair: (math.isnan(_verdict_time(pair[1])), _verdict_time(pair[1])))
    return [_ratio(name, candidate, ranked[0][1], result) for name, candidate in ranked]


def _verdict_time(candidate: CandidateResult) -> float:
    return candidate.time_to_accuracy_s


def _ratio(name: str, candidate: CandidateResult, first: CandidateResult, result: StudyResult) -> Ratio:
    middle = _verdict_time(candidate) / _verdict_time(first)
    band = result.ratio_bands.get(candidate.label, (middle, middle))
    return Ratio(
        name, _verdict_time(candidate), candidate.time_to_accuracy_band_s, middle, band, candidate is first
    )


@dataclass(frozen=True, slots=True)
class _Metric:
    """A row of the verdict table; `value` is what `best` chooses by, None where nothing is best."""

    name: str
    cell: Callable[[CandidateResult], str]
    value: Callable[[CandidateResult], float] | None = None
    best: Callable[[Sequence[float]], float] = max


def _metrics(candidates: Sequence[CandidateResult]) -> list[_Metric]:
    """The rows; times to the target share one unit, so that a row compares at a glance."""
    unit, scale = text.time_unit(_verdict_time(candidate) for candidate in candidates)

    def band(band_s: tuple[float, float] | None) -> str:
        low, high = (text.number(end / scale) for end in band_s or (math.nan, math.nan))
        return f"{low}{text.NONE}{high} {unit}" if band_s else text.NONE

    def produced(c: CandidateResult) -> str:
        time_s = c.production_time_s
        return f"{text.number(time_s / scale)} {unit}" if time_s is not None else text.NONE

    def peak(c: CandidateResult) -> str:
        share = text.percent(c.peak_memory_bytes / c.memory_capacity_bytes, 0)
        return f"{text.memory(c.peak_memory_bytes, *capacities)} ({share})"

    capacities = [candidate.memory_capacity_bytes for candidate in candidates]
    step_unit, steps = text.in_one_unit(candidate.step_time_s for candidate in candidates)
    of_step = dict(zip(map(id, candidates), steps, strict=True))
    production = [
        _Metric("time in production", produced),
        _Metric("its 90 % band", lambda c: band(c.production_band_s)),
    ]
    return [
        _Metric(
            "time to the target",
            lambda c: f"{text.number(_verdict_time(c) / scale)} {unit}",
            _verdict_time,
            min,
        ),
        _Metric("90 % band", lambda c: band(c.time_to_accuracy_band_s)),
        *(production if any(candidate.production for candidate in candidates) else []),
        _Metric("steps", lambda c: text.integer(c.steps)),
        _Metric("global batch, sequences", lambda c: text.integer(c.global_batch_size)),
        _Metric("step", lambda c: f"{of_step[id(c)]} {step_unit}"),
        _Metric("tokens/s", lambda c: text.integer(c.tokens_per_s), lambda c: c.tokens_per_s),
        _Metric("tokens/s per device", lambda c: text.integer(c.tokens_per_s / max(c.num_devices, 1))),
        _Metric("MFU", lambda c: text.percent(c.mfu), lambda c: c.mfu),
        _Metric("HFU", lambda c: text.percent(c.hfu)),
        _Metric("bubble", lambda c: text.percent(c.bubble_fraction)),
        _Metric("exposed communication", lambda c: text.percent(c.exposed_communication_fraction)),
        _Metric("peak memory", peak),
        _Metric("strategy", lambda c: c.strategy),
        _Metric("layout", lambda c: text.layout_long(c.layout)),
    ]


def verdict_table(result: StudyResult) -> Table:
    """One column per candidate in the order asked, one row per metric; best time, rate, MFU marked."""
    candidates = result.candidates
    metrics = _metrics(candidates)
    rows = [[metric.name, *(metric.cell(candidate) for candidate in candidates)] for metric in metrics]
    caption = (
        "MFU counts the FLOPs of the model, HFU also those of recomputation. Memory is per device, with its "
        "share of the capacity. A star marks the best."
    )
    columns = ["", *text.names(candidates)]
    return Table(columns, rows, caption, frozenset(range(1, len(columns))), _best(metrics, candidates))


def _remarks_table(result: StudyResult) -> Table:
    """Remarks on each plan, one in a row, the plan's name beside its first."""
    rows = [
        [name if number == 0 else "", remark]
        for name, candidate in zip(text.names(result.candidates), result.candidates, strict=True)
        for number, remark in enumerate(candidate.notes)
    ]
    return Table(("plan", "remark"), rows)


def _best(metrics: Sequence[_Metric], candidates: Sequence[CandidateResult]) -> frozenset[tuple[int, int]]:
    marked = set()
    for row, metric in enumerate(metrics):
        if metric.value is None or len(candidates) < 2:
            continue
        values = [metric.value(candidate) for candidate in candidates]
        finite = [value for value in values if math.isfinite(value)]
        best = metric.best(finite) if finite else math.nan
        marked |= {(row, column) for column, value in enumerate(values, start=1) if value == best}
    return frozenset(marked)


# The head of a study's page: one sentence, how sure it is, intervals of all, three differences.

COMPUTING = ("forward", "backward", "compute")
SAME = 0.02
"""Differences below this share are not worth a card."""


def headline(result: StudyResult) -> str:
    """Who is first and when, and how many times as long the next machine takes; empty where none arrives."""
    pair = first_and_rival(result.candidates)
    if pair is None:
        return ""
    first, rival = pair
    names = _names_of(result)
    unit, scale = _unit(result)
    low, middle, high = (
        text.number(end / scale)
        for end in (
            first.time_to_accuracy_band_s[0], first.time_to_accuracy_s, first.time_to_accuracy_band_s[1],
        )
    )  # fmt: skip
    time = f"{middle} {unit} ({low} to {high})"
    if rival is None:
        return f"{names[id(first)]} {verb(first.num_devices, 'reach', 'reaches')} the target in {time}."
    least, most = result.ratio_bands.get(rival.label, (math.nan, math.nan))
    ratio = rival.time_to_accuracy_s / first.time_to_accuracy_s
    open_order = ", so the order is not certain" if least <= 1 else ""
    return (
        f"{names[id(first)]} {verb(first.num_devices, 'finish', 'finishes')} first, in {time}. "
        f"{names[id(rival)]} {verb(rival.num_devices, 'take', 'takes')} {ratio:.2f} times as long "
        f"({least:.2f} to {most:.2f}){open_order}."
    )


def _names_of(result: StudyResult) -> dict[int, str]:
    """The short name of each candidate, by its identity."""
    return dict(zip(map(id, result.candidates), text.names(result.candidates), strict=True))


def _unit(result: StudyResult) -> tuple[str, float]:
    """The unit of all times to the target, with its seconds."""
    return text.time_unit(own.time_to_accuracy_s for own in result.candidates)


def _shortened(words: str, result: StudyResult) -> str:
    """Words in which candidates have their short names."""
    labels = text.labels(result.candidates)
    names = text.names(result.candidates)
    for label, name in sorted(zip(labels, names, strict=True), key=lambda pair: -len(pair[0])):
        words = words.replace(label, name)
    return words


def _badge(result: StudyResult) -> Badge | None:
    """How much to trust the answer, with the worst reason; None where no caveat is more than information."""
    said = confidence(result.caveats)
    if not said:
        return None
    return Badge("serious" if said.startswith("low") else "warning", f"{said[0].upper()}{said[1:]}")


def _intervals(result: StudyResult) -> Scale | None:
    """All candidates, fastest first, on one logarithmic scale of time to the target."""
    unit, scale = _unit(result)
    outcomes = result.decision.outcomes if result.decision else ()
    currency = result.decision.currency if result.decision else ""
    notes = [_extra(outcome, currency, unit, scale) for outcome in outcomes]
    extra = dict(zip(text.labels(result.candidates), notes, strict=False))
    names = dict(zip(text.labels(result.candidates), text.names(result.candidates), strict=True))
    return scale_of(
        [
            Row(names[own.name], own.time_s, own.band_s, own.is_first, extra.get(own.name, ""))
            for own in ratios_to_first(result)
        ]
    )


def _extra(outcome: Outcome, currency: str, unit: str, scale: float) -> str:
    """What else a candidate takes: time on the wall, and money where prices are given."""
    wall = f"{text.number(outcome.wall_s.typical / scale)} {unit} on the wall"
    money = "" if outcome.money is None else amount(outcome.money, currency)
    return "; ".join(filter(None, [wall, money]))


def differences(result: StudyResult) -> Sequence[Card]:
    """What explains the ratio of the first two: speed, tokens, and the largest wait of the slower one."""
    pair = first_and_rival(result.candidates)
    first, rival = pair or (None, None)
    if first is None or rival is None:
        return []
    names = _names_of(result)
    speed = first.tokens_per_s / rival.tokens_per_s
    shares = f"at {text.percent(first.mfu, 0)} and {text.percent(rival.mfu, 0)} of peak"
    rates = f"{_rate(first)} against {_rate(rival)}, {shares}"
    cards = [Card(_times(speed), rates, f"{'more' if speed >= 1 else 'fewer'} tokens a second")]
    needed = [own.steps * own.global_batch_size * result.seq_length for own in (first, rival)]
    tokens = needed[1] / needed[0] if needed[0] else math.nan
    if math.isfinite(tokens):
        alike = abs(tokens - 1) < SAME
        many = "as many" if alike else "fewer" if tokens > 1 else "more"
        sizes = [text.large(own.global_batch_size * result.seq_length) for own in (first, rival)]
        batches = f"batch {' against '.join(sizes)} tokens"
        cards.append(Card("1 \u00d7" if alike else _times(tokens), batches, f"{many} tokens to the target"))
    share, own, part = _largest(first, rival)
    if share >= SAME:
        name = f"of the step of {names[id(own)]} is {text.human(part)}"
        cards.append(Card(text.percent(share, 0), f"nearest remedy: {own.why.remedy}", name))
    return cards


def _largest(*candidates: CandidateResult) -> tuple[float, CandidateResult, str]:
    """The largest part of a step that is no forward or backward pass: its share, step and name."""
    parts = [
        (seconds / own.step_time_s, place, part)
        for place, own in enumerate(candidates)
        for part, seconds in own.breakdown_s.items()
        if part not in COMPUTING
    ]
    share, place, part = max(parts, default=(0.0, 0, ""))
    return share, candidates[place], part


def _times(ratio: float) -> str:
    return f"{max(ratio, 1 / ratio):.2f} \u00d7"


def _rate(candidate: CandidateResult) -> str:
    rate = candidate.tokens_per_s
    return f"{text.large(rate)}/s" if rate >= 1e6 else f"{rate / 1e3:,.3g} k/s"


# When, how much, how sure, and what would change the answer: the sections of a decision.


def decision_sections(result: StudyResult) -> list[Section]:
    """Table of outcomes, tornado and break-even prices; nothing for a result without a decision."""
    decision = result.decision
    if decision is None:
        return []
    labels = text.names(result.candidates)
    lead = (
        "Helps to decide when, for how much and how surely. Typical values with 90 % intervals from "
        f"{text.integer(decision.draws)} draws (seed {decision.seed}); candidates share the draws of what "
        "they have in common."
    )
    sections = [
        Section(
            "The decision", lead, table=_outcome_table(decision, labels), slug="decision", short="Decision"
        )
    ]
    decision = replace(
        decision,
        rival=_shortened(decision.rival, result),
        first=_shortened(decision.first, result),
        levers=tuple(replace(own, name=_shortened(own.name, result)) for own in decision.levers),
        money_levers=tuple(replace(own, name=_shortened(own.name, result)) for own in decision.money_levers),
    )
    shown = figure.tornado, figure.tornado_table, figure.tornado_alt
    if decision.levers:
        lead = (
            "Helps to choose what to measure next: the widest bar is the input worth knowing better. A bar "
            "that crosses the dotted line flips the order within its range."
        )
        sections.append(
            drawn(
                Section("What would change the order?", lead, slug="tornado", short="Sensitivity"),
                *shown,
                decision,
            )
        )
    if decision.money_levers:
        lead = (
            "The same for money, where both have a price: the inputs that move the ratio of what the two "
            "cost, with the value at which the order flips."
        )
        section = Section(
            "What would change which costs less?", lead, slug="tornado-money", short="Sensitivity of cost"
        )
        sections.append(drawn(section, *shown, decision, of_money=True))
    return [*sections, *_break_even(decision, labels)]


def _break_even(decision: Decision, labels: Sequence[str]) -> list[Section]:
    """Prices at which two machines cost the same, where they are known."""
    lead = (
        "Shows what a machine may cost before the other is cheaper for this run, also where a price is "
        "not given: a device-hour of the first may cost so many of the second."
    )
    if not decision.break_even:
        return []
    table = _break_even_table(decision, labels)
    return [Section("Break-even prices", lead, table=table, slug="break-even", level=3)]


def _outcome_table(decision: Decision, labels: Sequence[str]) -> Table:
    """One column a candidate, one row a quantity; the most probable first and cheapest are marked."""
    outcomes = decision.outcomes
    unit, scale = time_unit(min(own.wall_s.typical for own in outcomes))
    rows: list[tuple[str, Callable[[Outcome], str]]] = [
        (f"{unit} of steps", lambda own: _spread(own.steps_s, 1 / scale)),
        (f"{unit} on the wall", lambda own: _spread(own.wall_s, 1 / scale)),
        ("they hold", lambda own: own.basis),
        ("first with a probability of", lambda own: chance(own.first)),
        ("device-hours", lambda own: amount(own.device_hours)),
        ("energy", lambda own: _scaled(own.energy_kwh, 1e3, "MWh")),
        ("carbon", lambda own: _scaled(own.carbon_kg, 1e3, "t CO2e")),
        (f"money, {decision.currency}", lambda own: amount(own.money)),
    ]
    if all(own.cheapest is not None for own in outcomes):
        rows.append(("cheapest with a probability of", lambda own: chance(own.cheapest or 0.0)))
    gaps = dict.fromkeys(gap for own in outcomes for gap in own.not_given)
    caption = f"Not given: {', '.join(gaps)}." if gaps else ""
    cells = [[name, *(cell(own) for own in outcomes)] for name, cell in rows]
    columns = ["", *labels]
    best = {(3, 1 + max(range(len(outcomes)), key=lambda place: outcomes[place].first))}
    return Table(columns, cells, caption, frozenset(range(1, len(columns))), frozenset(best))


def _break_even_table(decision: Decision, labels: Sequence[str]) -> Table:
    """Equal-cost prices of the first machine against others and back, narrow enough for a phone."""
    short = dict(zip((own.label for own in decision.outcomes), labels, strict=True))
    columns = ("a device-hour of", "may cost as much as", decision.currency)
    rows = [
        [short[row.label], f"{_spread(row.device_hours_ratio)} of {short[row.rival]}", _price(row)]
        for row in decision.break_even
    ]
    return Table(columns, rows, "", frozenset({2}))


def _price(row: BreakEven) -> str:
    return NOT_GIVEN if row.price is None else amount(row.price)


def _scaled(spread: Spread | None, scale: float, unit: str) -> str:
    return NOT_GIVEN if spread is None else f"{_spread(spread, 1 / scale)} {unit}"


def _spread(spread: Spread, factor: float = 1.0) -> str:
    low, middle, high = (text.number(value * factor) for value in (spread.low, spread.typical, spread.high))
    return f"{middle} ({low} to {high})"


# All laws of the critical batch in one table, and where they disagree.


def laws_section(result: StudyResult) -> list[Section]:
    """One row a law: its critical batch, each candidate's best batch and time; nothing for a single law."""
    if len(result.laws) < 2:
        return []
    names = dict(zip((own.label for own in result.candidates), text.names(result.candidates), strict=True))
    unit, scale = text.time_unit(row.time_s for answer in result.laws for row in answer.rows)
    rows = []
    best = set()
    for number, answer in enumerate(result.laws):
        cells = [
            f"{text.number(row.time_s / scale)} {unit} at batch {text.integer(row.global_batch_size)}"
            for row in answer.rows
        ]
        low, high = answer.band_tokens
        band = f"{text.large(answer.critical_batch_tokens)} ({text.large(low)} to {text.large(high)})"
        rows.append([answer.law, band, *cells, answer.source])
        best.add((number, 2 + [row.label for row in answer.rows].index(answer.first)))
    columns = ("law", "critical batch, tokens", *names.values(), "source")
    firsts = list(dict.fromkeys(answer.first for answer in result.laws))
    agree = (
        f"All put {names[firsts[0]]} first."
        if len(firsts) == 1
        else f"They disagree on who is first: {', '.join(names[first] for first in firsts)}."
    )
    lead = (
        f"Helps to see whether the choice of law decides the answer. {agree} The first row is the study's "
        "law; Kaplan's takes the loss of its own corpus. A star marks who is first; only batches that were "
        "tried count."
    )
    table = Table(columns, rows, "", frozenset(range(1, len(columns) - 1)), frozenset(best))
    return [Section("Laws of the critical batch", lead, table=table, slug="laws", level=3)]


# What adds to the time of healthy steps: the rate in production, and the whole run part by part.


def wall_sentence(candidates: Sequence[CandidateResult]) -> str:
    """What days on the wall hold besides healthy steps; empty if nothing."""
    words = []
    if any(candidate.whole_run for candidate in candidates):
        words.append("the whole run where a wall clock is named")
    ratios = list(
        dict.fromkeys(
            candidate.production
            for candidate in candidates
            if candidate.production and not candidate.whole_run
        )
    )
    if ratios:
        rate = production_rate(ratios[0]) if len(ratios) == 1 else "the rates in production that are named"
        words.append(f"at {rate}")
    return f"on the wall: {'; '.join(words)}" if words else ""


def production_rate(production: Production | None) -> str:
    """`0.81 (0.76 to 0.88) of the rate of healthy steps, as in published production runs`."""
    if production is None:
        return "their own rate"
    of_runs = ", as in published production runs" if production == recorded() else ""
    return f"{production.text} of the rate of healthy steps{of_runs}"


def _whole_run_section(result: StudyResult) -> list[Section]:
    """A table of the candidates whose study names a wall clock; nothing without any."""
    named = [
        (name, candidate)
        for name, candidate in zip(text.names(result.candidates), result.candidates, strict=True)
        if candidate.whole_run
    ]
    if not named:
        return []
    lead = (
        "Helps to plan: queue, compilation, loading, checkpoints, failures and stragglers come on top of the "
        "time to the target above. Each part is a typical value with the observed range in parentheses; the "
        "ends of the sum add the same ends of all parts. The band of the steps is not included. The "
        "production ratio above describes the same slow steps as the stragglers, so it is not counted here."
    )
    parts = list(dict.fromkeys(part.name for _, candidate in named for part in candidate.whole_run))
    parts.append(parts.pop(parts.index("whole run")))
    rows = [[part, *(_cell(candidate, part) for _, candidate in named)] for part in parts]
    table = Table(["", *(name for name, _ in named)], rows, "", frozenset(range(1, len(named) + 1)))
    return [Section("The whole run", lead, table=table, slug="whole-run")]


def _cell(candidate: CandidateResult, name: str) -> str:
    part = next((part for part in candidate.whole_run if part.name == name), None)
    if part is None:
        return text.NONE
    cell = text.duration(part.typical_s)
    if part.low_s < part.high_s:
        cell += f" ({_time(part.low_s)} to {text.duration(part.high_s)})"
    return f"{cell}; {part.how}" if part.how else cell


def _time(seconds: float) -> str:
    return text.duration(seconds) if seconds else "0"


# Why a step takes as long as it does, as a table.


def _why_table(named: Sequence[tuple[str, CandidateResult]]) -> Table:
    """For each candidate: what limits its step, waits, tokens that would hide weights, nearest remedy."""
    rows = [
        [name, candidate.why.cause, *_cells(candidate), candidate.why.remedy] for name, candidate in named
    ]
    columns = (
        "candidate", "limited by", "compute", "waits", "tokens", "tokens to hide weights", "nearest remedy",
    )  # fmt: skip
    caption = (
        "Shares of the step; only waits that nothing hides count. Tokens are per micro-batch and system; in "
        "parentheses e P b / (2 B), what arithmetic alone would need to hide the weights."
    )
    return Table(columns, rows, caption, frozenset({2, 4, 5}))


def _cells(candidate: CandidateResult) -> list[str]:
    parts = candidate.why.parts_s
    waits = sorted(((s, name) for name, s in parts.items() if name != "compute"), reverse=True)
    words = [f"{name} {text.percent(s / candidate.step_time_s)}" for s, name in waits]
    return [
        text.percent(parts.get("compute", 0.0) / candidate.step_time_s),
        ", ".join(words) or text.NONE,
        *_roof(candidate.why.streaming_roof),
    ]


def _roof(roof: StreamingRoof | None) -> list[str]:
    if roof is None:
        return [text.NONE, text.NONE]
    needed = f"{text.integer(roof.hidden_from_tokens)} ({text.integer(roof.formula_tokens)})"
    return [text.integer(roof.tokens), needed]


# What one slow device does to a step: a sentence and a table.

HIDDEN = 0.98
"""A step that is less than this share of the device's slowdown longer hides a part of the delay."""


def _slowdowns(curve: Resilience) -> list[float]:
    """Step time at every severity over the step without a straggler."""
    first = curve.points[0].step_time_s
    return [point.step_time_s / first for point in curve.points]


def resilience_table(result: StudyResult) -> Table:
    """Step time of every candidate at every severity."""
    severities = sorted({point.severity for curve in result.resilience for point in curve.points})
    rows = []
    for curve in result.resilience:
        times = {
            point.severity: f"{text.duration(point.step_time_s)} ({slow:.3f})"
            for point, slow in zip(curve.points, _slowdowns(curve), strict=True)
        }
        rows.append(
            [_shortened(curve.label, result), *(times.get(severity, text.NONE) for severity in severities)]
        )
    columns = ("candidate", *(f"{severity:g} {text.TIMES}" for severity in severities))
    caption = "Step time, in parentheses relative to the step without a straggler."
    return Table(columns, rows, caption, frozenset(range(1, len(columns))))


def resilience_sentence(result: StudyResult) -> str:
    """What the slowest device that was tried does to each candidate, and who hides a part of it."""
    alike: dict[str, list[str]] = {}
    for curve in result.resilience:
        slow = _slowdowns(curve)[-1]
        severity = curve.points[-1].severity
        hidden = slow - 1 < HIDDEN * (severity - 1)
        remark = " (waits that are there anyway hide the rest)" if hidden else ""
        words = f"takes {slow:.2f} times as long with one device {severity:g} times as slow{remark}"
        alike.setdefault(words, []).append(_shortened(curve.label, result))
    said = "; ".join(f"a step of {_any(names)} {words}" for words, names in alike.items())
    return f"{said[0].upper()}{said[1:]}." if said else ""


def _any(names: Sequence[str]) -> str:
    """`a, b or c`."""
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _assumptions_tables(result: StudyResult) -> list[tuple[str, Table]]:
    """For each topic its inputs, with their sources and whether they were read, fitted or assumed.

    Inputs of one topic from one source share a row.
    """
    topics: dict[str, dict[tuple[str, str], list[str]]] = {}
    for item in result.assumptions:
        rows = topics.setdefault(item.topic, {})
        rows.setdefault((item.source, item.kind), []).append(f"{item.name}: {item.value}")
    return [
        (
            f"{topic} ({sum(map(len, rows.values()))})",
            Table(
                ("input", "kind", "source"),
                [["; ".join(inputs), kind, source] for (source, kind), inputs in rows.items()],
            ),
        )
        for topic, rows in topics.items()
    ]


def _sampling_table(result: StudyResult) -> Table:
    """How many tasks were executed, what they represent, and their errors."""
    rows = [[name, *_sampling(summary)] for name, summary in result.sampling.items()]
    columns = (
        "candidate", "products", "share of FLOPs", "largest error", "bound", "where", "result",
        "partitions",
    )  # fmt: skip
    caption = (
        "Products executed out of all in the step, and the share of its matrix FLOPs that their classes "
        "represent. Errors are relative to the product of absolute values; the bound holds for any order of "
        "summation. Every product is also executed on integers, which must be exact."
    )
    return Table(columns, rows, caption, frozenset({1, 2, 3, 4}))


def _sampling(summary: SamplingSummary) -> list[str]:
    partitions = ", ".join(f"{text.human(name)} {count}" for name, count in summary.by_partition.items())
    return [
        f"{text.integer(summary.tasks_sampled)} of {text.integer(summary.tasks_total)}",
        text.percent(summary.flop_share),
        f"{summary.worst_relative_error:.1e}",
        f"{summary.bound:.1e}",
        summary.worst or text.NONE,
        "passed" if summary.passed else f"FAILED: {'; '.join(summary.failed)}",
        partitions or text.NONE,
    ]


def _accuracy_table(result: StudyResult) -> Table:
    """Median and 90th percentile of the absolute relative error, beside the baseline's median."""
    rows = [
        [
            item.family,
            item.strategy,
            text.integer(item.n),
            text.percent(item.median_ape),
            text.percent(item.p90_ape),
            text.percent(item.held_out_p90_ape),
            text.percent(item.baseline_median_ape),
        ]
        for item in result.accuracy
    ]
    columns = (
        "most similar family", "strategy", "runs", "median error", "90th percentile",
        "90th percentile, left out", "baseline's median",
    )  # fmt: skip
    caption = (
        "Absolute errors of the predicted step time on published runs. A few global constants were fitted to "
        "these runs too; 'left out' is for constants fitted without them. A band comes from the errors of "
        "all runs that were left out, and widens where a plan is unlike them."
    )
    return Table(columns, rows, caption, frozenset({2, 3, 4, 5, 6}))


# The page of a study, section by section: what the reader decides first stands first.


def study_page(result: StudyResult, *, trace_names: Sequence[str] = ()) -> tuple[str, list[Section], Head]:
    """Title, sections and head of a study's report."""
    tornado, decided = _apart(decision_sections(result))
    sections = [
        *_why(result),
        _verdict(result),
        *decided,
        _batch(result),
        *laws_section(result),
        *_bridge(result),
        _step(result),
        *_whole_run_section(result),
        _memory(result),
        *_network(result),
        *_rooflines(result),
        *_timelines(result, trace_names),
        *tornado,
        *_resilience(result),
        *caveats_section(result.caveats, _verdict_in_head(result), _trusted(result)),
        *_remarks(result),
        *_evidence(result),
    ]
    return result.title, sections, _head(result)


def _apart(sections: Sequence[Section]) -> tuple[list[Section], list[Section]]:
    """What would change the answer, and the rest."""
    levers = [section for section in sections if section.slug.startswith("tornado")]
    return levers, [section for section in sections if section not in levers]


def _bridge(result: StudyResult) -> list[Section]:
    """From the step of the second machine to that of the first; nothing for a single one."""
    first, rival = first_and_rival(result.candidates) or (None, None)
    if first is None or rival is None:
        return []
    named = _names_of(result)
    lead = (
        "Shows in seconds what makes one machine faster than the other for the same tokens: a bar to the "
        "left saves time, a bar to the right costs it."
    )
    section = Section("From one step to the other", lead, slug="bridge", short="Step to step")
    shown = bridge_figure.waterfall, bridge_figure.waterfall_table, bridge_figure.waterfall_alt
    return [drawn(section, *shown, bridge_figure.bridge((named[id(rival)], named[id(first)]), rival, first))]


def _head(result: StudyResult) -> Head:
    wall = wall_sentence(result.candidates)
    note = "Point: estimate at each machine's best batch and layout. Bar: 90 % range."
    decision = result.decision.sentence if result.decision else ""
    said = headline(result)
    trust = _badge(result)
    told = [_verdict_in_head(result), decision]
    quoted = _verdict_in_head(result) or _trusted(result)
    return Head(
        result.question,
        _shortened(" ".join(filter(None, told)), result),
        head_remarks(result.caveats, quoted),
        cards_note=f"{note} {wall[0].upper()}{wall[1:]}." if wall else note,
        command=result.command,
        digest=result.inputs_digest,
        headline=said,
        badge=trust,
        scale=_intervals(result),
    )


def _verdict_in_head(result: StudyResult) -> str:
    """The verdict, unless headline, badge and decision say the same."""
    return "" if headline(result) and result.decision and result.decision.sentence else result.verdict


def _trusted(result: StudyResult) -> str:
    """What the badge says."""
    trust = _badge(result)
    return trust.text if trust else ""


def _verdict(result: StudyResult) -> Section:
    lead = (
        f"{result.model}: {text.large(result.num_parameters)} parameters, sequences of "
        f"{text.integer(result.seq_length)} tokens, {text.large(result.target_tokens)} tokens to the "
        "target at small batch. Each candidate runs at its own best batch and layout."
    )
    unfit = [f"Not possible: {item.label}: {item.reason}." for item in result.infeasible]
    perturbed = text.perturbed_line(result)
    notes = [f"{perturbed[0].upper()}{perturbed[1:]}."] if perturbed else []
    return Section(
        "The candidates in figures",
        " ".join([lead, *notes, *unfit]),
        table=verdict_table(result),
        slug="verdict",
        short="Candidates",
    )


def _remarks(result: StudyResult) -> list[Section]:
    table = _remarks_table(result)
    if not table.rows:
        return []
    lead = "What to know before a plan is used: where its state is kept, safer choices."
    return [Section("Remarks on the plans", lead, table=table, slug="remarks", short="Remarks")]


def _batch(result: StudyResult) -> Section:
    low, high = (text.large(end) for end in result.critical_batch_band_tokens)
    lead = "The number of tokens is given, so no batch wastes any. A star marks the best batch."
    if result.critical_batch_tokens > 0:
        lead = (
            "Helps to choose the global batch. Below the critical batch a larger batch saves time; above it, "
            f"it mostly wastes tokens. The critical batch is {text.large(result.critical_batch_tokens)} "
            f"tokens ({low}{text.NONE}{high}, shaded) by {result.law}. A star marks each candidate's best "
            "batch."
        )
    lead = " ".join([lead, *_suggested(result)])
    section = Section("Time to the target by batch", lead, slug="time-to-accuracy", short="Batch")
    shown = (
        batch_figure.time_to_accuracy, batch_figure.time_to_accuracy_table, batch_figure.time_to_accuracy_alt,
    )  # fmt: skip
    return drawn(section, *shown, result)


def _suggested(result: StudyResult) -> list[str]:
    """A sentence on the batches that published laws suggest; nothing where no law applies."""
    laws = [f"{text.large(tokens)} tokens by {law}" for law, tokens in result.suggested_batch_tokens.items()]
    return [f"Starting points from published laws: {', '.join(laws)}."] if laws else []


def _step(result: StudyResult) -> Section:
    lead = (
        "Shows what to improve first: the widest part that is not compute is what a faster link, another "
        "layout or more micro-batches could save."
    )
    shown = step_figure.step_breakdown, step_figure.step_breakdown_table, step_figure.step_breakdown_alt
    return drawn(Section("Where a step goes", lead, slug="step-time", short="Step"), *shown, result)


def _why(result: StudyResult) -> list[Section]:
    lead = (
        "What explains the ratio of the first two, and what limits each candidate: the largest wait, or "
        "computing where no wait takes a tenth of the step."
    )
    table = _why_table(list(zip(text.names(result.candidates), result.candidates, strict=True)))
    cards = differences(result)
    return [Section("Why", lead, table=table, slug="why", cards=cards)] if table.rows else []


def _network(result: StudyResult) -> list[Section]:
    if not any(candidate.utilisation for candidate in result.candidates):
        return []
    lead = (
        "Shows which links a faster network would have to improve: one that is busy all the time limits the "
        "step, one that is full only at its peak makes communication wait for other communication."
    )
    drawings = _drawings(result)
    how = (
        " Drawn for the first two: per cent are the mean over the step and the peak of the busiest link; a "
        "line's colour follows the mean (it changes at 10, 30 and 60 %), its width the peak."
    )
    return [
        Section(
            "Use of the network",
            f"{lead}{how if drawings else ''}",
            drawings=drawings,
            figure=None if drawings else network_figure.network_use(result),
            table=network_figure.network_use_table(result),
            alt=network_figure.network_use_alt(result),
            note=network_figure.overload_note(result),
            slug="network",
            short="Network",
        )
    ]


def _rooflines(result: StudyResult) -> list[Section]:
    """A tab for each machine, as its fastest candidate uses it; nothing where no kernels are known."""
    fastest: dict[tuple[str, str], tuple[str, CandidateResult]] = {}
    named = zip(text.names(result.candidates), result.candidates, strict=True)
    for name, candidate in sorted(named, key=lambda pair: pair[1].time_to_accuracy_s):
        if candidate.roofline and candidate.roofline.kernels:
            fastest.setdefault((candidate.system, candidate.strategy), (name, candidate))
    lead = (
        "Shows what kind of device would compute faster: points on the slope wait for memory, points on the "
        "level lines for arithmetic, points far below both for neither, as small or narrow products do. The "
        "area of a point follows its time. Kernels without counted FLOPs have one for every two bytes."
    )
    sections = (
        [Section("Roofline of the kernels", lead, slug="roofline", short="Roofline")] if fastest else []
    )
    for index, (name, candidate) in enumerate(fastest.values()):
        if candidate.roofline is not None:
            section = Section(name, slug=f"roofline-{index}", tab="rooflines", level=3)
            shown = roofline_figure.roofline, roofline_figure.roofline_table, roofline_figure.roofline_alt
            sections.append(drawn(section, *shown, candidate.roofline))
    return sections


def _drawings(result: StudyResult) -> list[Drawing]:
    """The networks of the first candidate and its rival, where they are known."""
    shown = first_and_rival(result.candidates) or ()
    return [
        topology(candidate.machine, candidate.devices_noun, candidate.network, candidate.utilisation)
        for candidate in shown
        if candidate is not None and candidate.network is not None and candidate.utilisation
    ]


def _memory(result: StudyResult) -> Section:
    lead = (
        "Shows how much memory the layout leaves free: a bar near the line limits the micro-batch and the "
        "size of the model."
    )
    shown = memory_figure.memory, memory_figure.memory_table, memory_figure.memory_alt
    return drawn(Section("Memory", lead, slug="memory"), *shown, result)


def _resilience(result: StudyResult) -> list[Section]:
    if not result.resilience:
        return []
    lead = (
        f"{resilience_sentence(result)} That is what one slow GPU or wafer costs until it "
        f"is replaced. Every rank that the slow one ({result.resilience[0].rank}) delays is simulated on its "
        "own."
    )
    table = resilience_table(result)
    return [Section("One slow device", lead, table=table, slug="resilience", short="Slow device")]


def _timelines(result: StudyResult, trace_names: Sequence[str]) -> list[Section]:
    lead = (
        "Shows why a step takes as long as it does: gaps in a compute stream are waits, and the streams "
        "above or below show what it waits for. Drag to zoom, double-click to return."
    )
    sections = [Section("Timeline of a step", lead, slug="timeline", short="Timeline")]
    files = [*trace_names, *[""] * (len(result.candidates) - len(trace_names))]
    drawn = [
        (name, candidate, file)
        for name, candidate, file in zip(text.names(result.candidates), result.candidates, files, strict=True)
        if candidate.timeline
    ]
    own = timeline_figure.shared([candidate for _, candidate, _ in drawn])
    cuts = timeline_figure.cut_timelines(own)
    for index, ((name, candidate, file), cut) in enumerate(zip(drawn, cuts, strict=True)):
        sections.append(
            Section(
                name,
                figure=timeline_figure.timeline(candidate, cut.bars),
                table=timeline_figure.timeline_table(candidate),
                alt=timeline_figure.timeline_alt(candidate, name),
                slug=f"timeline-{index}",
                tab="timelines",
                note=" ".join(filter(None, [_devices(candidate), cut.note(), _simulated(candidate)])),
                links=[Link(file, "all tasks, for ui.perfetto.dev or chrome://tracing")] if file else [],
                level=3,
            )
        )
    return sections if drawn else []


def _devices(candidate: CandidateResult) -> str:
    """How many devices the lanes are of, where not all that were simulated are shown."""
    shown = len({bar.lane for bar in candidate.timeline if computes(bar.lane)})
    of_all = f"Lanes of {shown} of the {candidate.timeline_devices} devices that were simulated on their own."
    return of_all if shown < candidate.timeline_devices else ""


def _simulated(candidate: CandidateResult) -> str:
    """What the simulation of the step consisted of."""
    return f"Simulated: {text.simulated(candidate.simulated)}." if candidate.simulated is not None else ""


def _evidence(result: StudyResult) -> list[Section]:
    sections = [
        Section(
            "Assumptions and sources",
            "The inputs of the answer. Change a value that does not fit your machine and run the study "
            "again.",
            topics=_assumptions_tables(result),
            slug="assumptions",
            short="Assumptions",
        )
    ]
    if result.sampling:
        lead = (
            "Tasks sampled from the simulated step, computed in NumPy with the strategy's partition and "
            "compared with the unpartitioned product. Shows whether the simulated work is the right work."
        )
        sections.append(
            Section(
                "Correctness sampling", lead, table=_sampling_table(result), slug="sampling", short="Sampling"
            )
        )
    if result.accuracy:
        lead = (
            "Errors of such predictions for published runs, beside a baseline of one constant efficiency. "
            "Shows how much to trust a difference between two candidates."
        )
        sections.append(Section("Accuracy", lead, table=_accuracy_table(result), slug="accuracy"))
    return sections
