"""Logs of MLPerf Training (`:::MLLOG`): samples to the target and the mean step, one point a batch size.

Format: mlcommons/logging, `mlperf_logging/mllog/constants.py`.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

from perfsim.interop.source import Settings, Source
from perfsim.interop.tool import Reading, Step, Tool

LINE = re.compile(r":::MLLOG\s+(\{[^\n]*)")
SAMPLES = ("trained_samples", "samples_count", "consumed_samples", "train_samples")
"""Keys and metadata that count the samples of a run, the surest first."""


@dataclass
class _Run:
    """One run: what was set before it, and what it reached."""

    settings: dict[str, Any]
    start_ms: float
    stop_ms: float = math.inf
    """Infinite for a run that did not end."""
    status: str = ""
    samples: dict[str, float] = field(default_factory=dict)
    epochs: float | None = None

    @property
    def trained(self) -> float | None:
        """Samples until the target; None where the log does not tell."""
        if self.samples:
            return self.samples[min(self.samples, key=SAMPLES.index)]
        dataset = _number(self.settings.get("train_samples"))
        return self.epochs * dataset if self.epochs is not None and dataset is not None else None


def _read(source: Source, _text: Any) -> Reading:
    """The convergence points and mean steps of all runs of a log that reached the target."""
    runs = _runs(source)
    settings = Settings(source, {name: value for run in runs for name, value in run.settings.items()})
    settings.ignore("global_batch_size", "submission_benchmark", "train_samples")
    done = [run for run in runs if run.stop_ms < math.inf and run.status in ("success", "")]
    if not done:
        words = f"none of {len(runs)} runs reached its target"
        nothing = "no run: there is no line with run_start"
        source.refuse(words if runs else nothing, "a run ends with run_stop and the status success")
    batches: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for run in done:
        batch = _number(run.settings.get("global_batch_size")) or 0
        if batch < 1:
            source.refuse("a run without global_batch_size", line=source.line_of("run_start"))
        if run.trained:
            batches[int(batch)].append((run.trained, (run.stop_ms - run.start_ms) * 1e-3))
    if not batches:
        source.refuse("no run tells its samples", f"one of {', '.join(SAMPLES)} or epochs is needed")
    points = []
    steps = []
    for size, group in sorted(batches.items()):
        samples = [trained for trained, _ in group]
        spread = [stdev(samples), float(len(samples))] if len(samples) > 1 else []
        points.append([float(size), mean(samples), *spread])
        # A step is the mean over whole runs, evaluation included.
        timed = [(trained / size, time_s) for trained, time_s in group if time_s > 0]
        if timed:
            count, whole_s = map(sum, zip(*timed, strict=True))
            steps.append(Step(size, whole_s / count, max(1, round(count))))
    benchmark = str(done[0].settings.get("submission_benchmark") or source.path.stem)
    case = {"id": benchmark, "family": "mlperf", "unit": "samples", "points": points}
    return Reading(settings, points={"schema": 1, "cases": [case]}, steps=tuple(steps), name=benchmark)


def _runs(source: Source) -> list[_Run]:
    """The runs of a log; settings before a run_start belong to it."""
    set_before: dict[str, Any] = {}
    runs: list[_Run] = []
    for match in LINE.finditer(source.text):
        line = source.text.count("\n", 0, match.start()) + 1
        try:
            event = json.loads(match[1])
        except (ValueError, RecursionError) as error:
            source.refuse(f"malformed line of MLLOG: {error}", line=line)
        if not isinstance(event, dict):
            source.refuse("a line of MLLOG holds a mapping", line=line)
        key = str(event.get("key"))
        value = event.get("value")
        time_ms = _number(event.get("time_ms")) or 0.0
        metadata = event.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        if key == "run_start":
            runs.append(_Run(dict(set_before), time_ms))
            continue
        between = not runs or runs[-1].stop_ms < math.inf
        if between:
            set_before[key] = value
        if not runs or (between and key != "trained_samples"):
            continue
        run = runs[-1]
        for name, count in {key: value, **metadata}.items():
            if name in SAMPLES and (number := _number(count)) is not None:
                run.samples[name] = number
        if "epoch_num" in metadata and key in ("eval_accuracy", "run_stop"):
            run.epochs = _number(metadata["epoch_num"])
        if key == "run_stop":
            run.stop_ms = time_ms
            run.status = str(metadata.get("status", ""))
    return runs


def _number(value: Any) -> float | None:
    ordinary = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if ordinary and 0 <= value < 1e18 else None


TOOL = Tool(
    title="MLPerf Training log",
    sign="lines that begin with `:::MLLOG`",
    syntaxes=("text",),
    recognise=lambda text: isinstance(text, str) and LINE.search(text) is not None,
    read=_read,
)
