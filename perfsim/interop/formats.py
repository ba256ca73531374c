"""Foreign files: their formats, told apart by what stands in them, and the descriptions that they become."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from perfsim.base.errors import InputError, Problem, refused_values
from perfsim.base.sizes import MOST_LAYERS
from perfsim.base.spec import CatalogSpec
from perfsim.base.text import GAP
from perfsim.base.units import YAML_CONTEXT
from perfsim.interop import CHAKRA, READ, tool_named
from perfsim.interop.nearest_model import Gap
from perfsim.interop.source import Source, Syntax, leaves, nested
from perfsim.interop.tool import Reading, Step
from perfsim.specs.layout import ParallelLayout, text_of
from perfsim.specs.model import TransformerConfig
from perfsim.specs.recipe import RUNTIME_FIELDS, Recipe
from perfsim.specs.stacks import RUNTIMES

BASE_RECIPE = "gpt3_pretraining"
"""The recipe of the catalogue that an imported one extends: what a file does not say."""
BASE_FRAMEWORK = "megatron-2021"
"""The framework whose runtime an imported one extends where the file tells no other."""
LONGEST_NAME = 64
"""Characters of an imported name."""
SHOWN_KEYS = 24
"""Keys that were not used and stand in the text; JSON has all of them."""
USUAL_NAMES = ("", "config", "params", "model", "train", "config.json")
"""Names of files that tell nothing; the folder's name is taken."""
IN_CASE = {
    "layout in parallel": "tensor pipeline data virtual_pipeline sequence_parallel zero_stage schedule "
    "layers_per_stage shard_group context=context_parallel context_exchange=context_comm "
    "expert=expert_parallel expert_tensor=expert_tensor_parallel",
    "layout in training": "micro_batch_size recompute",
    "recipe in training": "precision attention reduce_precision overlap_grad_reduce "
    "dispatcher=moe_dispatcher expert_capacity=moe_capacity_factor routing=moe_force_balance "
    "grouped_products=moe_grouped_gemm",
    "recipe in model": "seq_length",
    "model in model": "num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups head_dim "
    "vocab_size gated_mlp bias tied_embeddings position_embedding sliding_window sliding_window_pattern "
    "mtp_num_layers=mtp_layers",
    "model.latent_attention in model": "q_lora_rank kv_lora_rank qk_rope_head_dim v_head_dim "
    "qk_nope_head_dim=qk_head_dim",
    "model.experts in model": "top_k num_experts=experts ffn_hidden_size=moe_ffn_hidden_size "
    "shared_ffn_hidden_size=shared_expert_ffn first_dense_layers=dense_layers interval=moe_layer_interval",
}
"""Our fields by the section of a case of measured steps that has them: `ours`, or `ours=theirs`."""
CASE = {
    f"{owner}.{name}": f"{section}.{other or name}"
    for (owner, _, section), names in ((parts.split(), names) for parts, names in IN_CASE.items())
    for name, _, other in (word.partition("=") for word in names.split())
}
CASE_WORDS: Mapping[str, Mapping[Any, Any]] = {
    "layout.context_exchange": {"all_to_all": "a2a"},
    "recipe.dispatcher": {"all_to_all": "alltoall", "all_gather": "allgather"},
    "recipe.routing": {"balanced": True},
}
"""Our values that have another word in a case."""


@dataclass(frozen=True)
class Imported:
    """A foreign file as a description of perfsim, with what was not used and what cannot be said."""

    format: str
    kind: str
    """Of the document: model, recipe, measured, convergence or trace."""
    document: dict[str, Any]
    """The description, as YAML files hold it."""
    parameters: int | None = None
    """Of the model of the file, with embedding and untied head; None without a model."""
    unused_keys: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
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
    def assumed(self) -> dict[str, str]:
        """What the document cannot express, as a description keeps it (`gaps_of`)."""
        return {f"{GAP} {number}": words for number, words in enumerate(self.unsupported, 1)}

    @property
    def changes_model(self) -> bool:
        """Whether the document describes another model than the file, because it cannot be expressed."""
        return any(gap.changes_model for gap in self.gaps)

    def as_dict(self) -> dict[str, Any]:
        """The result as `perfsim import --json` prints it."""
        names = "kind format parameters unused_keys unsupported document recipe layout devices"
        steps = [asdict(step) for step in self.steps]
        shown = {name: getattr(self, name) for name in names.split()}
        return {**shown, "layout": self.layout or None, "measured_steps": steps}

    def remarks(self) -> list[str]:
        """The count, the unused keys and the gaps, one line each."""
        lines = [] if self.parameters is None else [f"{self.parameters:,} parameters"]
        if number := len(self.unused_keys):
            names = ", ".join([*self.unused_keys[:SHOWN_KEYS], *(["..."] if number > SHOWN_KEYS else [])])
            lines.append(f"{number} key{'s' if number > 1 else ''} not used: {names}")
        lines += [f"not expressible: {text}" for text in self.unsupported]
        if self.kind in ("model", "recipe") and self.layout:
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
        assumed = {"assumed": self.assumed} if self.kind == "model" and self.gaps else {}
        body = yaml.safe_dump(self.document | assumed, sort_keys=False, allow_unicode=True, width=140)
        return "\n".join([*comments, body])


def import_file(
    path: str | Path,
    format: str = "",  # noqa: A002  # as `--format`
    *,
    part: str = "",
    model: str | Path = "",
    system: str = "",
    given: Mapping[str, Any] | None = None,
    more: Sequence[str | Path] = (),
) -> Imported:
    """All that a foreign file says: model, recipe, layout, parameter count, and what was not used.

    The format is recognised by the content unless it is given. `part` chooses the document (model, recipe,
    measured, convergence); by default the model where there is one. `model` is what a file without one
    (DeepSpeed) trains, `system` the machine of measured steps, `given` are values by key that the file lacks,
    and `more` are logs of further MLPerf runs. Raises InputError with every problem, at its line.
    """
    path = Path(path)
    if format in ("", CHAKRA):
        from perfsim.interop.chakra import ExecutionTrace

        if format or ExecutionTrace.recognise(path):
            return Imported(CHAKRA, "trace", ExecutionTrace.read(path).summary())
    source = replace(Source.read(path, given), model=str(model))
    for other in map(Path, more):
        logs = (source.text, Source.read(other).text)
        if not all(map(tool_named("mllog").recognise, logs)):
            raise InputError([Problem("several files can only be logs of MLPerf runs", str(other))])
        source = replace(source, text="\n".join(logs))
    name, reading = read(source, format)
    if spare := [key for key in given or {} if key not in reading.settings.used]:
        raise InputError([Problem(f"--set {key}: this format has no use for it here") for key in spare])
    title = tool_named(name).title
    documents = {
        "measured": measured_document(reading, system) if system else None,
        "model": _model_document(reading, title),
        "recipe": _recipe_document(reading, title),
        "convergence": reading.points,
    }
    present = {kind: document for kind, document in documents.items() if document is not None}
    kind = part or next(iter(present), "")
    if kind not in present:
        if part == "measured":
            source.refuse("measured steps need the machine on which they ran", "add --system NAME")
        there = f"the file has {', '.join(present) or 'nothing to import'}"
        source.refuse(f"there is no {kind or 'model'} in this file of {title}", there)
    layout = [] if reading.layout is None else text_of(reading.layout).split(",")
    if reading.devices is None:  # the number of replicas then follows from --devices
        layout = [setting for setting in layout if not setting.startswith("dp=")]
    return Imported(
        format=name,
        kind=kind,
        document=present[kind],
        parameters=None if reading.model is None else reading.model.parameters,
        unused_keys=reading.settings.unused(),
        gaps=reading.gaps,
        recipe=present.get("recipe"),
        layout=",".join(layout),
        devices=reading.devices,
        steps=reading.steps,
    )


def read_model(path: Path, format_name: str = "") -> TransformerConfig:
    """The model of a foreign file with its gaps in `assumed`; InputError where it would be another model."""
    result = import_file(path, format_name, part="model")
    if result.changes_model:
        lacking = [f"cannot be expressed: {gap.text}" for gap in result.gaps if gap.changes_model]
        help_text = f"perfsim import {path} --out FILE.yaml writes the nearest model, to be used knowingly"
        raise InputError([Problem(text, str(path), 1, help=help_text) for text in lacking])
    return TransformerConfig.model_validate(result.document | {"assumed": result.assumed})


def read(source: Source, format_name: str = "") -> tuple[str, Reading]:
    """The format of a file and all that it says."""
    matches = _matches(source, (format_name,) if format_name else READ)
    if format_name and not matches:
        documents = _documents(source, format_name)
        matches = {format_name: next(documents, None) or source.parsed(tool_named(format_name).syntaxes[0])}
    if len(matches) == 1:
        ((name, document),) = matches.items()
        return name, tool_named(name).read(source, document)
    if matches:
        names = ", ".join(matches)
        source.refuse(f"this may be a file of {names}", "choose with --format " + " or ".join(matches))
    known = ["formats and what they are recognised by:"]
    known += [f"    {CHAKRA}: a Chakra execution trace, by its metadata"]
    known += [f"    {name}: {tool_named(name).title}, by {tool_named(name).sign}" for name in READ]
    problems = [source.problem("no known format was recognised", "\n".join(known))]
    # It may be a file with a mistake in the syntax that its name or first character promises.
    begins_as: Syntax = "json" if source.text.lstrip().startswith("{") else "text"
    by_name: dict[str, Syntax] = {".json": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}
    try:
        source.parsed(by_name.get(source.path.suffix, begins_as))
    except InputError as error:
        problems = [*error.problems, *problems]
    raise InputError(problems)


def format_of(path: Path) -> str:
    """The foreign format of a file; empty where it has none, or is no text."""
    try:
        return next(iter(_matches(Source.read(path))), "")
    except InputError:
        return ""


def _matches(source: Source, names: Sequence[str] = READ) -> dict[str, Any]:
    """The formats that recognise a file, with its document in the first syntax in which they do."""
    found = {name: next(filter(tool_named(name).recognise, _documents(source, name)), None) for name in names}
    return {name: document for name, document in found.items() if document is not None}


def _documents(source: Source, name: str) -> Iterator[Any]:
    """The document in each syntax of a format in which the file can be parsed."""
    return (source.documents[syntax] for syntax in tool_named(name).syntaxes if syntax in source.documents)


def _name(reading: Reading) -> str:
    """The name of the imported description, from the file: one safe path component."""
    path = reading.settings.source.path
    stem = re.sub(r"[-_.]?config$", "", path.name.split(".json")[0].removesuffix(path.suffix))
    if stem.casefold() in USUAL_NAMES:
        stem = path.resolve().parent.name
    words = (re.sub(r"[^A-Za-z0-9._-]+", "_", name) for name in (reading.name, stem))
    return next(filter(None, (word[:LONGEST_NAME].strip("._-") for word in words)), "imported")


def _model_document(reading: Reading, title: str) -> dict[str, Any] | None:
    """The YAML of the nearest model. Raises InputError for numbers that no model can have."""
    if reading.model is None:
        return None
    document = {"name": _name(reading), "description": f"Imported from {title}", **reading.model.fields}
    return _validated(reading, TransformerConfig, document)


def _recipe_document(reading: Reading, title: str) -> dict[str, Any] | None:
    """The YAML of a recipe; None where the file says nothing about training."""
    fields = {key: value for key, value in reading.recipe.items() if value is not None}
    if not fields:
        return None
    settings = {key: fields.pop(key) for key in RUNTIME_FIELDS if key in fields}
    base = RUNTIMES[settings.pop("framework", BASE_FRAMEWORK)]
    name = _name(reading)
    described = {"name": name, "description": f"Imported from {title}; the rest is {BASE_RECIPE}'s"}
    _validated(reading, Recipe, {"seq_length": 1, **described, **fields, "runtime": settings})
    runtime = {"name": name, "extends": base, **settings} if settings else base
    return {**described, "extends": BASE_RECIPE, **fields, "runtime": runtime}


def _validated(reading: Reading, spec: type[CatalogSpec], document: dict[str, Any]) -> dict[str, Any]:
    """Raises InputError for a description that its class refuses."""
    try:
        spec.model_validate(document, context=YAML_CONTEXT)
    except ValidationError as error:
        source = reading.settings.source
        raise InputError([source.problem(words) for words in refused_values(error.errors())]) from None
    return document


def measured_document(reading: Reading, device: str, *, alone: bool = True) -> dict[str, Any]:
    """The YAML of the measured steps of a run on `device`, one case for each batch size.

    A run with a single batch size that stands `alone` is divided into intervals. Raises InputError for
    a log without steps, or without the number of ranks, and for a model that cannot be expressed.
    """
    source = reading.settings.source
    layout = reading.layout
    if not reading.steps:
        source.refuse("no measured step: there is no line with `elapsed time per iteration`")
    if reading.model is None or not isinstance(layout, ParallelLayout) or reading.devices is None:
        help_text = "the dump of arguments has world_size; or --set world_size=N"
        source.refuse("the number of ranks is unknown", help_text)
    _model_document(reading, "")  # refuses numbers that no model can have
    if lacking := [gap.text for gap in reading.gaps if gap.changes_model]:
        raise InputError([source.problem(f"cannot be expressed: {text}") for text in lacking])
    steps = reading.intervals if alone and len(reading.steps) == 1 else reading.steps
    batches = [step.global_batch_size or reading.recipe.get("global_batch_size") for step in steps]
    if None in batches:
        source.refuse("the global batch size is unknown", "give it with --set global_batch_size=N")
    fields = reading.model.fields
    shape = {"sliding_window_pattern": MOST_LAYERS, **fields} if "sliding_window" in fields else fields
    trees = {"model": shape, "layout": asdict(layout), "recipe": reading.recipe}
    said = {
        CASE[key]: CASE_WORDS.get(key, {}).get(value, value)
        for key, value in leaves(trees)
        if key in CASE and value is not None
    }
    if "latent_attention" in fields:
        said["model.attention_type"] = "mla"
    name = _name(reading)
    cases = [
        {
            "id": f"{name}-{number}",
            "system": {"device": device, "num_devices": reading.devices},
            "strategy": "zero3" if layout.zero_stage == 3 else "3d",
            # YAML would write an object that stands in two cases as a reference.
            **deepcopy(nested({**said, "training.global_batch_size": batch})),
            "measured": {"step_time_s": step.step_time_s},
        }
        for number, (batch, step) in enumerate(zip(batches, steps, strict=True), 1)
    ]
    return {"schema": 1, "cluster": name, "cases": cases}
