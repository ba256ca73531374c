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
from perfsim.prediction.why import Roofline
from perfsim.report import study, text
from perfsim.report.document import plain, write_document
from perfsim.report.figures import machine, step, time
from perfsim.report.page import Card, Head, Section, caveats_section, slugify, trust_of, write_page
from perfsim.report.table import Cell, Table
from perfsim.studies.answers import CandidateResult, Decision, StudyResult
from perfsim.studies.decision import amount
from perfsim.studies.runner import StudyRun
from perfsim.version import __version__
from perfsim.work.graph import computes

COMPUTING = ("forward", "backward", "compute")


def study_page(result: StudyResult, *, trace_names: Sequence[str] = ()) -> tuple[str, list[Section], Head]:
    """Title, sections and head of a study's report; sections without anything to say are left out."""
    named = text.named(result.candidates)
    sections = [
        *_why(result),
        _candidates(result),
        *_decision(result),
        _batch(result),
        *_laws(result),
        *_bridge(result),
        _step(result),
        *_whole_run(result),
        _memory(result),
        *_network(result),
        *_rooflines(named),
        *_timelines(named, trace_names),
        *_tornados(result.decision),
        *_resilience(result),
        *caveats_section(result.caveats, _verdict_in_head(result), trust_of(result.caveats)),
        *_remarks(named),
        *_evidence(result),
    ]
    return result.title, sections, _head(result)


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


def _why(result: StudyResult) -> Iterator[Section]:
    lead = (
        "What explains the ratio of the first two, and what limits each candidate: the largest wait, or "
        "computing where no wait takes a tenth of the step."
    )
    table = study.why_table(text.named(result.candidates))
    if table.rows:
        yield Section("Why", lead, table=table, slug="why", cards=list(differences(result)))


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
        if part not in COMPUTING
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


def _tornados(decision: Decision | None) -> Iterator[Section]:
    """What would change the order, in time and in money."""
    if decision is None:
        return
    kinds = (
        (
            ("What would change the order?", "tornado", "Sensitivity"),
            (
                "Helps to choose what to measure next: the widest bar is the input worth knowing better. A "
                "bar that crosses the dotted line flips the order within its range."
            ),
            "time on the wall",
            decision.levers,
            decision.ratio,
        ),
        (
            ("What would change which costs less?", "tornado-money", "Sensitivity of cost"),
            (
                "The same for money, where both have a price: the inputs that move the ratio of what the two "
                "cost, with the value at which the order flips."
            ),
            "money",
            decision.money_levers,
            decision.money_ratio,
        ),
    )
    for (heading, slug, short), lead, what, levers, ratio in kinds:
        if levers:
            table = time.tornado_table(
                levers,
                f"Ratio: {what} of {decision.rival} over that of {decision.first}. One input is moved at a "
                "time; never: not within three standard deviations.",
            )
            title = f"{text.capital(what)} over that of the first (times)"
            figure = time.tornado(table, title, ratio.typical if ratio else 1.0)
            shows = f"Bars of the ratio of {what} over the range of each input"
            told = ("ratio at low", "ratio at high")
            yield Section(heading, lead, figure, table, shows, told, slug=slug, short=short)


# The figures.


def _batch(result: StudyResult) -> Section:
    lead = "The number of tokens is given, so no batch wastes any. A star marks the best batch."
    if result.critical_batch_tokens > 0:
        band = text.LARGE.text(result.critical_batch_tokens, result.critical_batch_band_tokens)
        lead = (
            "Helps to choose the global batch. Below the critical batch a larger batch saves time; above it, "
            f"it mostly wastes tokens. The critical batch is {band} tokens (shaded) by {result.law}. A star "
            "marks each candidate's best batch."
        )
    laws = [f"{text.large(tokens)} tokens by {law}" for law, tokens in result.suggested_batch_tokens.items()]
    if laws:
        lead += f" Starting points from published laws: {', '.join(laws)}."
    table = time.batch_table(result)
    return Section(
        "Time to the target by batch",
        lead,
        time.batch_curves(table, result),
        table,
        "Line chart of time to the target over global batch, both logarithmic",
        ("batch (sequences)", "time"),
        slug="time-to-accuracy",
        short="Batch",
    )


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


def _bridge(result: StudyResult) -> Iterator[Section]:
    """From the step of the second machine to that of the first; nothing for a single one."""
    if len(leaders := study.leaders(result)) < 2:
        return
    (first_name, first), (rival_name, rival) = leaders
    table = step.bridge_table((rival_name, first_name), rival, first)
    yield Section(
        "From one step to the other",
        "Shows in seconds what makes one machine faster than the other for the same tokens: a bar to the "
        f"left saves time, a bar to the right costs it. {table.caption}",
        step.waterfall(table),
        table,
        "Bars from one step to the other for the same tokens",
        ("step",),
        slug="bridge",
        short="Step to step",
    )


def _step(result: StudyResult) -> Section:
    table = step.breakdown_table(result)
    return Section(
        "Where a step goes",
        "Shows what to improve first: the widest part that is not compute is what a faster link, another "
        "layout or more micro-batches could save.",
        step.step_shares(table),
        table,
        "Stacked bars of the step time",
        [column.name for column in table.columns[1:]],
        slug="step-time",
        short="Step",
    )


def _whole_run(result: StudyResult) -> Iterator[Section]:
    lead = (
        "Helps to plan: queue, compilation, loading, checkpoints, failures and stragglers come on top of the "
        "time to the target above. Each part is a typical value with the observed range in parentheses; the "
        "ends of the sum add the same ends of all parts. The band of the steps is not included. The "
        "production ratio above describes the same slow steps as the stragglers, so it is not counted here."
    )
    table = study.whole_run_table(result)
    if table.rows:
        yield Section("The whole run", lead, table=table, slug="whole-run")


def _memory(result: StudyResult) -> Section:
    table = machine.memory_table(result)
    return Section(
        "Memory",
        "Shows how much memory the layout leaves free: a bar near the line limits the micro-batch and the "
        "size of the model.",
        machine.memory(table),
        table,
        "Stacked bars of peak memory with the capacity as a line",
        ("total", "capacity"),
        slug="memory",
    )


def _network(result: StudyResult) -> Iterator[Section]:
    table = machine.network_table(result)
    if not table.rows:
        return
    drawings = [
        machine.topology(name, own.devices_noun, own.network, own.utilisation)
        for name, own in study.leaders(result)
        if own.network is not None and own.utilisation
    ]
    how = (
        " Drawn for the first two: per cent are the mean over the step and the peak of the busiest link; a "
        "line's colour follows the mean (it changes at 10, 30 and 60 %), its width the peak."
    )
    yield Section(
        "Use of the network",
        "Shows which links a faster network would have to improve: one that is busy all the time limits the "
        "step, one that is full only at its peak makes communication wait for other communication."
        f"{how if drawings else ''}",
        None if drawings else machine.network_use(table),
        table,
        "Bars of the use of the network by kind of link",
        ("mean", "peak"),
        drawings=drawings,
        note=machine.overload_note(table),
        slug="network",
        short="Network",
    )


def _rooflines(named: study.Named) -> Iterator[Section]:
    """A tab for each machine, as its fastest candidate uses it; nothing where no kernels are known."""
    fastest: dict[tuple[str, str], tuple[str, Roofline]] = {}
    for name, own in sorted(named, key=lambda pair: pair[1].time_to_accuracy_s):
        if own.roofline and own.roofline.kernels:
            fastest.setdefault((own.system, own.strategy), (name, own.roofline))
    if fastest:
        lead = (
            "Shows what kind of device would compute faster: points on the slope wait for memory, points on "
            "the level lines for arithmetic, points far below both for neither, as small or narrow products "
            "do. The area of a point follows its time. Kernels without counted FLOPs have one for every two "
            "bytes."
        )
        yield Section("Roofline of the kernels", lead, slug="roofline", short="Roofline")
    for index, (name, roofline) in enumerate(fastest.values()):
        table = machine.roofline_table(roofline)
        yield Section(
            name,
            "",
            machine.roofline(table, roofline),
            table,
            "Roofline of a device, with the kernels of a step",
            ("share", "reach"),
            slug=f"roofline-{index}",
            tab="rooflines",
            level=3,
        )


def _timelines(named: study.Named, trace_names: Sequence[str]) -> Iterator[Section]:
    files = [*trace_names, *[""] * (len(named) - len(trace_names))]
    shown = [(name, own, file) for (name, own), file in zip(named, files, strict=True) if own.timeline]
    if shown:
        lead = (
            "Shows why a step takes as long as it does: gaps in a compute stream are waits, and the streams "
            "above or below show what it waits for. Drag to zoom, double-click to return."
        )
        yield Section("Timeline of a step", lead, slug="timeline", short="Timeline")
    drawn = step.timelines([own for _, own, _ in shown])
    for index, ((name, own, file), timeline) in enumerate(zip(shown, drawn, strict=True)):
        lanes = len({bar.lane for bar in own.timeline if computes(bar.lane)})
        notes = [timeline.note]
        if lanes < own.timeline_devices:
            devices = f"{own.timeline_devices} devices that were simulated on their own"
            notes.insert(0, f"Lanes of {lanes} of the {devices}.")
        if own.simulated is not None:
            notes.append(f"Simulated: {text.simulated(own.simulated)}.")
        yield Section(
            name,
            "",
            step.timeline(own, timeline.bars),
            step.timeline_table(own),
            f"Gantt chart of the streams of {name} over a step of {text.duration(own.step_time_s)}",
            ("busy",),
            slug=f"timeline-{index}",
            tab="timelines",
            note=" ".join(filter(None, notes)),
            trace=file,
            level=3,
        )


def _resilience(result: StudyResult) -> Iterator[Section]:
    if result.resilience:
        lead = (
            f"{study.resilience_sentence(result)} That is what one slow GPU or wafer costs until it is "
            f"replaced. Every rank that the slow one ({result.resilience[0].rank}) delays is simulated."
        )
        table = study.resilience_table(result)
        yield Section("One slow device", lead, table=table, slug="resilience", short="Slow device")


def _remarks(named: study.Named) -> Iterator[Section]:
    table = study.remarks_table(named)
    if table.rows:
        lead = "What to know before a plan is used: where its state is kept, safer choices."
        yield Section("Remarks on the plans", lead, table=table, slug="remarks", short="Remarks")


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
