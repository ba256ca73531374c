"""`perfsim run`: one step of one model on one system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfsim.cli.options import VERIFY, emit_option, json_option, limits
from perfsim.cli.output import print_json, print_lines
from perfsim.sizes import MOST_DEVICES, MOST_SEQUENCES


@click.command()
@click.option("--model", required=True, help="Name of the catalogue, or a YAML file.")
@click.option("--system", required=True, help="Name of the catalogue, or a YAML file.")
@click.option(
    "--devices",
    "--num-csx",
    type=click.IntRange(1, MOST_DEVICES),
    required=True,
    help="Number of GPUs, or of CS-2 systems.",
)
@click.option("--strategy", default="", help="[default: the system's own]")
@click.option("--layout", default="", metavar="tp=8,pp=4,dp=4,mbs=1", help="[default: chosen by the planner]")
@click.option(
    "--batch",
    type=click.IntRange(1, MOST_SEQUENCES),
    default=None,
    help="Global batch in sequences. [default: the recipe's, else 8 per device]",
)
@click.option(
    "--batch-per-device",
    type=click.IntRange(1, MOST_SEQUENCES),
    default=None,
    help="Instead of --batch: sequences per GPU or CS-2.",
)
@click.option("--recipe", default="gpt3_pretraining", show_default=True)
@click.option("--cluster", default="", metavar="FILE", help="Scale by this result of `calibrate steps`.")
@click.option(
    "--perturb",
    default="",
    metavar="straggler=1.3@rank5,jitter=0.02,seed=1",
    help="Perturb the step: slow ranks, jitter, dead=LINK, slow=0.5@LINK, "
    "mttf=8h,checkpoint=1h,restart=10min.",
)
@click.option(
    "--detail",
    type=click.Choice(["layer", "chunk"]),
    default="layer",
    show_default=True,
    help="Granularity in which wafers stream weights.",
)
@click.option(
    "--expand",
    default="",
    metavar="data.all_reduce=tree",
    help="Simulate collectives as the steps of a ring or a tree.",
)
@click.option("--trace", type=click.Path(path_type=Path), default=None, help="Write a Perfetto trace here.")
@click.option(
    "--verify",
    type=click.Choice(VERIFY),
    default="off",
    show_default=True,
    help="Execute matrix products of the step in NumPy: none, some, or every class.",
)
@emit_option
@json_option
@limits
def run(
    model: str,
    system: str,
    devices: int,
    strategy: str,
    layout: str,
    batch: int | None,
    batch_per_device: int | None,
    recipe: str,
    cluster: str,
    detail: Any,
    perturb: str,
    expand: str,
    trace: Path | None,
    verify: str,
    emit: str | None,
    as_json: bool,
) -> None:
    """Predict one step of one model on one system."""
    from perfsim.api.predicting import predict
    from perfsim.prediction.documents import run_document
    from perfsim.prediction.verification import must_be_right, verified
    from perfsim.report.terminal.run import run_lines

    prediction = predict(
        model=model,
        system=system,
        devices=devices,
        strategy=strategy,
        layout=layout,
        batch=_batch(batch, batch_per_device, devices),
        recipe=recipe,
        cluster=cluster or None,
        perturb=perturb or None,
        detail=detail,
        expand=expand,
    )
    sampled = verified(prediction, verify)
    if trace is not None:
        prediction.trace.save(trace)
    emitted = {"emitted": prediction.emit(emit)} if emit else {}
    if as_json:
        sampling = {} if sampled is None else {"sampling": sampled}
        print_json(run_document(prediction) | sampling | emitted)
    elif emitted:
        print_lines(emitted["emitted"].splitlines())
    else:
        print_lines([*run_lines(prediction, sampled), *([f"Trace: {trace}"] if trace else [])])
    must_be_right([sampled] if sampled else [])


def _batch(batch: int | None, per_device: int | None, devices: int) -> int | None:
    """The global batch of the options; None where none is given."""
    if per_device is None:
        return batch
    if batch is not None:
        raise click.UsageError("give --batch (all devices together) or --batch-per-device, not both")
    return per_device * devices
