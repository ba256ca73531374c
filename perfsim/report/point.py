"""One point on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from perfsim.report.text import duration, human, integer, layout_long, memory, percent


def sampling_line(sampled: Mapping[str, Any]) -> str:
    """What was executed for real, and how near it came."""
    return (
        f"{sampled['tasks_sampled']} of {integer(sampled['tasks_total'])} matrix products, standing for "
        f"{percent(sampled['flop_share'])} of their FLOPs: {'right' if sampled['passed'] else 'WRONG'}\n"
        f"{' ' * 16}worst error {sampled['worst_relative_error']:.1e} of at most {sampled['bound']:.1e}, "
        f"{sampled['worst']}"
    )


def perturbed_lines(disturbed: Mapping[str, Any], step_s: float) -> list[str]:
    """What disturbs the step, what it costs, and what failures leave of the time."""
    before_s, draws = disturbed["unperturbed_step_time_s"], disturbed["draws_s"]
    lines = [
        f"  perturbed     {disturbed['text']}",
        f"                {duration(before_s)} without it, {step_s / before_s:.3f} times as long with it",
    ]
    if len(draws) > 1:
        lines.append(f"                {len(draws)} draws, {duration(draws[0])} to {duration(draws[-1])}")
    if disturbed["note"]:
        lines.append(f"                {disturbed['note']}")
    if run := disturbed["run"]:
        lines.append(
            f"  goodput       {percent(run['goodput'])} of {duration(run['wall_s'])}: "
            f"{run['failures']} failures, {duration(run['lost_s'])} done again"
        )
    return lines


def _peak(answer: Mapping[str, Any]) -> str:
    """Peak memory in the unit in which the device's memory is stated, as in reports."""
    return memory(answer["peak_memory_bytes"], answer["memory_capacity_bytes"])


def point_lines(answer: Mapping[str, Any]) -> list[str]:
    """The metrics of one point and where its step goes."""
    step_s = answer["step_time_s"]
    streams = answer["why"].get("streaming_roof") is not None
    lines = [
        f"{answer['model']} on {answer['num_devices']} x {answer['system']}, {answer['strategy']}",
        f"  batch         {answer['global_batch_size']} sequences",
        f"  layout        {layout_long(answer['layout'])}",
        f"  step          {duration(step_s)}",
        f"  tokens/s      {answer['tokens_per_s']:,.0f}",
        f"  MFU / HFU     {percent(answer['mfu'])} / {percent(answer['hfu'])} of peak",
        f"  {'idle' if streams else 'bubble':12s}  {percent(answer['bubble_fraction'])} of the step",
        f"  exposed comm  {percent(answer['exposed_communication_fraction'])} of the step",
        f"  peak memory   {_peak(answer)} a device",
    ]
    if answer.get("cluster_calibration"):
        lines.append(f"  scaled        {answer['cluster_calibration']['note']}")
    if answer.get("perturbed"):
        lines += perturbed_lines(answer["perturbed"], step_s)
    if answer.get("sampling"):
        lines.append(f"  verified      {sampling_line(answer['sampling'])}")
    for note in answer.get("notes", ()):
        lines += textwrap.wrap(note, 100, initial_indent="  note          ", subsequent_indent=" " * 16)
    told = " (by what is waited for last; why gives the wait between two steps to the update)"
    lines.append(f"  where the step goes:{told if streams else ''}")
    parts = sorted(answer["step_breakdown_s"].items(), key=lambda item: -item[1])
    lines += [
        f"    {human(name):28s} {duration(s):>10s}  {percent(s / step_s)}" for name, s in parts if s > 0
    ]
    lines += textwrap.wrap(
        f"why: {answer['why']['sentence']}", 100, initial_indent="  ", subsequent_indent="    "
    )
    return lines
