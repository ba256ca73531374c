"""`perfsim.plan`: the layouts of a machine that may be the fastest, and what runs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfsim.base.errors import CatalogError, InputError, PerfsimError, Problem, within_floats
from perfsim.base.spec import Spec
from perfsim.catalog import Catalog, default_catalog
from perfsim.prediction.predict import predict as predict_question
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.question import (
    MEMORY_LIMIT,
    Detail,
    PerturbationSpec,
    Question,
    cluster_named,
    parse_perturbations,
)
from perfsim.specs.calibration import ClusterCalibration
from perfsim.specs.hardware import SystemSpec
from perfsim.specs.model import TransformerConfig
from perfsim.specs.recipe import Layout, TrainingRecipe
from perfsim.strategies import Strategy

if TYPE_CHECKING:
    import pandas as pd


# Objects in place of names: whatever a call takes by name it also takes as the thing itself.

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
            from perfsim.interop import model_named  # readers of many tools

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


# Answers as tables: rows for a notebook, and pandas frames where pandas is installed.

Row = dict[str, Any]


@dataclass(frozen=True)
class Rows(Sequence[Row]):
    """Rows with the same columns; quantities are in SI units, named by the suffix of their column."""

    rows: tuple[Row, ...]

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a frame. Raises PerfsimError where pandas is not installed."""
        return frame(self.rows)

    def save(self, path: str | Path) -> Path:
        """Write the rows as a .csv file, or as a .parquet file with the extra `[parquet]`."""
        return save_table(self.rows, path)

    def _repr_html_(self) -> str:
        return html_table(self.rows)


def save_table(rows: Sequence[Row], path: str | Path) -> Path:
    """Write rows as .csv or .parquet. Raises PerfsimError for what cannot be written."""
    from perfsim.report.table import write_table

    try:
        return write_table(rows, Path(path))
    except OSError as error:
        raise PerfsimError(f"{path}: {error.strerror or error}") from None


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as a pandas frame. Raises PerfsimError where pandas is not installed."""
    try:
        import pandas as pd
    except ImportError:
        raise PerfsimError("to_pandas needs pandas: pip install 'perfsim[pandas]'") from None
    return pd.DataFrame(list(rows))


def html_table(rows: Sequence[Row]) -> str:
    """Rows as an HTML table for a notebook; all text is escaped."""
    if not rows:
        return "<p>no rows</p>"
    head = "".join(f"<th>{escape(str(name))}</th>" for name in rows[0])
    body = "".join(_html_row(row) for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _html_row(row: Row) -> str:
    return "<tr>" + "".join(f"<td>{escape(_cell(value))}</td>" for value in row.values()) + "</tr>"


def _cell(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


# `perfsim.predict`: one optimizer step of one model on one machine.


@within_floats
def predict(
    *,
    model: Named | TransformerConfig,
    system: Named | SystemSpec,
    devices: int,
    strategy: str | Strategy | None = None,
    layout: str | Layout | None = None,
    batch: int | None = None,
    recipe: Named | TrainingRecipe | None = None,
    memory_limit: float = MEMORY_LIMIT,
    cluster: Named | ClusterCalibration | None = None,
    perturb: str | PerturbationSpec | None = None,
    detail: Detail = "layer",
    expand: str = "",
    catalog: Catalog | None = None,
) -> Prediction:
    """Predict one step.

    Model, system and recipe are names of the catalogue, paths of YAML files or objects. Without `strategy`
    the system's own is taken, without `layout` (`tp=8,pp=4,dp=8,mbs=1`) the planner chooses, without
    `batch` (sequences over all devices) the recipe's or 8 a device, without `recipe` that of the model's age
    (`llm_2021`, or `llm_2024` for models published since July 2023). The planner leaves out layouts above
    `memory_limit`, a share of a GPU's memory, unless nothing else fits. `cluster` scales step times by the
    user's own measurements, `perturb` disturbs the step (`straggler=1.3@rank5`), `detail` is how finely
    weights stream, `expand` writes collectives as steps (`data.all_reduce=tree`).

    Raises InputError for what cannot be asked and PlanError where no plan fits, both with all reasons.
    """
    question = question_of(
        model=model,
        system=system,
        devices=devices,
        strategy=strategy,
        layout=layout,
        batch=batch,
        recipe=recipe,
        memory_limit=memory_limit,
        cluster=cluster,
        perturb=perturb,
        detail=detail,
        expand=expand,
        catalog=catalog,
    )
    return predict_question(question)


def question_of(
    *,
    model: Named | TransformerConfig,
    system: Named | SystemSpec,
    devices: int,
    strategy: str | Strategy | None = None,
    layout: str | Layout | None = None,
    batch: int | None = None,
    recipe: Named | TrainingRecipe | None = None,
    memory_limit: float = MEMORY_LIMIT,
    cluster: Named | ClusterCalibration | None = None,
    perturb: str | PerturbationSpec | None = None,
    detail: Detail = "layer",
    expand: str = "",
    catalog: Catalog | None = None,
) -> Question:
    """The question that `predict` answers, checked. Raises InputError for what cannot be asked."""
    catalog = catalog or default_catalog()
    perturb = perturb or None
    trained = described(model, "model", catalog)
    question = Question(
        model=trained,
        recipe=recipe_for(recipe, trained, catalog),
        system=system_of(system, catalog),
        devices=devices,
        strategy="" if strategy is None else strategy,
        layout=None if layout == "" else layout,
        batch=batch,
        memory_limit=memory_limit,
        cluster=cluster_of(cluster, catalog),
        perturbations=parse_perturbations(perturb) if isinstance(perturb, str) else perturb,
        detail=detail,
        expand=expand,
    )
    with about(system):
        question.check()
    return question
