"""What large questions cost in processor time and memory; with PERFSIM_SCALE=FILE the table in it is renewed.

Each figure is of a process of its own, imports included. Exponents are fitted in logarithms over the sizes.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.benchmark

DEVICES = (16_384, 65_536, 262_144, 1_048_576)
LAYERS = (96, 1_536)
POINTS = (1_000, 10_000, 100_000)

HEAD = """
import resource, sys, time
size = int(sys.argv[1])
from perfsim.prediction.question import question_of
def question(devices, **more):
    machine = {"system": "dgx-h100", "devices": devices, "strategy": "3d"}
    return question_of({"model": "gpt3_175b", "recipe": "gpt3_pretraining", **machine, **more})
"""
FOOT = """
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print("measured", time.process_time(), memory, count)
"""
RUN = """
from perfsim.prediction.planner import best_plan
layout = f"tp=8,pp=16,dp={size // 128},mbs=1,zero=1,recompute=full"
count = len(best_plan(question(size, batch=8 * size // 128, layout=layout)).graph)
"""
PLAN = """
from perfsim.prediction.planner import Search
count = Search(question(size, batch=min(size, 2**17))).screening.screened
"""
LAYOUTS = """
from perfsim.prediction.planner import Search
count = 0
while count < size:
    count += Search(question(1024, batch=1536)).screening.screened
"""
GRID = """
import pathlib, tempfile
folder = pathlib.Path(tempfile.mkdtemp())
batches = ", ".join(str(8 * number) for number in range(1, 51))
rates = ", ".join(f"{10 * number} Gb/s" for number in range(1, 21))
layers = ", ".join(str(number) for number in range(1, size // 1000 + 1))
(folder / "grid.yaml").write_text(f'''title: t
study: {{extends: gpt3_20b, name: grid}}
grid:
  candidates: [{{strategy: weight-streaming, system: cs-2, devices: [1]}}]
  model.num_layers: [{layers}]
  recipe.global_batch_size: [{batches}]
  system.swarmx.bandwidth: [{rates}]
''')
from perfsim.studies.loading import load_sweep
from perfsim.studies.runner import answer_text, plan_sweep, run_sweep
sweep = load_sweep(str(folder / "grid.yaml"))
count = plan_sweep(sweep, folder / "points.sqlite").points
"""
READ = """
from perfsim.report.sweep import write_sweep
from perfsim.studies.spec import digests
from perfsim.studies.store import Store
answer = answer_text(sweep.points[-1])
with Store(folder / "points.sqlite") as store:
    for digest in digests(point.study for point in sweep.points):
        store.put(digest, answer)
write_sweep(run_sweep(sweep, folder / "points.sqlite"), folder / "page")
"""
QUESTIONS = {
    "one layout of 175B, devices": (RUN, DEVICES, "tasks"),
    "screening all layouts of 175B, devices": (PLAN, DEVICES, "layouts"),
    "screening, layouts": (LAYOUTS, (100_000, 1_000_000), "layouts"),
    "planning a sweep (`--dry-run`), points": (GRID, POINTS, "points"),
    "reading a finished sweep and writing its report, points": (GRID + READ, POINTS, "points"),
}


def cost(program: str, size: int) -> tuple[float, float, int]:
    """Processor seconds and MiB of a process, and how much it has computed."""
    command = [sys.executable, "-c", HEAD + program + FOOT, str(size)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if "measured" not in ended.stdout:
        pytest.fail(ended.stderr[-500:])
    seconds, memory, count = ended.stdout.split("measured")[1].split()
    return float(seconds), float(memory), int(count)


def row(name: str, sizes: Sequence[int], costs: Sequence[tuple[float, float, int]], counted: str) -> str:
    """A line of the table: sizes, seconds and memory at each, and the exponents over the last two."""
    seconds, memory, counts = zip(*costs, strict=True)
    time, space = (np.polyfit(np.log(sizes[-2:]), np.log(values[-2:]), 1)[0] for values in (seconds, memory))
    cells = (
        name,
        ", ".join(f"{size:,}" for size in sizes),
        ", ".join(f"{value:.1f} s" for value in seconds),
        ", ".join(f"{value:,.0f} MiB" for value in memory),
        f"{time:.2f}, {space:.2f}",
        f"{counts[-1]:,} {counted}",
    )
    return f"| {' | '.join(cells)} |\n"


def test_cost_of_large_questions() -> None:
    rows = [
        row(name, sizes, [cost(program, size) for size in sizes], counted)
        for name, (program, sizes, counted) in QUESTIONS.items()
    ]
    print("".join(rows))  # noqa: T201  # the benchmark's answer
    target = os.environ.get("PERFSIM_SCALE")
    if target:
        page = Path(target)
        head, foot = re.split(r"(?:^\| [a-z].*\n)+", page.read_text("utf-8"), maxsplit=1, flags=re.MULTILINE)
        page.write_text(head + "".join(rows) + foot, encoding="utf-8")
