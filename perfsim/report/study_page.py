"""The page and the files of a study: what the reader decides first stands first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfsim.base.units import DAY_S
from perfsim.interop.chrome import write_chrome_trace
from perfsim.prediction.prediction import document_of
from perfsim.report import study, study_figures, text
from perfsim.report.document import plain, write_document
from perfsim.report.network import network
from perfsim.report.page import Card, Head, Section, caveats_section, slugify, trust_of, write_page
from perfsim.report.table import Cell, Table
from perfsim.studies.answers import CandidateResult, StudyResult
from perfsim.studies.decision import amount
from perfsim.studies.runner import StudyRun
from perfsim.version import __version__

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
    return Section(
        "Why",
        "What explains the ratio of the first two, and what limits each candidate: the largest wait, or "
        "computing where no wait takes a tenth of the step.",
        table=study.why_table(text.named(result.candidates)),
        slug="why",
        cards=list(differences(result)),
    )


def differences(result: StudyResult) -> Iterator[Card]:
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


def _rate(candidate: CandidateResult) -> str:
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
    decision = result.decision
    if decision is None:
        return
    names = [name for name, _ in text.named(result.candidates)]
    lead = (
        "Helps to decide when, for how much and how surely. Typical values with 90 % intervals from "
        f"{text.integer(decision.draws)} draws (seed {decision.seed}); candidates share the draws of what "
        "they have in common."
    )
    table = study.outcomes_table(decision, names).turned()
    yield Section("The decision", lead, table=table, slug="decision", short="Decision")
    if decision.break_even:
        lead = (
            "Shows what a machine may cost before the other is cheaper for this run, also where a price is "
            "not given: a device-hour of the first may cost so many of the second."
        )
        table = study.break_even_table(decision, names)
        yield Section("Break-even prices", lead, table=table, slug="break-even", level=3)


def _laws(result: StudyResult) -> Iterator[Section]:
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
    table = study.laws_table(result)
    yield Section("Laws of the critical batch", lead, table=table, slug="laws", level=3)


def _whole_run(result: StudyResult) -> Section:
    return Section(
        "The whole run",
        "Helps to plan: queue, compilation, loading, checkpoints, failures and stragglers come on top of the "
        "time to the target above. Each part is a typical value with the observed range in parentheses; the "
        "ends of the sum add the same ends of all parts. The band of the steps is not included. The "
        "production ratio above describes the same slow steps as the stragglers, so it is not counted here.",
        table=study.whole_run_table(result),
        slug="whole-run",
    )


def _resilience(result: StudyResult) -> Iterator[Section]:
    if result.resilience:
        lead = (
            f"{study.resilience_sentence(result)} That is what one slow GPU or wafer costs until it is "
            f"replaced. Every rank that the slow one ({result.resilience[0].rank}) delays is simulated."
        )
        table = study.resilience_table(result)
        yield Section("One slow device", lead, table=table, slug="resilience", short="Slow device")


def _remarks(named: study.Named) -> Section:
    lead = "What to know before a plan is used: where its state is kept, safer choices."
    return Section(
        "Remarks on the plans", lead, table=study.remarks_table(named), slug="remarks", short="Remarks"
    )


def _evidence(result: StudyResult) -> Iterator[Section]:
    yield Section(
        "Assumptions and sources",
        "The inputs of the answer. Change a value that does not fit your machine and run the study again.",
        topics=study.assumptions_tables(result.assumptions),
        slug="assumptions",
        short="Assumptions",
    )
    if result.sampling:
        lead = (
            "All matrix products of the simulated step, compared with the model; some computed in NumPy with "
            "the strategy's division and compared with the undivided product. Shows whether the simulated "
            "work is the right work."
        )
        table = study.sampling_table(result)
        yield Section("Correctness sampling", lead, table=table, slug="sampling", short="Sampling")
    if result.accuracy:
        lead = (
            "Errors of such predictions for published runs, next to a baseline of one constant efficiency. "
            "Shows how much to trust a difference between two candidates."
        )
        yield Section("Accuracy", lead, table=study.accuracy_table(result), slug="accuracy")


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
    document: dict[str, Any] = plain(replace(result, candidates=()))
    document["verdict"] += _whole_runs(result.candidates)
    document["candidates"] = [_candidate(candidate) for candidate in result.candidates]
    document["report"] = report
    document["version"] = __version__
    return document


def _whole_runs(candidates: Sequence[CandidateResult]) -> str:
    """How long the candidates' whole runs take; empty if no candidate names a wall clock."""
    words = [
        f"{own.label} {run.typical_s / DAY_S:.3g} days ({run.low_s / DAY_S:.3g} to {run.high_s / DAY_S:.3g})"
        for own in candidates
        for run in own.whole_run[-1:]
    ]
    return f" The whole run, with waiting times besides its steps: {'; '.join(words)}." if words else ""


def _candidate(candidate: CandidateResult) -> dict[str, Any]:
    document = document_of(candidate)
    document |= {name: getattr(candidate, name) for name in _OF_CANDIDATE}
    document["label"] = candidate.label
    document["tokens_per_s_per_device"] = candidate.tokens_per_s / max(candidate.num_devices, 1)
    document["memory_capacity_bytes"] = candidate.memory_capacity_bytes
    return {name: plain(value) for name, value in document.items()}


def write_study(run: StudyRun, folder: Path) -> Path:
    """Write `index.html`, `summary.json` and the traces; returns the page."""
    page = write_study_page(run.result, folder, trace_names=_write_traces(run, folder))
    write_document(study_document(run.result), folder / "summary.json")
    return page


def write_study_page(result: StudyResult, folder: Path, *, trace_names: Sequence[str] = ()) -> Path:
    """Write `index.html`; `trace_names` are the files of the candidates' traces next to it."""
    title, sections, head = study_page(result, trace_names=trace_names)
    return write_page(title, sections, folder / "index.html", head=head)


def _write_traces(run: StudyRun, folder: Path) -> list[str]:
    """A trace for each candidate, by system, devices and strategy, numbered where two would be the same."""
    names: list[str] = []
    seen = Counter[str]()
    for answered in run.answered:
        system = answered.question.system.name
        strategy = answered.evaluation.plan.strategy
        name = "_".join(["trace", *map(slugify, (system, str(answered.question.devices), strategy))])
        seen[name] += 1
        number = f"_{seen[name]}" if seen[name] > 1 else ""
        write_chrome_trace(answered.evaluation.trace, folder / f"{name}{number}.json.gz")
        names.append(f"{name}{number}.json.gz")
    return names
