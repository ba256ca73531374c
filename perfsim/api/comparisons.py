"""`perfsim.comparison`: published figures beside a law or equations."""

from __future__ import annotations

from pathlib import Path

from perfsim.api.naming import Named, writing
from perfsim.catalog import Catalog
from perfsim.errors import within_floats
from perfsim.report.comparison import write_comparison
from perfsim.studies.comparisons.compare import compare
from perfsim.studies.comparisons.spec import Comparison, load_comparison


@within_floats
def comparison(name: Named, *, catalog: Catalog | None = None) -> Comparison:
    """Answer a comparison: a name of the catalogue, or the path of a YAML file.

    Raises InputError for what is wrong in the file, and what the predictions and laws of its subject raise.
    """
    return compare(load_comparison(str(name), catalog))


def save_comparison(result: Comparison, folder: str | Path) -> Path:
    """Write the page and `summary.json`; returns the page."""
    with writing(folder) as path:
        return write_comparison(result, path)
