"""A shortlist of layouts: its table, its notes, its lines on a terminal, its page and its JSON document."""

from collections.abc import Iterator
from itertools import chain, starmap
from pathlib import Path
from typing import Any

from perfsim.base.groups import listed
from perfsim.base.text import number
from perfsim.base.units import DAY_S
from perfsim.prediction.caveats import Caveat
from perfsim.report import text
from perfsim.report.table import Cell, Field, Table, document_text, plain
from perfsim.strategies.plan import MEMORY
from perfsim.studies.shortlist import REASONS, Entry, Planned

NEAR = 1.001
"""A ratio, of memory to capacity or of two steps, below which the difference is not worth a word."""
MUCH = 0.2
"""Share of a step by which another layout has to be faster to stand in the head though it is not proven."""
WIDER = 1.2
"""How many times the error of the narrowest band is worth a word."""


def _plan_table(planned: Planned) -> Table:
    """The shortlist, the settings of each layout that differ from the first."""
    memory = text.MEMORY.of(entry.memory_capacity_bytes for entry in planned.shortlist)

    def layout(entry: Entry) -> str:
        if entry is planned.best:
            return text.layout_short(entry.layout)
        return ", ".join(starmap(text.layout_setting, entry.differs.items())) or "the same settings"

    def time(entry: Entry) -> Cell | None:
        return Cell(entry.time.time_s, entry.time.band_s) if entry.time else None

    columns: dict[str, Field[Entry]] = {
        "": (text.COUNT, "number"),
        "layout": (None, layout),
        "step": (text.Unit("s"), lambda entry: Cell(entry.step_time_s, entry.step_time_band_s)),
        "times the first": (text.RATIO, "ratio"),
        "memory left": (memory, "memory_left_bytes"),
    }
    if planned.best.time is not None:
        columns["healthy steps"] = text.Unit("days", DAY_S), time
    return Table.each(planned.shortlist, columns)


def plan_lines(planned: Planned) -> list[str]:
    """What to run, what it beats, what to measure, the shortlist, what bears on it; other notes counted."""
    notes = len(list(_further(planned)))
    return [
        *text.paragraphs(_heading(planned), f"trained by {planned.best.run.training.words}"),
        "",
        f"1 in full: --layout {planned.best.layout_text}",
        *text.paragraphs(*_head(planned)),
        "",
        *_plan_table(planned).lines(),
        "",
        *text.paragraphs(*_deciding(planned)),
        *text.paragraphs(f"Without effect on the choice: {text.counted(notes, 'note')}, with --out FOLDER."),
    ]


def write_plan(planned: Planned, folder: Path) -> Path:
    """Write `index.html` and `summary.json`; returns the page."""
    from perfsim.report.page import Page, Section  # a terminal draws nothing

    best = planned.best
    bands: dict[str, Field[Entry]] = {
        "layout": (None, lambda own: f"{own.number}: {text.layout_short(own.layout)}"),
        "Step time": (text.TIME, lambda own: Cell(own.step_time_s, own.step_time_band_s, mark=own is best)),
    }
    trained = f"Trained by {best.run.training.words}."
    said = chain(_head(planned), _deciding(planned), _further(planned))
    notes = Table.of({"": text.COUNT, "note": None}, enumerate(said, start=1))
    whole = Table.each(planned.shortlist, {"": (text.COUNT, "number"), "layout": (None, "layout_text")})
    page = Page(
        f"Layouts of {best.model}",
        [
            Section("The shortlist", trained, table=_plan_table(planned), slug="shortlist"),
            Section("What to know", table=notes, slug="notes"),
            Section("As --layout takes them", table=whole, slug="layouts"),
        ],
        _heading(planned),
        f"On {best.machine}, {text.layout_short(best.layout)} is the first choice, at "
        f"{text.duration(best.step_time_s)} a step; the model's error allows {text.integer(planned.within)}.",
        scale=Table.each(planned.shortlist, bands),
        note="Point: the step by prediction. Bar: 90 % range.",
    )
    return page.write(folder, document_text(plan_document(planned)))


def _heading(planned: Planned) -> str:
    """What was asked, and how many layouts there are."""
    best = planned.best
    search = planned.search
    kind = "proven" if any(row.is_proven for row in planned.ranks[:1]) else "least novel"
    kept = f"{text.integer(search.screening.feasible)} of them {kind}, " if search.unproven else ""
    return (
        f"{best.model} on {best.label}: batch {text.integer(best.global_batch_size)} sequences; "
        f"{text.integer(search.screening.screened + search.unproven)} layouts, "
        f"{text.integer(search.screening.feasible + search.unproven)} fit, {kept}"
        f"{text.integer(planned.within)} within the model's "
        "error of the fastest"
    )


def _head(planned: Planned) -> Iterator[str]:
    """The first layout in use: its step and memory, what it beats by how much, and what to measure."""
    best, *others = planned.shortlist
    left = best.memory_left_bytes
    capacity = best.memory_capacity_bytes
    memory = text.MEMORY.of([capacity])
    low_s, high_s = best.step_time_band_s
    yield (
        f"A step takes {text.duration(best.step_time_s)} (90 %: {text.duration(low_s)} to "
        f"{text.duration(high_s)}), and {memory.text(left)} of {memory.text(capacity)} are left on the "
        "fullest device."
    )
    gain = max((1.0 - row.step_time_s / best.step_time_s for row in planned.ranks), default=0.0)
    if gain > MUCH:
        yield f"A layout unlike any published run takes {text.percent(gain)} less: --rank fastest."
    if planned.question.power_cap and (power := planned.question.system.power):
        nodes = planned.question.topology.filled_nodes
        drawn, least, most = (text.si(nodes * own, "W") for own in (power.typical, power.low, power.high))
        yield f"All nodes draw {drawn} in training ({least} to {most}), cooling left out."
    if others and others[0].ratio < NEAR:
        yield "2, the next of other degrees or micro-batch, is no slower."
    elif others:
        second = others[0]
        sure = "more" if second.ratio - 1 > second.ratio_error else "less"
        yield (
            f"It beats 2, the next of other degrees or micro-batch, by {text.percent(second.ratio - 1)}, "
            f"{sure} than the model's error between two layouts of one machine "
            f"({text.percent(second.ratio_error, 0)})."
        )
    if (experiment := planned.experiment) is not None:
        first, last = experiment.trials
        fewer = " Fewer replicas do the same work; communication between the others is left out."
        yield (
            f"Worth measuring: {experiment.steps} steps of {first.entry} on "
            f"{text.counted(first.devices, 'device')} and of {last.entry} on {text.integer(last.devices)}, "
            f"{number(experiment.device_hours)} device-hours in all, tell the two apart."
            f"{fewer if experiment.fewer_replicas else ''}"
        )


def _deciding(planned: Planned) -> Iterator[str]:
    """What may change the choice: risk, another batch, serious caveats of the first, memory, and cost."""
    yield from (f"{text.capital(rank)}: {words}." for rank, words in text.ranks(planned.ranks))
    asked = planned.best
    for other in planned.nearby:
        named = f"batch {text.integer(other.global_batch_size)}"
        if other.num_devices != asked.num_devices:
            named = text.counted(other.num_devices, "device")
        yield (
            f"Batch {text.integer(asked.global_batch_size)}, or the model, hardly divides over "
            f"{text.integer(asked.num_devices)} devices. With {named} ({other.layout}) a step takes "
            f"{text.duration(other.step_time_s)}: "
            f"{number(other.gain)} times the tokens a second and device."
        )
    yield from _caveats(planned, deciding=True)
    limit = planned.question.allowed_share
    above = planned.above_limit
    if planned.best.plan.memory_share > limit:
        yield f"Nothing fits in {text.percent(limit, 0)} of memory: these are all that fit at all."
    elif above is not None:
        yield (
            f"Memory above {text.percent(limit, 0)} would buy {text.percent(above.gain)}: "
            f"{text.layout_short(above.layout)} fills {text.percent(above.memory_share)} and may not run."
        )
    if planned.objective == "cost":
        of = "a billion tokens" if planned.best.time is None else "the run to the target"
        yield (
            f"Cost of {of} with 1: {number(planned.best.device_hours)} device-hours; on a fixed number "
            "of devices the fastest layout is the cheapest. Prices in money are not known to perfsim."
        )
    if tried := planned.tried_batches:
        yield f"The batch is the best of {len(tried)} tried, {tried[0]:,} to {tried[-1]:,} sequences."


def _further(planned: Planned) -> Iterator[str]:
    """What explains the rows: how they were chosen, wider bands, other caveats, why other layouts fell."""
    if len(planned.shortlist) > 1:
        yield "Rows are the fastest of their degrees and micro-batch, with the settings that differ from 1."
    yield from _wider_bands(planned)
    yield from _caveats(planned, deciding=False)
    limit = planned.question.allowed_share
    if planned.above_limit is None and planned.best.plan.memory_share <= limit < 1.0:
        yield f"Nothing above {text.percent(limit, 0)} of memory would be faster."
    refused = []
    for reason, count in planned.refused.items():
        nearest = planned.closest_share if reason == MEMORY else None
        by = f" (the nearest by {text.percent(nearest - 1)})" if nearest and nearest > NEAR else ""
        refused += [f"{text.integer(count)} {REASONS.get(reason, reason)}{by}"] if count else []
    if refused:
        yield f"Left out: {'; '.join(refused)}."


def _caveats(planned: Planned, *, deciding: bool) -> Iterator[str]:
    """Caveats that may change the choice, or others above information: once by code, in the worst's words."""
    placed = ((str(entry.number), caveat) for entry in planned.shortlist for caveat in entry.caveats)
    about = listed((caveat.code, (row, caveat)) for row, caveat in placed if caveat.severity != "info")
    worst = {min((caveat for _, caveat in rows), key=Caveat.rank): rows for rows in about.values()}
    for caveat in sorted(worst, key=Caveat.rank):
        if deciding == (caveat.severity == "serious" or caveat.code in text.ALWAYS):
            numbers = ", ".join(row for row, _ in worst[caveat])
            yield f"{caveat.severity}, {numbers}: {caveat.text}."


def _wider_bands(planned: Planned) -> Iterator[str]:
    """Why the bands of some rows are wider than the narrowest, by what differs from the published runs."""
    accuracies = [entry.run.accuracy for entry in planned.shortlist]
    narrowest = min(accuracies, key=lambda accuracy: accuracy.step_time_error)
    reasons: dict[str, list[str]] = {}
    for entry, accuracy in zip(planned.shortlist, accuracies, strict=True):
        if accuracy.step_time_error > WIDER * narrowest.step_time_error:
            common = set(narrowest.likeness.split("; "))
            own = "; ".join(words for words in accuracy.likeness.split("; ") if words not in common)
            why = own or f"its nearest published runs are {accuracy.family}, not {narrowest.family}"
            reasons.setdefault(why, []).append(str(entry.number))
    for why, numbers in reasons.items():
        bands = "band is" if len(numbers) == 1 else "bands are"
        yield f"Row {', '.join(numbers)}: the {bands} wider, for unlike the published runs: {why}."


def plan_document(planned: Planned, report: str = "") -> dict[str, Any]:
    """The document of `perfsim plan --json`; every quantity is SI and its key names the unit."""
    search = planned.search
    shortlist = []
    for entry in planned.shortlist:
        known = entry.step_document()
        known |= _members(entry, "layout_text", "step_time_band_s", "ratio", "ratio_error", "differs")
        known |= _members(entry, "memory_left_bytes", "device_hours", "memory_capacity_bytes")
        if entry.time is not None:
            known["time_to_accuracy_s"] = entry.time.time_s
            known["time_to_accuracy_band_s"] = entry.time.band_s
        shortlist.append(known)
    document: dict[str, Any] = {
        **_members(planned.best, "model", "system", "num_devices", "strategy", "global_batch_size"),
        "memory_limit": planned.question.allowed_share,
        "screened": search.screening.screened + search.unproven,
        "feasible": search.screening.feasible + search.unproven,
        "shortlist": shortlist,
        "closest_memory_share": planned.closest_share,
        "experiment": None,
        **_members(planned, "objective", "within", "refused", "above_limit"),
        **_members(planned, "tried_batches", "nearby", "ranks"),
    }
    if experiment := planned.experiment:
        document["experiment"] = _members(experiment, "steps", "ratio", "ratio_error", "device_hours")
        document["experiment"]["trials"] = [
            {
                "entry": trial.entry,
                "num_devices": trial.devices,
                "global_batch_size": trial.plan.job.global_batch_size,
                "layout": trial.plan.layout.as_dict(trial.plan.num_microbatches),
                "device_hours": trial.device_hours,
            }
            for trial in experiment.trials
        ]
    return dict(plain(document | ({"report": report} if report else {})))


def _members(item: object, *names: str) -> dict[str, Any]:
    return {name: getattr(item, name) for name in names}
