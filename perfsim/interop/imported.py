"""What was read from a foreign file: a model, how it is trained, its layout, its measured steps."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

import yaml
from pydantic import ValidationError

from perfsim.base.errors import InputError, refused_values
from perfsim.base.spec import CatalogSpec
from perfsim.base.units import YAML_CONTEXT
from perfsim.interop.nearest_model import Nearest
from perfsim.interop.source import Gap, Settings
from perfsim.specs.layout import Layout, ParallelLayout
from perfsim.specs.model import TransformerConfig
from perfsim.specs.recipe import RUNTIME_FIELDS, Recipe

BASE_RECIPE = "gpt3_pretraining"
"""The recipe of the catalogue that an imported one extends: what a file does not say."""
BASE_RUNTIME = "megatron_2021"
"""The runtime of the catalogue that an imported one extends."""
LONGEST_NAME = 64
SHOWN_KEYS = 24
"""Keys that were not used and stand in the text; JSON has all of them."""
USUAL_NAMES = ("config", "params", "model", "train", "config.json")
"""Names of files that tell nothing; the folder's name is taken."""


@dataclass(frozen=True)
class Step:
    """Steps of one batch size that were measured in a run."""

    global_batch_size: int
    step_time_s: float
    """Median over the iterations."""
    iterations: int


@dataclass(frozen=True)
class Reading:
    """What a format's reader took from a file."""

    settings: Settings
    model: Nearest | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    """Fields of a `Recipe` and of its `Runtime`."""
    layout: Layout | None = None
    devices: int | None = None
    steps: tuple[Step, ...] = ()
    points: dict[str, Any] | None = None
    """A convergence case."""
    name: str = ""

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Gaps of the model and of the rest, those first that change the model."""
        of_model = [] if self.model is None else self.model.gaps()
        return tuple(sorted([*of_model, *self.settings.gaps], key=lambda gap: not gap.changes_model))

    @property
    def title(self) -> str:
        """The name of the imported description, from the file: one safe path component."""
        path = self.settings.source.path
        stem = re.sub(r"[-_.]?config$", "", path.name.split(".json")[0].removesuffix(path.suffix))
        if not stem or stem.casefold() in USUAL_NAMES:
            stem = path.resolve().parent.name
        return _safe(self.name) or _safe(stem) or "imported"

    def model_document(self, title: str) -> dict[str, Any]:
        """The YAML of the nearest model. Raises InputError for numbers that no model can have."""
        if self.model is None:
            raise InputError([self.settings.source.problem("there is no model in this file")])
        document = {"name": self.title, "description": f"Imported from {title}", **self.model.fields}
        self._validate(TransformerConfig, document)
        return document

    def recipe_document(self, title: str) -> dict[str, Any] | None:
        """The YAML of a recipe; None where the file says nothing about training."""
        fields = {key: value for key, value in self.recipe.items() if value is not None}
        if not fields:
            return None
        described = {"name": self.title, "description": f"Imported from {title}; the rest is {BASE_RECIPE}'s"}
        settings = {key: fields.pop(key) for key in RUNTIME_FIELDS if key in fields}
        # The framework is a name of the catalogue.
        stated = {key: value for key, value in settings.items() if key != "framework"}
        self._validate(Recipe, {"seq_length": 1, **described, **fields, "runtime": stated})
        runtime = {"name": self.title, "extends": BASE_RUNTIME, **settings} if settings else BASE_RUNTIME
        return {**described, "extends": BASE_RECIPE, **fields, "runtime": runtime}

    def _validate(self, spec: type[CatalogSpec], document: dict[str, Any]) -> None:
        """Raises InputError for a description that its class refuses."""
        try:
            spec.model_validate(document, context=YAML_CONTEXT)
        except ValidationError as error:
            source = self.settings.source
            raise InputError([source.problem(words) for words in refused_values(error.errors())]) from None


@dataclass(frozen=True)
class Imported:
    """A foreign file as a description of perfsim, with what was not used and what cannot be said."""

    format: str
    kind: str
    """Of the document: model, recipe, measured, convergence or trace."""
    document: dict[str, Any]
    """The description, as YAML files hold it."""
    parameters: int | None
    """Of the model of the file, with embedding and untied head; None without a model."""
    unused_keys: tuple[str, ...]
    gaps: tuple[Gap, ...]
    recipe: dict[str, Any] | None = None
    layout: str = ""
    """As `--layout` takes it; empty where the file has none."""
    devices: int | None = None
    steps: tuple[Step, ...] = ()

    @property
    def unsupported(self) -> tuple[str, ...]:
        """What the document cannot express, in words."""
        return tuple(gap.text for gap in self.gaps)

    @property
    def changes_model(self) -> bool:
        """Whether the document describes another model than the file, because it cannot be expressed."""
        return any(gap.changes_model for gap in self.gaps)

    def as_dict(self) -> dict[str, Any]:
        """The result as `perfsim import --json` prints it."""
        return {
            "kind": self.kind,
            "format": self.format,
            "parameters": self.parameters,
            "unused_keys": list(self.unused_keys),
            "unsupported": list(self.unsupported),
            "document": self.document,
            "recipe": self.recipe,
            "layout": self.layout or None,
            "devices": self.devices,
            "measured_steps": [asdict(step) for step in self.steps],
        }

    def remarks(self) -> list[str]:
        """The count, the unused keys and the gaps, one line each."""
        lines = [] if self.parameters is None else [f"{self.parameters:,} parameters"]
        if self.unused_keys:
            plural = "s" if len(self.unused_keys) > 1 else ""
            names = [*self.unused_keys[:SHOWN_KEYS], *(["..."] if len(self.unused_keys) > SHOWN_KEYS else [])]
            lines.append(f"{len(self.unused_keys)} key{plural} not used: {', '.join(names)}")
        lines += [f"not expressible: {text}" for text in self.unsupported]
        if self.kind == "model" and self.layout:
            devices = f", {self.devices} devices" if self.devices else ""
            lines.append(f"layout of the file: {self.layout}{devices}")
        if self.kind == "model" and self.recipe:
            lines.append("its recipe: perfsim import --part recipe")
        return lines

    def text(self) -> str:
        """The document as a YAML file, with the remarks as comments."""
        remarks = (f"# {line}" for line in (f"Imported from {self.format}", *self.remarks()))
        # A character that would end a comment is replaced.
        comments = ["".join(char if char.isprintable() else "?" for char in line) for line in remarks]
        body = yaml.safe_dump(self.document, sort_keys=False, allow_unicode=True, width=140)
        return "\n".join([*comments, body])


def layout_text(layout: Layout | None, *, whole: bool = True) -> str:
    """A layout as `--layout` takes it, without the settings that have their defaults.

    Unless it is `whole`, the number of replicas is left out, which then follows from `--devices`.
    """
    if layout is None:
        return ""
    usual: Any = type(layout)()
    short = {"data": "dp", "micro_batch_size": "mbs"}
    if isinstance(layout, ParallelLayout):
        short |= {"tensor": "tp", "pipeline": "pp", "virtual_pipeline": "vpp"}
        short |= {"zero_stage": "zero", "sequence_parallel": "sp"}
    parts = []
    for key, value in asdict(layout).items():
        if key == "data" and not whole:
            continue
        if value != getattr(usual, key) or key in ("data", "micro_batch_size"):
            written = "-".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            parts.append(f"{short.get(key, key)}={written.lower() if isinstance(value, bool) else written}")
    return ",".join(parts)


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:LONGEST_NAME].strip("._-")
