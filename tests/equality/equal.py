"""Records the answers of the package as numbers, and compares them with the recorded ones.

    python tests/equality/equal.py record tests/equality/answers.json.gz
    python tests/equality/equal.py compare
    python tests/equality/equal.py compare --only predict,plan
    python tests/equality/equal.py compare --sample 40

A comparison recomputes every answer, or those of some parts, or some that are drawn and take at most a few
seconds each. It prints how many values are compared, the largest relative difference and what differs, and
ends with 1 if anything does. Values are equal within 1e-12 of the larger one. `questions.py` holds what is
asked, `accessors.py` what this knows about the package: after a renaming only the latter is adapted.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]
"""The package of this checkout is measured, whichever is installed."""

import accessors as package  # noqa: E402
from accessors import Answers, Value  # noqa: E402
from questions import PLANS, PROOFS, STEPS  # noqa: E402

RECORDED = HERE / "answers.json.gz"
PARTS = ("predict", "plan", "study", "sweep", "validate", "proof")
TOLERANCE = 1e-12
"""Relative difference up to which two values are equal."""
NOTHING = 1e-15
"""Absolute difference up to which two values are equal: what sums of zeros leave."""
QUICK_S = 4.0
"""Samples are drawn from the questions that took less when they were recorded, in seconds."""
SHOWN = 50
REFUSED = "refused"


@dataclass(frozen=True)
class Ask:
    """One question: the start of its keys, and how to answer it."""

    part: str
    name: str
    answer: Callable[[], Any]

    @property
    def key(self) -> str:
        """What all of its keys start with."""
        return f"{self.part}/{self.name.replace('/', '|')}"

    def values(self) -> Answers:
        """Its answers by key; a refusal is one answer, whatever its words."""
        try:
            answers = package.flat(self.answer())
        except Exception as error:  # noqa: BLE001
            if package.is_refusal(error):
                return {f"{self.key}/{REFUSED}": REFUSED}
            traceback.print_exc()
            return {f"{self.key}/{REFUSED}": f"crashed: {type(error).__name__}"}
        return {f"{self.key}/{place}": value for place, value in answers.items()}


def asks(parts: Sequence[str]) -> list[Ask]:
    """Every question of some parts."""
    return [ask for ask in _all_asks() if ask.part in parts]


def _all_asks() -> Iterator[Ask]:
    for step in STEPS:
        yield Ask("predict", step.name, partial(package.step_answer, step))
    for shortlist in PLANS:
        yield Ask("plan", shortlist.name, partial(package.plan_answer, shortlist))
    for file in package.files_of("study"):
        yield Ask("study", file.stem, partial(package.study_answer, file))
    for file in package.files_of("comparison"):
        yield Ask("study", file.stem, partial(package.comparison_answer, file))
    for file in package.files_of("sweep"):
        yield Ask("sweep", file.stem, partial(package.sweep_answer, file))
    for file in package.files_of("validation"):
        yield Ask("validate", file.stem, partial(package.validation_answer, file))
    for proved in PROOFS:
        yield Ask("proof", proved.name, partial(package.proof_answer, proved))


def answered(asked: Sequence[Ask]) -> tuple[Answers, dict[str, float]]:
    """All answers, and the seconds of each question; tells what each part takes."""
    answers: Answers = {}
    seconds: dict[str, float] = {}
    for part in PARTS:
        own = [ask for ask in asked if ask.part == part]
        for ask in own:
            start = time.perf_counter()
            values = ask.values()
            if twice := answers.keys() & values.keys():
                raise SystemExit(f"two questions have the key {min(twice)}")
            answers |= values
            seconds[ask.key] = round(time.perf_counter() - start, 2)
        if own:
            spent = sum(seconds[ask.key] for ask in own)
            print(f"{part}: {len(own)} questions, {spent:.1f} s", flush=True)
    return answers, seconds


def record(file: Path) -> int:
    """Write all answers."""
    answers, seconds = answered(asks(PARTS))
    document = {"seconds": seconds, "answers": dict(sorted(answers.items()))}
    text = json.dumps(document, separators=(",", ":"))
    file.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    refused = sum(value == REFUSED for value in answers.values())
    print(f"{len(answers)} values, {refused} refusals: {file}, {file.stat().st_size / 1e6:.2f} MB")
    return 0


def compare(file: Path, parts: Sequence[str], sample: int | None, seed: int) -> int:
    """Compute answers anew and tell what differs from the recorded ones; 1 if anything does."""
    document = json.loads(gzip.decompress(file.read_bytes()))
    seconds: Mapping[str, float] = document["seconds"]
    asked = asks(parts)
    if sample is not None:
        quick = [ask for ask in asked if seconds.get(ask.key, 0.0) <= QUICK_S]
        asked = random.Random(seed).sample(quick, min(sample, len(quick)))
    # A verification compares a step with its model; what it executes on the way is no answer.
    answers = {key: value for key, value in answered(asked)[0].items() if "/sampling/" not in key}
    recorded = {key: value for key, value in document["answers"].items() if "/sampling/" not in key}
    wanted = {key: value for key, value in recorded.items() if _belongs(key, asked, parts, sample)}
    lost = sorted(wanted.keys() - answers.keys())
    new = sorted(answers.keys() - wanted.keys())
    both = sorted(wanted.keys() & answers.keys())
    differences = {key: difference(wanted[key], answers[key]) for key in both}
    wrong = [key for key in both if differences[key] > TOLERANCE]
    _tell([f"differs by {differences[key]:.3g}: {key}: {wanted[key]} is {answers[key]}" for key in wrong])
    _tell([f"missing: {key}: {wanted[key]}{_twin(key, wanted[key], answers, new)}" for key in lost])
    _tell([f"new: {key}: {answers[key]}" for key in new])
    worst = max(differences.values(), default=0.0)
    print(f"{len(both)} values compared, largest relative difference {worst:.3g}")
    print(f"{len(wrong)} differ, {len(lost)} are missing, {len(new)} are new")
    return 1 if wrong or lost or new or not both else 0


def difference(one: Value, other: Value) -> float:
    """Relative difference of two numbers, infinite between texts that are not the same."""
    if isinstance(one, str) or isinstance(other, str):
        return 0.0 if one == other else float("inf")
    apart = abs(one - other)
    return 0.0 if apart <= NOTHING else apart / max(abs(one), abs(other))


def _belongs(key: str, asked: Sequence[Ask], parts: Sequence[str], sample: int | None) -> bool:
    """Whether a recorded value is among those that are compared."""
    part, name = key.split("/")[:2]
    if sample is None:
        return part in parts
    return f"{part}/{name}" in {ask.key for ask in asked}


def _twin(key: str, value: Value, answers: Mapping[str, Value], new: Sequence[str]) -> str:
    """Where the same value stands under a new name of the same question, as after a renaming."""
    question = "/".join(key.split("/")[:2])
    if value in (0.0, 1.0):
        return ""
    twins = [
        name for name in new if name.startswith(f"{question}/") and difference(value, answers[name]) == 0
    ]
    return f" (as {twins[0]}?)" if twins else ""


def _tell(lines: Sequence[str]) -> None:
    """Print the first lines, and how many more there are."""
    for line in lines[:SHOWN]:
        print(line)
    if len(lines) > SHOWN:
        print(f"... {len(lines) - SHOWN} more")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Record answers as numbers, or compare with recorded ones.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record", help="write all answers to a file")
    recording.add_argument("out", type=Path)
    comparing = verbs.add_parser("compare", help="compute anew and compare with the recorded answers")
    comparing.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    comparing.add_argument("--sample", type=int, default=None, help="number of quick questions to draw")
    comparing.add_argument("--seed", type=int, default=0, help="seed of the draw")
    comparing.add_argument("--against", type=Path, default=RECORDED, help="file of recorded answers")
    given = parser.parse_args(arguments)
    print(f"perfsim is {package.imported_from()}", flush=True)
    if given.verb == "record":
        return record(given.out)
    parts = given.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    return compare(given.against, parts, given.sample, given.seed)


if __name__ == "__main__":
    sys.exit(main())
