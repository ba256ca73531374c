"""Questions drawn at random, which nobody chose: each is answered, or refused with the nearest legal answer.

Ten run with the slow tests; with PERFSIM_REGRET=FILE (`make regret`) many more, and FILE gets a table.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import perfsim as ps
from perfsim.base.errors import LimitError, PlanError
from perfsim.catalog import default_catalog
from perfsim.base.limits import Limits, limited

pytestmark = pytest.mark.slow

SEED = 11
FEW = 10
MANY = 300
MOST_DEVICES = 2_304
MOST_SECONDS = 60.0
SEQUENCES = (2_048, 8_192, 32_768, 131_072)
ANSWERED = "answered"
STOPPED = f"stopped after {MOST_SECONDS:.0f} s"
NEAREST = re.compile(r"nearest that divides: \S.*|try \w+ \S+ → .*, which fits|with --set \S+.* it fits")
"""What to ask or to change instead, in a refusal."""


def drawn(count: int) -> list[dict[str, Any]]:
    """Model, GPU system, whole nodes, sequence and batch."""
    catalog = default_catalog()
    models = [name for name in catalog.names("model") if name != "gpt_120t"]
    systems = [name for name in catalog.names("system") if hasattr(catalog.system(name), "node")]
    chance = random.Random(SEED)
    questions = []
    for _ in range(count):
        system = chance.choice(systems)
        node = catalog.system(system).node.devices
        most = chance.choice((16, MOST_DEVICES // node))
        devices = node * chance.randint(1, min(most, MOST_DEVICES // node))
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
    """How a question ends; any other error is a defect."""
    try:
        with limited(Limits(max_seconds=MOST_SECONDS)):
            assert ps.plan(**question).shortlist
    except LimitError:
        return STOPPED
    except PlanError as error:
        kind = "no degrees divide" if "no layout is legal" in str(error) else "over memory"
        return f"{kind}; nearest {'named' if NEAREST.search(str(error)) else 'not named'}"
    return ANSWERED


def test_every_question_is_answered_or_refused_with_the_nearest_legal_answer() -> None:
    target = os.environ.get("PERFSIM_REGRET")
    questions = drawn(MANY if target else FEW)
    outcomes = [outcome(question) for question in questions]
    if target:
        write(Path(target), Counter(outcomes))
    unnamed = [question for question, end in zip(questions, outcomes, strict=True) if "not named" in end]
    assert not unnamed


HEADING = "## Questions drawn at random"
HEAD = """
{count} questions: any model of the catalogue but the largest on any GPU system, up to {devices:,} devices
in whole nodes, sequences of 2,048 to 131,072 tokens, batches of half a sequence to eight a device, or of
1,024. A refusal names the nearest batch, number of devices, layout or setting that is legal.

| end | questions |
|---|---:|
"""


def write(file: Path, ends: Counter[str]) -> None:
    """Write the section behind measured regret."""
    before = file.read_text(encoding="utf-8").split(HEADING)[0] if file.exists() else ""
    text = HEAD.format(count=ends.total(), devices=MOST_DEVICES)
    text += "".join(f"| {end} | {count} |\n" for end, count in ends.most_common())
    file.write_text(f"{before.rstrip()}\n\n{HEADING}\n{text}", encoding="utf-8")
