"""The page of a study, section by section: what the reader decides first stands first."""

from __future__ import annotations

import math

from perfsim.report import text
from perfsim.report.figures import memory as memory_figure
from perfsim.report.figures import resilience as resilience_figure
from perfsim.report.figures import step_time as step_figure
from perfsim.report.figures import time_to_accuracy as batch_figure
from perfsim.report.figures import timeline as timeline_figure
from perfsim.report.sections import Card, Head, Section
from perfsim.report.study.evidence import accuracy_table, assumptions_table, sampling_table
from perfsim.report.study.verdict import ratios_to_first, remarks_table, verdict_table
from perfsim.report.study.whole_run import whole_run_section
from perfsim.report.study.why import why_table
from perfsim.studies.result import StudyResult


def study_page(result: StudyResult, *, trace_name: str | None = None) -> tuple[str, list[Section], Head]:
    """Title, sections and head of a study's report."""
    sections = [
        _verdict(result),
        *_remarks(result),
        _batch(result),
        _step(result),
        *_why(result),
        *whole_run_section(result),
        _memory(result),
        *_resilience(result),
        *_timelines(result, trace_name),
        *_evidence(result),
    ]
    return result.title, sections, _head(result)


def _head(result: StudyResult) -> Head:
    cards = []
    for ratio in ratios_to_first(result):
        if ratio.is_first:
            figure, spread = text.duration(ratio.time_s), f"band {text.duration_band(ratio.band_s)}"
        else:
            low, high = (text.number(end) for end in ratio.band)
            figure = (
                f"{text.number(ratio.ratio)} {text.TIMES}" if math.isfinite(ratio.ratio) else text.MISSING
            )
            spread = f"as long ({low}{text.NONE}{high} {text.TIMES})"
        cards.append(Card(figure, spread, ratio.name, marked=ratio.is_first))
    note = (
        "Time to the target; first the soonest, then how many times as long the others take. A ratio's 90 % "
        "range is narrower than the two bands suggest: one critical batch decides both."
    )
    footer = f"Inputs: {result.inputs_digest}." if result.inputs_digest else ""
    return Head(result.question, result.verdict, cards, note if cards else "", footer)


def _verdict(result: StudyResult) -> Section:
    lead = (
        f"{result.model}: {text.large(result.num_parameters)} parameters, sequences of "
        f"{text.integer(result.seq_length)} tokens, {text.large(result.target_tokens)} tokens to the "
        "target at small batch. Each candidate runs at its own best batch and layout. "
        "Which machine should train this?"
    )
    unfit = [f"{each.label} has no feasible plan: {each.reason}" for each in result.infeasible]
    perturbed = text.perturbed_line(result)
    notes = [f"{perturbed[0].upper()}{perturbed[1:]}."] if perturbed else []
    return Section("Verdict", " ".join([lead, *notes, *unfit]), table=verdict_table(result), slug="verdict")


def _remarks(result: StudyResult) -> list[Section]:
    table = remarks_table(result)
    if not table.rows:
        return []
    lead = "Before a plan is used: how it spends its memory, what would be safer, what its figures rest on."
    return [Section("Remarks on the plans", lead, table=table, slug="remarks")]


def _batch(result: StudyResult) -> Section:
    low, high = (text.large(end) for end in result.critical_batch_band_tokens)
    lead = "The run has a given number of tokens, so no batch wastes any. A star marks the best batch."
    if result.critical_batch_tokens > 0:
        lead = (
            "Helps to choose the global batch. Left of the critical batch more batch buys time, right of it "
            f"mostly wastes tokens. By {result.law} it is {text.large(result.critical_batch_tokens)} tokens "
            f"({low}{text.NONE}{high}, shaded). A star marks each candidate's best batch."
        )
    ends = [f"{each.label}: {each.batch_at_edge}." for each in result.candidates if each.batch_at_edge]
    lead = " ".join([lead, *_suggested(result), *ends])
    return Section(
        "Time to the target by batch",
        lead,
        figure=batch_figure.time_to_accuracy(result),
        table=batch_figure.time_to_accuracy_table(result),
        alt=batch_figure.time_to_accuracy_alt(result),
        slug="time-to-accuracy",
    )


def _suggested(result: StudyResult) -> list[str]:
    """A sentence on the batches that published laws suggest; none where there are none."""
    laws = [f"{text.large(tokens)} tokens by {law}" for law, tokens in result.suggested_batch_tokens.items()]
    return [f"Published laws suggest, to begin a search with: {', '.join(laws)}."] if laws else []


def _step(result: StudyResult) -> Section:
    return Section(
        "Where a step goes",
        "Helps to see what to improve first: the widest part that is not compute is what a faster link, "
        "another layout or more microbatches could win back.",
        figure=step_figure.step_breakdown(result),
        table=step_figure.step_breakdown_table(result),
        alt=step_figure.step_breakdown_alt(result),
        slug="step-time",
    )


def _why(result: StudyResult) -> list[Section]:
    lead = (
        "Helps to choose what to change: the wait that decides, or computing where no wait takes a tenth of "
        "the step. Streamed weights are late where a system's micro-batch has fewer tokens than hide them."
    )
    table = why_table(list(zip(text.labels(result.candidates), result.candidates, strict=True)))
    return [Section("Why is it slow?", lead, table=table, slug="why")] if table.rows else []


def _memory(result: StudyResult) -> Section:
    return Section(
        "Memory",
        "Helps to see how much room the layout leaves: what stands near the line limits the microbatch and "
        "the model's size.",
        figure=memory_figure.memory(result),
        table=memory_figure.memory_table(result),
        alt=memory_figure.memory_alt(result),
        slug="memory",
    )


def _resilience(result: StudyResult) -> list[Section]:
    if not result.resilience:
        return []
    lead = (
        "Helps to see what one slow GPU or wafer costs before it is found and replaced. Where all wait for "
        "it, the step follows the dotted line; below it, waiting that is there anyway hides a part. Every "
        f"rank that the slow one ({result.resilience[0].rank}) delays is simulated on its own."
    )
    return [
        Section(
            "One slow device",
            lead,
            figure=resilience_figure.resilience(result),
            table=resilience_figure.resilience_table(result),
            alt=resilience_figure.resilience_alt(result),
            slug="resilience",
        )
    ]


def _timelines(result: StudyResult, trace_name: str | None) -> list[Section]:
    where = (
        f" Every task stands in {trace_name}, which Perfetto and chrome://tracing open." if trace_name else ""
    )
    lead = (
        "Helps to see why a step takes as long as it does: gaps in a computing stream are waiting time, and "
        f"the lanes above or below show for what. Drag to zoom, double-click to return.{where}"
    )
    sections = [Section("Timeline of a step", lead, slug="timeline")]
    drawn = [
        (name, candidate)
        for name, candidate in zip(text.labels(result.candidates), result.candidates, strict=True)
        if candidate.timeline
    ]
    cuts = timeline_figure.cut_timelines([candidate for _, candidate in drawn])
    for index, ((name, candidate), cut) in enumerate(zip(drawn, cuts, strict=True)):
        sections.append(
            Section(
                name,
                figure=timeline_figure.timeline(candidate, cut.bars),
                table=timeline_figure.timeline_table(candidate),
                alt=timeline_figure.timeline_alt(candidate, name),
                slug=f"timeline-{index}",
                note=cut.note(trace_name),
                level=3,
            )
        )
    return sections if drawn else []


def _evidence(result: StudyResult) -> list[Section]:
    sections = [
        Section(
            "Assumptions and sources",
            "What the answer rests on. Change a line that does not fit your machine and run the study again.",
            table=assumptions_table(result),
            slug="assumptions",
        )
    ]
    if result.sampling:
        lead = (
            "Tasks drawn from the simulated step, computed with NumPy in the partition that the strategy "
            "chose and compared with the unpartitioned product. Tells whether the simulated work "
            "is the right work."
        )
        sections.append(Section("Correctness sampling", lead, table=sampling_table(result), slug="sampling"))
    if result.accuracy:
        lead = (
            "How far predictions of this kind were off for published runs, beside a baseline of one constant "
            "efficiency. Tells how much to trust a difference between two candidates."
        )
        sections.append(Section("Accuracy", lead, table=accuracy_table(result), slug="accuracy"))
    return sections
