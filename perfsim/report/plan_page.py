"""The page of a shortlist: the fastest layouts on one scale, in figures, and what to know of them."""

from __future__ import annotations

from pathlib import Path

from perfsim.report import text
from perfsim.report.document import write_document
from perfsim.report.page import write_page
from perfsim.report.plan_document import plan_document
from perfsim.report.scale import Row, scale_of
from perfsim.report.sections import Head, Section
from perfsim.report.table import Table
from perfsim.report.terminal.plan import plan_heading, plan_notes, plan_table
from perfsim.studies.shortlist import Planned


def write_plan(planned: Planned, folder: Path) -> Path:
    """Write `index.html` and `summary.json`; returns the page."""
    best = planned.best.prediction
    bands = [
        Row(
            f"{number}: {text.layout_short(entry.layout)}",
            entry.step_time_s,
            entry.step_time_band_s,
            number == 1,
        )
        for number, entry in enumerate(planned.shortlist, start=1)
    ]
    head = Head(
        plan_heading(planned),
        cards_note="Point: the step by prediction. Bar: 90 % range.",
        headline=f"On {best.machine}, {text.layout_short(best.layout)} is the fastest layout, at "
        f"{text.duration(best.step_time_s)} a step; the model's error allows {text.integer(planned.within)}.",
        scale=scale_of(bands, "Step time"),
    )
    notes = [[str(number), note] for number, note in enumerate(plan_notes(planned), start=1)]
    full = [[str(number), entry.layout_text] for number, entry in enumerate(planned.shortlist, start=1)]
    trained = f"Trained by {best.training.words}." if best.training is not None else ""
    sections = [
        Section("The shortlist", trained, table=plan_table(planned), slug="shortlist"),
        Section("What to know", table=Table(("", "note"), notes), slug="notes"),
        Section("As --layout takes them", table=Table(("", "layout"), full), slug="layouts"),
    ]
    write_document(plan_document(planned), folder / "summary.json")
    return write_page(f"Layouts of {best.model}", sections, folder / "index.html", head=head)
