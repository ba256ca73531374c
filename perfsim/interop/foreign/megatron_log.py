"""The log of a run of Megatron-LM: its dump of arguments, and its iterations as measured steps.

Format: `megatron/training/training.py`, with the older spellings; also Megatron-DeepSpeed's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from statistics import median

from perfsim.interop.foreign.imported import Step

DUMPED = re.compile(r"(?<![\w.])([a-zA-Z_]\w*) \.{2,} ?([^\n]*)")
"""A line of the dump: `num_layers ........ 24`; ranks or times may stand before it."""
ITERATION = re.compile(
    r"iteration\s+(?P<number>\d{1,12})\s*/\s*\d+\s*\|(?P<rest>[^\n]*?elapsed time per iteration[^\n]*)"
)
ELAPSED = re.compile(r"elapsed time per iteration \((?P<unit>ms|s)\):\s*(?P<value>[0-9.eE+]+)")
BATCH = re.compile(r"global batch size:\s*(\d{1,9})")
WARM_UP = 1
"""Lines at the start that include compilation, allocation and the first reading of data."""
FEWEST = 3
"""Lines of one batch size below which none is left out as warm-up."""


def iterations(text: str) -> list[tuple[int, float]]:
    """Global batch (0 where the log does not say) and seconds of each logged line."""
    logged = []
    for match in ITERATION.finditer(text):
        elapsed, batch = ELAPSED.search(match["rest"]), BATCH.search(match["rest"])
        if elapsed is None:
            continue
        try:
            seconds = float(elapsed["value"]) * (1e-3 if elapsed["unit"] == "ms" else 1.0)
        except ValueError:
            continue
        if 0.0 < seconds < float("inf"):
            logged.append((int(batch[1]) if batch else 0, seconds))
    return logged


def iteration_steps(text: str, parts: int = 1) -> tuple[Step, ...]:
    """The median step of each batch size, in the order of the log, without the first line.

    With `parts` each batch size is divided into so many intervals of equal length, in the order of time.
    """
    by_batch: dict[int, list[float]] = defaultdict(list)
    for batch, seconds in iterations(text):
        by_batch[batch].append(seconds)
    steps = []
    for batch, logged in by_batch.items():
        steady = logged[WARM_UP:] if len(logged) >= FEWEST else logged
        count = min(parts, len(steady))
        bounds = [len(steady) * part // count for part in range(count + 1)]
        steps += [Step(batch, median(steady[a:b]), b - a) for a, b in pairwise(bounds)]
    return tuple(steps)
