"""`perfsim.validate`: predictions beside measured runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfsim.api.frames import Row, frame, html_table
from perfsim.catalog import Catalog
from perfsim.errors import InputError, Problem, within_floats
from perfsim.published.plans import public_cases
from perfsim.validation.validate import validate_file

if TYPE_CHECKING:
    import pandas as pd


@within_floats
def validate(file: str | Path, catalog: Catalog | None = None) -> Validation:
    """Predict the runs of a file of cases and compare with what was measured.

    `published_cases` lists the files that come with perfsim. Raises InputError for a file that is not there
    or that is malformed; a case that cannot be predicted is listed in `failed`.
    """
    if not isinstance(file, (str, Path)):
        raise InputError(f"validate: a path is expected, not {file!r}")
    path = Path(file)
    if not path.is_file():
        raise InputError([Problem("there is no such file", file=str(path))])
    return Validation(validate_file(path, catalog))


def published_cases() -> list[Path]:
    """The files of published runs that come with perfsim."""
    return public_cases()


@dataclass(frozen=True, repr=False)
class Validation:
    """Errors of the predictions of one file, case by case and together."""

    document: Mapping[str, Any]
    """All of it, as `perfsim validate --json` prints it."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """Number of scored cases, median, mean and 90th percentile of the error, and bias."""
        summary: Mapping[str, Any] = self.document["summary"]
        return summary

    @property
    def baseline(self) -> Mapping[str, Any]:
        """The same for one constant efficiency in place of the model."""
        baseline: Mapping[str, Any] = self.document["baseline"]
        return baseline

    @property
    def cases(self) -> list[Row]:
        """One row a case: measured, predicted, error."""
        return [dict(case) for case in self.document["cases"]]

    @property
    def failed(self) -> list[Row]:
        """Cases that could not be predicted, with the reason."""
        return [dict(case) for case in self.document.get("failed", ())]

    def to_pandas(self) -> pd.DataFrame:
        """`cases` as a frame. Raises PerfsimError where pandas is not installed."""
        return frame(self.cases)

    def __repr__(self) -> str:
        return f"<validation of {self.document['file']}: {self._line()}>"

    def _line(self) -> str:
        figures = {name: value for name, value in self.summary.items() if isinstance(value, (int, float))}
        return ", ".join(f"{name} {value:.3g}" for name, value in figures.items())

    def _repr_html_(self) -> str:
        return f"<p><strong>{escape(self._line())}</strong></p>{html_table(self.cases)}"
