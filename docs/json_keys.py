"""What the keys of JSON documents mean, read from the fields and properties that they are made of."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from perfsim.convergence.time_to_accuracy import TimeToAccuracy
from perfsim.evidence.cases import StepCase
from perfsim.evidence.score import CaseBand, Scored
from perfsim.prediction.bands import Accuracy, Traits
from perfsim.prediction.planner import Search
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.risk import Ranked
from perfsim.specs.layout import AXES, ParallelLayout, StreamingLayout
from perfsim.strategies.plan import Plan
from perfsim.studies.answers import Answer, Outcome, PointResult, StudyResult
from perfsim.studies.shortlist import Entry, Nearby, Planned
from perfsim.studies.solve import Solution, Solved, Tried
from perfsim.studies.variants import SweepResult

Classes = tuple[type, ...]
ROOTS: Mapping[str, Classes] = {
    "run": (Prediction,),
    "plan": (Planned, Search, Prediction),
    "plan.shortlist": (Entry, TimeToAccuracy),
    "plan.trials": (Prediction, Entry),
    "ranks": (Ranked,),
    "nearby": (Nearby,),
    "study": (StudyResult,),
    "study.candidates": (Answer,),
    "sweep": (SweepResult, StudyResult),
    "sweep.points": (PointResult, Prediction, Answer, TimeToAccuracy),
    "solve": (Solved,),
    "solve.solutions": (Solution,),
    "solve.tried": (Tried,),
    "solve.points": (PointResult, Prediction, Answer, TimeToAccuracy),
    "validate": (Scored,),
    "validate.cases": (Scored, CaseBand, StepCase),
    "layout": (ParallelLayout, StreamingLayout, Plan),
    "batch_curve": (Prediction,),
    "bill": (Outcome,),
    "families_traits": (Traits, Prediction, ParallelLayout),
    **dict.fromkeys(
        [
            "summary",
            "summary_predicted",
            "summary_asked",
            "baseline",
            "classes",
            "families",
            "families_asked",
            "families_baseline",
        ],
        (Accuracy,),
    ),
}
"""Classes of a document, and what a key's own class lacks, by the key; the first that has a key counts."""
BY_NAME = ("classes", "families", "families_asked", "families_baseline", "families_traits", "without_release")
"""Mappings of no field; the keys of others are known by their annotation."""
FIELDS = {"step_breakdown_s": "breakdown_s", "closest_memory_share": "closest_share"}
"""Fields of keys with another name."""
NO_FIELD: Mapping[str, str] = {
    "classes": "Scores by class of runs: generation of chips, 16 bits or fewer, dense or experts.",
    "band_coverage": "Share of the measured times that lie in their 90 % band.",
    "band_width": "Mean half-width of the 90 % bands in log time.",
    "interval_score": "Mean width of the bands plus 20 times what lies outside, in log time; less is better.",
    "bias": "Mean of the relative errors.",
    "mape": "Mean of the absolute relative errors.",
    "kendall_tau": "Rank correlation of layouts, predicted against measured.",
    "regret": "How much longer the layout takes that is predicted to be the fastest than the fastest.",
    "memory_limit": "Share of a device's memory that a layout may use.",
    "currency": "Of the money.",
    "screened": "Number of layouts.",
    "feasible": "Number of layouts that fit in memory.",
    "cost": "Money of the run, typical; null without a price.",
    "energy_kwh": "Energy of the run, typical.",
    "report": "Where the page is.",
    "version": "The version of perfsim.",
    "tokens_per_s_per_device": "Tokens a second over devices.",
    "equals": "The fewest devices of the grid that are as fast as a point of another machine.",
    "executed": "Orders whose numbers are computed; in others tasks read the same.",
    "atlas": "Who is first at each place of the maps of a grid of models.",
    "equal_time": "The interpolated number of devices that is as fast, with its band.",
    "validate.file": "The file of runs.",
    "validate.kind": "`step_time` or `convergence`.",
    "validate.count": "Runs of the file.",
    "validate.failed": "Runs without a prediction, with the reason.",
    "validate.sweeps": "Runs of one model in several layouts, with the rank correlation.",
    "validate.without_release": "The summary without each software release that one run has.",
    "validate.baseline.efficiency": "The share of peak that explains the runs best, as one constant.",
    "framework_because": "Why the framework was chosen where the run names none.",
    "hidden_communication": "Share of the step in which communication is hidden; of several runs, the most.",
    "ignored": "Settings of the run that perfsim does not model.",
    "measured_peak_gib": "Published peak memory of the fullest device in GiB.",
    "asked_s": "Predicted seconds where only model, machine, sequence, precision and layout are given.",
    "predicted_peak_gib": "Predicted peak memory of the fullest device in GiB.",
    "validate.memory.n": "Runs that print their peak memory.",
    "validate.memory.mean": "Mean of the absolute relative errors of peak memory.",
    "validate.memory.median": "Median of the absolute relative errors of peak memory.",
    "validate.memory.p90": "90th percentile of the absolute relative errors of peak memory.",
    "validate.cases[].band_s[]": "90 % band of the predicted step time.",
}
"""Keys that documents compute, by their name or by the verb and the path."""


class Note(NamedTuple):
    """The first sentence on a field or property, its annotation, and the classes that the latter names."""

    words: str = ""
    annotation: str = ""
    classes: Classes = ()


def told(verb: str, path: Sequence[str]) -> tuple[str, str]:
    """The path of a key in a verb's document, with `*` for names that are data, and its meaning.

    The meaning is empty where nothing tells it.
    """
    classes, note, parts, key = ROOTS.get(verb, ()), Note(), [], ""
    for part in path:
        above, key = key, part.replace("[]", "")
        field = FIELDS.get(key, key)
        known = [notes(cls)[field] for cls in classes if field in notes(cls)]
        if known:
            note = next((own for own in known if own.words), known[0])
        elif re.search("Mapping|dict", note.annotation) or above in BY_NAME:
            parts.append(part.replace(key, "*"))
            continue
        else:
            note = Note()
        classes = (*note.classes, *(ROOTS.get(f"{verb}.{key}") or ROOTS.get(key, ())))
        parts.append(part)
    plain = ".".join(parts)
    return plain, note.words or NO_FIELD.get(f"{verb}.{plain}") or NO_FIELD.get(key, "")


@cache
def notes(cls: type) -> dict[str, Note]:
    """Fields and properties of a class of perfsim and of its parents there."""
    out: dict[str, Note] = {}
    for base in reversed([base for base in cls.__mro__ if base.__module__.startswith("perfsim")]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for statement, after in pairwise([*getattr(body, "body", []), None]):
            if isinstance(statement, ast.AnnAssign):
                constant = after.value if isinstance(after, ast.Expr) else None
                words = str(constant.value) if isinstance(constant, ast.Constant) else ""
                if base is ParallelLayout:
                    words = AXES[ast.unparse(statement.target)].help
                out[ast.unparse(statement.target)] = _note(words, statement.annotation, base)
            elif isinstance(statement, ast.FunctionDef) and statement.returns is not None:
                out[statement.name] = _note(ast.get_docstring(statement) or "", statement.returns, base)
    return out


def _note(words: str, annotation: ast.expr, cls: type) -> Note:
    text, names = ast.unparse(annotation), vars(sys.modules[cls.__module__])
    inner = [names.get(name) or _anywhere(name) for name in re.findall(r"[A-Z]\w+", text)]
    own = tuple(value for value in inner if inspect.isclass(value) and value.__module__.startswith("perfsim"))
    return Note(" ".join(words.partition("\n\n")[0].split()), text, own)


def _anywhere(name: str) -> object:
    """The class of that name in any module of perfsim: one that a module imports for type checkers only."""
    modules = [module for path, module in list(sys.modules.items()) if path.startswith("perfsim.")]
    return next((vars(module)[name] for module in modules if name in vars(module)), None)
