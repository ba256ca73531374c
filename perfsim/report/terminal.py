"""What the verbs `diff`, `why`, `run` and `prove` print, and the page of faults that proofs detect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfsim.base.text import number
from perfsim.report import text
from perfsim.report.table import Table

if TYPE_CHECKING:
    from perfsim.prediction.prediction import Prediction
    from perfsim.prediction.verification import SamplingSummary
    from perfsim.prediction.why import GapExplained
    from perfsim.studies.trials import Difference, Explained


def difference_lines(difference: Difference) -> list[str]:
    """How the time of each candidate moves, and what each changed input does alone."""
    differing = text.counted(len(difference.changes), "input differs", "inputs differ")
    heading = f"{difference.first} and {difference.second}: {differing}"
    moved = Table.each(
        difference.candidates,
        {
            "candidate": (
                None,
                lambda own: own.before if own.before == own.after else f"{own.before} \u2192 {own.after}",
            ),
            "healthy before": (text.TIME, "time_before_s"),
            "healthy after": (text.TIME, "time_after_s"),
            "on the wall before": (text.TIME, "wall_before_s"),
            "on the wall after": (text.TIME, "wall_after_s"),
            "times": (text.RATIO, "ratio"),
            "together": (text.RATIO, "remainder"),
        },
    )
    lines = [*text.paragraphs(heading), "", *moved.lines(), *text.paragraphs(*difference.missing)]
    if not difference.changes:
        return lines
    tried = any(own.ratios or own.reason for own in difference.changes)
    count = len(difference.candidates) if tried else 0
    alone = {f"alone, {place}": text.RATIO for place in range(1, count + 1)}
    rows = []
    for own in difference.changes:
        ratios = ["n/a" if ratio is None else ratio for ratio in own.ratios[:count]]
        ratios = [own.reason] if own.reason and count else ratios
        rows.append([own.path, own.before, own.after, *ratios, *[None] * (count - len(ratios))])
    note = (
        "Times: time on the wall after over before. Alone: the first with this input of the second, by "
        "candidate. Together: what is left of the ratio when the single ones are divided out."
    )
    changed = Table.of({"input": None, "before": None, "after": None, **alone}, rows, note if tried else "")
    return [*lines, "", *changed.lines()]


def why_lines(explained: Sequence[Explained]) -> list[str]:
    """For each candidate the path of its step in words, and a table of the changes that were tried."""
    from perfsim.studies.trials import NOTABLE  # a run needs no studies

    lines: list[str] = []
    for own in explained:
        parts = [f"{name} {text.duration(seconds)}" for name, seconds in own.parts_s.items() if seconds]
        lines += text.paragraphs(
            f"{own.label}: {text.duration(own.time_s)} of healthy steps to the target, a step of "
            f"{text.duration(own.step_time_s)}. {own.sentence} The path of the step: {', '.join(parts)}."
        )
        rows: list[tuple[str, float | None, float | None, str]] = []
        idle = []
        for tried in own.tried:
            if tried.ratio is None:
                rows.append((tried.change, None, None, f"not possible: {tried.reason}"))
            elif abs(1 - tried.ratio) < NOTABLE:
                idle.append(tried.change)
            else:
                effect = f"{text.percent(abs(1 - tried.ratio))} {'sooner' if tried.ratio < 1 else 'later'}"
                rows.append((tried.change, tried.step_time_s, tried.time_s, effect))
        columns = {"change, tried": None, "step": text.TIME, "time to target": text.TIME, "effect": None}
        note = f"Tried without effect: {', '.join(idle)}." if idle else ""
        lines += ["", *Table.of(columns, rows, note).lines()]
        lines += [*text.paragraphs(*(f"{known.severity}: {known.text}" for known in own.caveats)), ""]
    return lines[:-1]


LEAST_SHOWN = 0.05
"""Share of a gap below which a suspect is only named."""


def gap_lines(gap: GapExplained) -> list[str]:
    """The gap in words, a table of what would explain it, the likeliest first, and what suffices."""
    unit = text.TIME.of(gap.band_s)
    band = f"{unit.number(gap.band_s[0])}{text.NONE}{unit.text(gap.band_s[1])}"
    words = (
        f"Measured {text.duration(gap.measured_s)}, predicted {text.duration(gap.predicted_s)}: "
        f"{number(gap.measured_s / gap.predicted_s)} {text.TIMES} as long, "
        f"{'inside' if gap.inside else 'outside'} the 90 % band of {band}. The gap is "
        f"{gap.deviations:.1f} standard deviations of the errors on published runs. "
        f"Layout {gap.layout}; recipe {gap.trained}."
    )
    shown = [suspect for suspect in gap.suspects if suspect.explains >= LEAST_SHOWN]
    rest = [suspect.change for suspect in gap.suspects if suspect not in shown]
    table = Table.each(
        shown,
        {
            "would explain it": (None, lambda own: own.change),
            "if its rate is multiplied by": (text.Unit(digits="{:.2f}".format), lambda own: own.factor),
            "step": (text.TIME, lambda own: own.step_time_s),
            "share of the gap": (text.WHOLE_SHARE, lambda own: own.explains),
            "deviations": (text.Unit(digits="{:.1f}".format), lambda own: own.deviations),
        },
        "Deviations: how unlikely a row is as the only cause, in standard deviations (1 is usual, 3 rare): "
        "how far such an input is usually off, and the rest of the gap over the errors on published runs.",
    )
    lines = [*text.paragraphs(words), "", *(table.lines() if shown else [])]
    if rest:
        lines += text.paragraphs(f"Without effect, or the other way: {', '.join(rest)}.")
    if gap.mfu > 1.0:
        note = (
            f"warning: the measured step means an MFU of {text.percent(gap.mfu, 0)}: it is faster than the "
            "devices' peak. Check its unit, the batch and the number of devices."
        )
    elif gap.inside:
        note = "The prediction's own error explains the gap: no input has to differ."
    elif not any(suspect.suffices for suspect in gap.suspects):
        most = max(gap.suspects, key=lambda suspect: suspect.explains, default=None)
        closes = f": {most.change} closes {text.percent(most.explains, 0)} of it" if most else ""
        note = (
            f"warning: no row alone explains the gap{closes}. Several inputs differ, or one that is not "
            "listed does: layout, batch, sequence length, number of devices, or time outside the step."
        )
    else:
        note = ""
    return lines + text.paragraphs(note)


def run_lines(prediction: Prediction, sampled: SamplingSummary | None = None) -> list[str]:
    """The metrics of a step, its conditions, and what its time is spent on."""
    streams = prediction.why.streaming_roof is not None
    peak = text.MEMORY.of([prediction.memory_capacity_bytes]).text(prediction.peak_memory_bytes)
    step = text.duration(prediction.step_time_s)
    if prediction.band_s is not None:
        step += f" (90 % band: {' to '.join(map(text.duration, prediction.band_s))})"
    rows = [
        ("batch", f"{text.integer(prediction.global_batch_size)} sequences"),
        ("layout", text.layout_long(prediction.layout)),
        *text.ranks(prediction.ranks),
        *([("recipe", prediction.training.words)] if prediction.training else []),
        ("step", step),
        ("tokens/s", text.integer(prediction.tokens_per_s)),
        ("MFU / HFU", f"{text.percent(prediction.mfu)} / {text.percent(prediction.hfu)} of peak"),
        ("idle" if streams else "bubble", f"{text.percent(prediction.bubble_fraction)} of the step"),
        ("exposed comm", f"{text.percent(prediction.exposed_communication_fraction)} of the step"),
        ("peak memory", f"{peak} per device"),
        *((caveat.severity, caveat.text) for caveat in prediction.caveats),
        *_conditions(prediction, sampled),
        ("why", prediction.why.sentence),
    ]
    parts = sorted(((s, name) for name, s in prediction.breakdown_s.items() if s > 0), reverse=True)
    unit = text.TIME.of([parts[0][0]] if parts else [])
    spent = Table.of(
        {"where the step goes": None, unit.name: text.Unit(scale=unit.scale), "share": text.SHARE},
        ((text.human(name), seconds, seconds / prediction.step_time_s) for seconds, name in parts),
        "Waits count as what they end with; 'why' counts the wait between two steps as the update."
        if streams
        else "",
    )
    width = min(text.terminal_width(), text.MAX_PROSE)
    metrics = Table.of(("", " "), rows).lines(width, whole_names=True)
    return [f"{prediction.model} on {prediction.label}", *metrics, "", *spent.lines(width)]


def _conditions(prediction: Prediction, sampled: SamplingSummary | None) -> Iterator[tuple[str, str]]:
    """Perturbations, verification and notes, where there are any."""
    if prediction.simulated is not None:
        yield "simulated", text.simulated(prediction.simulated)
    if (perturbed := prediction.perturbed) is not None:
        before_s = perturbed.unperturbed_step_time_s
        draws_s = perturbed.draws_s
        times = prediction.step_time_s / before_s
        yield "perturbed", perturbed.text
        yield "", f"{times:.3f} times the unperturbed step of {text.duration(before_s)}"
        if len(draws_s) > 1:
            yield "", f"{len(draws_s)} draws, {text.duration(draws_s[0])} to {text.duration(draws_s[-1])}"
        if perturbed.note:
            yield "", perturbed.note
    if sampled is not None:
        yield "verified", text.verified([sampled])
    for note in prediction.notes:
        yield "note", note


_ERROR = text.Unit(digits="{:.1e}".format)


def proof_lines(answer: Mapping[str, Any]) -> list[str]:
    """A row for each layout, the faults of those that are wrong, and the conclusion."""
    proofs = [
        (strategy, layout)
        for strategy, proven in answer["strategies"].items()
        for layout in proven["layouts"]
    ]
    table = Table.each(
        ({**layout, "strategy": strategy} for strategy, layout in proofs),
        {"strategy": (None, "strategy"), "layout": (None, "layout")}
        | {name: (text.COUNT, name) for name in ("ranks", "tasks", "orders")}
        | {"error": (_ERROR, lambda own: own["max_relative_error"] if own["passed"] else "WRONG")},
    )
    faults = [f"* {name}, {own['layout']}: {fault}" for name, own in proofs for fault in own["faults"]]
    left_out = dict.fromkeys(part for _, layout in proofs for part in layout["not_executed"])
    wrong = sum(not layout["passed"] for _, layout in proofs)
    done = f"{text.integer(answer['tasks'])} tasks on all ranks, {answer['steps']} optimizer steps"
    worst = answer["max_relative_error"]
    followed = answer["orders"] + 2 - answer["executed"]
    others = f"; in {text.counted(followed, 'more random order')} tasks read the same" if followed else ""
    conclusion = (
        f"{text.counted(len(proofs), 'layout')} proven ({done}): no dependency is missing, "
        f"and {text.integer(sum(layout['compared'] for _, layout in proofs))} arrays (loss, gradients, "
        f"weights) equal serial training in {text.counted(answer['executed'] - 2, 'random order')} "
        f"and in the simulated one{others}; largest relative error "
        f"{text.NONE if worst is None else f'{worst:.1e}'}."
    )
    if wrong:
        conclusion = f"{wrong} of {text.counted(len(proofs), 'layout')} WRONG ({done})."
    said = [f"{answer['target']}: {conclusion}"]
    said += [f"Not executed: {', '.join(left_out)}."] if left_out else []
    return [*table.lines(), *text.paragraphs(*faults), "", *text.paragraphs(*said)]


def mutations_page(answer: Mapping[str, Any]) -> str:
    """The page of `perfsim prove --mutations`."""
    sample = "every fault" if answer["every"] == 1 else f"one fault in {answer['every']}"
    command = f"perfsim prove {answer['target']} --mutations FILE --every {answer['every']}"
    counts = {"inserted": (text.COUNT, "injected"), "detected": (text.COUNT, "caught")}
    named = [{"name": name, **count} for name, count in sorted(answer["kinds"].items())]
    kinds = Table.each(named, {"fault": (None, "name"), **counts})
    columns = {"strategy": (None, "strategy"), "layout": (None, "layout"), **counts}
    layouts = Table.each(answer["layouts"], columns)
    survivors = [
        *(
            f"- {own['count']} \u00d7 {own['why']} For example: {own['example']}."
            for own in answer["survivors"]
        ),
        *(f"- **missed**: {fault}" for fault in answer["unexplained"]),
    ]
    blocks = [
        "# Which faults a proof detects",
        f"Made by `make mutations`: `{command}`.",
        f"Each fault is one change to a correct schedule; {sample} was tried.",
        f"**{mutations_sentence(answer)}**",
        kinds.markdown(),
        "## Faults that are not detected",
        "\n".join(survivors) or "None.",
        "## By layout",
        layouts.markdown(),
    ]
    return "\n\n".join(blocks) + "\n"


def mutations_sentence(answer: Mapping[str, Any]) -> str:
    """The outcome of all faults, in a sentence."""
    explained = sum(group["count"] for group in answer["survivors"])
    return (
        f"{text.integer(answer['injected'])} faults inserted into {len(answer['layouts'])} correct "
        f"schedules: {text.integer(answer['caught'])} detected ({answer['share']:.1%}), each with its task "
        f"and tensor; {text.integer(explained)} that change no result (explained); "
        f"{text.integer(len(answer['unexplained']))} missed."
    )
