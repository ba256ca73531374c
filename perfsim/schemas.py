"""JSON Schemas of every kind of YAML file that perfsim reads, studies, sweeps and runs included."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from perfsim.catalog import FOLDERS
from perfsim.catalog.kinds import classes_of
from perfsim.catalog.schema import yaml_schema
from perfsim.errors import UnknownNameError
from perfsim.files import write_file
from perfsim.fitting.cluster_fit import MeasuredFile
from perfsim.published.cases import CaseFile, ConvergenceFile
from perfsim.studies.comparisons.spec import ComparisonSpec
from perfsim.studies.spec import StudySpec
from perfsim.sweeps.spec import SweepSpec

OWN: dict[str, type[BaseModel]] = {
    "study": StudySpec,
    "sweep": SweepSpec,
    "comparison": ComparisonSpec,
    "cases": CaseFile,
    "convergence": ConvergenceFile,
    "measured": MeasuredFile,
}
"""Kinds outside the catalogue; `validate` reads cases, `calibrate steps` reads measured steps."""
KINDS = tuple(dict.fromkeys([*FOLDERS, *OWN]))


def schema_of(kind: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of files of a kind; InputError suggests the nearest kind."""
    if kind not in KINDS:
        raise UnknownNameError("kind", kind, KINDS)
    classes: Sequence[type[BaseModel]] = (OWN[kind],) if kind in OWN else classes_of(kind)
    schema = yaml_schema(kind, classes)
    if kind == "sweep":
        # Any dotted path of the study may be an axis, so its name is not checked here.
        for name in ("GridSpec", "GridSpec.changes"):
            schema["$defs"][name]["additionalProperties"] = {"type": "array", "minItems": 1}
    return schema


def write_schemas(folder: Path, kinds: Sequence[str] = KINDS) -> list[Path]:
    """Write one file per kind, `<kind>.schema.json`; creates the folder."""
    return [write_file(folder / f"{kind}.schema.json", schema_text(schema_of(kind))) for kind in kinds]


def schema_text(schema: dict[str, Any]) -> str:
    """Deterministic JSON text, keys in their own order, with a final newline."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
