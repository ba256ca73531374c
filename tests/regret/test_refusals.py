"""Questions drawn at random, which nobody chose: each is answered, or refused with the nearest legal answer.

Ten run with the slow tests; with PERFSIM_REGRET=FILE (`make regret`) many more, and FILE gets a table.
"""

import json
import os
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import perfsim as ps
from perfsim.base.errors import InputError, LimitError, PlanError
from perfsim.base.limits import Limits, limited
from perfsim.catalog import default_catalog

pytestmark = pytest.mark.slow

SEED = 11
FEW = 10
MANY = 300
MOST_DEVICES = 2_304
MOST_WAFERS = 192
MOST_SECONDS = 20.0
SEQUENCES = (2_048, 8_192, 32_768, 131_072)
POSITIVE = ("step_time_s", "low_s", "high_s", "ratio", "peak_memory_bytes", "device_hours")
ANSWERED = "answered"
STOPPED = f"stopped after {MOST_SECONDS:.0f} s"
NEAREST = re.compile(
    r"nearest that divides: \S|try \w+ \S+ → .*, which fits|with --set \S+.* it fits|try --set \S+=\d"
    r"|nearest: \d+ sequences, or \d+ systems|try more weight servers|at most \d+ systems"
)
"""What to ask or to change instead, in a refusal."""
LACKS = re.compile(r"needs \S+ \SB of \S+ \SB|needs \S+ GiB of \S+ GiB")
"""The memory that a refusal says is missing, where no change of one setting and one degree mends it."""


def drawn(count: int) -> list[dict[str, Any]]:
    """Model, system, whole nodes or wafers, sequence and batch."""
    catalog = default_catalog()
    models = [*catalog.names("model")]
    systems = [*catalog.names("system")]
    chance = random.Random(SEED)
    questions = []
    for _ in range(count):
        system = chance.choice(systems)
        described = catalog.system(system)
        node = described.node.devices if hasattr(described, "node") else 1
        nodes = MOST_DEVICES // node if node > 1 else MOST_WAFERS
        devices = node * chance.randint(1, chance.choice((min(16, nodes), nodes)))
        questions.append(
            {
                "model": chance.choice(models),
                "system": system,
                "devices": devices,
                "recipe.seq_length": chance.choice(SEQUENCES),
                "batch": chance.choice((max(1, devices // 2), devices, 2 * devices, 8 * devices, 1024)),
            }
        )
    return questions


def outcome(question: dict[str, Any]) -> str:
    """How a question ends; any other error is a defect, and so is a number that is none."""
    try:
        with limited(Limits(max_seconds=MOST_SECONDS, engine="fast")):
            answer = ps.plan(**question)
    except LimitError:
        return STOPPED
    except (PlanError, InputError) as error:
        said = str(error)
        kind = "over memory" if "over memory" in said else "nothing divides"
        lacks = "the memory that is missing" if LACKS.search(said) else "nothing"
        return f"{kind}; names {'what is legal' if NEAREST.search(said) else lacks}"
    assert json.dumps(answer.document(), allow_nan=False)
    sizes = [row[name] for row in answer.rows() for name in POSITIVE]
    assert min(sizes) > 0, question
    return ANSWERED


def test_every_question_is_answered_or_refused_with_the_nearest_legal_answer() -> None:
    target = os.environ.get("PERFSIM_REGRET")
    questions = drawn(MANY if target else FEW)
    outcomes = [outcome(question) for question in questions]
    if target:
        write(Path(target), Counter(outcomes))
    unnamed = [question for question, end in zip(questions, outcomes, strict=True) if "nothing" in end[-7:]]
    assert not unnamed


HEADING = "## Questions drawn at random"
HEAD = """
{count} questions: any model on any system of the catalogue, up to {devices:,} devices in whole nodes or
{wafers} wafers, sequences of 2,048 to 131,072 tokens, batches of half a sequence to eight a device, or of
1,024. None ends in another error than a refusal. A refusal names the nearest batch, number of devices,
layout or setting that is legal, or the memory that is missing.

| end | questions |
|---|---:|
"""


def write(file: Path, ends: Counter[str]) -> None:
    """Write the section behind measured regret."""
    before = file.read_text(encoding="utf-8").split(HEADING)[0] if file.exists() else ""
    text = HEAD.format(count=ends.total(), devices=MOST_DEVICES, wafers=MOST_WAFERS)
    text += "".join(f"| {end} | {count} |\n" for end, count in ends.most_common())
    file.write_text(f"{before.rstrip()}\n\n{HEADING}\n{text}", encoding="utf-8")
