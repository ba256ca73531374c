"""The page and the files of a study: what the reader decides first stands first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfsim.base.units import DAY_S
from perfsim.costs.wafer import StreamingRoof
from perfsim.interop.chrome import write_chrome_trace
from perfsim.prediction.disturbed import Resilience
from perfsim.prediction.prediction import document_of
from perfsim.prediction.why import Why
from perfsim.report import study, study_figures, text
from perfsim.report.document import plain, write_document
from perfsim.report.network import network
from perfsim.report.page import Card, Head, Section, caveats_section, slugify, trust_of, write_page
from perfsim.report.table import Cell, Table, Value
from perfsim.specs.prices import NOT_GIVEN
from perfsim.studies.answers import Answer, BreakEven, Outcome, Spread, StudyResult
from perfsim.studies.decision import amount, chance
from perfsim.version import __version__

_HIDDEN = 0.98
"""A step that is less than this share of the device's slowdown longer hides a part of the delay."""
_COMPUTING = ("forward", "backward", "compute")


def study_page(result: StudyResult, *, trace_names: Sequence[str] = ()) -> tuple[str, list[Section], Head]:
    """Title, sections and head of a study's report; sections without anything to say are left out."""
    named = text.named(result.candidates)
    sections = [
        _why(result),
        _candidates(result),
        *_decision(result),
        study_figures.batch(result),
        *_laws(result),
        *study_figures.bridge(result),
        study_figures.step(result),
        _whole_run(result),
        study_figures.memory(result),
        network(result),
        *study_figures.rooflines(named),
        *study_figures.timelines(named, trace_names),
        *study_figures.tornados(result.decision),
        *_resilience(result),
        *caveats_section(result.caveats, _verdict_in_head(result), trust_of(result.caveats)),
        _remarks(named),
        *_evidence(result),
    ]
    kept = {"verdict", "time-to-accuracy", "step-time", "memory"}
    said = [own for own in sections if own.table is None or own.table.rows or own.slug in kept]
    return result.title, said, _head(result)


# The head: one sentence, how sure it is, and all candidates on one scale.


def _head(result: StudyResult) -> Head:
    wall = text.capital(study.wall_sentence(result.candidates))
    decided = result.decision.sentence if result.decision else ""
    trust = trust_of(result.caveats)
    note = "Point: estimate at each machine's best batch and layout. Bar: 90 % range."
    return Head(
        result.question,
        " ".join(filter(None, [_verdict_in_head(result), decided])),
        text.split_caveats(result.caveats, _verdict_in_head(result) or trust)[0],
        cards_note=f"{note} {wall}." if wall else note,
        command=result.command,
        digest=result.inputs_digest,
        headline=study.headline(result),
        trust=trust,
        scale=_scale(result),
    )


def _verdict_in_head(result: StudyResult) -> str:
    """The verdict, unless headline, trust and decision say the same."""
    return "" if study.headline(result) and result.decision and result.decision.sentence else result.verdict


def _scale(result: StudyResult) -> Table:
    """All candidates, fastest first, with what else they take."""
    decision = result.decision
    notes = {}
    outcomes, currency = (decision.outcomes, decision.currency) if decision else ((), "")
    for outcome in outcomes:
        money = [amount(outcome.money, currency)] if outcome.money else []
        notes[outcome.label] = "; ".join([f"{text.duration(outcome.wall_s.typical)} on the wall", *money])
    first = next((own for _, own in study.leaders(result)), None)
    ranked = sorted(text.named(result.candidates), key=lambda pair: pair[1].time_to_accuracy_s)
    return Table.of(
        {"candidate": None, "Time to the target": text.TIME},
        (
            (
                name,
                Cell(
                    own.time_to_accuracy_s,
                    own.time_to_accuracy_band_s,
                    notes.get(own.label, ""),
                    own is first,
                ),
            )
            for name, own in ranked
        ),
    )


# Why, and which.


def _why(result: StudyResult) -> Section:
    def compute(why: Why) -> float:
        return why.parts_s.get("compute", 0.0)

    def waits(c: text.Named) -> str | None:
        shares = [(s / c.own.step_time_s, part) for part, s in c.own.why.parts_s.items() if part != "compute"]
        return ", ".join(f"{part} {text.percent(s)}" for s, part in sorted(shares, reverse=True)) or None

    def tokens(roof: StreamingRoof | None) -> float | None:
        return None if roof is None else roof.tokens

    def hidden(roof: StreamingRoof | None) -> Cell | None:
        if roof is None:
            return None
        return Cell(roof.hidden_from_tokens, note=f"({text.integer(roof.formula_tokens)})")

    table = Table.each(
        text.named(result.candidates),
        {
            "candidate": (None, lambda c: c.name),
            "limited by": (None, lambda c: c.own.why.cause),
            "compute": (text.SHARE, lambda c: compute(c.own.why) / c.own.step_time_s),
            "waits": (None, waits),
            "tokens": (text.COUNT, lambda c: tokens(c.own.why.streaming_roof)),
            "tokens to hide weights": (text.COUNT, lambda c: hidden(c.own.why.streaming_roof)),
            "nearest remedy": (None, lambda c: c.own.why.remedy),
        },
        "Shares of the step; only waits that nothing hides count. Tokens are per micro-batch and system; in "
        "parentheses e P b / (2 B), what arithmetic alone would need to hide the weights.",
    )
    return Section(
        "Why",
        "What explains the ratio of the first two, and what limits each candidate: the largest wait, or "
        "computing where no wait takes a tenth of the step.",
        table=table,
        slug="why",
        cards=list(_differences(result)),
    )


def _differences(result: StudyResult) -> Iterator[Card]:
    """What explains the ratio of the first two: speed, tokens, and the largest wait of the slower one."""
    if len(leaders := study.leaders(result)) < 2:
        return
    first, rival = (own for _, own in leaders)
    speed = first.tokens_per_s / rival.tokens_per_s
    shares = f"at {text.percent(first.mfu, 0)} and {text.percent(rival.mfu, 0)} of peak"
    rates = f"{_rate(first)} against {_rate(rival)}, {shares}"
    yield Card(_times(speed), rates, f"{'more' if speed >= 1 else 'fewer'} tokens a second")
    batches = [own.global_batch_size * result.seq_length for own in (first, rival)]
    needed = first.steps * batches[0]
    tokens = rival.steps * batches[1] / needed if needed else math.nan
    if math.isfinite(tokens):
        alike = abs(tokens - 1) < study.SAME
        many = "as many" if alike else "fewer" if tokens > 1 else "more"
        sizes = f"batch {text.large(batches[0])} against {text.large(batches[1])} tokens"
        yield Card(f"1 {text.TIMES}" if alike else _times(tokens), sizes, f"{many} tokens to the target")
    waits = [
        (seconds / own.step_time_s, own is rival, part)
        for _, own in leaders
        for part, seconds in own.breakdown_s.items()
        if part not in _COMPUTING
    ]
    share, of_rival, part = max(waits, default=(0.0, False, ""))
    if share >= study.SAME:
        machine_name, own = leaders[of_rival]
        name = f"of the step of {machine_name} is {text.human(part)}"
        yield Card(text.percent(share, 0), f"nearest remedy: {own.why.remedy}", name)


def _times(ratio: float) -> str:
    return f"{max(ratio, 1 / ratio):.2f} {text.TIMES}"


def _rate(candidate: Answer) -> str:
    rate = candidate.tokens_per_s
    return f"{text.large(rate)}/s" if rate >= 1e6 else f"{rate / 1e3:,.3g} k/s"


def _candidates(result: StudyResult) -> Section:
    lead = (
        f"{result.model}: {text.large(result.num_parameters)} parameters, sequences of "
        f"{text.integer(result.seq_length)} tokens, {text.large(result.target_tokens)} tokens to the "
        "target at small batch. Each candidate runs at its own best batch and layout."
    )
    unfit = [f"Not possible: {item.label}: {item.reason}." for item in result.infeasible]
    perturbed = text.capital(study.perturbed_line(result))
    names = [name for name in study.ON_A_PAGE if name != "time in production"]
    if any(candidate.production for candidate in result.candidates):
        names = list(study.ON_A_PAGE)
    return Section(
        "The candidates in figures",
        " ".join([lead, *([f"{perturbed}."] if perturbed else []), *unfit]),
        table=study.candidates_table(text.named(result.candidates)).only(*names).turned(),
        slug="verdict",
        short="Candidates",
    )


def _decision(result: StudyResult) -> Iterator[Section]:
    """When, for how much and how surely: a column for each candidate, the most probable first marked."""
    decision = result.decision
    if decision is None:
        return
    outcomes = decision.outcomes
    names = dict(
        zip((own.label for own in outcomes), (c.name for c in text.named(result.candidates)), strict=True)
    )
    unit = text.time_unit([min(own.wall_s.typical for own in outcomes)])
    money = text.Unit(suits=lambda values: _with_unit(values, decision.currency))
    likely = text.Unit(digits=chance)
    most = max(own.first for own in outcomes)
    columns: dict[str, tuple[text.Unit | None, Callable[[Outcome], Cell | Value]]] = {
        "": (None, lambda own: names[own.label]),
        "steps": (unit, lambda own: _spread(own.steps_s)),
        "on the wall": (unit, lambda own: _spread(own.wall_s)),
        "which holds": (None, lambda own: own.basis),
        "first with a probability of": (likely, lambda own: Cell(own.first, mark=own.first == most)),
        "device-hours": (text.LARGE, lambda own: _spread(own.device_hours)),
        "energy": (text.Unit("MWh", 1e3), lambda own: _spread(own.energy_kwh)),
        "carbon": (text.Unit("t CO2e", 1e3), lambda own: _spread(own.carbon_kg)),
        "money": (money, lambda own: _spread(own.money)),
    }
    if all(own.cheapest is not None for own in outcomes):
        columns["cheapest with a probability of"] = likely, lambda own: own.cheapest
    gaps = dict.fromkeys(gap for own in outcomes for gap in own.not_given)
    lead = (
        "Helps to decide when, for how much and how surely. Typical values with 90 % intervals from "
        f"{text.integer(decision.draws)} draws (seed {decision.seed}); candidates share the draws of what "
        "they have in common."
    )
    table = Table.each(outcomes, columns, f"Not given: {', '.join(gaps)}." if gaps else "").turned()
    yield Section("The decision", lead, table=table, slug="decision", short="Decision")
    if decision.break_even:
        lead = (
            "Shows what a machine may cost before the other is cheaper for this run, also where a price is "
            "not given: a device-hour of the first may cost so many of the second."
        )

        def worth(row: BreakEven) -> Cell:
            return replace(_spread(row.device_hours_ratio), note=f"of {names[row.rival]}", unit=text.NUMBER)

        table = Table.each(  # narrow enough for a phone
            decision.break_even,
            {
                "a device-hour of": (None, lambda row: names[row.label]),
                "may cost as much as": (None, worth),
                "or": (text.Unit(decision.currency), lambda row: _spread(row.price)),
            },
        )
        yield Section("Break-even prices", lead, table=table, slug="break-even", level=3)


def _with_unit(values: Iterable[float], unit: str) -> text.Unit:
    """Large counts of a unit: `1.23 million USD`."""
    large = text.large_unit(values)
    return replace(large, name=" ".join(filter(None, [large.name, unit])))


def _spread(spread: Spread | None) -> Cell:
    return Cell(NOT_GIVEN) if spread is None else Cell(spread.typical, (spread.low, spread.high))


def _laws(result: StudyResult) -> Iterator[Section]:
    """One row a law: its critical batch, each candidate's best batch and time, the first one marked."""
    if len(result.laws) < 2:
        return
    names = {own.label: name for name, own in text.named(result.candidates)}
    firsts = list(dict.fromkeys(names[answer.first] for answer in result.laws))
    agree = (
        f"All put {firsts[0]} first."
        if len(firsts) == 1
        else f"They disagree on who is first: {', '.join(firsts)}."
    )
    lead = (
        f"Helps to see whether the choice of law decides the answer. {agree} The first row is the study's "
        "law; Kaplan's takes the loss of its own corpus. A star marks who is first; only batches that were "
        "tried count."
    )
    unit = text.time_unit(row.time_s for answer in result.laws for row in answer.rows)
    times = dict.fromkeys(names.values(), unit)
    table = Table.of(
        {"law": None, "critical batch, tokens": text.LARGE, **times, "source": None},
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
    yield Section("Laws of the critical batch", lead, table=table, slug="laws", level=3)


def _whole_run(result: StudyResult) -> Section:
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
    table = Table.of(
        {"": None, **{name: text.TIME for name, _ in named}},
        ([part, *(cells.get((name, part)) for name, _ in named)] for part in parts),
    )
    return Section(
        "The whole run",
        "Helps to plan: queue, compilation, loading, checkpoints, failures and stragglers come on top of the "
        "time to the target above. Each part is a typical value with the observed range in parentheses; the "
        "ends of the sum add the same ends of all parts. The band of the steps is not included. The "
        "production ratio above describes the same slow steps as the stragglers, so it is not counted here.",
        table=table,
        slug="whole-run",
    )


def _resilience(result: StudyResult) -> Iterator[Section]:
    """Step time of every candidate at every severity of one slow device, and who hides a part of it."""
    if not result.resilience:
        return
    severities = sorted({point.severity for curve in result.resilience for point in curve.points})
    rows = []
    for curve in result.resilience:
        cells = {
            point.severity: Cell(point.step_time_s, note=f"({slow:.3f})")
            for point, slow in zip(curve.points, _slowdowns(curve), strict=True)
        }
        rows.append([curve.label, *(cells.get(severity) for severity in severities)])
    table = Table.of(
        {"candidate": None, **{f"{severity:g} {text.TIMES}": text.TIME for severity in severities}},
        rows,
        "Step time, in parentheses relative to the step without a straggler.",
    )
    alike: dict[str, list[str]] = {}
    for curve in result.resilience:
        slow = _slowdowns(curve)[-1]
        severity = curve.points[-1].severity
        hidden = slow - 1 < _HIDDEN * (severity - 1)
        remark = " (waits that are there anyway hide the rest)" if hidden else ""
        words = f"takes {slow:.2f} times as long with one device {severity:g} times as slow{remark}"
        alike.setdefault(words, []).append(curve.label)
    said = "; ".join(f"a step of {' or '.join(names)} {words}" for words, names in alike.items())
    lead = (
        f"{text.capital(said)}. That is what one slow GPU or wafer costs until it is "
        f"replaced. Every rank that the slow one ({result.resilience[0].rank}) delays is simulated."
    )
    yield Section("One slow device", lead, table=table, slug="resilience", short="Slow device")


def _slowdowns(curve: Resilience) -> list[float]:
    """Step time at every severity over the step without a straggler."""
    return [point.step_time_s / curve.points[0].step_time_s for point in curve.points]


def _remarks(named: Sequence[text.Named]) -> Section:
    lead = "What to know before a plan is used: where its state is kept, safer choices."
    table = Table.of(
        ("plan", "remark"),
        (("" if number else name, remark) for name, own in named for number, remark in enumerate(own.notes)),
    )
    return Section("Remarks on the plans", lead, table=table, slug="remarks", short="Remarks")


def _evidence(result: StudyResult) -> Iterator[Section]:
    yield Section(
        "Assumptions and sources",
        "The inputs of the answer. Change a value that does not fit your machine and run the study again.",
        topics=study.assumptions_tables(result.assumptions),
        slug="assumptions",
        short="Assumptions",
    )
    error = text.Unit(digits="{:.1e}".format)
    sampled = Table.each(
        result.sampling.items(),
        {
            "candidate": (None, lambda item: item[0]),
            "products": (
                text.COUNT,
                lambda item: Cell(item[1].tasks_sampled, note=f"of {text.integer(item[1].tasks_total)}"),
            ),
            "share of FLOPs": (text.SHARE, lambda item: item[1].flop_share),
            "largest error": (error, lambda item: item[1].worst_relative_error),
            "bound": (error, lambda item: item[1].bound),
            "where": (None, lambda item: item[1].worst or None),
            "result": (
                None,
                lambda item: "passed" if item[1].passed else f"FAILED: {'; '.join(item[1].failed)}",
            ),
            "partitions": (
                None,
                lambda item: (
                    ", ".join(f"{text.human(part)} {n}" for part, n in item[1].by_partition.items()) or None
                ),
            ),
        },
        "Products executed out of all in the step, and the share of its matrix FLOPs that their classes "
        "represent. Errors are relative to the product of absolute values; the bound holds for any order of "
        "summation. Every product is also executed on integers, which must be exact.",
    )
    lead = (
        "Tasks sampled from the simulated step, computed in NumPy with the strategy's partition and "
        "compared with the unpartitioned product. Shows whether the simulated work is the right work."
    )
    yield Section("Correctness sampling", lead, table=sampled, slug="sampling", short="Sampling")
    accuracy = Table.each(
        result.accuracy,
        {
            "most similar family": (None, lambda own: own.family),
            "strategy": (None, lambda own: own.strategy),
            "runs": (text.COUNT, lambda own: own.n),
            "median error": (text.SHARE, lambda own: own.median_ape),
            "90th percentile": (text.SHARE, lambda own: own.p90_ape),
            "90th percentile, left out": (text.SHARE, lambda own: own.held_out_p90_ape),
            "baseline's median": (text.SHARE, lambda own: own.baseline_median_ape),
        },
        "Absolute errors of the predicted step time on published runs. A few global constants were fitted to "
        "these runs too; 'left out' is for constants fitted without them. A band comes from the errors of "
        "all runs that were left out, and widens where a plan is unlike them.",
    )
    lead = (
        "Errors of such predictions for published runs, next to a baseline of one constant efficiency. "
        "Shows how much to trust a difference between two candidates."
    )
    yield Section("Accuracy", lead, table=accuracy, slug="accuracy")


# The summary of a study as one JSON document.

_OF_CANDIDATE = (
    "steps",
    "time_to_accuracy_s",
    "time_to_accuracy_band_s",
    "memory",
    "batch_curve",
    "roofline",
    "network",
    "notes",
    "batch_at_edge",
    "whole_run",
    "ramp",
    "production",
    "production_time_s",
    "production_band_s",
)
"""What a candidate adds to a prediction; its timeline is in the trace file."""


def study_document(result: StudyResult, *, report: str = "index.html") -> dict[str, Any]:
    """The document of `perfsim study --json`.

    Every quantity is SI and its key names the unit. `report` is where the page stands, as the
    caller wants it written.
    """
    document: dict[str, Any] = plain(replace(result, candidates=(), stopped=None))
    del document["stopped"]
    document["verdict"] += _whole_runs(result.candidates)
    document["candidates"] = [_candidate(candidate) for candidate in result.candidates]
    document["report"] = report
    document["version"] = __version__
    return document


def _whole_runs(candidates: Sequence[Answer]) -> str:
    """How long the candidates' whole runs take; empty if no candidate names a wall clock."""
    words = [
        f"{own.label} {run.typical_s / DAY_S:.3g} days ({run.low_s / DAY_S:.3g} to {run.high_s / DAY_S:.3g})"
        for own in candidates
        for run in own.whole_run[-1:]
    ]
    return f" The whole run, with waiting times besides its steps: {'; '.join(words)}." if words else ""


def _candidate(candidate: Answer) -> dict[str, Any]:
    document = document_of(candidate)
    document |= {name: getattr(candidate, name) for name in _OF_CANDIDATE}
    document["label"] = candidate.label
    document["tokens_per_s_per_device"] = candidate.tokens_per_s / max(candidate.num_devices, 1)
    document["memory_capacity_bytes"] = candidate.memory_capacity_bytes
    return {name: plain(value) for name, value in document.items()}


def write_study(result: StudyResult, folder: Path) -> Path:
    """Write `index.html`, `summary.json` and the traces; returns the page."""
    page = write_study_page(result, folder, trace_names=_write_traces(result, folder))
    write_document(study_document(result), folder / "summary.json")
    return page


def write_study_page(result: StudyResult, folder: Path, *, trace_names: Sequence[str] = ()) -> Path:
    """Write `index.html`; `trace_names` are the files of the candidates' traces next to it."""
    title, sections, head = study_page(result, trace_names=trace_names)
    return write_page(title, sections, folder / "index.html", head=head)


def _write_traces(result: StudyResult, folder: Path) -> list[str]:
    """A trace for each candidate, by system, devices and strategy, numbered where two would be the same."""
    names: list[str] = []
    seen = Counter[str]()
    for plan, trace in ((own.run.plan, own.run.trace) for own in result.candidates):
        parts = (plan.system.name, str(plan.topology.num_devices), plan.strategy)
        name = "_".join(["trace", *map(slugify, parts)])
        seen[name] += 1
        number = f"_{seen[name]}" if seen[name] > 1 else ""
        write_chrome_trace(trace, folder / f"{name}{number}.json.gz")
        names.append(f"{name}{number}.json.gz")
    return names
