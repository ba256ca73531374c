"""perfsim: how to train a model, on what, and how long until it is good.

    import perfsim as ps

    ps.study("gpt3_20b", compare=["3d", "weight-streaming"]).verdict
    ps.predict(model="llama2_70b", system="dgx-h100", devices=256, batch=1024).step_time_s

Nothing heavy is imported until it is asked for. Errors are `PerfsimError`; nothing prints.
"""

from __future__ import annotations

from perfsim.version import __version__ as __version__

TYPE_CHECKING = False
"""As in `typing`, which would be read before the command line can answer an interrupt."""
if TYPE_CHECKING:
    from typing import Any

    from perfsim.api.answers import SolveAnswer as SolveAnswer
    from perfsim.api.answers import Study as Study
    from perfsim.api.answers import StudyAnswer as StudyAnswer
    from perfsim.api.answers import SweepAnswer as SweepAnswer
    from perfsim.api.answers import solve as solve
    from perfsim.api.answers import study as study
    from perfsim.api.answers import sweep as sweep
    from perfsim.api.planning import PlanAnswer as PlanAnswer
    from perfsim.api.planning import plan as plan
    from perfsim.api.questions import predict as predict
    from perfsim.api.tools import Model as Model
    from perfsim.api.tools import Validation as Validation
    from perfsim.api.tools import validate as validate
    from perfsim.base.errors import PerfsimError as PerfsimError
    from perfsim.catalog import Catalog as Catalog
    from perfsim.evidence.cases import published_cases as published_cases
    from perfsim.interop.formats import import_file as import_file
    from perfsim.prediction.prediction import Prediction as Prediction
    from perfsim.prediction.question import Question as Question
    from perfsim.studies.comparisons import comparison as comparison

_HOMES = {
    name: module
    for module, names in {
        "perfsim.api.answers": "SolveAnswer Study StudyAnswer SweepAnswer solve study sweep",
        "perfsim.api.planning": "PlanAnswer plan",
        "perfsim.api.questions": "predict",
        "perfsim.api.tools": "Model Validation validate",
        "perfsim.base.errors": "PerfsimError",
        "perfsim.catalog": "Catalog",
        "perfsim.evidence.cases": "published_cases",
        "perfsim.interop.formats": "import_file",
        "perfsim.prediction.prediction": "Prediction",
        "perfsim.prediction.question": "Question",
        "perfsim.studies.comparisons": "comparison",
    }.items()
    for name in names.split()
}
"""The module in which each public name is found when it is first asked for."""


def __getattr__(name: str) -> Any:
    """Import a public name; `study` and `sweep` are functions here, and packages under their full names."""
    if name not in _HOMES:
        raise AttributeError(f"module 'perfsim' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return ["__version__", *_HOMES]
