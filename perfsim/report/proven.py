"""The answer of `perfsim prove`: layouts on a terminal; as Markdown, which inserted faults are detected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfsim.report.table import Table
from perfsim.report.text import COUNT, NONE, Unit, counted, integer, paragraphs

_ERROR = Unit(digits="{:.1e}".format)


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
        | {name: (COUNT, name) for name in ("ranks", "tasks", "orders")}
        | {"error": (_ERROR, lambda own: own["max_relative_error"] if own["passed"] else "WRONG")},
    )
    faults = [
        f"* {name}, {layout['layout']}: {fault}" for name, layout in proofs for fault in layout["faults"]
    ]
    left_out = dict.fromkeys(part for _, layout in proofs for part in layout["not_executed"])
    wrong = sum(not layout["passed"] for _, layout in proofs)
    done = f"{integer(answer['tasks'])} tasks on all ranks, {answer['steps']} optimizer steps"
    worst = answer["max_relative_error"]
    conclusion = (
        f"{counted(len(proofs), 'layout')} proven ({done}): no dependency is missing, "
        f"and {integer(sum(layout['compared'] for _, layout in proofs))} arrays (loss, gradients, weights) "
        f"equal those of serial training in {counted(answer['orders'], 'random order')} and in the simulated "
        f"one; largest relative error {NONE if worst is None else f'{worst:.1e}'}."
    )
    if wrong:
        conclusion = f"{wrong} of {counted(len(proofs), 'layout')} WRONG ({done})."
    said = [f"{answer['target']}: {conclusion}"]
    said += [f"Not executed: {', '.join(left_out)}."] if left_out else []
    return [*table.lines(), *paragraphs(*faults), "", *paragraphs(*said)]


def mutations_page(answer: Mapping[str, Any]) -> str:
    """The page of `perfsim prove --mutations`."""
    sample = "every fault" if answer["every"] == 1 else f"one fault in {answer['every']}"
    command = f"perfsim prove {answer['target']} --mutations FILE --every {answer['every']}"
    counts = {"inserted": (COUNT, "injected"), "detected": (COUNT, "caught")}
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
        f"{integer(answer['injected'])} faults inserted into {len(answer['layouts'])} correct schedules: "
        f"{integer(answer['caught'])} detected ({answer['share']:.1%}), each with its task and tensor; "
        f"{integer(explained)} that change no result (explained); "
        f"{integer(len(answer['unexplained']))} missed."
    )
