"""All that the comparison knows about perfsim: how to ask, and what its answers are called.

This is the one file to adapt when names of the package change. Keys of recorded answers stay: a new JSON key
gets an entry in `RENAMED` (one name) or `MOVED` (a place in a document), a new function or argument is
called here, in the functions of the section `Questions`.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from questions import RECIPES, Proved, Shortlist, Step

import perfsim as ps
from perfsim.specs.recipe import RUNTIME_FIELDS

ROOT = Path(__file__).resolve().parents[2]
Value = float | str
Answers = dict[str, Value]

# ------------------------------------------------------------------------------------------- Names

RENAMED: dict[str, str] = {}
"""A name in today's documents, to the name under which it is recorded: `{"days_band": "band_days"}`."""

MOVED: list[tuple[str, str]] = []
"""Regular expressions of today's places (after `RENAMED`), with the recorded place; the first match holds."""

LEFT_OUT = re.compile(
    r"(^|/)(screening_s|caveats|notes|command|version|report|assumptions|inputs_digest|differs|settings|label"
    r"|worst_relative_error|max_relative_error|schema|line|seed|bill)(/|$)"
)
"""Places that are no answers: times on the clock, rounding errors, words, what was asked."""

TEXTS = re.compile(r"(^|/)layout/")
"""Places whose texts are recorded as well: schedules and modes of layouts. So are names of candidates."""


# --------------------------------------------------------------------------------------- Questions


def imported_from() -> str:
    """Where the package is imported from."""
    return str(ps.__file__)


def step_answer(question: Step) -> Any:
    """The document of one step, with its memory by stage and part."""
    given: dict[str, Any] = {
        "layout": question.layout or None,
        "batch": question.batch,
        "strategy": question.strategy or None,
        "recipe": recipe_named(question.recipe),
        "perturb": question.perturb or None,
        "detail": question.detail or None,
        "expand": question.expand or None,
        "memory_limit": question.memory_limit,
    }
    given = {name: value for name, value in given.items() if value is not None}
    prediction = ps.predict(model=question.model, system=question.system, devices=question.devices, **given)
    memory = [{"parts_bytes": bar.parts_bytes, "total_bytes": bar.total_bytes} for bar in prediction.memory]
    return prediction.document() | {"memory": memory}


def plan_answer(question: Shortlist) -> Any:
    """The document of a shortlist, with its first five layouts."""
    given: dict[str, Any] = {
        "batch": question.batch,
        "strategy": question.strategy or None,
        "recipe": recipe_named(question.recipe),
        "objective": question.objective,
    }
    given = {name: value for name, value in given.items() if value is not None}
    answer = ps.plan(model=question.model, system=question.system, devices=question.devices, **given)
    matched = answer.match(question.match) if question.match else None
    document = dict(answer.document(matched))
    document["shortlist_length"] = len(document["shortlist"])
    document["shortlist"] = document["shortlist"][:5]
    document["refused"] = sorted(document["refused"].values())  # its names are words
    return document


def study_answer(file: Path) -> Any:
    """The document of a study."""
    return ps.study(str(file)).document()


def sweep_answer(file: Path) -> Any:
    """The document of a sweep."""
    return ps.sweep(str(file)).document()


def comparison_answer(file: Path) -> Any:
    """The rows of a comparison."""
    return {"rows": [dict(row) for row in ps.comparison(str(file)).rows]}


def validation_answer(file: Path) -> Any:
    """The document of a file of published runs."""
    return dict(ps.validate(file).document)


def proof_answer(question: Proved) -> Any:
    """How many layouts are proven, and how much each proof compares."""
    from perfsim.proof.prove import Request, prove_all

    request = Request(question.model, strategy=question.strategy, layout=question.layout)
    document = prove_all(request).as_dict()
    proofs = [proof for strategy in document["strategies"].values() for proof in strategy["layouts"]]
    return {
        "passed": document["passed"],
        "tasks": document["tasks"],
        "layouts_proven": sum(proof["passed"] for proof in proofs),
        "layouts": len(proofs),
        "proofs": [
            {name: proof[name] for name in ("tasks", "ranks", "microbatches", "compared")} for proof in proofs
        ],
    }


def is_refusal(error: Exception) -> bool:
    """Whether the package says that a question has no answer."""
    return isinstance(error, ps.PerfsimError)


@cache
def _recipes() -> Path:
    """A folder with the files of the recipes that are not shipped; it is removed with the process."""
    folder = tempfile.TemporaryDirectory(prefix="equality_")
    _FOLDERS.append(folder)
    for name, text in RECIPES.items():
        recipe = yaml.safe_load(text)
        base = {"llm_2021": "megatron_2021", "llm_2024": "megatron_core"}[recipe["extends"]]
        settings = {key: recipe.pop(key) for key in RUNTIME_FIELDS if key in recipe}
        if settings:
            recipe["runtime"] = {"name": name, "extends": base, **settings}
        (Path(folder.name) / f"{name}.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return Path(folder.name)


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def recipe_named(name: str) -> str | None:
    """What the package takes for a recipe: None for its own choice, a name or the path of a file."""
    return str(_recipes() / f"{name}.yaml") if name in RECIPES else name or None


def files_of(kind: str) -> list[Path]:
    """The shipped files of a kind: `study`, `sweep`, `comparison` or `validation`."""
    if kind == "validation":
        return sorted(Path(file) for file in ps.published_cases())
    return [file for file in sorted((ROOT / "studies").glob("*.yaml")) if _kind_of(file) == kind]


def _kind_of(file: Path) -> str:
    fields = yaml.safe_load(file.read_text(encoding="utf-8"))
    if {"losses", "speeds", "equations"} & set(fields):
        return "comparison"
    return "sweep" if {"grid", "variants"} & set(fields) else "study"


# -------------------------------------------------------------------------------- Names of entries


def _machine(entry: Mapping[str, Any]) -> str:
    """`128 dgx-a100-80gb`: how a candidate of a study and a point of a sweep are called in keys."""
    return f"{entry['num_devices']} {entry['system']}"


def _point(entry: Mapping[str, Any]) -> str:
    """A point of a sweep: its machine, and its settings without their names."""
    values = [str(value) for value in entry["settings"].values() if isinstance(value, (str, int, float))]
    return ", ".join([_machine(entry), *values])


def _case(entry: Mapping[str, Any]) -> str:
    """A published run; benchmarks of convergence have several batches and protocols."""
    words = [entry.get(name) for name in ("id", "protocol", "batch", "unit")]
    return ", ".join(str(word) for word in words if word is not None)


ENTRIES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "candidates": _machine,
    "points": _point,
    "cases": _case,
    "infeasible": lambda _: "without a plan",
    "failed": lambda entry: str(entry["id"]),
    "not_scored": lambda entry: str(entry["id"]),
    "decision/outcomes": lambda entry: str(entry["label"]),
    "resilience": lambda entry: str(entry["label"]),
    "decision/break_even": lambda entry: f"{entry['label']} against {entry['rival']}",
}
"""By the recorded place of a list: how its entries are called. Entries of other lists have their number."""


def labels_of(document: Any) -> dict[str, str]:
    """The label of each candidate of a study, which names it in words, to how it is called in keys."""
    candidates = document.get("candidates", ()) if isinstance(document, Mapping) else ()
    names = unique(_machine(candidate) for candidate in candidates)
    return {candidate["label"]: name for candidate, name in zip(candidates, names, strict=True)}


# --------------------------------------------------------------------- Documents to keys and values


def flat(document: Any) -> Answers:
    """Every number of a document by its place, with recorded names; what is not known has no place."""
    renamed = _renamed(document)
    labels = labels_of(renamed)
    answers: Answers = {}
    for place, value in _leaves(renamed, "", labels):
        recorded = _moved(place)
        if LEFT_OUT.search(recorded):
            continue
        if recorded in answers:
            raise ValueError(f"two values have the place {recorded}: see RENAMED and MOVED")
        if isinstance(value, str):
            if value.startswith("=") or TEXTS.search(recorded):
                answers[recorded] = f"={value.removeprefix('=')}"
        elif not math.isfinite(value):
            answers[recorded] = f"={value}"
        else:
            answers[recorded] = float(f"{float(value):.16g}")
    return answers


def unique(names: Iterable[str]) -> list[str]:
    """The names, where the second of equals has ` #2` behind it."""
    seen: Counter[str] = Counter()
    told = []
    for name in names:
        seen[name] += 1
        told.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return told


def _renamed(value: Any) -> Any:
    """A document with the recorded names in place of today's."""
    if isinstance(value, Mapping):
        return {RENAMED.get(str(name), str(name)): _renamed(part) for name, part in value.items()}
    return [_renamed(part) for part in value] if isinstance(value, (list, tuple)) else value


def _leaves(value: Any, place: str, labels: Mapping[str, str]) -> Iterator[tuple[str, Value]]:
    """Places and values of a document."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(part, _below(place, labels.get(name, name)), labels)
    elif isinstance(value, list):
        called = ENTRIES.get(place)
        plain = called is None or not all(isinstance(entry, Mapping) for entry in value)
        numbers = [str(number) for number in range(len(value))]
        names = numbers if plain else [called(_relabelled(entry, labels)) for entry in value]
        for name, part in zip(unique(names), value, strict=True):
            yield from _leaves(part, _below(place, name), labels)
        if not plain:
            yield _below(place, "count"), float(len(value))
    elif isinstance(value, (bool, int, float)):
        yield place, float(value)
    elif isinstance(value, str):
        yield place, f"={labels[value]}" if value in labels else value


def _relabelled(entry: Mapping[str, Any], labels: Mapping[str, str]) -> Mapping[str, Any]:
    """An entry with the candidates that it names called as in keys."""
    return {name: labels.get(part, part) if isinstance(part, str) else part for name, part in entry.items()}


def _below(place: str, name: str) -> str:
    name = name.replace("/", "|")
    return f"{place}/{name}" if place else name


def _moved(place: str) -> str:
    for pattern, recorded in MOVED:
        if re.search(pattern, place):
            return re.sub(pattern, recorded, place, count=1)
    return place
