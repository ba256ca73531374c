"""`perfsim init`: a commented study to begin with."""

from __future__ import annotations

from pathlib import Path

import click

from perfsim.cli.completion import complete
from perfsim.cli.output import print_prose
from perfsim.cli.verb import Verb
from perfsim.errors import InputError
from perfsim.files import check_file, write_file
from perfsim.sizes import MOST_DEVICES

EXAMPLES = """\b
Examples:
  perfsim init my_study.yaml
  perfsim init my_study.yaml --model llama2_70b --system dgx-h100 --devices 64
"""
TEMPLATE = """\
# A study for perfsim. Check it:   perfsim check {file}
#                      Answer it:  perfsim study {file} --open
title: {model} on my machine
question: How long does my machine take, and would another one be faster?

# A name (perfsim show models), a YAML file, or a config.json of Hugging Face.
model: {model}

# How it is trained. Each line below replaces a value of the recipe that is extended (perfsim show recipes).
recipe:
  extends: {recipe}
  # seq_length: 4096             # tokens of a sequence
  # precision: bf16              # or fp16, fp8
  # attention: flash             # or standard
  # dropout: false
  # global_batch_size: 512       # sequences; without it the best batch is searched
  tokens: 400e9                  # until the target is reached, with a small batch

# The machines to compare. Several numbers of devices: [8, 16, 32].
candidates:
  - {{strategy: {strategy}, system: {system}, devices: [{devices}]}}
  # My own machine, as its differences from one of the catalogue (perfsim show systems {system}):
  # - strategy: {strategy}
  #   system:
  #     extends: {system}
  #     name: my-cluster
  #     noun: {{device: My GPU}}   # what people call one of its devices
  #     node: {{nics: 4}}
  #     assumed: {{node.nics: as delivered}}
  #   devices: [{devices}]
  # - {{strategy: weight-streaming, system: cs-2, devices: [4]}}

batch_sizes: auto
sampling: {{tasks: 4}}             # matrix products of a step that are executed, as a check

# Every value needs a source or a reason; these are yours.
assumed:
  model: my question
  recipe: my question
  candidates: my question
  batch_sizes: each machine at its own best batch
  sampling: a quick check
"""


@click.command(cls=Verb, short_help="Write a commented study to begin with.", epilog=EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path), default="my_study.yaml")
@click.option("--model", default="llama2_70b", show_default=True, shell_complete=complete("model"))
@click.option("--recipe", default="gpt3_pretraining", show_default=True, shell_complete=complete("recipe"))
@click.option("--system", default="dgx-h100", show_default=True, shell_complete=complete("system"))
@click.option("--devices", type=click.IntRange(1, MOST_DEVICES), default=64, show_default=True)
def init(file: Path, model: str, recipe: str, system: str, devices: int) -> None:
    """Write a commented study to FILE, which `perfsim study FILE` answers as it is."""
    from perfsim.catalog import default_catalog
    from perfsim.machines import strategy_for

    if file.exists():
        raise InputError(f"{file} is there already; name another file")
    check_file(file, "FILE")
    catalog = default_catalog()
    for kind, name in (("model", model), ("recipe", recipe), ("system", system)):
        catalog.load(kind, name)
    strategy = strategy_for("", catalog.system(system)).name
    names = {"model": model, "recipe": recipe, "system": system, "strategy": strategy}
    write_file(file, TEMPLATE.format(file=file, devices=devices, **names))
    print_prose(f"{file}: edit it, then `perfsim check {file}` and `perfsim study {file} --open`")
