"""What all tests share: how hypothesis searches, where the checkout is, and results of studies."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from pydantic import BaseModel

import perfsim.testing.toys
from perfsim.base.spec import DatedSpec
from perfsim.specs.calibration import MOST_STANDARD_ERROR, Calibration, FrameworkCalibration

# No deadline anywhere: a slow machine is not a wrong result. On CI the same examples each time.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
# A terminal of 100 columns, whatever the tests run in; tests of widths name theirs.
os.environ["COLUMNS"] = "100"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout (or of the unpacked source distribution)."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def toys() -> ModuleType:
    """Small systems, models and prices."""
    return perfsim.testing.toys


@pytest.fixture(scope="session")
def factory() -> ModuleType:
    """The module that makes results of studies; loaded by path, because tests are not a package."""
    path = Path(__file__).parent / "unit" / "report" / "factory.py"
    spec = importlib.util.spec_from_file_location("report_factory", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def constants_of() -> Callable[[Calibration], dict[str, Any]]:
    """The numbers of a calibration by path, entries of a list by name: `gemm.tiles.256x128.efficiency`."""

    def entry(part: Any) -> str:
        algorithm = getattr(part, "algorithm", "")
        return getattr(part, "label", "") or "-".join(filter(None, [algorithm, getattr(part, "name", "")]))

    def numbers(value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, BaseModel):
            value = {name: part for name, part in value if name != "shape"}
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            value = {entry(part): part for part in value}
        if isinstance(value, dict):
            for key, part in value.items():
                yield from numbers(part, f"{path}.{key}".lstrip("."))
        elif type(value) in (int, float) or (
            isinstance(value, tuple) and value and type(value[0]) is not str
        ):
            yield path, value

    metadata = {*DatedSpec.model_fields, "kind", "chip", "fit"}
    return lambda calibration: dict(numbers({k: v for k, v in calibration if k not in metadata}, ""))


@pytest.fixture(scope="session")
def unaccounted(constants_of: Callable[[Calibration], dict[str, Any]]) -> Callable[[Calibration], list[str]]:
    """Paths of the constants of a calibration without evidence.

    A fitted constant needs a small relative standard error, or a source or reason of its own (one for the
    whole fitted group is not enough); any other constant a source or reason. Runs determine what a framework
    hides less well than tables do how fast a device is.
    """

    def covers(key: str, path: str) -> bool:
        return path == key or path.startswith(f"{key}.")

    def find(calibration: Calibration) -> list[str]:
        most = 1 / 2 if isinstance(calibration, FrameworkCalibration) else MOST_STANDARD_ERROR
        without = []
        for path in constants_of(calibration):
            record = max((key for key in calibration.fit if covers(key, path)), key=len, default="")
            keys = (*calibration.sources, *calibration.assumed)
            named = any(covers(key, path) and len(key) > len(record) for key in keys)
            errors = calibration.fit[record].standard_errors if record else {}
            fitted = [error for name, error in errors.items() if f".{path}".endswith(f".{name}")]
            if not named and not (fitted and max(fitted) < most):
                without.append(path)
        return without

    return find


@pytest.fixture(scope="session")
def point_keys() -> frozenset[str]:
    """What the JSON interface says of every point."""
    asked = {"model", "strategy", "system", "num_devices", "layout", "global_batch_size"}
    shares = {"mfu", "bubble_fraction", "exposed_communication_fraction"}
    return frozenset(asked | shares | {"step_time_s", "tokens_per_s", "peak_memory_bytes"})


@pytest.fixture(scope="session")
def candidate_keys(point_keys: frozenset[str]) -> frozenset[str]:
    """What it says of every candidate of a study, whose model stands next to the candidates."""
    of_accuracy = {"steps", "time_to_accuracy_s", "time_to_accuracy_band_s"}
    return (point_keys - {"model"}) | of_accuracy
