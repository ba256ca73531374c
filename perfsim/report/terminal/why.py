"""Why candidates take their time or a step takes longer than predicted, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfsim.prediction.gap import GapExplained, Suspect
from perfsim.report import text
from perfsim.report.table import Table
from perfsim.report.terminal.layout import paragraph, table_lines, terminal_width
from perfsim.studies.trials import NOTABLE, Explained, Tried


def why_lines(explained: Sequence[Explained]) -> list[str]:
    """For each candidate the path of its step in words, and a table of the changes that were tried."""
    width = terminal_width()
    lines: list[str] = []
    for own in explained:
        parts = [f"{name} {text.duration(seconds)}" for name, seconds in own.parts_s.items() if seconds]
        words = (
            f"{own.label}: {text.duration(own.time_s)} to the target, a step of "
            f"{text.duration(own.step_time_s)}. {own.sentence} The path of the step: {', '.join(parts)}."
        )
        idle = [tried.change for tried in own.tried if _does_nothing(tried)]
        rest = [f"Tried without effect: {', '.join(idle)}."] if idle else []
        lines += [*paragraph(words, width), "", *table_lines(_table(own), width)]
        lines += [line for note in rest for line in paragraph(note, width)] + [""]
    return lines[:-1]


def _does_nothing(tried: Tried) -> bool:
    return tried.ratio is not None and abs(1.0 - tried.ratio) < NOTABLE


def _table(own: Explained) -> Table:
    rows = [[tried.change, *_cells(tried)] for tried in own.tried if not _does_nothing(tried)]
    return Table(("change, tried", "step", "time to\ntarget", "effect"), rows, "", frozenset({1, 2}))


def _cells(tried: Tried) -> list[str]:
    if tried.ratio is None or tried.step_time_s is None or tried.time_s is None:
        return [text.NONE, text.NONE, f"not possible: {tried.reason}"]
    gain = 1.0 - tried.ratio
    effect = f"{abs(gain):.1%} {'sooner' if gain > 0 else 'later'}".replace("%", " %")
    return [text.duration(tried.step_time_s), text.duration(tried.time_s), effect]


LEAST_SHOWN = 0.05
"""Share of a gap below which a suspect is only named."""


_DEVIATIONS = (
    "Deviations: how unlikely a row is as the only cause, in standard deviations (1 is usual, 3 rare): how "
    "far such an input is usually off, and what is left of the gap over the errors on published runs."
)


def gap_lines(gap: GapExplained) -> list[str]:
    """The gap in words, a table of what would explain it, the likeliest first, and what suffices."""
    width = terminal_width()
    shown = [suspect for suspect in gap.suspects if suspect.explains >= LEAST_SHOWN]
    rest = [suspect.change for suspect in gap.suspects if suspect not in shown]
    rows = [_suspect_cells(suspect) for suspect in shown]
    header = ("would explain it", "if its rate is\nmultiplied by", "step", "share of\nthe gap", "deviations")
    table = Table(header, rows, _DEVIATIONS, frozenset({1, 2, 3, 4}))
    notes = [f"Without effect, or the other way: {', '.join(rest)}."] if rest else []
    return [
        *paragraph(_gap_words(gap), width),
        "",
        *(table_lines(table, width) if rows else []),
        *[line for words in (*notes, *_sufficient(gap)) for line in paragraph(words, width)],
    ]


def _gap_words(gap: GapExplained) -> str:
    where = "inside" if gap.inside else "outside"
    return (
        f"Measured {text.duration(gap.measured_s)}, predicted {text.duration(gap.predicted_s)}: "
        f"{text.number(gap.measured_s / gap.predicted_s)} {text.TIMES} as long, {where} the 90 % band of "
        f"{text.duration_band(gap.band_s)}. The gap is {gap.deviations:.1f} standard deviations of the "
        f"errors on published runs. Layout {gap.layout}; recipe {gap.trained}."
    )


def _sufficient(gap: GapExplained) -> Iterator[str]:
    """What the table does not say: that the step is impossible, or that no row alone is enough."""
    if gap.mfu > 1.0:
        yield (
            f"warning: the measured step means an MFU of {text.percent(gap.mfu, 0)}: it is faster than the "
            "devices' peak. Check its unit, the batch and the number of devices."
        )
    elif gap.inside:
        yield "The prediction's own error explains the gap: no input has to differ."
    elif not any(suspect.suffices for suspect in gap.suspects):
        most = max(gap.suspects, key=lambda suspect: suspect.explains, default=None)
        closes = f": {most.change} closes {text.percent(most.explains, 0)} of it" if most else ""
        yield (
            f"warning: no row alone explains the gap{closes}. Several inputs differ, or one that is not "
            "listed does: layout, batch, sequence length, number of devices, or time outside the step."
        )


def _suspect_cells(suspect: Suspect) -> list[str]:
    factor = text.NONE if suspect.factor is None else f"{suspect.factor:.2f}"
    return [
        suspect.change,
        factor,
        text.duration(suspect.step_time_s),
        text.percent(suspect.explains, 0),
        f"{suspect.deviations:.1f}",
    ]
