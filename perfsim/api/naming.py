"""Objects in place of names: whatever a call takes by name it also takes as the thing itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfsim.calibration import ClusterCalibration
from perfsim.catalog import Catalog
from perfsim.errors import CatalogError, InputError, PerfsimError, Problem
from perfsim.hardware import SystemSpec
from perfsim.prediction.cluster import cluster_named
from perfsim.spec import Spec
from perfsim.workload import TrainingRecipe, TransformerConfig

Named = str | Path
"""A name of the catalogue, or the path of a YAML file."""
ERAS = (("2023-07", "llm_2024"), ("", "llm_2021"))
"""Recipes by the first month in which the models that they train were published.

FlashAttention-2 (2307.08691, July 2023) parts the two; a model that does not say when counts as earlier.
"""


def described(given: Named | Spec, kind: str, catalog: Catalog) -> Any:
    """The description of a kind that is given, by name or as itself. Raises InputError for anything else."""
    if isinstance(given, Spec):
        return given
    if isinstance(given, (str, Path)):
        if kind == "model" and Path(given).is_file():
            from perfsim.interop.models import model_named  # readers of many tools

            return model_named(str(given), catalog)
        return catalog.load(kind, str(given))
    raise InputError([_neither(given, kind)])


def recipe_for(
    given: Named | TrainingRecipe | None, model: TransformerConfig, catalog: Catalog
) -> TrainingRecipe:
    """The recipe that is given, else that of the model's age, which has the model's positions."""
    if given is None:
        released = getattr(model, "released", None) or ""  # what is no model is refused with the question
        given = next(name for since, name in ERAS if released >= since)
    recipe: TrainingRecipe = described(given, "recipe", catalog)
    if recipe.name not in {name for _, name in ERAS} or not isinstance(model, TransformerConfig):
        return recipe
    length = min(recipe.seq_length, model.max_position_embeddings)
    return recipe.model_copy(update={"seq_length": length})


def system_of(given: Named | SystemSpec, catalog: Catalog) -> SystemSpec:
    """The system that is given, by name or as itself."""
    system: SystemSpec = described(given, "system", catalog)
    return system


def names_of(given: Any, argument: str) -> list[str]:
    """One name or several as a list. Raises InputError for what are no names."""
    names = [given] if isinstance(given, str) else given
    listed = list(names) if isinstance(names, Iterable) else [names]
    if not all(isinstance(name, str) for name in listed):
        raise InputError(f"{argument}: names such as ['3d', 'weight-streaming'] are expected, not {given!r}")
    return listed


@contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """Turns what the file system refuses into a PerfsimError that names the path."""
    try:
        yield Path(path)
    except OSError as error:
        raise PerfsimError(f"{path}: {error.strerror or error}") from None


@contextmanager
def about(given: Any) -> Iterator[None]:
    """Gives a problem with a description that was read, as a lack of constants, the place of its file."""
    try:
        yield
    except CatalogError as error:
        if not (isinstance(given, (str, Path)) and Path(given).is_file()):
            raise
        placed = (
            problem if problem.file else replace(problem, file=str(given), line=1)
            for problem in error.problems
        )
        raise CatalogError(list(placed)) from None


def cluster_of(given: Named | ClusterCalibration | None, catalog: Catalog) -> ClusterCalibration | None:
    """The user's own measurements, by name or as themselves; None where there are none."""
    return cluster_named(str(given), catalog) if isinstance(given, (str, Path)) else given


def _neither(given: Any, kind: str) -> Problem:
    return Problem(
        f"{kind}: {type(given).__name__} is not what is expected",
        help=f"give a name of the catalogue, the path of a YAML file, or an object (Catalog().{kind}s[...])",
    )
