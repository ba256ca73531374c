"""`perfsim why`: what limits each candidate of a study, or what would explain a measured step."""

from __future__ import annotations

from typing import Any

import click

from perfsim.cli.options import batch_of, json_option, layout_option, limits, question_options_if_asked
from perfsim.cli.output import print_json, print_lines
from perfsim.cli.verb import Verb

NEEDED = ("model", "system", "devices")
EXAMPLES = """\b
Examples:
  perfsim why gpt3_20b
  perfsim why reports/gpt3_20b/summary.json
  perfsim why --measured 5.4s --model gpt3_xl --system dgx-a100-80gb --devices 16
"""


@click.command(
    cls=Verb,
    short_help="What limits the candidates, and what would help; or explains a measured step.",
    epilog=EXAMPLES,
)
@click.argument("study", required=False, default="")
@click.option("--compare", default="", metavar="A,B", help="Only these strategies, e.g. 3d,weight-streaming.")
@click.option(
    "--measured",
    default="",
    metavar="5.4s",
    help="Rank the inputs that would explain this step of --model on --system and --devices.",
)
@question_options_if_asked
@layout_option("[default: chosen by the planner]")
@json_option
@limits
def why(study: str, compare: str, measured: str, as_json: bool, **asked: Any) -> None:
    """Explain the candidates of a STUDY: a name, a YAML file, or the summary.json of its answer.

    Each change is predicted again at the best batch, with the layout that is best with it. With --measured,
    explain the gap between the step that `perfsim run` predicts for the same options and a measured one.
    """
    if measured:
        _why_measured(study, measured, asked, as_json=as_json)
    elif not study:
        raise click.UsageError("name a STUDY, or give --measured with --model, --system and --devices")
    elif given := [name for name in NEEDED if asked[name]]:
        raise click.UsageError(f"--{given[0]} belongs to --measured; a STUDY names its own")
    else:
        _why_study(study, compare, as_json=as_json)


def _why_study(study: str, compare: str, *, as_json: bool) -> None:
    from perfsim.api.explaining import why as explain_study
    from perfsim.report.document import plain
    from perfsim.report.terminal.why import why_lines

    names = [name.strip() for name in compare.split(",") if name.strip()]
    explained = explain_study(study, names)
    if as_json:
        print_json({"candidates": plain(explained)})
    else:
        print_lines(why_lines(explained))


def _why_measured(study: str, measured: str, asked: dict[str, Any], *, as_json: bool) -> None:
    from perfsim.api.explaining import why_measured
    from perfsim.report.document import plain
    from perfsim.report.terminal.why import gap_lines

    missing = [f"--{name}" for name in NEEDED if not asked[name]]
    if study or missing:
        words = f"it needs {', '.join(missing)}" if missing else "it takes no STUDY"
        raise click.UsageError(f"--measured explains one step of one model on one system; {words}")
    batch = batch_of(asked.pop("batch"), asked.pop("batch_per_device"), asked["devices"])
    asked["cluster"] = asked["cluster"] or None
    explained = why_measured(measured, batch=batch, **asked)
    if as_json:
        print_json(plain(explained) | {"inside_band": explained.inside})
    else:
        print_lines(gap_lines(explained))
