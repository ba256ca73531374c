"""Reads the rows of a case file; a row that cannot be read is refused alone, by name and line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field

from perfsim.catalog import Catalog, LocatedMapping, default_catalog, load_mapping
from perfsim.catalog.nodes import Mark, Node
from perfsim.catalog.reader import build
from perfsim.errors import CatalogError, InputError, Problem
from perfsim.published.cases import CaseSpec, ConvergenceCase, StepCase, system_of_device
from perfsim.sizes import MOST_CASES
from perfsim.units import number

CaseT = TypeVar("CaseT", StepCase, ConvergenceCase)


class _Envelope(CaseSpec):
    """A case file whose rows are not read yet."""

    schema_version: Annotated[int, *number(1, 1000)] = Field(alias="schema")
    cases: Annotated[tuple[Any, ...], Field(max_length=MOST_CASES)]


@dataclass(frozen=True)
class RefusedRow:
    """A row that is no case, with what is wrong in it; its values are as written."""

    id: str
    line: int
    problems: tuple[Problem, ...]
    values: Any

    @property
    def reason(self) -> str:
        """Everything that is wrong with the row, in one line."""
        return "; ".join(
            f"{problem.message} ({problem.help})" if problem.help else problem.message
            for problem in self.problems
        )


@dataclass(frozen=True)
class CaseRows(Generic[CaseT]):
    """The rows of a file, read and refused."""

    cases: tuple[CaseT, ...]
    lines: tuple[int, ...]
    """Line in which each case begins."""
    refused: tuple[RefusedRow, ...]


def step_rows(path: Path, catalog: Catalog | None = None) -> CaseRows[StepCase]:
    """The rows of a file of step times. Raises CatalogError only for what belongs to no row."""
    catalog = catalog or default_catalog()
    return _read(load_mapping(path, catalog), StepCase, catalog)


def step_cases(path: Path, catalog: Catalog | None = None) -> tuple[StepCase, ...]:
    """The cases of a file of step times without the rows that are refused; raises as `step_rows`."""
    return step_rows(path, catalog).cases


def convergence_rows(path: Path, catalog: Catalog | None = None) -> CaseRows[ConvergenceCase]:
    """The rows of a file of convergence points; raises as `step_rows`."""
    catalog = catalog or default_catalog()
    return _read(load_mapping(path, catalog), ConvergenceCase, catalog)


def _read(mapping: LocatedMapping, model: type[CaseT], catalog: Catalog) -> CaseRows[CaseT]:
    listed = mapping.node.mapping.get("cases")
    nodes = [] if listed is None else listed.sequence
    starts = [node.mark for node in nodes]
    by_row = [_within(mapping.problems, start, after) for start, after in _spans(starts)]
    taken = {problem for problems in by_row for problem in problems}
    of_file = [problem for problem in mapping.problems if problem not in taken]
    build(LocatedMapping(mapping.path, mapping.node, of_file), (_Envelope,), catalog, mapping.path.stem)
    read: dict[str, tuple[CaseT, int]] = {}
    refused = []
    for position, (node, problems) in enumerate(zip(nodes, by_row, strict=True), 1):
        try:
            case = _case(LocatedMapping(mapping.path, node, problems), model, catalog)
            if (same := read.get(case.id)) is not None:
                raise CatalogError(
                    [node.mapping["id"].mark.problem(f"the case in line {same[1]} has the same id")]
                )
            read[case.id] = case, node.mark.line
        except CatalogError as error:
            refused.append(_refused(node, position, error.problems))
    return CaseRows(
        tuple(case for case, _ in read.values()), tuple(line for _, line in read.values()), tuple(refused)
    )


def _case(row: LocatedMapping, model: type[CaseT], catalog: Catalog) -> CaseT:
    """The case of a row. Raises CatalogError with everything that is wrong with it."""
    if not row.node.is_mapping:
        message = "a mapping (key: value) is expected"
        raise CatalogError([*row.problems, row.node.mark.problem(message)])
    case = build(row, (model,), catalog, "case")
    if isinstance(case, StepCase):
        try:
            system_of_device(case.system.device, catalog)
        except InputError as error:
            place = row.node.mapping["system"].mapping["device"].mark
            problems = [place.problem(problem.message, problem.help) for problem in error.problems]
            raise CatalogError(problems) from None
        if case.framework is not None:
            _check_framework(row, case.framework, catalog)
    return case


def _check_framework(row: LocatedMapping, name: str, catalog: Catalog) -> None:
    """Raise CatalogError at the line of a framework that the catalogue lacks."""
    try:
        catalog.find("framework", name)
    except CatalogError as error:
        place = row.node.mapping["framework"].mark
        problems = [place.problem(problem.message, problem.help) for problem in error.problems]
        raise CatalogError(problems) from None


def _refused(node: Node, position: int, problems: Sequence[Problem]) -> RefusedRow:
    values = node.plain()
    named = values.get("id") if isinstance(values, dict) else None
    line = next((problem.line for problem in problems if problem.line), node.mark.line)
    return RefusedRow(str(named or f"row {position}"), line, tuple(problems), values)


def _spans(starts: Sequence[Mark]) -> list[tuple[Mark, Mark | None]]:
    return list(zip(starts, [*starts[1:], None], strict=False))


def _within(problems: Sequence[Problem], start: Mark, after: Mark | None) -> list[Problem]:
    """The problems between two places of the file."""
    return [
        problem
        for problem in problems
        if (start.line, start.column) <= (problem.line, problem.column)
        and (after is None or (problem.line, problem.column) < (after.line, after.column))
    ]
