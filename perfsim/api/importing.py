"""`perfsim.Model` and `perfsim.import_file`: models from the files of other tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from perfsim.interop.foreign.formats import import_file as read_file
from perfsim.interop.foreign.formats import read_model
from perfsim.interop.foreign.imported import Imported
from perfsim.workload import TransformerConfig


class Model(TransformerConfig):
    """A model as an object: its fields, or those of a file of another tool."""

    @classmethod
    def from_file(cls, path: str | Path, format: str = "") -> Self:  # noqa: A002  # as `--format`
        """The model of a file that `perfsim import` reads, such as a config.json.

        The format is recognised by the file's content unless it is given. Raises InputError for a file that
        cannot be read, and for a model that perfsim cannot express (a mixture of experts).
        """
        return cls(**read_model(Path(path), format).model_dump())


def import_file(
    path: str | Path,
    format: str = "",  # noqa: A002
    *,
    part: str = "",
    model: str | Path = "",
    system: str = "",
    given: Mapping[str, Any] | None = None,
    more: Sequence[str | Path] = (),
) -> Imported:
    """All that a foreign file says: model, recipe, layout, parameter count, and what was not used.

    `part` chooses the document (model, recipe, measured, convergence). `model` is that of a file without one
    (DeepSpeed), `system` the machine of measured steps, `given` are values by key that the file lacks, and
    `more` are logs of further MLPerf runs. Raises InputError with every problem.
    """
    others = [Path(other) for other in more]
    return read_file(Path(path), format, part=part, model=str(model), system=system, given=given, more=others)
