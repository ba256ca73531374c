"""`perfsim.predict` and what all answers share: arguments of a question, rows, tables, files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import fields
from html import escape
from importlib import import_module
from inspect import Parameter, getdoc, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from perfsim.base.errors import InputError, PerfsimError, within_floats
from perfsim.base.files import writing
from perfsim.catalog import Catalog
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.prediction import predict as predict_question
from perfsim.prediction.question import ASKED, Asker, question_of

if TYPE_CHECKING:
    import pandas as pd

Named = str | Path
"""A name of the catalogue, or the path of a YAML file."""
Function = TypeVar("Function", bound=Callable[..., Any])


def asks(asker: Asker) -> Callable[[Function], Function]:
    """Give a function of `**given` the signature and the documentation of the question's fields."""

    def declared(function: Function) -> Function:
        known = [entry for entry in ASKED.values() if asker in entry.by]
        arguments = [
            Parameter(
                entry.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if entry.required else None if entry.usual else entry.default,
                annotation=entry.annotation,
            )
            for entry in known
        ]
        seen = signature(function)
        more = [known for known in seen.parameters.values() if known.kind is not Parameter.VAR_KEYWORD]
        function.__signature__ = seen.replace(parameters=[*arguments, *more])  # type: ignore[attr-defined]
        lines = [f"- `{entry.name}`: {entry.help}{entry.otherwise}" for entry in known]
        function.__doc__ = "\n".join([getdoc(function) or "", *lines])
        return function

    return declared


@asks("run")
@within_floats
def predict(*, catalog: Catalog | None = None, **given: Any) -> Prediction:
    """Predict one step.

    Model, system, recipe and cluster are names of the catalogue, paths of YAML files or objects. A value
    inside one is changed by its path, written as in YAML: `**{"recipe.precision": "fp8"}`.

    Raises InputError for what cannot be asked and PlanError where no plan fits, both with all reasons.
    """
    return predict_question(question_of(given, catalog))


def names_of(given: Any, argument: str) -> list[str]:
    """One name or several as a list. Raises InputError for what are no names."""
    names = [given] if isinstance(given, str) else given
    listed = list(names) if isinstance(names, Iterable) else [names]
    if not all(isinstance(name, str) for name in listed):
        raise InputError(f"{argument}: names such as ['3d', 'weight-streaming'] are expected, not {given!r}")
    return listed


# Answers as tables: rows for a notebook, and pandas frames where pandas is installed.

Row = dict[str, Any]


class Rows(list[Row]):
    """Rows with the same columns; quantities are in SI units, named by the suffix of their column."""

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a frame. Raises PerfsimError where pandas is not installed."""
        try:
            import pandas as pd
        except ImportError:
            raise PerfsimError("to_pandas needs pandas: pip install 'perfsim[pandas]'") from None
        return pd.DataFrame(list(self))

    def save(self, path: str | Path) -> Path:
        """Write the rows as a .csv file, or as a .parquet file with the extra `[parquet]`."""
        from perfsim.report.table import write_table

        with writing(path) as file:
            return write_table(self, file)

    def _repr_html_(self) -> str:
        """The rows as a table of a notebook; all text is escaped."""
        if not self:
            return "<p>no rows</p>"

        def cell(value: Any) -> str:
            return f"{value:,.4g}" if isinstance(value, float) else str(value)

        head = "".join(f"<th>{escape(str(name))}</th>" for name in self[0])
        lines = ["".join(f"<td>{escape(cell(value))}</td>" for value in row.values()) for row in self]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class Tabular(ABC):
    """An answer that is a table as well, for notebooks."""

    @abstractmethod
    def rows(self) -> Rows:
        """One row an entry, in SI units."""

    def to_pandas(self) -> pd.DataFrame:
        """`rows` as a frame. Raises PerfsimError where pandas is not installed."""
        return self.rows().to_pandas()

    def save_table(self, path: str | Path) -> Path:
        """Write `rows` as a .csv file, or as a .parquet file with the extra `[parquet]`."""
        return self.rows().save(path)

    def _repr_html_(self) -> str:
        said = getattr(self, "verdict", "")
        head = f"<p><strong>{escape(said)}</strong></p>" if said else ""
        return head + self.rows()._repr_html_()


def values_of(row: Any) -> dict[str, Any]:
    """The fields of a row or a result, of which one that knows more is made."""
    return {known.name: getattr(row, known.name) for known in fields(row)}


class Reported(Tabular):
    """An answer that has a page and a JSON document as well, which a module of `perfsim.report` writes."""

    _kind: ClassVar[str]
    """The module, and the last word of the names of its functions."""

    def save(self, folder: str | Path) -> Path:
        """Write the page, `summary.json` and, of a study, a trace of each candidate; returns the page."""
        with writing(folder) as path:
            page: Path = self._reported("write_{}")(self, path)
        return page

    def document(self, report: str = "") -> dict[str, Any]:
        """The answer as `--json` of its verb prints it; `report` is where the page stands."""
        return dict(self._reported("{}_document")(self, report=report))

    def _reported(self, function: str) -> Any:
        """A function of the module, which loads Plotly."""
        return getattr(import_module(f"perfsim.report.{self._kind}"), function.format(self._kind))
