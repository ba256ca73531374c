"""The page of a study, section by section: what the reader decides first stands first."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.graph.task_graph import computes
from perfsim.report import text
from perfsim.report.caveats import caveats_section, head_remarks
from perfsim.report.figures import memory as memory_figure
from perfsim.report.figures import network as network_figure
from perfsim.report.figures import roofline as roofline_figure
from perfsim.report.figures import step_time as step_figure
from perfsim.report.figures import time_to_accuracy as batch_figure
from perfsim.report.figures import timeline as timeline_figure
from perfsim.report.figures import waterfall as bridge_figure
from perfsim.report.figures.topology import topology
from perfsim.report.sections import Drawing, Head, Link, Section, drawn
from perfsim.report.study.answer import (
    badge,
    differences,
    first_and_rival,
    headline,
    intervals,
    names_of,
    shortened,
)
from perfsim.report.study.decision import decision_sections
from perfsim.report.study.evidence import accuracy_table, assumptions_tables, sampling_table
from perfsim.report.study.laws import laws_section
from perfsim.report.study.resilience import resilience_sentence, resilience_table
from perfsim.report.study.verdict import remarks_table, verdict_table
from perfsim.report.study.whole_run import wall_sentence, whole_run_section
from perfsim.report.study.why import why_table
from perfsim.studies.result import CandidateResult, StudyResult


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
        *whole_run_section(result),
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
    first, rival = first_and_rival(result) or (None, None)
    if first is None or rival is None:
        return []
    named = names_of(result)
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
    said, trust = headline(result), badge(result)
    told = [_verdict_in_head(result), decision]
    quoted = _verdict_in_head(result) or _trusted(result)
    return Head(
        result.question,
        shortened(" ".join(filter(None, told)), result),
        head_remarks(result.caveats, quoted),
        cards_note=f"{note} {wall[0].upper()}{wall[1:]}." if wall else note,
        command=result.command,
        digest=result.inputs_digest,
        headline=said,
        badge=trust,
        scale=intervals(result),
    )


def _verdict_in_head(result: StudyResult) -> str:
    """The verdict, unless headline, badge and decision say the same."""
    return "" if headline(result) and result.decision and result.decision.sentence else result.verdict


def _trusted(result: StudyResult) -> str:
    """What the badge says."""
    trust = badge(result)
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
    table = remarks_table(result)
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
    table = why_table(list(zip(text.names(result.candidates), result.candidates, strict=True)))
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
    shown = first_and_rival(result) or ()
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
            topics=assumptions_tables(result),
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
                "Correctness sampling", lead, table=sampling_table(result), slug="sampling", short="Sampling"
            )
        )
    if result.accuracy:
        lead = (
            "Errors of such predictions for published runs, beside a baseline of one constant efficiency. "
            "Shows how much to trust a difference between two candidates."
        )
        sections.append(Section("Accuracy", lead, table=accuracy_table(result), slug="accuracy"))
    return sections
