"""`perfsim import`: files of other tools as YAML of perfsim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from perfsim.cli.options import json_option, out_option
from perfsim.cli.output import print_json, print_lines
from perfsim.cli.verb import Verb
from perfsim.files import write_file

FORMATS = (
    "huggingface",
    "megatron",
    "modelzoo",
    "nemo",
    "neox",
    "deepspeed",
    "torchtitan",
    "mllog",
    "chakra",
)
"""The names of `perfsim.interop.foreign.formats.FORMATS`, which is not loaded for a help text."""
PARTS = ("model", "recipe", "measured", "convergence")


EXAMPLES = """\b
Examples:
  perfsim import config.json --out my_model.yaml
  perfsim import pretrain.sh --part recipe
"""


@click.command(cls=Verb, name="import", short_help="Read a model or a run of another tool.", epilog=EXAMPLES)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_name",
    type=click.Choice(FORMATS),
    metavar="NAME",
    default=None,
    help=f"Format of FILE: {', '.join(FORMATS)}. [default: recognised by its content]",
)
@click.option("--part", type=click.Choice(PARTS), default=None, help="What to write. [default: the model]")
@click.option("--model", default="", help="Model of a FILE without one: of the catalogue, or a config.json.")
@click.option("--system", default="", help="Machine on which the steps of a log were measured.")
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="KEY=VALUE",
    help="A value that FILE lacks or computes, by its name in FILE. May be repeated.",
)
@out_option("YAML file to write. [default: standard output]")
@json_option
def import_(
    files: tuple[Path, ...],
    format_name: Any,
    part: Any,
    model: str,
    system: str,
    given: Sequence[str],
    out: Path | None,
    as_json: bool,
) -> None:
    """Read a model, a recipe or measured steps from FILE of another tool, as YAML of perfsim.

    Formats: config.json of Hugging Face; scripts and logs of Megatron-LM; YAML of the Cerebras Model Zoo,
    NeMo, Megatron-Bridge and GPT-NeoX; TOML or log of torchtitan; DeepSpeed JSON beside a config.json; MLPerf
    logs, of which several may be given; Chakra traces, for a summary. The output says how many parameters the
    model has, which keys were not used, and what perfsim cannot express.
    """
    from perfsim.api.importing import import_file
    from perfsim.api.naming import writing

    result = import_file(
        files[0],
        format_name or "",
        part=part or "",
        model=model,
        system=system,
        given=_given(given),
        more=files[1:],
    )
    if out is not None:
        with writing(out) as path:
            write_file(path, result.text())
    if as_json:
        print_json(result.as_dict())
    elif out is None:
        print_lines(result.text().rstrip().splitlines())
    else:
        print_lines([f"{result.kind} from {result.format}: {out}", *result.remarks()])


def _given(texts: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts as values of YAML."""
    from perfsim.catalog.scalars import ScalarError, resolve_plain

    given: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise click.UsageError(f"--set {text}: write KEY=VALUE")
        try:
            given[key] = resolve_plain(value)
        except ScalarError as error:
            raise click.UsageError(f"--set {text}: {error}") from None
    return given
