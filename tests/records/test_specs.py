"""What descriptions accept and say: fields, ranges, defaults, tables; what is read from text, and refused."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import perfsim.specs
from perfsim.base.errors import InputError, PerfsimError, refused_value
from perfsim.base.spec import Spec
from perfsim.base.text import did_you_mean
from perfsim.base.units import accepted_units, format_quantity, parse_quantity, quantity_pattern
from perfsim.catalog import default_catalog
from perfsim.specs.calibration import Calibration
from perfsim.specs.layout import AXES, ParallelLayout, StreamingLayout, layers_of_stages, text_of
from perfsim.specs.layout import parsed_settings as parsed
from perfsim.specs.model import layer_kinds
from perfsim.specs.optimizers import OPTIMIZERS
from perfsim.specs.perturbations import parse_perturbations
from perfsim.specs.precisions import PRECISIONS
from perfsim.specs.prices import PriceSpec
from perfsim.specs.trainers import TRAINERS, Limits, that_run

Recorded = Callable[..., None]
Inputs = dict[str, Any]
PROBES: tuple[Any, ...] = (
    *(-1, 0, 0.5, 10**13, 1e30, True, "zzz", "8 Gb", "8 Gb/s", "1 ns"),
    *([-1], [10**13] * 2, {"bf16": -1}, {"bf16": 1e30}),
)
"""Values of every kind; what is wrong with them tells the range of a field."""


def plain(value: Any) -> Any:
    """A value as JSON holds it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=True)
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset | Iterator):
        return [plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def answer(question: Callable[..., Any], *given: Any) -> Any:
    """What a function gives, or how it refuses."""
    try:
        return plain(question(*given))
    except InputError as error:
        return ["refused", *map(str, error.problems)]
    except (PerfsimError, ValueError) as error:
        return ["refused", str(error)]


def descriptions() -> Iterator[type[Spec]]:
    """The classes of descriptions, by file."""
    for module in iter_modules(perfsim.specs.__path__):
        found = import_module(f"perfsim.specs.{module.name}")
        for _, kind in inspect.getmembers(found, inspect.isclass):
            if issubclass(kind, Spec) and kind.__module__ == found.__name__ and "[" not in kind.__name__:
                yield kind


def accepts(kind: type[Spec], field: str) -> list[str]:
    """What the field of a description says to each probe."""
    said = []
    for probe in PROBES:
        try:
            kind.model_validate({field: probe})
            words = []
        except ValidationError as error:
            words = [refused_value(one) for one in error.errors() if one["loc"][:1] == (field,)]
        said.append(f"{probe!r}: {'; '.join(words) or 'accepted'}")
    return said


def test_fields_accept_what_they_did(recorded: Recorded) -> None:
    said: dict[str, Any] = {}
    for kind in descriptions():
        for name in inspect.get_annotations(kind):
            if (field := kind.model_fields.get(name)) is not None:
                usual = plain(field.get_default(call_default_factory=True))
                default = "needed" if field.is_required() else usual
                row = {"default": default, "accepts": accepts(kind, name)}
                said[f"{kind.__name__}.{name}".lstrip("_")] = row
    recorded("specs_fields", said)


def test_tables_say_what_they_did(recorded: Recorded) -> None:
    tables = {"layout": AXES, "optimizers": OPTIMIZERS, "precisions": PRECISIONS, "trainers": TRAINERS}
    recorded("specs_tables", {name: plain({**table}) for name, table in tables.items()})


def test_layouts_are_read_and_told_as_they_were(inputs: Inputs, recorded: Recorded) -> None:
    said: dict[str, Any] = {}
    for text in (*inputs["layouts"], *inputs["wrong layouts"]):
        said[text] = {"read": answer(parsed, text, ParallelLayout)}
    for text in inputs["layouts"]:
        layout = ParallelLayout(**parsed(text, ParallelLayout))
        members = inspect.getmembers(ParallelLayout, lambda member: isinstance(member, property))
        said[text] |= {name: plain(getattr(layout, name)) for name, _ in members}
        said[text] |= {"text": text_of(layout), "json": plain(layout.as_dict(4)), "run by": that_run(layout)}
        limits = [Limits(tool, month) for tool in TRAINERS for month in inputs["months"]]
        said[text]["lacks"] = {f"{one.tool} {one.month}": one.lacks(layout) for one in limits}
    for text in inputs["layouts of wafers"]:
        settings = answer(parsed, text, StreamingLayout)
        layout = StreamingLayout(**settings) if isinstance(settings, dict) else None
        said[f"wafers: {text}"] = [settings, layout and plain(layout.as_dict(4))]
    recorded("specs_layouts", said)


def told(described: Any) -> dict[str, Any]:
    """What a description derives from its fields."""
    members = inspect.getmembers(type(described), lambda member: isinstance(member, property))
    names = (name for name, _ in members if not name.startswith(("model_", "__")))
    return {name: plain(getattr(described, name)) for name in names}


def test_the_catalogue_derives_what_it_did(
    inputs: Inputs, recorded: Recorded, constants_of: Callable[[Calibration], dict[str, Any]]
) -> None:
    catalog = default_catalog()
    said: dict[str, Any] = {}
    for kind, names in inputs["catalogue"].items():
        for name in names:
            described = getattr(catalog, kind)(name)
            said[f"{kind} {name}"] = told(described)
            if kind == "system":
                said[f"{kind} {name}"] |= {
                    "machines": [described.machine(devices) for devices in (1, 4, 8, 24, 72, 1024)],
                    "device": told(described.device),
                    "constants": len(constants_of(described.device.calibration)),
                    "node": [
                        [told(node := described.node.of_job(devices)), node.devices, node.nics, node.lanes(4)]
                        for devices in (8, 24, 80, 144)
                        if hasattr(described, "node")
                    ],
                }
            elif kind == "recipe":
                said[f"{kind} {name}"]["batches"] = [described.batch_over(devices) for devices in (1, 64)]
            elif kind == "model":
                kinds = Counter(kind.words for kind in layer_kinds(described))
                said[f"{kind} {name}"]["layers"] = dict(kinds)
    recorded("specs_catalogue", said)


def test_perturbations_are_read_and_told_as_they_were(inputs: Inputs, recorded: Recorded) -> None:
    said = {}
    for text in inputs["perturbations"]:
        read = answer(parse_perturbations, text)
        said[text] = [read, parse_perturbations(text).text if isinstance(read, dict) else ""]
    recorded("specs_perturbations", said)


def test_the_nearest_name_is_what_it_was(inputs: Inputs, recorded: Recorded) -> None:
    said = {word: [did_you_mean(word, names) for names in inputs["names"]] for word in inputs["words"]}
    recorded("base_names", said)


@pytest.mark.parametrize("dimension", ["bytes", "bytes_per_s", "flop_per_s", "seconds", "watts"])
def test_quantities_read_and_write_as_they_did(dimension: Any, inputs: Inputs, recorded: Recorded) -> None:
    said: dict[str, Any] = {"units": accepted_units(dimension), "pattern": quantity_pattern(dimension)}
    said["read"] = {text: answer(parse_quantity, text, dimension) for text in inputs["quantities"]}
    for digits in (6, 3, None):
        said[f"written {digits}"] = [format_quantity(value, dimension, digits) for value in inputs["values"]]
    recorded(f"base_{dimension}", said)


def changed(described: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """A description with changes."""
    made = described.with_(**changes)
    batch = made.batch_over(64) if hasattr(made, "batch_over") else None
    node = told(made.node) if hasattr(made, "node") else None
    return {"name": made.name, "assumed": made.assumed, "batch": batch, "node": node, **told(made)}


def test_changes_of_descriptions_are_made_or_refused_as_they_were(inputs: Inputs, recorded: Recorded) -> None:
    catalog = default_catalog()
    said: dict[str, Any] = {}
    for kind, name, changes in inputs["changes"]:
        described = getattr(catalog, kind)(name)
        said[f"{kind} {name} {changes}"] = answer(changed, described, changes)
    for price in inputs["prices"]:
        said[f"price {price}"] = PriceSpec.model_validate(price).text("USD")
    for pattern in inputs["stages"]:
        said[f"stages {pattern}"] = answer(layers_of_stages, pattern)
    recorded("specs_changes", said)
