"""The answer to a study: its tables, its lines on a terminal, its page and its JSON document."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from perfsim.base.groups import listed
from perfsim.base.text import MISSING
from perfsim.prediction.caveats import CODES, Concern
from perfsim.report import study_figures, text
from perfsim.report.page import Page, Section, caveats_section, slugify
from perfsim.report.table import Cell, Field, Table, document_text, plain
from perfsim.studies import answers
from perfsim.studies.decision import amount, chance
from perfsim.version import __version__

MOST_CANDIDATES = 24
"""Rows on a terminal; of more candidates the fastest are shown, and the report has all."""
_MOST_INFEASIBLE = 6
"""Candidates without a plan that the terminal names with their reason; the report names all."""
_HIDDEN = 0.98
"""A step that is less than this share of the device's slowdown longer hides a part of the delay."""
_ON_A_PAGE = (
    "machine", "on the wall", "steps", "batch", "step", "tokens/s",
    "MFU", "HFU", "bubble", "exposed communication", "memory", "share of the memory", "strategy", "settings",
)  # fmt: skip
"""What a page shows of each candidate; its decision has the time of the healthy steps."""
_ON_A_TERMINAL = ("machine", "layout", "batch", "step", "MFU", "memory", "steps", "on the wall")

# What page and terminal share.


def _candidates_table(shown: Sequence[answers.Answer], decision: answers.Decision) -> Table:
    """A row for each candidate, every column in one unit; the best time, rate and MFU marked."""
    unit = text.TIME.of([decision.of(decision.first).wall_s.typical])
    step = text.TIME.of([min(own.step_time_s for own in shown)])
    memory = text.MEMORY.of(own.memory_capacity_bytes for own in shown)
    most = {name: max(getattr(own, name) for own in shown) for name in ("tokens_per_s", "mfu")}
    compared = len(shown) > 1

    def is_first(own: answers.Answer) -> bool:
        return own.label == decision.first

    def wall(own: answers.Answer) -> Cell:
        return Cell.of(decision.of(own.label).wall_s, mark=compared and is_first(own))

    def best(name: str, own: answers.Answer) -> Cell:
        value = getattr(own, name)
        return Cell(value, mark=compared and value == most[name])

    return Table.each(
        shown,
        {
            "machine": (None, lambda own: Cell(own.short, mark=is_first(own))),
            "layout": (None, lambda own: text.layout_short(own.layout)),
            "batch": (text.COUNT, "global_batch_size"),
            "step": (step, "step_time_s"),
            "MFU": (text.PERCENT, partial(best, "mfu")),
            "memory": (memory, "peak_memory_bytes"),
            "steps": (text.Unit("thousand", 1e3), "steps"),
            "on the wall": (unit, wall),
            "tokens/s": (text.COUNT, partial(best, "tokens_per_s")),
            "HFU": (text.PERCENT, "hfu"),
            "bubble": (text.PERCENT, "bubble_fraction"),
            "exposed communication": (text.PERCENT, "exposed_communication_fraction"),
            "share of the memory": (
                text.PERCENT,
                lambda own: own.peak_memory_bytes / own.memory_capacity_bytes,
            ),
            "strategy": (None, "strategy"),
            "settings": (None, lambda own: text.layout_long(own.layout)),
        },
        "MFU counts the FLOPs of the model, HFU also FLOPs of recomputation. Memory is per device. A star "
        "marks the best.",
    )


def inputs_section(assumptions: Sequence[answers.Assumption]) -> Section:
    """All inputs with their sources; inputs of one topic, kind and source share a row."""
    rows = listed(((of.topic, of.kind, of.source), f"{of.name}: {of.value}") for of in assumptions)
    table = Table.of(
        ("of", "input", "kind", "source"),
        ((topic, "; ".join(inputs), *basis) for (topic, *basis), inputs in rows.items()),
    )
    lead = "What the answer rests on. Change a value that does not fit your machine and ask again."
    fold = f"{len(assumptions)} inputs"
    heading = "Assumptions and sources"
    return Section(heading, lead, table=table, fold=fold, slug="assumptions", short="Assumptions")


def wall_sentence(candidates: Sequence[answers.Answer]) -> str:
    """What days on the wall hold."""
    words = []
    if any(candidate.whole_run for candidate in candidates):
        words.append("the whole run where a wall clock is named")
    rates = list(dict.fromkeys(own.production for own in candidates if own.production and not own.whole_run))
    if rates:
        rate = rates[0].of_healthy if len(rates) == 1 else "the rates in production that are named"
        words.append(f"at {rate}")
    return f"on the wall: {'; '.join(words) or 'healthy steps alone'}"


def _perturbed_line(result: answers.StudyResult) -> str:
    """What perturbs the steps and how much longer they are; empty where nothing does."""
    ratios = [own.step_time_s / own.planned_step_s for own in result.candidates if own.perturbed]
    if not result.perturbed or not ratios:
        return ""
    spread = " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios))))
    return f"perturbed steps, {spread} times as long: {result.perturbed}"


def _verified_line(result: answers.StudyResult) -> str:
    """How much of the simulated work was verified; empty if nothing was."""
    samples = list(result.sampling.values())
    return f"verified: {text.verified(samples)}" if samples else ""


def study_lines(result: answers.StudyResult) -> list[str]:
    """A row for each candidate, what to know of it, the worst caveats, and the comparison last."""
    heading = (
        f"{result.title}: {result.model}, {text.large(result.num_parameters)} parameters, "
        f"{text.large(result.target_tokens)} tokens at small batch"
    )
    of = result.decision.of
    fastest = sorted(result.candidates, key=lambda own: of(own.label).wall_s.typical)[:MOST_CANDIDATES]
    kept = [own for own in result.candidates if own in fastest][:MOST_CANDIDATES]
    kept = [replace(own, short=own.label) for own in kept]  # there is room for the whole label
    table = _candidates_table(kept, result.decision).only(*_ON_A_TERMINAL)
    # The first has the only mark.
    rows = [[row[0], *(replace(cell, mark=False) for cell in row[1:])] for row in table.rows]
    left_out = len(result.candidates) - MOST_CANDIDATES
    return [
        *text.paragraphs(heading),
        "",
        *replace(table, rows=rows, caption="").lines(),
        *([f"... {left_out} slower candidates in the report"] if left_out > 0 else []),
        *text.paragraphs(*_notes(result)),
        *text.caveat_lines(_at_head(result), len(result.caveats)),
        *_like_lines(kept, result.decision),
        "",
        *text.paragraphs(result.verdict, *_grounds(result)),
    ]


def _grounds(result: answers.StudyResult) -> Iterator[str]:
    """What stands behind the verdict, a line each."""
    for name, words in result.grounds.items():
        yield f"{text.capital(name)}: {words}"


def _at_head(result: answers.StudyResult) -> list[answers.SharedCaveat]:
    """The caveats that stand with the verdict: those that could turn it, or a lone candidate's worst."""
    if not result.decision.rival:
        return text.split_caveats(result.caveats, "")[0]
    return [own for own in result.caveats if own.turns >= answers.LEAST_TURN or own.code in text.ALWAYS]


def _notes(result: answers.StudyResult) -> Iterator[str]:
    """What to know of the candidates in the table."""
    yield "* first; each candidate at its own best batch; in parentheses 90 % ranges"
    frameworks: dict[str, dict[str, None]] = {}
    for own in result.candidates:
        if own.training:
            framework = own.training.framework
            ran = f"framework {framework} on {own.system}" if framework else f"on {own.system}"
            frameworks.setdefault(own.training.settings, {})[ran] = None
    for settings, names in frameworks.items():
        yield f"trained by {settings}; {', '.join(names)}"
    for own in result.candidates:
        rows = text.ranks(own.ranks)
        # A proven layout that is also the fastest of all needs no line.
        shown = [row for row in rows if row[0] != "proven" or len(rows) > 1]
        yield from (f"{own.short}: {rank}: {words}" for rank, words in shown)
    yield wall_sentence(result.candidates)
    for own in result.candidates:
        yield from (f"{own.short}: {part.how}" for part in own.whole_run[-1:])
    yield _perturbed_line(result)
    yield _verified_line(result)
    for item in result.infeasible[:_MOST_INFEASIBLE]:
        yield f"not possible: {item.label}: {item.reason}"
    if (more := len(result.infeasible) - _MOST_INFEASIBLE) > 0:
        yield f"... {more} more that are not possible, with their reasons in the report"


# The page: what the reader decides first stands first.


def study_page(result: answers.StudyResult, *, trace_names: Sequence[str] = ()) -> Page:
    """The report of a study, with the candidates' traces in files of these names next to it."""
    sections = [
        _why(result),
        _candidates(result),
        *_ranks(result),
        *_decision(result),
        *_like_with_like(result),
        study_figures.batch(result),
        *study_figures.loss(result),
        *_caveats(result, "target", "the tokens to the target"),
        *_laws(result),
        *study_figures.over_dates(result),
        study_figures.step(result),
        *_caveats(result, "step", "the time of a step"),
        _whole_run(result),
        study_figures.memory(result),
        *_caveats(result, "memory", "memory"),
        study_figures.network(result),
        *study_figures.timelines(result.candidates, trace_names),
        *study_figures.tornados(result.decision),
        *_basis(result),
        *_caveats(result, "question", "the question"),
    ]
    kept = {"verdict", "time-to-accuracy", "step-time", "memory"}
    wall = text.capital(wall_sentence(result.candidates))
    note = "Point: estimate at each machine's best batch and layout. Bar: 90 % range."
    return Page(
        result.title,
        [own for own in sections if own.table is None or own.table.rows or own.anchor in kept],
        result.question,
        result.verdict,
        "\n".join(_grounds(result)),
        scale=_scale(result),
        note=f"{note} {wall}.",
        caveats=_at_head(result),
        command=result.command,
        digest=result.inputs_digest,
    )


def _caveats(result: answers.StudyResult, concern: Concern, words: str) -> Iterator[Section]:
    """The caveats of one concern that are not at the head of the page."""
    rest = [own for own in result.caveats if own not in _at_head(result) and CODES[own.code][1] == concern]
    yield from caveats_section(rest, f"Caveats of {words}", "These alone hardly turn the order.", concern)


def _scale(result: answers.StudyResult) -> Table:
    """All candidates, fastest first, with what they cost."""
    decision = result.decision

    def time(candidate: answers.Answer) -> Cell:
        own = decision.of(candidate.label)
        money = amount(own.money, decision.currency) if own.money else ""
        return Cell.of(own.wall_s, money, own.label == decision.first)

    columns: dict[str, Field[answers.Answer]] = {
        "candidate": (None, "short"),
        "Time on the wall to the target": (text.TIME, time),
    }
    return Table.each(result.candidates, columns).sorted("Time on the wall to the target")


def _why(result: answers.StudyResult) -> Section:
    def besides(own: answers.Answer) -> str | None:
        shares = [(s / own.step_time_s, part) for part, s in own.why.parts_s.items() if part != "compute"]
        return ", ".join(f"{part} {text.percent(s)}" for s, part in sorted(shares, reverse=True)) or None

    def hidden(own: answers.Answer) -> Cell | None:
        roof = own.why.streaming_roof
        return Cell(roof.hidden_from_tokens, note=f"({text.integer(roof.formula_tokens)})") if roof else None

    table = Table.each(
        result.candidates,
        {
            "candidate": (None, "short"),
            "limited by": (None, "why.cause"),
            "compute": (text.SHARE, lambda own: own.why.parts_s.get("compute", 0.0) / own.step_time_s),
            "besides compute": (None, besides),
            "tokens": (text.COUNT, "why.streaming_roof.tokens"),
            "tokens to hide weights": (text.COUNT, hidden),
            "nearest remedy": (None, "why.remedy"),
        },
        "Shares of the step; only waits that nothing hides count. Tokens are per micro-batch and system; in "
        "parentheses e P b / (2 B), what arithmetic alone would need to hide the weights.",
    )
    lead = (
        "What limits each candidate: the largest wait, or computing where no wait takes a tenth of the step."
    )
    return Section("Why", lead, table=table)


def _ranks(result: answers.StudyResult) -> Iterator[Section]:
    """The proven layout and the fastest of each candidate that was planned on GPUs."""
    rows = [(own, ranked) for own in result.candidates for ranked in own.ranks]
    table = Table.each(
        rows,
        {
            "candidate": (None, lambda row: row[0].short),
            "rank": (None, lambda row: row[1].rank),
            "step": (text.TIME, lambda row: Cell(row[1].step_time_s, row[1].band_s)),
            "healthy steps to the target": (
                text.TIME,
                lambda row: row[0].time_to_accuracy_s * row[1].step_time_s / row[0].step_time_s,
            ),
            "layout": (None, lambda row: row[1].layout),
            "not published": (None, lambda row: "; ".join(row[1].novelty) or None),
        },
        "Proven: differs from published runs by at most one of schedule, ZeRO stage, recompute, class of "
        "precision and generation of chips, with published degrees of tp, cp and ep.",
    )
    lead = "The fastest layout close to published runs, and the fastest of all that are legal, at one batch."
    if rows:
        yield Section("Proven and fastest", lead, table=table, slug="ranks")


def _candidates(result: answers.StudyResult) -> Section:
    lead = (
        f"{result.model}: {text.large(result.num_parameters)} parameters, sequences of "
        f"{text.integer(result.seq_length)} tokens, {text.large(result.target_tokens)} tokens to the "
        "target at small batch. Each candidate runs at its own best batch and layout."
    )
    said = filter(None, [_perturbed_line(result), _verified_line(result)])
    words = [lead, *(f"{text.capital(line)}." for line in said)]
    words += [f"Not possible: {item.label}: {item.reason}." for item in result.infeasible]
    return Section(
        "The candidates in figures",
        " ".join(words),
        table=_candidates_table(result.candidates, result.decision).only(*_ON_A_PAGE).turned(),
        slug="verdict",
        short="Candidates",
    )


def _decision(result: answers.StudyResult) -> Iterator[Section]:
    """When, for how much and how surely: a column for each candidate, the most probable first marked."""
    decision = result.decision
    outcomes = decision.outcomes
    names = {own.label: own.short for own in result.candidates}
    unit = text.TIME.of([min(own.wall_s.typical for own in outcomes)])

    def money(values: Iterable[float]) -> text.Unit:
        large = text.AMOUNT.of(values)  # `1.23 million USD`
        return replace(large, name=" ".join(filter(None, [large.name, decision.currency])))

    likely = text.Unit(digits=chance)
    most = max(own.first for own in outcomes)
    columns: dict[str, Field[answers.Outcome]] = {
        "": (None, lambda own: names[own.label]),
        "healthy steps alone": (unit, lambda own: Cell.of(own.steps_s)),
        "time on the wall holds": (None, "basis"),
        "first with a probability of": (likely, lambda own: Cell(own.first, mark=own.first == most)),
        "device-hours": (text.AMOUNT, lambda own: Cell.of(own.device_hours)),
        "energy": (text.Unit(*decision.unit("energy_kwh")), lambda own: Cell.of(own.energy_kwh)),
        "carbon": (text.Unit(*decision.unit("carbon_kg")), lambda own: Cell.of(own.carbon_kg)),
        "money": (text.Unit(suits=money), lambda own: Cell.of(own.money)),
    }
    if all(own.cheapest is not None for own in outcomes):
        columns["cheapest with a probability of"] = likely, "cheapest"
    gaps = dict.fromkeys(gap for own in outcomes for gap in own.not_given)
    table = Table.each(outcomes, columns, f"Not given: {', '.join(gaps)}." if gaps else "").turned()
    lead = (
        "Helps to decide for how much and how surely. Typical values with 90 % intervals from "
        f"{text.integer(decision.draws)} draws (seed {decision.seed}); candidates share the draws of what "
        "they have in common."
    )
    yield Section("The decision", lead, table=table, slug="decision", short="Decision")
    if decision.break_even:

        def worth(row: answers.BreakEven) -> Cell:
            return Cell.of(row.device_hours_ratio, f"of {names[row.rival]}", unit=text.NUMBER)

        table = Table.each(  # narrow enough for a phone
            decision.break_even,
            {
                "a device-hour of": (None, lambda row: names[row.label]),
                "may cost as much as": (None, worth),
                "or": (text.Unit(decision.currency), lambda row: Cell.of(row.price)),
            },
        )
        lead = (
            "Shows what a machine may cost before the other is cheaper for this run, also where a price is "
            "not given: a device-hour of the first may cost so many of the second."
        )
        yield Section("Break-even prices", lead, table=table, slug="break-even", level=3)


def _like_table(shown: Sequence[answers.Answer], decision: answers.Decision) -> Table:
    """What a device and a billion tokens take, and each machine at the power, price or time of the first."""
    unit = text.TIME.of([decision.of(decision.first).wall_s.typical])

    def of(name: str, own: answers.Answer) -> float:
        value = getattr(decision.of(own.label), name)
        return math.nan if value is None else value

    columns: dict[str, Any] = {
        "machine": (None, "short"),
        "tokens/s per device": (text.COUNT, lambda own: own.tokens_per_s / own.num_devices),
        "device-days": (text.FEW, lambda own: decision.of(own.label).device_hours.typical / 24),
        "kWh per billion tokens": (text.NUMBER, partial(of, "energy_kwh_per_1e9_tokens")),
        f"{decision.currency} per billion tokens": (text.NUMBER, partial(of, "cost_per_1e9_tokens")),
        "time at equal power": (unit, partial(of, "equal_power_s")),
        "time at equal price": (unit, partial(of, "equal_price_s")),
        "devices for equal time": (text.NUMBER, partial(of, "equal_time_devices")),
    }
    return Table.each(shown, columns, f"{MISSING}: an input is not given.")


def _like_lines(shown: Sequence[answers.Answer], decision: answers.Decision) -> list[str]:
    """The same on a terminal where machines differ, without the columns that nothing is known of."""
    if not decision.rival:
        return []
    table = replace(_like_table(shown, decision).known(), caption="")
    heading = "Like with like: at the power, and the price an hour, of the first; in proportion to devices"
    return ["", *text.paragraphs(heading), *table.lines()]


def _like_with_like(result: answers.StudyResult) -> Iterator[Section]:
    """Machines of unlike size, at the power, price or time of the first."""
    table = _like_table(result.candidates, result.decision).turned()
    lead = (
        "Compares machines of unlike size: time on the wall with as much power, or as much money an hour, "
        "as the first, and how many devices would be as fast as it. Speed is taken in proportion to devices; "
        "perfsim solve --find devices asks at each number."
    )
    yield Section("Like with like", lead, table=table, slug="like-with-like", level=3)


def _laws(result: answers.StudyResult) -> Iterator[Section]:
    """One row a law: its critical batch, each candidate's best batch and time, the first one marked."""
    if len(result.laws) < 2:
        return
    names = {own.label: own.short for own in result.candidates}
    firsts = list(dict.fromkeys(names[answer.first] for answer in result.laws))
    agree = f"All put {firsts[0]} first."
    if len(firsts) > 1:
        agree = f"They disagree on who is first: {', '.join(firsts)}."
    lead = (
        f"Helps to see whether the choice of law decides the answer. {agree} The first row is the study's "
        "law; Kaplan's takes the loss of its own corpus. Times are of healthy steps; a star marks who is "
        "first; only batches that were tried count."
    )
    unit = text.TIME.of(row.time_s for answer in result.laws for row in answer.rows)
    times = dict.fromkeys(names.values(), unit)

    def time(row: answers.LawRow, first: str) -> Cell:
        batch = text.integer(row.global_batch_size)
        return Cell(row.time_s, note=f"at batch {batch}", mark=row.label == first)

    table = Table.of(
        {"law": None, "critical batch, tokens": text.LARGE, **times, "source": None},
        (
            [
                answer.law,
                Cell(answer.critical_batch_tokens, answer.band_tokens),
                *(time(row, answer.first) for row in answer.rows),
                answer.source,
            ]
            for answer in result.laws
        ),
    )
    yield Section("Laws of the critical batch", lead, table=table, slug="laws", level=3)


def _whole_run(result: answers.StudyResult) -> Section:
    """The parts of the wall clock of each candidate whose study names one, the whole run last."""
    shown = [own for own in result.candidates if own.whole_run]
    parts = list(dict.fromkeys(part.name for own in shown for part in own.whole_run))
    parts.sort(key=lambda part: part == "whole run")

    def takes(part: str, candidate: answers.Answer) -> Cell | None:
        own = next((own for own in candidate.whole_run if own.name == part), None)
        if own is None:
            return None
        band_s = (own.low_s, own.high_s) if own.low_s < own.high_s else None
        return Cell(own.typical_s, band_s, f"\u00b7 {own.how}" if own.how else "")

    columns: dict[str, Field[answers.Answer]] = {part: (text.TIME, partial(takes, part)) for part in parts}
    lead = (
        "Helps to plan: queue, compilation, loading, checkpoints, failures and stragglers come on top of the "
        "time to the target above. Each part is a typical value with the observed range in parentheses; the "
        "ends of the sum add the same ends of all parts. The band of the steps is not included. The "
        "production ratio above describes the same slow steps as the stragglers, so it is not counted here."
    )
    return Section(
        "The whole run",
        lead,
        table=Table.each(shown, {"": (None, "short"), **columns}).turned(),
        slug="whole-run",
    )


def _basis(result: answers.StudyResult) -> Iterator[Section]:
    """What the answer rests on: plans, inputs and published runs."""
    # The plan stands next to its first remark only.
    candidates = result.candidates
    rows = [("" if nth else own.short, note) for own in candidates for nth, note in enumerate(own.notes)]
    lead = "What to know before a plan is used: where its state is kept, safer choices."
    remarks = Table.of(("plan", "remark"), rows)
    yield Section("Remarks on the plans", lead, table=remarks, slug="remarks", short="Remarks")
    yield inputs_section(result.assumptions)
    accuracy = Table.each(
        result.accuracy,
        {
            "most similar family": (None, "family"),
            "strategy": (None, "strategy"),
            "runs": (text.COUNT, "n"),
            "median error": (text.SHARE, "median_ape"),
            "90th percentile": (text.SHARE, "p90_ape"),
            "90th percentile, left out": (text.SHARE, "held_out_p90_ape"),
            "baseline's median": (text.SHARE, "baseline_median_ape"),
        },
        "Absolute errors of the predicted step time on published runs. A few global constants were fitted to "
        "these runs too; 'left out' is for constants fitted without them. A band comes from the errors of "
        "all runs that were left out, and widens where a plan is unlike them.",
    )
    lead = (
        "Errors of such predictions for published runs, next to a baseline of one constant efficiency. "
        "Shows how much to trust a difference between two candidates."
    )
    yield Section("Accuracy", lead, table=accuracy)


_OF_CANDIDATE = (
    "steps", "time_to_accuracy_s", "time_to_accuracy_band_s", "memory", "batch_curve", "notes", "whole_run",
    "production", "production_time_s", "production_band_s", "wall_s",
)  # fmt: skip
"""What a candidate adds to a prediction; its timeline is in the trace file."""


def study_document(result: answers.StudyResult, *, report: str = "index.html") -> dict[str, Any]:
    """The document of `perfsim study --json`, in SI, keys with units; `report` is where the page stands."""
    document: dict[str, Any] = plain(replace(result, candidates=(), stopped=None))
    del document["stopped"]
    candidates = []
    for own in result.candidates:
        known = own.step_document() | {name: getattr(own, name) for name in _OF_CANDIDATE}
        known["label"] = own.label
        known["tokens_per_s_per_device"] = own.tokens_per_s / max(own.num_devices, 1)
        known["memory_capacity_bytes"] = own.memory_capacity_bytes
        candidates.append({name: plain(value) for name, value in known.items()})
    return document | {"candidates": candidates, "report": report, "version": __version__}


def write_study(result: answers.StudyResult, folder: Path) -> Path:
    """Write `index.html`, `summary.json` and a trace for each candidate; returns the page."""
    seen = Counter[str]()
    names = []
    for own in result.candidates:
        words = (own.run.plan.system.name, str(own.num_devices), own.strategy)
        name = "_".join(["trace", *map(slugify, words)])
        seen[name] += 1
        names.append(f"{name}{f'_{seen[name]}' if seen[name] > 1 else ''}.json.gz")
        own.trace.save(folder / names[-1])
    page = study_page(result, trace_names=names)
    return page.write(folder, document_text(study_document(result)))
